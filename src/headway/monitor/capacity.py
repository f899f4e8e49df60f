"""The capacity ledger: what became of every device-nanosecond that the deployment asked for. Beside the ledger of time.

    devices asked  8 |########################## productive ##########################|
                     |############## productive ##############|.... slow ....|########|     steps slower than this run's own
                   4 |~~~~~ missing: 4 devices gone ~~~~~|############################|     fewer devices than asked for
                     time -->

Slow is capacity, not time: a step at half the pace is productive time, and half of what its devices could have done is lost. So
is a phase with fewer devices. Whole numbers (ns x devices) throughout, so the sum is the time of every interval times the devices
asked for in it, exactly.

A step is slow where it takes ``SLOW`` times the good pace of its kind: the quickest quarter of the steps of the same stage, batch
and layout ends there, at least ``LEAST_STEPS`` of them. It is the run's own pace: what was never quicker is not called slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from headway.base.units import format_seconds
from headway.monitor.ledger import Interval, Ledger
from headway.rundir.categories import Category
from headway.rundir.segments import Segment

SLOW = 1.05
"""A straggler of 6 % shows; what steps vary by otherwise does not, as far as it is less."""
LEAST_STEPS = 8
MISSING, SLOWER = "missing", "slow"
AWAY = (Category.QUEUE, Category.PLANNED_PAUSE)
"""Time in which no device is held: all that were asked for count under that category."""
AT_GOOD_PACE = "productive at the good pace"
_WINDOW = 7

Kind = tuple[Any, ...]
"""What steps have to share to be comparable: stage, sequences, layout."""


def category_words(name: str) -> str:
    """Of a category of device time, for people: what slow steps took is off, so productive is less here than in the ledger."""
    return AT_GOOD_PACE if name == Category.PRODUCTIVE else name.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of one segment at less than its capacity. ``times``: of the good pace, or of the devices that were there."""

    what: str  # missing or slow
    segment: int
    first_step: int | None
    last_step: int | None
    ns: int
    devices: int
    asked: int
    times: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """``categories``: device-ns by category of time, and ``missing`` and ``slow``; largest first. ``total``: their sum."""

    total: int
    categories: Mapping[str, int]
    phases: tuple[Phase, ...]
    good_pace: Mapping[Kind, int]  # ns of a step
    shrunk_ns: int  # wall time with fewer devices than asked for

    @property
    def used_share(self) -> float:
        """Productive device time at the good pace, over all that was asked for."""
        return self.categories.get(Category.PRODUCTIVE.value, 0) / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "total_device_ns": self.total,
            "categories_device_ns": dict(self.categories),
            "used_share": self.used_share,
            "shrunk_ns": self.shrunk_ns,
            "good_pace_ns": [{"kind": list(kind), "ns": ns} for kind, ns in self.good_pace.items()],
            "phases": [vars(phase) for phase in self.phases],
        }


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Of one segment."""

    there: int
    asked: int


def build_capacity(
    ledger: Ledger, steps: Mapping[int, list[dict]], segments: Sequence[Segment], deployment: Mapping[str, Any]
) -> Capacity:
    """``segments``: all of them, by id; ``deployment``: resolved, as the run was created with it."""
    devices, kinds = devices_by_segment(segments, deployment), kinds_of_steps(steps, segments)
    pace = good_pace(ledger, kinds)
    sums: dict[str, int] = defaultdict(int)
    shrunk_ns = 0
    here = Devices(there=_world(deployment), asked=_world(deployment))
    by_step = {segment.id: groups_by_step(segment, steps.get(segment.id, [])) for segment in segments}
    for interval in ledger.intervals:
        here = devices.get(interval.segment, here) if interval.segment is not None else here
        if interval.segment is not None and interval.step is not None:
            behind = [count for step, count in by_step.get(interval.segment, ()) if step < interval.step]
            here = replace(here, there=behind[-1]) if behind else here
        if interval.category in AWAY:
            sums[interval.category.value] += interval.ns * here.asked
            continue
        slower_ns = excess_ns(interval, kinds, pace)
        sums[interval.category.value] += (interval.ns - slower_ns) * here.there
        sums[SLOWER] += slower_ns * here.there
        sums[MISSING] += interval.ns * (here.asked - here.there)
        shrunk_ns += interval.ns if here.there < here.asked else 0
    found = {name: value for name, value in sorted(sums.items(), key=lambda item: -item[1]) if value}
    phases = (*_missing(ledger, devices), *_slow(ledger, kinds, pace, devices))
    return Capacity(total=sum(found.values()), categories=found, phases=phases, good_pace=pace, shrunk_ns=shrunk_ns)


def devices_by_segment(segments: Sequence[Segment], deployment: Mapping[str, Any]) -> dict[int, Devices]:
    """What is asked for changes only where a person says so: a segment that was written automatically may have fewer."""
    asked, found = _world(deployment), dict[int, Devices]()
    for segment in segments:
        if segment.author != "automatic":
            asked = _world(segment.deployment or deployment)
        there = segment.layout.get("world", asked)
        there = there if type(there) is int and there > 0 else asked
        asked = max(asked, there)
        found[segment.id] = Devices(there=there, asked=asked)
    return found


def groups_by_step(segment: Segment, rows: Sequence[dict]) -> list[tuple[int, int]]:
    """Devices of the replica groups that take part, behind each step at which they changed; empty: all do."""
    groups, world = segment.layout.get("groups", 1), segment.layout.get("world", 1)
    return [(row["step"], world // groups * len(row["groups"])) for row in rows if row["kind"] == "groups" and groups > 1]


def _world(deployment: Mapping[str, Any]) -> int:
    sizes = [deployment.get(name, 1) for name in ("nodes", "processes_per_node")]
    return sizes[0] * sizes[1] if all(type(size) is int and size > 0 for size in sizes) else 1


def kinds_of_steps(steps: Mapping[int, list[dict]], segments: Sequence[Segment]) -> dict[tuple[int, int], Kind]:
    """By segment and step."""
    layouts = {one.id: (one.layout.get("world", 1), *sorted(one.layout.get("axes", {}).items())) for one in segments}
    return {
        (segment, row["step"]): (row.get("stage"), row.get("sequences"), layouts.get(segment))
        for segment, rows in steps.items()
        for row in rows
        if row["kind"] == "step"
    }


def good_pace(ledger: Ledger, kinds: Mapping[tuple[int, int], Kind]) -> dict[Kind, int]:
    """ns: where the quickest quarter of the steps of a kind ends, kept or not. Kinds with too few steps have none."""
    seen: dict[Kind, list[int]] = defaultdict(list)
    for interval in ledger.intervals:
        if Category.PRODUCTIVE in (interval.category, interval.was) and (kind := _kind(interval, kinds)) is not None:
            seen[kind].append(interval.ns)
    return {kind: sorted(times)[(len(times) - 1) // 4] for kind, times in seen.items() if len(times) >= LEAST_STEPS}


def excess_ns(interval: Interval, kinds: Mapping[tuple[int, int], Kind], pace: Mapping[Kind, int]) -> int:
    """Of a kept step that is slow: what it took beyond the good pace. 0 for all else."""
    kind = _kind(interval, kinds) if interval.category is Category.PRODUCTIVE else None
    good_ns = pace.get(kind) if kind is not None else None
    return interval.ns - good_ns if good_ns is not None and interval.ns > SLOW * good_ns else 0


def _kind(interval: Interval, kinds: Mapping[tuple[int, int], Kind]) -> Kind | None:
    if interval.segment is None or interval.step is None:
        return None
    return kinds.get((interval.segment, interval.step))


def device_time(device_ns: int) -> str:
    """For people; of many devices in hours, as such time is bought."""
    hours = device_ns / 3.6e12
    return f"{hours:,.0f} device hours" if hours >= 100 else format_seconds(device_ns / 1e9)


# --- phases, for people


def _missing(ledger: Ledger, devices: Mapping[int, Devices]) -> Iterator[Phase]:
    by_segment: dict[int, list[Interval]] = defaultdict(list)
    for one in ledger.intervals:
        if one.segment is not None and one.category not in AWAY:
            by_segment[one.segment].append(one)
    for segment, here in devices.items():
        own = by_segment[segment]
        if here.there < here.asked and own:
            steps = [one.step for one in own if one.step is not None]
            yield Phase(
                what=MISSING,
                segment=segment,
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                ns=sum(one.ns for one in own),
                devices=here.there,
                asked=here.asked,
                times=here.asked / here.there,
            )


def _slow(
    ledger: Ledger, kinds: Mapping[tuple[int, int], Kind], pace: Mapping[Kind, int], devices: Mapping[int, Devices]
) -> Iterator[Phase]:
    """Where the running median of some steps is slow: single slow steps are no phase."""
    by_segment: dict[int, list[tuple[Interval, int]]] = defaultdict(list)
    for one in ledger.intervals:
        kind = _kind(one, kinds) if one.category is Category.PRODUCTIVE else None
        if kind is not None and kind in pace and one.segment is not None:
            by_segment[one.segment].append((one, pace[kind]))
    for segment, own in by_segment.items():
        times = [one.ns / good_ns for one, good_ns in own]
        half = _WINDOW // 2
        slow = [median(times[max(0, at - half) : at + half + 1]) > SLOW for at in range(len(times))]
        for first, last in _runs(slow):
            part = [one for one, _ in own[first : last + 1]]
            here = devices.get(segment, Devices(there=1, asked=1))
            yield Phase(
                what=SLOWER,
                segment=segment,
                first_step=part[0].step,
                last_step=part[-1].step,
                ns=sum(one.ns for one in part),
                devices=here.there,
                asked=here.asked,
                times=sum(one.ns for one in part) / sum(good_ns for _, good_ns in own[first : last + 1]),
            )


def _runs(marks: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last of every stretch of marks that is at least as long as the window."""
    start: int | None = None
    for at, mark in enumerate([*marks, False]):
        if mark and start is None:
            start = at
        elif not mark and start is not None:
            if at - start >= _WINDOW:
                yield start, at - 1
            start = None
