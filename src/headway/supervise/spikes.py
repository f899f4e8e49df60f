r"""A spike that ended a segment: what the next one does about it.

    segment 4   ... 900 ...... 1,000 x spike            its trainer saved nothing of it, and left the evidence in its last row
    segment 5   restored 900   batches 900-1,199 left out   reason, evidence, skips and rates stand in its record
    ...
                another spike soon: a lower rate from the restored step on; too often in a row: the run stops and asks

What is pending is read from the records, so that an owner that died over it changes nothing. What was decided stays in force
in every later segment, also where an older checkpoint is restored: skips name positions of the stream, rates steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from headway.base.errors import RunError
from headway.data.stream import Stream, stream_coverage
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.recipe.spike_rules import OnSpike, SpikeRules
from headway.rundir.events import read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_steps
from headway.rundir.segments import ACCEPTED, ROLLED_BACK, Segment, read_segments
from headway.store.admissible import Choice
from headway.supervise.attempt import Watch

ENDED = "spike"
"""The end of a trainer that stopped at a spike."""
ASKED = "stop"
"""What an event of a spike says where a person is to decide."""


class Answer(StrEnum):
    """Of a person, to a spike at which a run stopped."""

    ROLL_BACK = "roll-back"
    ACCEPT = "accept"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """``recurrence``: how many roll-backs went before in this series; 0: it is the first."""

    spike: dict[str, Any]
    segment: int  # that it ended
    action: str
    recurrence: int


class Spikes:
    """``consider`` before each attempt, ``choose`` where it goes on from, ``applied`` to its segment."""

    def __init__(self, watch: Watch, answer: Answer | None = None):
        self._watch, self._answer = watch, answer
        self._rules = SpikeRules.of(watch.run.spec())
        self._decision: Decision | None = None

    @property
    def goes_back(self) -> bool:
        """Whether what comes next undoes steps on purpose."""
        return self._decision is not None and self._decision.action == ROLLED_BACK

    def consider(self) -> str:
        """Why a person has to decide; empty: nobody has."""
        self._decision = None
        answer, segments = self._answer, read_segments(self._watch.run)
        spike = pending_spike(self._watch.run, segments)
        if spike is None:
            return ""
        newest = segments[-1]
        recurrence = recurrence_of(self._rules, newest.spikes, spike)
        if answer is None and self._was_asked(newest.id):
            return ""  # a resume that says nothing: the same steps once more, in case the machine had been at fault
        again = self._rules.policy is OnSpike.ROLL_BACK and recurrence < self._rules.most_roll_backs
        if answer is None and not again:
            self._watch.record("spike", segment=newest.id, action=ASKED, **spike)
            return self._question(spike, recurrence)
        action = ACCEPTED if answer is Answer.ACCEPT else ROLLED_BACK
        self._decision = Decision(spike=spike, segment=newest.id, action=action, recurrence=recurrence)
        return ""

    def _was_asked(self, segment: int) -> bool:
        events = read_events(self._watch.run)
        return any((e["kind"], e.get("segment"), e.get("action")) == ("spike", segment, ASKED) for e in events)

    def _question(self, spike: dict[str, Any], recurrence: int) -> str:
        why = f"{recurrence} roll-backs in a row did not help" if recurrence else "interventions.spikes asks for a person"
        answers = " or ".join(f"--spike {answer}" for answer in Answer)
        return f"step {spike['step']} is a spike, and {why}: headway resume {self._watch.run.root} {answers}"

    def choose(self, find: Callable[[list[Segment]], Choice], chain: list[Segment]) -> Choice:
        """As ``find``; for a roll-back among what is old enough. Where that was committed once and is gone or damaged, among
        all that lies before the spike: never from scratch because of it."""
        if self._decision is None or not self.goes_back:
            return find(chain)
        step = self._decision.spike["step"]
        try:
            return find(before(chain, step - max(1, self._rules.rewind_steps)))
        except RunError as error:
            self._watch.record("note", text=f"nothing {self._rules.rewind_steps} steps before the spike can be used: {error}")
            return find(before(chain, step - 1))

    def applied(self, segment: Segment, segments: Sequence[Segment]) -> Segment:
        """``segment`` with what is in force since the newest, and with what was decided now. RunError beyond a source's cap."""
        if not segments:
            return segment
        newest, decision = segments[-1], self._decision
        self._answer = None
        segment = replace(segment, skips=newest.skips, rates=newest.rates, spikes=newest.spikes)
        if decision is None:
            return segment
        record = decision.spike | {"segment": decision.segment, "action": decision.action}
        if decision.action == ROLLED_BACK:
            segment, told = self._rolled_back(segment, newest, decision)
            record |= told
        self._watch.record("spike", **record)
        return replace(segment, spikes=(*newest.spikes, record), reason=_reason(record))

    def _rolled_back(self, segment: Segment, newest: Segment, decision: Decision) -> tuple[Segment, dict[str, Any]]:
        spec, rules, spike, restored = self._watch.run.spec(), self._rules, decision.spike, segment.restored_step
        told: dict[str, Any] = {"restored": restored, "recurrence": decision.recurrence}
        if rules.skip_batches:
            skips = skips_after(spec, newest, spike["step"], restored)
            segment = replace(segment, skips=skips)
            told["skipped_batches"] = rules.skip_batches
            _refuse_beyond_caps(spec, segment)
        if decision.recurrence and rules.recurrence_rate_factor < 1:
            rates = rates_after(newest.rates, spike["step"], restored, rules.recurrence_rate_factor)
            segment = replace(segment, rates=rates)
            told["rate_factor"] = rates[-1]["factor"]
        return segment, told


