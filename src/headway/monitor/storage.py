"""Storage that becomes slow: saves that take longer and longer, and ranks that wait for their data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.base.units import format_seconds
from headway.monitor.blocks import Block

SAVE_FACTOR, SAVE_SECONDS, SAVES_BEFORE, SAVES_IN_A_ROW = 3.0, 5.0, 4, 2
DATA_SHARE, DATA_FACTOR, DATA_BLOCKS, BLOCKS_BEFORE = 0.10, 3.0, 3, 4


@dataclass(frozen=True, kw_only=True)
class SlowSave:
    """A committed save of step ``step`` that took ``seconds`` to write, where the usual is ``usual_seconds``."""

    step: int
    seconds: float
    usual_seconds: float

    def words(self) -> str:
        usual = format_seconds(self.usual_seconds)
        return f"writing the save of step {self.step} took {format_seconds(self.seconds)}, as the one before it; usual is {usual}"


def slow_saves(rows: list[dict]) -> list[SlowSave]:
    """The newest saves took ``SAVE_FACTOR`` times as long as usual, ``SAVES_IN_A_ROW`` times; those are no part of it."""
    found: list[SlowSave] = []
    usual: list[float] = []
    slow = 0
    for row in rows:
        if row["kind"] != "save" or not row.get("flush_ns"):
            continue
        seconds = row["flush_ns"] / 1e9
        middle = median(usual[-64:]) if len(usual) >= SAVES_BEFORE else None
        if middle is None or seconds < max(SAVE_FACTOR * middle, middle + SAVE_SECONDS):
            slow = 0
            usual.append(seconds)
            continue
        slow += 1
        if slow == SAVES_IN_A_ROW:
            found.append(SlowSave(step=row["step"], seconds=seconds, usual_seconds=middle))
    return found


@dataclass(frozen=True, kw_only=True)
class SlowData:
    """A rank has waited for its data for the share ``waited`` of its time in the newest blocks; ``usual`` before."""

    rank: int
    step: int
    since_step: int
    waited: float
    usual: float

    def words(self, host: str = "") -> str:
        where = f" on {host}" if host else ""
        waited = f"{self.waited:.0%} of its time since step {self.since_step}, before it was {self.usual:.1%}"
        return f"rank {self.rank}{where} waits for its data: {waited}"

    def fields(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("rank", "step", "since_step")}
        return plain | {"waited": round(self.waited, 4), "usual": round(self.usual, 4)}


class DataWaits:
    """Fed with block after block; a rank is named once per stretch."""

    def __init__(self, world: int):
        self._usual: list[list[float]] = [[] for _ in range(world)]
        self._slow: list[list[tuple[int, float]]] = [[] for _ in range(world)]

    def take(self, block: Block) -> list[SlowData]:
        found = []
        for rank, share in enumerate(block.data_share):
            usual, slow = self._usual[rank], self._slow[rank]
            middle = median(usual[-64:]) if len(usual) >= BLOCKS_BEFORE else 1.0
            if share < max(DATA_SHARE, DATA_FACTOR * middle):
                slow.clear()
                usual.append(share)
                continue
            slow.append((block.first, share))
            if len(slow) == DATA_BLOCKS:
                waited = median(share for _, share in slow)
                found.append(SlowData(rank=rank, step=block.last, since_step=slow[0][0], waited=waited, usual=middle))
        return found
