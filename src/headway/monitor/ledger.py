"""The time ledger: where every nanosecond of a run went. A pure fold over the records of supervisor and trainer.

    supervisor  open ---- launch ------------------------------------------ exit ---- launch ---- ...
    trainer                     start  restored  step  step  save  step (dies)
    closed as      provision | init | restore | productive ... | ... | detection_to_stop | reconfigure | ...

Each record closes the interval since the record before it, so the categories add up to the chain by construction. Between
launch and exit the trainer's rows subdivide; an owner that died leaves a gap of category unknown, which surviving rows
subdivide too. Positions are offsets in ns from the first record: on one boot differences of its boot clock, over an open
record of another boot the gap that the record holds. Wall clocks of two hosts are never subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from headway.base.digests import digest_json
from headway.monitor.progress import Progress, attempted_progress, committed_progress
from headway.monitor.relabel import Fates
from headway.recipe.schedules import Schedule
from headway.rundir.categories import Category
from headway.rundir.metrics import step_of
from headway.rundir.segments import Segment

_REDOABLE = (Category.PRODUCTIVE, Category.DATA_STALL)
"""What a roll-back turns into ``rolled_back`` or ``skipped``, in rows of any kind. The evaluations, samples and saves of undone
steps stay what they are: they never counted as progress, so nothing is taken back."""

_ENDS = ("hang", "exit", "launch", "finish")
"""Events after which rows of a trainer no longer count as its time."""

_ORDER = {category: place for place, category in enumerate(Category)}


@dataclass(frozen=True)
class Interval:
    """``start_ns``: since the first record, or since the run was submitted, where that is known. ``was``: the category before
    relabelling. ``step``: the update that it is part of, waiting for its data included; None: no update."""

    start_ns: int
    ns: int
    category: Category
    segment: int | None = None
    was: Category | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The fold's result. ``details``: durations that a trainer on another boot claims, by segment; no part of the sums."""

    intervals: tuple[Interval, ...]
    total_ns: int
    committed: Progress
    attempted: Progress
    flags: tuple[str, ...]
    drift_ns: int  # realtime that passed minus total_ns: shown, never asserted
    details: dict[int, dict[str, int]]

    @cached_property
    def categories(self) -> dict[str, int]:
        """ns by category, largest first; categories without time are left out."""
        sums: dict[Category, int] = {}
        for interval in self.intervals:
            sums[interval.category] = sums.get(interval.category, 0) + interval.ns
        return {category.value: ns for category, ns in sorted(sums.items(), key=lambda item: -item[1])}

    @property
    def goodput(self) -> float:
        """Productive time over all time; 0.0 before there is any."""
        return self.categories.get(Category.PRODUCTIVE.value, 0) / self.total_ns if self.total_ns else 0.0

    @property
    def committed_tokens_per_second(self) -> float:
        return self.committed.tokens / (self.total_ns / 1e9) if self.total_ns else 0.0

    def check(self) -> None:
        """Raise when the intervals do not tile the chain exactly (our own bug, never the user's)."""
        cursor_ns = 0
        for interval in self.intervals:
            if interval.start_ns != cursor_ns or interval.ns <= 0:
                raise AssertionError(f"ledger: interval at {interval.start_ns} ns does not follow {cursor_ns} ns")
            cursor_ns += interval.ns
        if cursor_ns != self.total_ns or sum(self.categories.values()) != self.total_ns:
            raise AssertionError(f"ledger: intervals sum to {cursor_ns} ns, the chain is {self.total_ns} ns long")

    def to_json(self) -> dict[str, Any]:
        """Sums and facts, without the intervals."""
        return {
            "total_ns": self.total_ns,
            "categories": self.categories,
            "goodput": self.goodput,
            "committed": {"steps": self.committed.steps, "tokens": self.committed.tokens},
            "attempted": {"steps": self.attempted.steps, "tokens": self.attempted.tokens},
            "committed_tokens_per_second": self.committed_tokens_per_second,
            "drift_ns": self.drift_ns,
            "flags": list(self.flags),
            "details": {str(segment): split for segment, split in self.details.items()},
        }


