"""Where documents end: a uint64 per document, searched where it lies, however many there are.

    ends   40 | 97 | 130 | ...       token 96: document 1, as ends[0] <= 96 < ends[1]

Few ends are hashed whole when they are opened. Of many, a block is hashed when an answer rests on it: a search is proven by the
two ends beside the place that it found, since ends grow. A damaged one that leads it astray is one of those two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash

from headway.data.manifest import BLOCK_BYTES, EndsEntry, TableFile
from headway.data.mapped import damaged, map_file
from headway.data.tables import MappedTable

END_BYTES = 8
_AT_ONCE = 2**16
WHOLE_BYTES = 2**26
"""Up to 8.4 M documents are hashed at once, in some milliseconds."""


def ends_entry(written: TableFile) -> EndsEntry:
    """As the manifest has it: where all are hashed at once, blocks would only make it long."""
    if written.bytes <= WHOLE_BYTES:
        return EndsEntry(written.file, written.xxh3_128)
    return EndsEntry(written.file, written.xxh3_128, written.blocks, written.block_digests)


class Ends:
    """As a sorted int64 array, of which every answer is verified. EnvironmentFault for ends that have another digest."""

    def __init__(self, directory: Path, entry: EndsEntry, documents: int, verify: bool):
        size = documents * END_BYTES
        self._table: MappedTable | None = None
        if entry.blocks or entry.block_digests:
            table = TableFile(entry.file, size, entry.xxh3_128, entry.blocks, entry.block_digests)
            self._table = MappedTable(directory, table, verify)
            data = self._table.bytes
        else:
            data = map_file(directory / entry.file, size)
            if verify and xxhash.xxh3_128_hexdigest(data.data) != entry.xxh3_128:
                raise damaged(directory / entry.file, "the whole file")
        self._ends = data.view("<u8").view("<i8")  # signed, so that searchsorted with int64 copies nothing

    def __len__(self) -> int:
        return self._ends.size

    def __getitem__(self, index: np.ndarray | slice | int) -> np.ndarray:
        if self._table is not None and not self._table.is_verified:
            self._table.touch(_bytes_of(index, len(self)))
        return self._ends[index]

    def verify_all(self) -> None:
        """Those that are hashed by blocks; the others were when they were opened."""
        if self._table is not None:
            self._table.verify_all()

    def each(self) -> Iterator[int]:
        """All of them, in the memory of some."""
        for at in range(0, len(self), _AT_ONCE):
            yield from self[at : at + _AT_ONCE].tolist()

    def searchsorted(self, tokens: np.ndarray | list[int] | int, side: Literal["left", "right"]) -> np.ndarray:
        """As numpy's."""
        found = self._ends.searchsorted(tokens, side)
        if self._table is not None and not self._table.is_verified and len(self):
            beside = np.concatenate([np.maximum(found - 1, 0), np.minimum(found, len(self) - 1)], axis=None)
            self._table.touch(beside * END_BYTES)
        return found


def _bytes_of(index: np.ndarray | slice | int, size: int) -> np.ndarray:
    """One of each block that these ends lie in, at least."""
    if not isinstance(index, slice):
        return np.asarray(index) % size * END_BYTES  # negative: from the end
    start, stop, _ = index.indices(size)
    if start >= stop:
        return np.empty(0, np.int64)
    return np.append(np.arange(start * END_BYTES, stop * END_BYTES, BLOCK_BYTES), stop * END_BYTES - 1)
