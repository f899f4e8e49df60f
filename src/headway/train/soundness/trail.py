"""Evidence that a segment leaves when its copies came apart, and what the next one makes of it when it repeats those steps.

    first time   step 41 42 43 44 ... 60 (copies differ)         each rank: its own loss of each step, checksums after the last
    again             =  =  x  x  ...                            rank 1: from 43 on another loss; rank 0: only from 44 on

A copy that was changed computes another loss on its own rows one step later; the others are reached by it through the gradients,
later still. So the repetition, which has to be trained anyway, tells the step, and of two copies which one was wrong. A change
below the precision of the products shows in no loss: then the copy whose checksums the repetition has is the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import HeadwayError
from headway.base.files import read_json, write_json
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, read_segments
from headway.store.suspects import finding_of
from headway.train.soundness.finding import REPLICAS


def trail_file(run: RunDirectory, segment: int, rank: int) -> Path:
    return run.segment(segment) / f"trail-{rank:05d}.json"


def leave_trail(path: Path, losses: Mapping[int, float], checksums: Mapping[str, int]) -> None:
    """``losses``: of this rank's own targets by step, since copies were last equal; ``checksums``: of those that differ now."""
    write_json(path, {"losses": {str(step): loss.hex() for step, loss in losses.items()}, "checksums": dict(checksums)})


@dataclass
class Search:
    """``agreed`` < steps <= ``last`` are trained again. ``first``: of these, where this rank's own loss is another."""

    segment: int
    last: int
    agreed: int
    suspects: tuple[int, ...]
    parameter: str
    losses: dict[int, str]
    checksums: dict[str, int]
    first: int | None = None

    @staticmethod
    def begin(run: RunDirectory, segment: Segment, rank: int) -> Search | None:
        """After a finding whose steps ``segment`` repeats on as many ranks; None: there is none, or its evidence is lost."""
        before = [earlier for earlier in read_segments(run) if earlier.id < segment.id]
        found = ((earlier, finding_of(run, earlier.id)) for earlier in reversed(before))
        for earlier, facts in found:
            if facts is None or facts["step"] <= segment.restored_step:
                continue
            if facts.get("by") != REPLICAS or earlier.layout != segment.layout or segment.restored_step > facts["agreed"]:
                return None
            return Search._of(run, earlier.id, facts, rank)
        return None

    @staticmethod
    def _of(run: RunDirectory, segment: int, facts: dict[str, Any], rank: int) -> Search | None:
        try:
            left = read_json(trail_file(run, segment, rank), "trail")
        except HeadwayError:
            return None
        losses = {int(step): loss for step, loss in left["losses"].items()}
        suspects, parameter = tuple(facts["ranks"]), str(facts["parameter"])
        return Search(segment, facts["step"], facts["agreed"], suspects, parameter, losses, left["checksums"])

    def see(self, step: int, loss: float) -> None:
        if self.first is None and step in self.losses and self.losses[step] != loss.hex():
            self.first = step


@dataclass(frozen=True, kw_only=True)
class Located:
    """``rank`` None: it is not known which; ``first_step``: the first whose end state was wrong, None: no loss told it."""

    rank: int | None
    first_step: int | None


def locate(search: Search, firsts: Sequence[int | None], same: Sequence[bool]) -> Located:
    """``firsts``: of each rank, where its own loss is another; ``same``: whether its checksums are those of the repetition."""
    seen = [first for first in firsts if first is not None]
    first_step = max(min(seen) - 1, search.agreed + 1) if seen else None
    earliest = [rank for rank in search.suspects if seen and firsts[rank] == min(seen)]
    other = [rank for rank in search.suspects if not same[rank]]
    named = next((ranks[0] for ranks in (search.suspects, earliest, other) if len(ranks) == 1), None)
    return Located(rank=named, first_step=first_step)