def build_ledger(
    events: list[dict],
    steps: dict[int, list[dict]],
    chain: list[Segment],
    schedule: Schedule | None = None,
    damaged: Iterable[str] = (),
    segments: Sequence[Segment] = (),
) -> Ledger:
    """Fold events (``read_events``), rows by segment (``read_all_steps``) and the current chain into a checked ledger.

    ``schedule``: that of the run's Spec, for exact tokens where rows are lost, and for what skips leave out. ``damaged``: what
    the readers had to leave out, in words; each is a flag. ``segments``: all of them, those off the chain too.
    """
    stages = [stage.name for stage in schedule.spec.stages] if schedule is not None else ()
    fold = _Fold(steps=steps, fates=Fates(steps, chain, segments, stages))
    fold.flags += [*damaged, *_lost_launches(events, steps)]
    offsets = _offsets(events, fold.flags)
    for index, event in enumerate(events):
        fold.close_event(event, offsets[index], before=events[index - 1] if index else None)
        if event["kind"] == "launch":
            end = next((o for e, o in zip(events[index + 1 :], offsets[index + 1 :], strict=True) if e["kind"] in _ENDS), None)
            fold.add_rows(event, offsets[index], end)
    committed = committed_progress(steps, chain, schedule)
    if committed.lacks_tokens:
        fold.flags.append(f"the row of committed step {committed.steps} is lost: its tokens are those of an earlier step")
    ledger = Ledger(
        intervals=tuple(fold.intervals),
        total_ns=fold.cursor_ns,
        committed=committed,
        attempted=attempted_progress(steps),
        flags=tuple(fold.flags),
        drift_ns=fold.last_real_ns - events[0]["stamp"]["real_ns"] - fold.cursor_ns + offsets[0] if events else 0,
        details=fold.details,
    )
    ledger.check()
    return ledger


def _lost_launches(events: list[dict], steps: dict[int, list[dict]]) -> list[str]:
    """Segments that ran, as their rows tell, although no event says when."""
    launched = {event["segment"] for event in events if event["kind"] == "launch"}
    missing = [segment for segment, rows in sorted(steps.items()) if rows and segment not in launched]
    return [f"segment {segment}: its launch is not recorded, so its rows divide no time" for segment in missing]


def _follows(before: dict, event: dict) -> bool:
    """Whether nothing is known to be lost between two neighbouring events; records without a number tell nothing."""
    link = event.get("previous")
    if link and link["digest"] != digest_json(before):
        return False
    return "n" not in event or "n" not in before or event["n"] == before["n"] + 1


def _offsets(events: list[dict], flags: list[str]) -> list[int]:
    """ns of each event since the first one, or since the run was submitted to a scheduler, where the first one knows that."""
    offsets: list[int] = []
    for index, event in enumerate(events):
        offsets.append(offsets[-1] + _step(events[index - 1], event, flags) if index else _claimed(event, "queued_ns"))
    return offsets


def _claimed(event: dict, part: str) -> int:
    """ns of the time before an open record: its owner waited in a queue, or the owner before rested until it died."""
    ns = event.get(part, 0)
    return max(0, ns) if type(ns) is int else 0


def _step(before: dict, event: dict, flags: list[str]) -> int:
    """ns between two neighbouring events."""
    link = event.get("previous")
    if not _follows(before, event):
        name = f"epoch {event['epoch']}" if event["kind"] == "open" else f"{event['kind']} (record {event['n']})"
        flags.append(f"{name}: the record it follows is missing or altered; the time since the one before is unknown")
    if before["stamp"]["boot_id"] == event["stamp"]["boot_id"]:
        gap_ns = event["stamp"]["boot_ns"] - before["stamp"]["boot_ns"]
    elif link:
        gap_ns = link["gap_ns"]
    else:
        gap_ns = event["stamp"]["real_ns"] - before["stamp"]["real_ns"]
        flags.append(f"the boot changed before {event['kind']} without an open record: a realtime difference counts")
    if gap_ns < 0:
        flags.append(f"the clock went back before {event['kind']}: counted as 0")
    return max(0, gap_ns)


