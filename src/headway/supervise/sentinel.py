"""Judges the steps of all ranks while they run: slow ranks, memory that only grows, waits for data. Each finding is an event.

Every block of steps is a record of segments/0001/ranks.jsonl, so that per-rank times can be looked at later.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.base.errors import HeadwayError
from headway.base.files import read_json
from headway.base.records import RecordWriter
from headway.monitor.blocks import Block, Blocks, peers_of
from headway.monitor.growth import MemoryGrowth
from headway.monitor.storage import DataWaits
from headway.monitor.stragglers import Stragglers
from headway.rundir.heartbeats import Beat
from headway.rundir.layout import RunDirectory

if TYPE_CHECKING:
    from headway.supervise.attempt import Watch


class Sentinel:
    """Of one segment; what it learned of the ranks is theirs alone, since a restart may place them elsewhere."""

    def __init__(self, watch: Watch, segment: int, world: int):
        self._watch, self._segment, self._world = watch, segment, world
        self._blocks = Blocks(_peers(watch.run, segment, world))
        self._stragglers, self._data = Stragglers(world), DataWaits(world)
        self._memory: MemoryGrowth | None = None
        self._writer: RecordWriter | None = None

    def take(self, steps: Mapping[int, Sequence[dict]], beats: Mapping[int, Beat]) -> None:
        """``steps``: done since the last call, by rank."""
        for block in self._blocks.take(steps):
            self._keep(block)
            if self._memory is None:
                self._memory = MemoryGrowth(_room(beats, self._world))
            self._tell("straggler", self._stragglers.take(block), beats)
            self._tell("memory_growth", self._memory.take(block), beats)
            self._tell("slow_data", self._data.take(block), beats)

    def _tell(self, kind: str, found: Sequence[Any], beats: Mapping[int, Beat]) -> None:
        for one in found:
            host = beats[one.rank].who.get("host", "") if one.rank in beats else ""
            self._watch.record(kind, segment=self._segment, host=host, text=one.words(host), **one.fields())

    def _keep(self, block: Block) -> None:
        """What cannot be written is left out: the run goes on."""
        with contextlib.suppress(HeadwayError):
            self._writer = self._writer or RecordWriter(self._watch.run.segment(self._segment) / "ranks.jsonl")
            self._writer.append({"kind": "block", "stamp": self._watch.clock.stamp().to_json(), **block.to_json()})

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _peers(run: RunDirectory, segment: int, world: int) -> list[int]:
    path = run.segment(segment) / "segment.json"
    layout = read_json(path, "segment").get("layout", {}) if path.exists() else {}
    return peers_of({**layout, "world": world})


def _room(beats: Mapping[int, Beat], world: int) -> list[int]:
    """By rank: the memory of its machine, in equal parts for the ranks on it."""
    ranks = Counter(beat.who.get("host") for beat in beats.values())
    found = [0] * world
    for rank, beat in beats.items():
        found[rank] = int(beat.who.get("memory") or 0) // ranks[beat.who.get("host")]
    return found
