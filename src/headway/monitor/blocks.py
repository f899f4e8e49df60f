"""Per-rank times of many steps, put together into blocks: what the rules about ranks judge.

    rank 0   step 41  42  43 ...  48 |                     a step counts once all ranks have told of it;
    rank 1        41  42  43 ...  48 |  -> one block       a block is at least 8 of them and one second,
    rank 2        41  42  43 ...  48 |                     the first steps of segments and stages left out

A synchronous step takes as long on every rank, so ranks are compared by their work: the time of the step in which they did not
wait for each other. Ranks are compared with their peers, which have the same part of the model: those of one pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Any

BLOCK_STEPS, BLOCK_SECONDS = 8, 1.0
MOST_OPEN = 512
"""Steps that wait for some rank; older ones are given up (a file of heartbeats holds 64)."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps ``first`` to ``last``, ``steps`` of which count; lists by rank. Times are medians over the steps, in ns.

    ``excess``: the median over the steps of log(own work / median work of the peers); 0.0 without peers. ``seconds``: of the
    steps' times together, waits and input included. ``data_share``: waited for input, of that. ``rss``: bytes at its end.
    """

    first: int
    last: int
    steps: int
    seconds: float
    work_ns: list[int]
    wait_ns: list[int]
    data_ns: list[int]
    data_share: list[float]
    excess: list[float]
    rss: list[int]
    peak: list[int]

    def to_json(self) -> dict[str, Any]:
        """For the records; ratios to four digits."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {name: [round(value, 4) for value in plain[name]] for name in ("excess", "data_share")}


class Blocks:
    """``peers``: by rank, a name of the group that it is compared with."""

    def __init__(self, peers: Sequence[int]):
        self._peers = peers
        self._others = [[at for at, name in enumerate(peers) if name == peers[rank] and at != rank] for rank in range(len(peers))]
        self._open: dict[int, dict[int, dict]] = {}
        self._whole: list[list[dict]] = []
        self._seconds = 0.0  # of those

    def take(self, rows: Mapping[int, Sequence[dict]]) -> list[Block]:
        """``rows``: new steps by rank (``rundir.heartbeats``); returns the blocks that they fill."""
        for rank, done in rows.items():
            for row in done:
                self._open.setdefault(row["step"], {})[rank] = row
        found = []
        for step in sorted(self._open):
            if len(self._open[step]) < len(self._peers):
                continue
            by_rank = self._open.pop(step)
            if not any(row.get("first") for row in by_rank.values()):
                self._whole.append([by_rank[rank] for rank in range(len(self._peers))])
                self._seconds += max(map(_wall_ns, self._whole[-1])) / 1e9
            if len(self._whole) >= BLOCK_STEPS and self._seconds >= BLOCK_SECONDS:
                found.append(self._close())
        for step in sorted(self._open)[:-MOST_OPEN]:
            del self._open[step]
        return found

    def _close(self) -> Block:
        steps, seconds, ranks = self._whole, self._seconds, range(len(self._peers))
        self._whole, self._seconds = [], 0.0

        def of(name: str) -> list[int]:
            return [round(median(rows[rank][name] for rows in steps)) for rank in ranks]

        data = [sum(rows[rank]["data_ns"] for rows in steps) / 1e9 / seconds for rank in ranks]
        return Block(
            first=steps[0][0]["step"],
            last=steps[-1][0]["step"],
            steps=len(steps),
            seconds=seconds,
            work_ns=of("work_ns"),
            wait_ns=of("wait_ns"),
            data_ns=of("data_ns"),
            data_share=data,
            excess=[median(self._excess(rows, rank) for rows in steps) for rank in ranks],
            rss=[steps[-1][rank]["rss"] for rank in ranks],
            peak=[steps[-1][rank]["peak"] for rank in ranks],
        )

    def _excess(self, rows: list[dict], rank: int) -> float:
        others = [max(1, rows[at]["work_ns"]) for at in self._others[rank]]
        return log(max(1, rows[rank]["work_ns"]) / median(others)) if others else 0.0


def _wall_ns(row: dict) -> int:
    return row["work_ns"] + row["wait_ns"] + row["data_ns"]


def peers_of(layout: Mapping[str, Any]) -> list[int]:
    """By rank, its pipeline stage: ``pp`` is the outermost axis of a mesh. ``layout``: of a segment's record."""
    world = int(layout.get("world", 1))
    stages = int((layout.get("axes") or {}).get("pp", 1) or 1)
    return [rank * stages // world for rank in range(world)]
