"""Best-fit plans as they are read: bins and pieces, from mapped files that are verified block by block (``packing.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headway.data.manifest import BLOCK_BYTES, Packing, TableFile
from headway.data.place import DataPlace
from headway.data.ragged import places_within
from headway.data.tables import MappedTable

_ROW_BYTES = 16
_BLOCK_ROWS = BLOCK_BYTES // _ROW_BYTES


class Pieces(NamedTuple):
    """Pieces of some bins, in their order: place of the bin among those asked for, first token and tokens of each."""

    place: np.ndarray
    start: np.ndarray
    tokens: np.ndarray


class Plan:
    """One source's packing for one sequence length. Of data at a URL its files are fetched here, when a plan is first read."""

    def __init__(self, place: DataPlace | Path, packing: Packing, verify: bool = True):
        root = DataPlace.of(place).having(packing.rows, packing.pieces)
        self._bins, self._pieces = _Rows(root, packing.rows, verify), _Rows(root, packing.pieces, verify)

    def pieces(self, bins: np.ndarray) -> Pieces:
        first = self._bins.rows(bins)[:, 0]
        count = self._bins.rows(bins + 1)[:, 0] - first
        place = np.repeat(np.arange(bins.size), count)
        rows = self._pieces.rows(first[place] + places_within(count))
        return Pieces(place, rows[:, 0], rows[:, 1])

    def filled(self, bins: np.ndarray) -> np.ndarray:
        """Tokens of each bin that are no padding."""
        return self._bins.rows(bins)[:, 1]

    def touching(self, first: int, last: int) -> tuple[int, ...]:
        """The bins that read a token of [first, last), as input or as target. In the memory of a block and of what is found."""
        found = [at + np.flatnonzero((rows[:, 0] < last) & (rows.sum(axis=1) >= first)) for at, rows in self._pieces.walk()]
        pieces = np.concatenate(found) if found else np.empty(0, np.int64)
        bins = np.zeros(pieces.size, np.int64)
        for at, rows in self._bins.walk():
            begun = pieces >= rows[0, 0]
            bins[begun] = at + rows[:, 0].searchsorted(pieces[begun], "right") - 1
        return tuple(np.unique(bins).tolist())

    def verify_all(self) -> None:
        for file in (self._bins, self._pieces):
            for _ in file.walk():
                pass


class _Rows:
    """A file of pairs of uint64. A row lies in one block."""

    def __init__(self, root: Path, entry: TableFile, verify: bool):
        self._table = MappedTable(root, entry, verify)
        self.count = entry.bytes // _ROW_BYTES
        self._rows = self._table.bytes.view("<i8").reshape(-1, 2)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """int64 (n, 2)."""
        self._table.touch(index * _ROW_BYTES)
        return self._rows[index]

    def walk(self) -> Iterator[tuple[int, np.ndarray]]:
        """The number of a block's first row, and its rows, block by block."""
        for at in range(0, self.count, _BLOCK_ROWS):
            yield at, self.rows(np.arange(at, min(at + _BLOCK_ROWS, self.count)))
