"""What a run made of its time, by our definition and by those that others publish. All from one ledger, none from another clock.

    all time ........ productive   one state machine, every ns in one category (``ledger``)
      Headway         committed productive time / all time
      Google          scheduling x runtime x program goodput
      Meta            ETTR: productive runtime / time scheduled or queued
      ByteDance       effective training time rate: iterations x their usual time / all time

They differ in what they leave out of the denominator and in what they still call productive: each says so beside its number.
Only committed work is progress in ours; replayed steps are in no numerator (G4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.monitor.capacity import AWAY, Capacity, Kind
from headway.monitor.ledger import Interval, Ledger
from headway.monitor.utilisation import Utilisation
from headway.rundir.categories import Category

GOOGLE = "Google Cloud, Introducing ML Productivity Goodput (10 April 2024); library ml-goodput-measurement"
META = "Kokolis et al. 2025, Revisiting Reliability in Large-Scale Machine Learning Research Clusters, arXiv 2410.21680"
MEGASCALE = "Jiang et al. 2024, MegaScale, arXiv 2402.15627, section 6.3"

RESTARTING = (Category.PROVISION, Category.INIT, Category.COMPILE, Category.RESTORE, Category.RECONFIGURE)
REDONE = (Category.ROLLED_BACK, Category.SKIPPED)
STOOD = (Category.HANG, Category.DETECTION_TO_STOP, Category.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class View:
    """A share by one definition. ``value`` None: it cannot be told, and ``otherwise`` says why."""

    name: str
    value: float | None
    formula: str
    source: str
    otherwise: str
    """what it counts otherwise than ours; of ours, what it counts"""


@dataclass(frozen=True, kw_only=True)
class Fall:
    """One step of the waterfall, from all time down to what was committed."""

    name: str
    ns: int
    left_ns: int  # after it


def committed_productive_ns(ledger: Ledger) -> int:
    """Of updates that are in the newest checkpoint of the chain; those after it may still be lost."""
    return sum(one.ns for one in ledger.intervals if _is_productive(one) and (one.step or 0) <= ledger.committed.steps)


def views(
    ledger: Ledger, *, capacity: Capacity, kinds: Mapping[tuple[int, int], Kind], utilisation: Utilisation | None
) -> tuple[View, ...]:
    """Ours first."""
    return (
        _ours(ledger),
        *_google(ledger, capacity, utilisation),
        _meta(ledger),
        _megascale(ledger, kinds),
    )


def waterfall(ledger: Ledger) -> tuple[Fall, ...]:
    """All time, less each category in the order of ``Category``'s life of a run, less what is not in a checkpoint yet."""
    categories = ledger.categories
    left, falls = ledger.total_ns, list[Fall]()
    for category in _ORDER:
        ns = categories.get(category.value, 0)
        if ns:
            left -= ns
            falls.append(Fall(name=category.value, ns=ns, left_ns=left))
    pending_ns = left - committed_productive_ns(ledger)
    if pending_ns:
        falls.append(Fall(name=PENDING, ns=pending_ns, left_ns=left - pending_ns))
    return tuple(falls)


PENDING = "not_committed_yet"
_ORDER = (
    *AWAY,
    *RESTARTING,
    *STOOD,
    *REDONE,
    Category.VALIDATION_REPLAY,
    Category.BLOCKING_SAVE,
    Category.EVALUATION,
    Category.DATA_STALL,
)
"""Everything but productive time: what was away, what stood, what was redone, what training waited for."""


# --- definitions


def _ours(ledger: Ledger) -> View:
    return View(
        name="goodput (Headway)",
        value=_share(committed_productive_ns(ledger), ledger.total_ns),
        formula="time of updates in the newest checkpoint / all time since the first record",
        source="docs/decisions/0001",
        otherwise="input waits, saves, evaluations, queue and pauses are not productive; nor is what is not committed yet",
    )