@dataclass
class _Fold:
    """The state of the fold: everything up to ``cursor_ns`` is accounted for."""

    steps: dict[int, list[dict]]
    fates: Fates
    cursor_ns: int = 0
    last_real_ns: int = 0
    remote: bool = False  # the running trainer's stamps are of another boot
    intervals: list[Interval] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    details: dict[int, dict[str, int]] = field(default_factory=dict)

    def close_event(self, event: dict, offset_ns: int, before: dict | None) -> None:
        """Close the time up to ``event``; an open record amid surviving rows closes nothing."""
        if event["kind"] == "open" and event.get("closes") == Category.UNKNOWN:
            gap = "the time after its last sign of life" if _claimed(event, "paused_ns") else "the gap before it"
            self.flags.append(f"epoch {event['epoch']}: {_why_unknown(before)}; {gap} is unknown")
        if "closes" not in event:
            self.last_real_ns = self.last_real_ns or event["stamp"]["real_ns"]
            if before is None:
                self._add(offset_ns, Category.QUEUE, None)
            return
        category = Category(event["closes"])
        if before is not None and not _follows(before, event):  # what the lost record closed cannot be told from the rest
            category = Category.UNKNOWN
        if self.remote and event["kind"] in ("hang", "exit"):
            self._close_remote(event, offset_ns)
        if offset_ns >= self.cursor_ns:
            self._add(min(_claimed(event, "paused_ns"), offset_ns - self.cursor_ns), Category.PLANNED_PAUSE, None)
            queued_ns = min(_claimed(event, "queued_ns"), offset_ns - self.cursor_ns)
            self._add(offset_ns - self.cursor_ns - queued_ns, category, event.get("segment"))
            self._add(queued_ns, Category.QUEUE, None)
            self.last_real_ns = event["stamp"]["real_ns"]
        self.remote = self.remote and event["kind"] != "exit"

    def _close_remote(self, event: dict, offset_ns: int) -> None:
        """Up to the last receipt nobody of this boot can say what the trainer did: unknown."""
        silent_ns = event["stamp"]["boot_ns"] - event.get("last_progress_boot_ns", event["stamp"]["boot_ns"])
        self._add(offset_ns - max(0, silent_ns) - self.cursor_ns, Category.UNKNOWN, event["segment"])

    def add_rows(self, launch: dict, launch_ns: int, end_ns: int | None) -> None:
        """Subdivide from ``launch`` on by the trainer's rows, up to the event that ends it (None: it still runs)."""
        segment, boot = launch["segment"], launch["stamp"]
        rows = self.steps.get(segment, [])
        self.remote = any(row["stamp"]["boot_id"] != boot["boot_id"] for row in rows)
        if self.remote:
            self.flags.append(f"segment {segment}: the trainer's clock is of another boot; its durations are details")
            self.details[segment] = _durations(rows)
            return
        for row in rows:
            offset_ns = launch_ns + row["stamp"]["boot_ns"] - boot["boot_ns"]
            if offset_ns < self.cursor_ns or (end_ns is not None and offset_ns > end_ns):
                self.flags.append(f"segment {segment}: a {row['kind']} row outside the time of its trainer is not counted")
                continue
            self._add_row(row, segment, offset_ns - self.cursor_ns, is_first=self.cursor_ns == launch_ns)
            self.last_real_ns = row["stamp"]["real_ns"]

    def _add_row(self, row: dict, segment: int, length_ns: int, is_first: bool) -> None:
        fate, step = self.fates.of(segment, row), step_of(row) if row["kind"] in ("step", "stall") else None
        for name, ns in sorted(row.get("split", {}).items(), key=lambda item: _ORDER[Category(item[0])]):
            taken_ns, category = min(ns, length_ns), Category(name)
            skipped_ns = taken_ns * fate.skipped // fate.of if category in _REDOABLE else 0
            if fate.undone and category in _REDOABLE:
                self._add(taken_ns - skipped_ns, Category.ROLLED_BACK, segment, was=category, step=step)
            else:
                self._add(taken_ns - skipped_ns, category, segment, step=step)
            self._add(skipped_ns, Category.SKIPPED, segment, was=category, step=step)
            length_ns -= taken_ns
            if taken_ns < ns:
                self.flags.append(f"segment {segment}: a {row['kind']} row claims more time than passed")
        if length_ns and not is_first:
            self.flags.append(f"segment {segment}: rows before a {row['kind']} row are lost; their time is unknown")
        self._add(length_ns, Category.INIT if is_first else Category.UNKNOWN, segment)

    def _add(
        self, ns: int, category: Category, segment: int | None, *, was: Category | None = None, step: int | None = None
    ) -> None:
        if ns > 0:
            self.intervals.append(Interval(self.cursor_ns, ns, category, segment, was, step))
            self.cursor_ns += ns


def _why_unknown(before: dict | None) -> str:
    if before is not None and before["kind"] == "finish":
        return "the run had failed"
    if before is not None and before["kind"] == "pause":
        return "the owner before it died while the run was paused"
    if before is not None and before.get("state") == "lost":
        return "the owner before it gave up the lease"
    return "the owner before it died"


def _durations(rows: list[dict]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows:
        for name, ns in row.get("split", {}).items():
            sums[name] = sums.get(name, 0) + ns
    return sums


def merged(intervals: tuple[Interval, ...], shortest_ns: int = 0) -> list[Interval]:
    """For plots: neighbours of one category and segment as one; intervals below ``shortest_ns`` join the one before."""
    result: list[Interval] = []
    for interval in intervals:
        last = result[-1] if result else None
        alike = last is not None and (last.category, last.segment) == (interval.category, interval.segment)
        if last is not None and (alike or interval.ns < shortest_ns):
            result[-1] = replace(last, ns=last.ns + interval.ns)
        else:
            result.append(interval)
    return result
