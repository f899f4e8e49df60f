"""One look at a run: state, progress, where the time went, what is wrong. Reads records only; starts and changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.base.clocks import Clock, SystemClock
from headway.monitor.alarms import Finding, find_alarms
from headway.monitor.delivery import Delivery, delivery
from headway.monitor.interval_view import IntervalReport, interval_report
from headway.monitor.ledger import Ledger, build_ledger
from headway.monitor.nodes import Nodes, nodes_of
from headway.recipe.schedules import Schedule
from headway.rundir.events import EventChain, read_event_chain, unfinished_launch, with_open_pause
from headway.rundir.layout import RunDirectory
from headway.rundir.lease import LeaseView, glance_seconds, observe
from headway.rundir.metrics import StepRows, encode_row, read_step_rows, split_rows
from headway.rundir.processes import is_alive
from headway.rundir.segments import Segment, current_chain, deployment_of, read_segments
from headway.store.admissible import CheckpointInfo, list_checkpoints, refusals

ALARM_STEPS = 64
"""A finding older than this many steps is history: it is listed, and no longer calls for anybody."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """``state``: created, running, paused, complete, stopped, requeued, failed, crashed (owner died), orphan (trainer lives)."""

    name: str
    state: str
    reason: str
    owner: dict[str, Any]  # empty when nobody ever owned it
    owner_alive: bool
    segment: int | None  # the current one
    restarts: int  # segments after the first, whoever started them
    step: int
    total_steps: int
    tokens: int
    total_tokens: int
    seconds_left: float | None  # at the pace of the current segment, saves and evaluations included; None: it is not running
    stage: str | None
    loss: float | None
    held_out: dict[str, float]  # nats per token
    bits_per_byte: dict[str, float]  # held out; empty in older runs
    checkpoint: str | None  # newest committed one on the chain
    checkpoint_step: int
    checkpoints: tuple[CheckpointInfo, ...]  # all that lie there: of the chain, unfinished, and those kept as evidence
    late_records: tuple[dict, ...]  # events of owners that had lost the run: shown, no part of what happened
    findings: tuple[Finding, ...]
    delivery: Delivery | None  # how the input came; None: not recorded
    interval: IntervalReport | None  # between checkpoints: in force, why, what another would cost; None: no step yet
    nodes: Nodes | None  # None: one machine
    ledger: Ledger

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that still call for somebody: those of the newest steps of a run that is not complete."""
        if self.state == "complete":
            return ()
        return tuple(finding for finding in self.findings if finding.step > self.step - ALARM_STEPS)

    def to_json(self) -> dict[str, Any]:
        """Plain values; a loss that is not finite is the word "nan" or "inf"."""
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__}
        listed = {key: [asdict(item) for item in plain[key]] for key in ("findings", "checkpoints")}
        told = self.delivery.to_json() if self.delivery else None
        interval = self.interval.to_json() if self.interval else None
        nodes = asdict(self.nodes) if self.nodes else None
        parts = {"delivery": told, "interval": interval, "nodes": nodes, "ledger": self.ledger.to_json()}
        return encode_row({**plain, **listed, **parts})


