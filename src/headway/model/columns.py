"""Which tokens of a row are here, where ranks divide rows: runs of its columns.

row of 16 tokens   0 1 2 3 4 5 6 7 8 9 a b c d e f
a rank has             2 3                 c d            runs (2..4), (12..14): its tokens in the order of the row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """Of rows of ``length`` tokens those of ``runs``, which ascend and are apart."""

    length: int
    runs: tuple[range, ...]

    @staticmethod
    def whole(length: int) -> Columns:
        return Columns(length, (range(length),))

    @staticmethod
    def of(length: int, *runs: range) -> Columns:
        """Ascending runs that do not overlap: neighbours become one."""
        joined: list[range] = []
        for run in runs:
            if joined and joined[-1].stop == run.start:
                joined[-1] = range(joined[-1].start, run.stop)
            else:
                joined.append(run)
        return Columns(length, tuple(joined))

    @property
    def is_all(self) -> bool:
        return self.runs == (range(self.length),)

    def part(self, at: slice) -> Columns:
        """Of the tokens that are here those at ``at``, which has both ends."""
        runs, before = [], 0
        for run in self.runs:
            runs.append(run[max(at.start - before, 0) : max(at.stop - before, 0)])
            before += len(run)
        return Columns(self.length, tuple(run for run in runs if run))

    def of_row(self, x_BT: Tensor) -> Tensor:
        """Of whole rows, the tokens that are here: B T ... -> B t ..."""
        return x_BT if self.is_all else torch.cat([x_BT[:, run.start : run.stop] for run in self.runs], 1)

    def tensor(self, device: torch.device) -> Tensor:
        """int64, one per token."""
        return torch.cat([torch.arange(run.start, run.stop, device=device) for run in self.runs])

    @property
    def count(self) -> int:
        """Tokens that are here."""
        return sum(map(len, self.runs))

    def pieces(self, size: int | None = None) -> Iterator[tuple[slice, int]]:
        """Runs, or pieces of them of at most ``size`` tokens: where each stands among the tokens that are here, and its first
        column in the row."""
        before, size = 0, size or self.length
        for run in self.runs:
            for start in range(0, len(run), size):
                yield slice(before + start, before + min(start + size, len(run))), run.start + start
            before += len(run)
