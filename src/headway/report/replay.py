"""What an interruption cost, and the proof that nothing was lost but time.

A step that two segments executed must have left the same state both times: its rows carry the digest of the state after
the update. Equal digests are equal weights and moments, to the bit. Where a row has no digest, its loss and gradient norm
are compared to the last bit instead; that is weaker evidence and is said so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from headway.base.errors import HeadwayError
from headway.report.attempts import SegmentFacts
from headway.report.facts import RunFacts
from headway.report.rows import Steps
from headway.rundir.metrics import last_kept_steps
from headway.rundir.segments import current_chain, stream_record


class Match(StrEnum):
    """How the two executions of a step compare."""

    DIGEST_EQUAL = "state digests equal"
    DIGEST_DIFFERS = "state digests differ"
    NUMBERS_EQUAL = "loss and gradient norm equal, no digest"
    NUMBERS_DIFFER = "loss or gradient norm differ"

    @property
    def equal(self) -> bool:
        return self in (Match.DIGEST_EQUAL, Match.NUMBERS_EQUAL)


@dataclass(frozen=True)
class ReplayedStep:
    """One step, executed in ``segments`` (first and second execution)."""

    step: int
    segments: tuple[int, int]
    loss: tuple[float, float]
    digests: tuple[str | None, str | None]
    match: Match


@dataclass(frozen=True)
class Replay:
    """All steps that were executed more than once under the same description."""

    steps: tuple[ReplayedStep, ...]
    not_comparable: int  # repeated after an intervention (skipped batches, another rate): they may differ, and should

    def count(self, match: Match) -> int:
        return sum(step.match is match for step in self.steps)

    @property
    def identical(self) -> bool | None:
        """Whether every replayed step was equal; None when nothing was replayed."""
        return all(step.match.equal for step in self.steps) if self.steps else None

    @property
    def proven(self) -> bool:
        """Equal by state digests at least once, and nowhere different."""
        return bool(self.identical) and self.count(Match.DIGEST_EQUAL) > 0


@dataclass(frozen=True)
class Interruption:
    """One end of a segment that was followed by another, and what it cost. Absent stamps or steps are None."""

    before: SegmentFacts
    after: SegmentFacts
    own_steps: int  # executed by the segment that ended
    last_step: int  # of those; the step that it had restored when it did none
    last_tokens: int
    restored_step: int
    lost_steps: int  # part of the history until this restore went back behind them, whichever segment had done them
    lost_tokens: int
    lost_work_ns: int  # of those steps
    behind_ns: int | None  # from the last step's first execution until the run was there again

    @property
    def word(self) -> str:
        """What ended the segment, in one word."""
        ended = self.before.exit or {}
        if ended.get("forced"):  # by its own supervisor, which may have used a signal
            return "ended by its supervisor" if ended["forced"] in ("hang", "lease lost") else "stopped"
        if ended.get("lost_node"):
            return "cut off"
        if ended.get("signal") in (9, "SIGKILL"):
            return "killed"
        if ended.get("signal") is not None or ended.get("code") not in (0, None):
            return "failed"
        return "stopped" if self.before.ended_by_itself else "cut off"  # nobody saw how: its owner may have been gone too


def replay(facts: RunFacts) -> Replay:
    """Compare every step with its next execution in a later segment."""
    records = {one.segment.id: (stream_record(one.segment), one.segment.rates) for one in facts.segments}
    order = np.lexsort((facts.steps.segment, facts.steps.step))
    compared, different = [], 0
    for first, second in pairwise(order):
        if facts.steps.step[first] != facts.steps.step[second]:
            continue
        segments = int(facts.steps.segment[first]), int(facts.steps.segment[second])
        if records.get(segments[0]) != records.get(segments[1]):
            different += 1
            continue
        compared.append(_compare(facts, int(first), int(second), segments))
    return Replay(tuple(compared), different)


def _compare(facts: RunFacts, first: int, second: int, segments: tuple[int, int]) -> ReplayedStep:
    rows = facts.steps
    digests = rows.digest[first], rows.digest[second]
    losses = float(rows.loss[first]), float(rows.loss[second])
    numbers = _same_bits(losses) and _same_bits((float(rows.grad_norm[first]), float(rows.grad_norm[second])))
    if digests[0] and digests[1]:
        match = Match.DIGEST_EQUAL if digests[0] == digests[1] else Match.DIGEST_DIFFERS
    else:
        match = Match.NUMBERS_EQUAL if numbers else Match.NUMBERS_DIFFER
    return ReplayedStep(step=int(rows.step[first]), segments=segments, loss=losses, digests=digests, match=match)


def _same_bits(pair: tuple[float, float]) -> bool:
    return pair[0] == pair[1] or (np.isnan(pair[0]) and np.isnan(pair[1]))


def interruptions(facts: RunFacts) -> tuple[Interruption, ...]:
    """Every hand-over from the segment that ran last to the next one, which may restore an older one's state, or none.

    Each step that was rolled back is lost in exactly one of them:

        segment 1   1 ... 40 | 41 ... 57 x             2 takes the checkpoint of 40: 41-57 of segment 1 are lost
        segment 2              41 ... 44 x             nothing new committed, 3 takes 40 too: 41-44 of segment 2 are lost
        segment 3              41 ... 120              its parent is segment 1, but it follows segment 2
    """
    by_id = {attempt.segment.id: attempt for attempt in facts.segments}
    pairs = [(by_id[a.segment.id - 1], a) for a in facts.segments if a.segment.id - 1 in by_id]
    return tuple(_interruption(facts, before, after) for before, after in pairs)


def _interruption(facts: RunFacts, before: SegmentFacts, after: SegmentFacts) -> Interruption:
    own = facts.steps.where(facts.steps.segment == before.segment.id)
    restored = after.segment.restored_step
    history = _history(facts, before)
    lost = history.where(history.step > restored)
    last = int(own.step[-1]) if len(own) else before.segment.restored_step
    return Interruption(
        before=before,
        after=after,
        own_steps=len(own),
        last_step=last,
        last_tokens=int(own.tokens[-1]) if len(own) else _tokens_at(facts, last),
        restored_step=restored,
        lost_steps=len(lost),
        lost_tokens=int(lost.tokens.max()) - _tokens_at(facts, restored) if len(lost) else 0,
        lost_work_ns=int(lost.total_ns.sum()),
        behind_ns=_behind(facts, before, last),
    )


def _history(facts: RunFacts, newest: SegmentFacts) -> Steps:
    """The steps that were part of the run when ``newest`` ended; its own where the chain up to it cannot be read."""
    known = [attempt.segment for attempt in facts.segments if attempt.segment.id <= newest.segment.id]
    try:
        last = last_kept_steps(current_chain(known))
    except HeadwayError:
        last = {newest.segment.id: None}
    rows = facts.steps
    kept = np.zeros(len(rows), dtype=bool)
    for segment, limit in last.items():
        kept |= (rows.segment == segment) & (True if limit is None else rows.step <= limit)
    return rows.where(kept)


def _tokens_at(facts: RunFacts, step: int) -> int:
    schedule = facts.schedule
    if schedule is not None and 0 <= step <= schedule.total_steps:
        return schedule.tokens_before(step)
    rows = facts.steps.at(step)
    return int(rows.tokens[-1]) if len(rows) else 0


def _behind(facts: RunFacts, before: SegmentFacts, step: int) -> int | None:
    """Nanoseconds between ``before`` doing ``step`` and the first later segment that did it again, on one boot."""
    rows = facts.steps.at(step)
    once, again = rows.where(rows.segment == before.segment.id), rows.where(rows.segment > before.segment.id)
    if not len(once) or not len(again):
        return None
    pair = (before.segment.id, int(again.segment[0]))
    boots = {
        record.get("stamp", {}).get("boot_id")
        for attempt in facts.segments
        if attempt.segment.id in pair
        for record in attempt.records[:1]
    }
    return int(again.boot_ns[0]) - int(once.boot_ns[0]) if len(boots) == 1 else None