def summarise(run: RunDirectory, clock: Clock | None = None) -> RunSummary:
    """Reads the whole run. Watches a silent owner for a moment (2.5 beats of its lease) before calling it dead."""
    clock = clock or SystemClock()
    view = observe(run, glance_seconds(run), clock)
    history, segments = read_event_chain(run), read_segments(run)
    read = {segment.id: read_step_rows(run, segment.id) for segment in segments}
    events, steps = history.chain, {segment: lines.rows for segment, lines in read.items()}
    chain = current_chain(segments)
    kept = split_rows(steps, chain).kept
    last_step, last_evaluation, last_save = (_last(kept, kind) for kind in ("step", "evaluation", "save"))
    schedule = Schedule(run.spec())
    state, reason = state_of(view, history, segments, clock)
    restored = chain[-1] if chain else None
    step = min(max(last_step.get("step", 0), restored.restored_step if restored else 0), schedule.total_steps)
    return RunSummary(
        name=run.info()["name"],
        state=state,
        reason=reason,
        owner=view.owner,
        owner_alive=view.state == "held",
        segment=restored.id if restored else None,
        restarts=max(0, len(segments) - 1),
        step=step,
        total_steps=schedule.total_steps,
        tokens=schedule.tokens_before(step),
        total_tokens=schedule.total_tokens,
        seconds_left=seconds_left(steps.get(restored.id, []), schedule) if restored and state == "running" else None,
        stage=last_step.get("stage"),
        loss=last_step.get("loss"),
        held_out=last_evaluation.get("loss", {}),
        bits_per_byte=last_evaluation.get("bits_per_byte", {}),
        checkpoint=last_save.get("checkpoint") or (restored.checkpoint if restored else None),
        checkpoint_step=max(last_save.get("step", 0), restored.restored_step if restored else 0),
        checkpoints=tuple(list_checkpoints(run, chain)),
        late_records=tuple(history.late),
        findings=tuple(find_alarms(kept, [*(e for e in events if e["kind"] == "checkpoint_rejected"), *refusals(run)], events)),
        delivery=delivery(kept),
        interval=interval_report(events, steps, deployment_of(run, segments)),
        nodes=nodes_of(events, segments, deployment_of(run, segments)),
        ledger=build_ledger(with_open_pause(run, events), steps, chain, schedule, damaged_words(history, read), segments),
    )


def seconds_left(rows: list[dict], schedule: Schedule) -> float | None:
    """As the run's log says it, from the rows of one segment. None: before its first step, and after the last one."""
    began = next((at for at, row in enumerate(rows) if row["kind"] == "restored"), None)
    last = _last(rows, "step")
    if began is None or not last:
        return None
    done = schedule.tokens_before(last["step"]) - schedule.tokens_before(rows[began]["step"])
    ns = sum(sum((row.get("split") or {}).values()) for row in rows[began + 1 :])
    rest = schedule.total_tokens - schedule.tokens_before(last["step"])
    return rest / done * ns / 1e9 if rest > 0 and done > 0 else None


def damaged_words(history: EventChain, read: dict[int, StepRows]) -> list[str]:
    """What could not be read, in words. A crash may tear the line that it interrupts; more is damage."""
    counts = {"the events": history.damaged_lines} | {f"segment {number}": lines.damaged_lines for number, lines in read.items()}
    return [f"{count} torn or altered lines in the records of {what} were left out" for what, count in counts.items() if count]


def _last(rows: list[dict], kind: str) -> dict:
    return next((row for row in reversed(rows) if row["kind"] == kind), {})


def state_of(view: LeaseView, history: EventChain, segments: list[Segment], clock: Clock) -> tuple[str, str]:
    """The state, as ``RunSummary`` names it, and why; "": nothing more is to be said."""
    events = history.chain
    if view.state == "held":
        return ("paused", events[-1]["reason"]) if events and events[-1]["kind"] == "pause" else ("running", "")
    if not events and not segments and not history.damaged_lines:
        return "created", "it was never started"
    if not events:
        lost = f"{history.damaged_lines} damaged lines" if history.damaged_lines else "no record"
        return (
            "crashed",
            f"it has {len(segments)} segments, but {lost} of its events: how it ended is lost; go on with headway resume",
        )
    if events[-1]["kind"] == "note" and events[-1].get("state") == "lost":
        return "crashed", "its owner gave up the lease, which it could not keep; go on with headway resume"
    if events[-1]["kind"] == "finish":
        return events[-1]["state"], events[-1]["reason"]
    if events[-1]["kind"] == "pause":
        return "crashed", "its owner ended while the run was paused, so nothing is lost; go on with headway resume"
    launch = unfinished_launch(events)
    here = launch is not None and launch["stamp"]["boot_id"] == clock.stamp().boot_id
    if launch is not None and here and is_alive(launch["pid"], launch.get("start_ticks")):
        return (
            "orphan",
            f"its owner is gone, trainer {launch['pid']} still runs; it ends by itself, or take over with headway resume",
        )
    return "crashed", "its owner ended without a word; go on with headway resume"
