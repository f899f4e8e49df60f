"""Memory that only grows: the resident memory of a rank over the steps, with the time until its machine has none left.

A leak is a trend, not a level: caches fill in the beginning and then stand still. A rank is named where over at least
``LEAST_POINTS`` blocks, the first few left out,

    the pairs of blocks rise far more often than by chance (Mann 1945, Kendall: |z| > 5), and
    every third of the time holds more than the one before, by rises of about the same size, and
    the line (Theil 1950, Sen 1968: median of the slopes of all pairs) has grown by 5 % and by 64 MiB, and
    it has lasted for a twentieth of the time that it leaves: nobody can tell a leak of days from a cache in a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median
from typing import Any

import numpy as np

from headway.base.units import format_bytes, format_seconds
from headway.monitor.blocks import Block

WARM_UP_BLOCKS, LEAST_POINTS, MOST_POINTS = 4, 24, 96
LEAST_Z, LEAST_SHARE, LEAST_BYTES = 5.0, 0.05, 64 * 2**20
STEADY = (0.5, 2.5)
LEAST_PART, LEAST_SECONDS = 0.05, 3600.0
"""Of the time left that the trend must have lasted; and where that is unknown, how long."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """``bytes_per_step`` by ``step``, ``seconds_left`` until the machine's memory is used up (inf: it is not known)."""

    rank: int
    step: int
    since_step: int
    bytes_per_step: float
    resident: int
    seconds_left: float

    def words(self, host: str = "") -> str:
        where = f" on {host}" if host else ""
        left = "" if self.seconds_left == inf else f"; its machine's memory is used up in {format_seconds(self.seconds_left)}"
        return (
            f"the memory of rank {self.rank}{where} has grown by {format_bytes(self.bytes_per_step)} per step since step "
            f"{self.since_step} and is {format_bytes(self.resident)}{left}"
        )

    def fields(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("rank", "step", "since_step", "resident")}
        plain |= {"bytes_per_step": round(self.bytes_per_step, 1)}
        return plain if self.seconds_left == inf else plain | {"seconds_left": round(self.seconds_left)}


def slope_of(points: Sequence[tuple[int, int]]) -> float | None:
    """Bytes per step where ``points`` (step, bytes), in order, are a leak; None: they are not."""
    if len(points) < LEAST_POINTS:
        return None
    steps, held = (np.array(column, dtype=np.float64) for column in zip(*points))
    first, second = np.triu_indices(len(points), 1)
    rises = held[second] - held[first]
    n = len(points)
    z = float(np.sign(rises).sum()) / sqrt(n * (n - 1) * (2 * n + 5) / 18)
    slope = float(np.median(rises / (steps[second] - steps[first])))
    grown = slope * float(steps[-1] - steps[0])
    thirds = [median(held[n * part // 3 : n * (part + 1) // 3].tolist()) for part in range(3)]
    early, late = thirds[1] - thirds[0], thirds[2] - thirds[1]
    steady = early > 0 and STEADY[0] * early <= late <= STEADY[1] * early
    return slope if z > LEAST_Z and steady and grown >= max(LEAST_BYTES, LEAST_SHARE * held[0]) else None


class MemoryGrowth:
    """Fed with block after block. ``room``: by rank, bytes that its machine has for it; 0: unknown. Each rank is named once."""

    def __init__(self, room: Sequence[int]):
        self._room = room
        self._points: list[list[tuple[int, int]]] = [[] for _ in room]
        self._named: set[int] = set()
        self._blocks, self._every = 0, 1
        self._seconds, self._steps = 0.0, 0

    def take(self, block: Block) -> list[Growth]:
        self._blocks += 1
        if self._blocks <= WARM_UP_BLOCKS:
            return []
        self._seconds, self._steps = self._seconds + block.seconds, self._steps + block.steps
        if self._blocks % self._every:
            return []
        for points, rss in zip(self._points, block.rss, strict=True):
            points.append((block.last, rss))
        found = [growth for rank in range(len(self._room)) if (growth := self._judge(rank, block)) is not None]
        if len(self._points[0]) >= MOST_POINTS:  # every second one stays: the line reaches as far back as the segment
            self._points, self._every = [points[1::2] for points in self._points], 2 * self._every
        return found

    def _judge(self, rank: int, block: Block) -> Growth | None:
        points = self._points[rank]
        if rank in self._named or (slope := slope_of(points)) is None:
            return None
        per_second = slope * self._steps / self._seconds
        left = (self._room[rank] - points[-1][1]) / per_second if self._room[rank] else inf
        if self._seconds < (LEAST_SECONDS if left == inf else LEAST_PART * left):
            return None
        self._named.add(rank)
        return Growth(
            rank=rank,
            step=block.last,
            since_step=points[0][0],
            bytes_per_step=slope,
            resident=points[-1][1],
            seconds_left=max(0.0, left),
        )