def pending_spike(run: RunDirectory, segments: Sequence[Segment]) -> dict[str, Any] | None:
    """The evidence, where the newest segment ended at a spike and no other was written since."""
    rows = read_steps(run, segments[-1].id) if segments else []
    end = next((row for row in reversed(rows) if row["kind"] == "end"), None)
    return end.get("spike") if end is not None and end["state"] == ENDED else None


def recurrence_of(rules: SpikeRules, spikes: Sequence[Mapping[str, Any]], spike: Mapping[str, Any]) -> int:
    """How many roll-backs went before in a series of spikes that followed closely; ``spikes``: the records so far."""
    last = next((one for one in reversed(spikes) if one["action"] == ROLLED_BACK), None)
    if last is None or not last["restored"] < spike["step"] <= last["step"] + rules.recurs_within_steps:
        return 0
    return last["recurrence"] + 1


def before(chain: list[Segment], step: int) -> list[Segment]:
    """``chain`` as if a segment had gone on from ``step``: nothing later is admissible."""
    kept = [segment for segment in chain if segment.restored_step < step] or chain[:1]
    return [*kept, replace(chain[-1], id=chain[-1].id + 1, parent=kept[-1].id, restored_step=max(0, step))]


def skips_after(spec: Spec, newest: Segment, step: int, restored: int) -> tuple[dict[str, int], ...]:
    """The skip records once the batches around spike step ``step`` (from 1) are left out as well. They lie apart.

    ``newest``: the segment that met it. The first batch left out is no earlier than ``restored``, or than the spike's stage.
    """
    rules, schedule, stream = SpikeRules.of(spec), Schedule(spec), Stream.of_segment(spec, newest)
    stage = schedule.place(step - 1).stage
    begin = max(step - 1 - rules.margin_batches, restored, schedule.first_step(stage))
    first = int(stream.stream_index(stage, np.array([schedule.place(begin).first_sequence]))[0])
    end = stream.reached(stage, _sequence_after(schedule, stage, begin, rules.skip_batches))
    others = [dict(one) for one in newest.skips if one["stage"] != stage]
    gaps = [{"stage": stage, "first": a, "count": b - a} for a, b in _union([*stream.gaps(stage), (first, end)])]
    return tuple(sorted([*others, *gaps], key=lambda one: (one["stage"], one["first"])))


def _sequence_after(schedule: Schedule, stage: int, begin: int, batches: int) -> int:
    """The trained index of ``stage`` after ``batches`` batches from step ``begin`` on, as if it went on beyond its end."""
    end = schedule.first_step(stage) + schedule.stage_steps(stage)
    if begin + batches < end:
        return schedule.place(begin + batches).first_sequence
    last = schedule.place(end - 1)
    return last.end_sequence + (begin + batches - end) * last.batch_sequences


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[first, end), apart and in order."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def rates_after(rates: Sequence[Mapping[str, Any]], step: int, restored: int, factor: float) -> tuple[dict[str, Any], ...]:
    """From the restored step on, ``factor`` times what the rate was multiplied by at spike step ``step`` (from 1)."""
    in_force = next((one["factor"] for one in reversed(rates) if one["first"] <= step - 1), 1.0)
    return (*(dict(one) for one in rates if one["first"] < restored), {"first": restored, "factor": in_force * factor})


def _refuse_beyond_caps(spec: Spec, segment: Segment) -> None:
    for taken in stream_coverage(Stream.of_segment(spec, segment)):
        if not taken.within_cap:
            raise RunError(
                f"skipping the batches around the spike would carry source {taken.source} beyond its cap",
                f"cap: {taken.cap_epochs} epochs; the stages and what is skipped take {taken.epochs:.2f}",
                "go on over the spike with headway resume --spike accept, or start a new run with a higher cap",
            )


def _reason(record: Mapping[str, Any]) -> str:
    if record["action"] == ACCEPTED:
        return f"spike in step {record['step']}: accepted"
    words = [f"spike in step {record['step']}: back to step {record['restored']}"]
    words += [f"{record['skipped_batches']} batches skipped"] if "skipped_batches" in record else []
    words += [f"rate x {record['rate_factor']:g}"] if "rate_factor" in record else []
    return ", ".join(words)