def _google(ledger: Ledger, capacity: Capacity, utilisation: Utilisation | None) -> tuple[View, ...]:
    wanted = ledger.total_ns - _sum(ledger, Category.PLANNED_PAUSE)
    whole = wanted - _sum(ledger, Category.QUEUE) - capacity.shrunk_ns
    scheduling = _share(whole, wanted)
    runtime = _share(committed_productive_ns(ledger), wanted - _sum(ledger, Category.QUEUE))
    causal = next((one for one in utilisation.shares if one.convention == "causal"), None) if utilisation else None
    program = causal.mfu if causal else None
    product = scheduling * runtime * program if None not in (scheduling, runtime, program) else None  # type: ignore[operator]
    unknown = utilisation.peak.words if utilisation else "the spec cannot be read"
    return (
        View(
            name="scheduling goodput (Google)",
            value=scheduling,
            formula="time in which all devices asked for were there / all time less planned pauses",
            source=GOOGLE,
            otherwise="queue and phases with fewer devices count against it, even where they trained; ours keeps those as time",
        ),
        View(
            name="runtime goodput (Google)",
            value=runtime,
            formula="time of updates in the newest checkpoint / all time less queue and planned pauses",
            source=GOOGLE,
            otherwise="queue and pauses are not in its denominator; theirs takes off the first step after a start as start-up",
        ),
        View(
            name="program goodput (Google)",
            value=program,
            formula="MFU of healthy steps, causal attention counted",
            source=GOOGLE,
            otherwise="of the peak, not of time" if program is not None else f"unknown: {unknown}",
        ),
        View(
            name="ML productivity goodput (Google)",
            value=product,
            formula="scheduling x runtime x program goodput",
            source=GOOGLE,
            otherwise="holds MFU, so it is no share of time" if product is not None else "unknown without program goodput",
        ),
    )


def _meta(ledger: Ledger) -> View:
    lost = sum(_sum(ledger, category) for category in (*RESTARTING, *STOOD, *REDONE, *AWAY, Category.VALIDATION_REPLAY))
    return View(
        name="ETTR (Meta)",
        value=_share(ledger.total_ns - lost, ledger.total_ns - _sum(ledger, Category.PLANNED_PAUSE)),
        formula="(running time less re-training after interruptions and less restarts) / time scheduled or queued",
        source=META,
        otherwise="input waits, saves and evaluations are productive, also what is not committed yet; pauses are not counted",
    )


def _megascale(ledger: Ledger, kinds: Mapping[tuple[int, int], Kind]) -> View:
    """Every step at the median time of its kind, so that slow ones count as usual ones."""
    times: dict[Kind | None, dict[tuple[int | None, int], int]] = defaultdict(lambda: defaultdict(int))
    for one in ledger.intervals:
        if one.category in (Category.PRODUCTIVE, Category.DATA_STALL) and one.step is not None:
            kind = kinds.get((one.segment, one.step)) if one.segment is not None else None
            times[kind][one.segment, one.step] += one.ns
    useful = sum(median(own.values()) * sum(step <= ledger.committed.steps for _, step in own) for own in times.values())
    return View(
        name="effective training time rate (MegaScale)",
        value=_share(useful, ledger.total_ns - sum(_sum(ledger, category) for category in AWAY)),
        formula="committed iterations x median time of an iteration / all time less queue and planned pauses",
        source=MEGASCALE,
        otherwise="the wait for input is part of an iteration, and slow iterations count as usual ones",
    )


def _is_productive(one: Interval) -> bool:
    return one.category is Category.PRODUCTIVE


def _sum(ledger: Ledger, category: Category) -> int:
    return ledger.categories.get(category.value, 0)


def _share(part: float, of: int) -> float | None:
    return part / of if of > 0 else None


# --- by attempt


@dataclass(frozen=True, kw_only=True)
class AttemptTime:
    """One segment. Times in ns; ``overhead_ns``: all that is neither kept nor lost work."""

    segment: int
    reason: str
    devices: int
    first_step: int | None
    last_step: int | None
    ns: int
    productive_ns: int
    lost_ns: int
    overhead_ns: int
    end: str


def by_attempt(ledger: Ledger, events: Sequence[dict], segments: Sequence[Any]) -> tuple[AttemptTime, ...]:
    """The time that records attribute to each segment; pauses and gaps between them belong to none."""
    ends = {event["segment"]: str(event.get("reason", "")) for event in events if event["kind"] == "exit"}
    own: dict[int, list[Interval]] = defaultdict(list)
    for one in ledger.intervals:
        if one.segment is not None:
            own[one.segment].append(one)
    found = []
    for segment in segments:
        parts = own[segment.id]
        steps = [one.step for one in parts if one.step is not None]
        productive = sum(one.ns for one in parts if _is_productive(one))
        lost = sum(one.ns for one in parts if one.category in REDONE)
        ns = sum(one.ns for one in parts)
        found.append(
            AttemptTime(
                segment=segment.id,
                reason=segment.reason,
                devices=int(segment.layout.get("world", 1)),
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                ns=ns,
                productive_ns=productive,
                lost_ns=lost,
                overhead_ns=ns - productive - lost,
                end=ends.get(segment.id, "runs, or nobody saw its end"),
            )
        )
    return tuple(found)
