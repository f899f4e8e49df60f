"""How the input came: what steps waited for it, how busy its thread was, and what reading each source took.

Rows of the kind "delivery" count from the start of their segment, so the last one of each segment says it all:

    loader    steps, wait_ns (the trainer was blocked), ready (batches in the queue when asked, summed), empty (asked in vain),
              depth (of the queue), busy_ns (boot time inside fetches), cpu_ns (of the thread), span_ns (since it started)
    sources   of each: wait_ns, blocks, hits, misses, ahead, fetched_bytes, ...      data/cache.py: Traffic
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.rundir.categories import Category


@dataclass(frozen=True)
class SourceDelivery:
    """Of one source over the history of a run."""

    name: str
    wait_ns: int
    blocks: int
    hits: int
    misses: int
    ahead: int
    fetched_bytes: int
    evictions: int
    refetches: int


@dataclass(frozen=True)
class Delivery:
    """``stalls``: shard -> boot time that the trainer stood still while it was read."""

    steps: int
    depth: int
    wait_ns: int
    ready: int
    empty: int
    busy_ns: int
    cpu_ns: int
    span_ns: int
    step_ns: int  # updates and their waiting
    sources: tuple[SourceDelivery, ...]
    stalls: dict[str, int]

    @property
    def wait_share(self) -> float:
        """Of the time of steps."""
        return self.wait_ns / self.step_ns if self.step_ns else 0.0

    @property
    def mean_ready(self) -> float:
        return self.ready / self.steps if self.steps else 0.0

    @property
    def saturation(self) -> float:
        """CPU of the loader's thread over wall time: 1 is a whole core, more it cannot use."""
        return self.cpu_ns / self.span_ns if self.span_ns else 0.0

    @property
    def is_remote(self) -> bool:
        return any(source.hits or source.misses or source.ahead for source in self.sources)

    def to_json(self) -> dict[str, Any]:
        derived = {"wait_share": self.wait_share, "mean_ready": self.mean_ready, "saturation": self.saturation}
        return asdict(self) | derived


_LOADER = ("steps", "wait_ns", "ready", "empty", "busy_ns", "cpu_ns", "span_ns")
_SOURCE = tuple(name for name in SourceDelivery.__dataclass_fields__ if name != "name")


def delivery(rows: list[dict]) -> Delivery | None:
    """Of rows with their ``segment``; None where none of them says (runs of older versions)."""
    last = {row["segment"]: row for row in rows if row["kind"] == "delivery"}
    if not last:
        return None
    loader = dict.fromkeys(_LOADER, 0)
    sources: dict[str, dict[str, int]] = {}
    for row in last.values():
        _add(loader, row["loader"])
        for name, counts in row["sources"].items():
            _add(sources.setdefault(name, dict.fromkeys(_SOURCE, 0)), counts)
    depth = max(_number(row["loader"].get("depth")) for row in last.values())
    found = tuple(SourceDelivery(name=name, **counts) for name, counts in sources.items())
    return Delivery(depth=depth, step_ns=_step_ns(rows), sources=found, stalls=_stalls(rows), **loader)


def _add(total: dict[str, int], counts: Any) -> None:
    for name in total:
        total[name] += _number(counts.get(name)) if isinstance(counts, dict) else 0


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _step_ns(rows: list[dict]) -> int:
    splits = [row.get("split", {}) for row in rows if row["kind"] == "step"]
    names = (Category.PRODUCTIVE.value, Category.DATA_STALL.value)
    return sum(split.get(name, 0) for split in splits for name in names)


def _stalls(rows: list[dict]) -> dict[str, int]:
    """A stall is told again every few seconds, with all that it took so far: the last time counts."""
    longest: dict[tuple[int, int, str], int] = {}
    for row in rows:
        if row["kind"] == "stall" and row["shard"]:
            longest[row["segment"], row["step"], row["shard"]] = row["waited_ns"]
    totals: dict[str, int] = {}
    for (_, _, shard), waited_ns in longest.items():
        totals[shard] = totals.get(shard, 0) + waited_ns
    return totals
