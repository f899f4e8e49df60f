"""What became of the work of a row: kept, rolled back, or skipped.

    segment 1   steps 1 ... 40 | 41 ... 60 (spike)        2: restores 40, skips the sequences of 41 to 50
                kept           | 41-50 skipped, 51-60 rolled back: their sequences come again

Skipped is what was trained, undone, and will not be trained again; and an update that was kept but never applied (a bad
gradient): its batch is used up, and nothing was learned from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.rundir.metrics import is_kept, last_kept_steps, step_of
from headway.rundir.segments import Segment
from headway.rundir.skips import gaps_of, trained_in


@dataclass(frozen=True)
class Fate:
    """``skipped`` of ``of`` equal parts are skipped; the rest is rolled back where the row is ``undone``, else kept."""

    undone: bool
    skipped: int = 0
    of: int = 1


class Fates:
    """Of every row of a run. ``stages``: their names in order; without them no sequence is known to be skipped.

    ``segments``: those on the chain and off it; of one that is in neither, nobody knows which sequences it trained.
    """

    def __init__(
        self,
        steps: Mapping[int, list[dict]],
        chain: Sequence[Segment],
        segments: Sequence[Segment] = (),
        stages: Sequence[str] = (),
    ):
        self._last = last_kept_steps(list(chain))
        self._stages = {name: index for index, name in enumerate(stages)}
        self._skips: tuple[dict, ...] = chain[-1].skips if chain else ()
        self._own = {segment.id: segment.skips for segment in (*segments, *chain)}
        self._undone = self._skipped_parts(steps) if self._skips else {}

    def of(self, segment: int, row: dict) -> Fate:
        if is_kept(row, self._last.get(segment, -1)):
            left_out = row["kind"] == "step" and row.get("applied") is False
            return Fate(undone=False, skipped=int(left_out))
        skipped, parts = self._undone.get((segment, step_of(row)), (0, 1))
        return Fate(undone=True, skipped=skipped, of=parts)

    def _skipped_parts(self, steps: Mapping[int, list[dict]]) -> dict[tuple[int, int], tuple[int, int]]:
        """(segment, step) of undone updates -> how many of how many sequences are skipped now."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for segment, rows in steps.items():
            for row in rows:
                is_undone = row["kind"] == "step" and not is_kept(row, self._last.get(segment, -1))
                if is_undone and (parts := self._parts(segment, row)):
                    found[segment, row["step"]] = parts
        return found

    def _parts(self, segment: int, row: dict[str, Any]) -> tuple[int, int] | None:
        end, sequences, stage = row.get("u"), row.get("sequences"), self._stages.get(str(row.get("stage")))
        if stage is None or segment not in self._own or type(end) is not int or type(sequences) is not int or sequences < 1:
            return None
        own = gaps_of(self._own[segment], stage)
        skipped = trained_in((end - sequences, end), own, gaps_of(self._skips, stage))
        return (skipped, sequences) if skipped else None
