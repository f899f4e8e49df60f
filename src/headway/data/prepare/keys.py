"""What the steps remember of the documents that were kept, in temporary files: the disk's matter, not memory's.

    KeyTable   64-bit keys -> whole numbers. Open addressing with linear probing, at most half full, doubled when it is: 16 bytes
               per slot, 32 to 64 per key. Batches of keys are looked up at once; the cost per key does not grow
    Numbers    a list of whole numbers
    Names      source and origin of each kept document, for the report

The files are mapped: what is used stays in memory while there is room, and the kernel writes the rest out.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headway.base.errors import EnvironmentFault
from headway.base.files import fill_with_zeros

LIMIT_BYTES = 8 * 2**30
"""Of one table. A build that needs more is refused instead of filling the disk."""

ABSENT = -1
_BLOCK = 2**16


def mapped(directory: Path | None, bytes_: int) -> mmap.mmap:
    """Zeros in a file without a name, below ``directory``; None: in memory. OSError: no room."""
    if directory is None:
        return mmap.mmap(-1, bytes_)
    with tempfile.TemporaryFile(dir=directory) as file:
        fill_with_zeros(file.fileno(), bytes_)
        return mmap.mmap(file.fileno(), bytes_)


class KeyTable:
    """uint64 -> int64 from 0 on. ``what`` names it in the one error: more keys than ``limit_bytes`` hold."""

    def __init__(self, what: str, directory: Path | None = None, limit_bytes: int = LIMIT_BYTES):
        self._what, self._directory, self._limit_bytes = what, directory, limit_bytes
        self._allocate(1024)
        self.probes = 0

    def _allocate(self, slots: int) -> None:
        """A slot is a key and its value plus one: zero where it is free."""
        self._slots = np.frombuffer(mapped(self._directory, 16 * slots), np.uint64).reshape(slots, 2)
        self._mask, self._used = np.uint64(slots - 1), 0

    def __len__(self) -> int:
        return self._used

    @property
    def bytes(self) -> int:
        return self._slots.nbytes

    def get(self, keys: np.ndarray) -> np.ndarray:
        """int64 per key: its value, ABSENT where there is none."""
        return self._slots[self._find(keys), 1].astype(np.int64) - 1

    def put(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Set the value of each key; ``keys`` are distinct, ``values`` 0 or more."""
        stored = values.astype(np.uint64) + np.uint64(1)
        self._place(keys, lambda at, free, which: stored[which])

    def count(self, keys: np.ndarray) -> None:
        """Add one to the value of each key, which is 1 where there was none; ``keys`` are distinct."""
        self._place(keys, lambda at, free, which: self._slots[at, 1] + np.where(free, np.uint64(2), np.uint64(1)))

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Where each key stands, or the free slot where it would."""
        at = _home(keys) & self._mask
        self.probes += len(keys)
        slots = self._slots[at]
        waiting = np.flatnonzero((slots[:, 1] != 0) & (slots[:, 0] != keys))
        while len(waiting):
            self.probes += len(waiting)
            at[waiting] = (at[waiting] + np.uint64(1)) & self._mask
            slots = self._slots[at[waiting]]
            waiting = waiting[(slots[:, 1] != 0) & (slots[:, 0] != keys[waiting])]
        return at

    def _place(self, keys: np.ndarray, stored: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> None:
        """``stored``: what is written at slots, of which some are free, for these of the keys."""
        if 2 * (self._used + len(keys)) > len(self._slots):
            self._grow(len(keys))
        which = np.arange(len(keys))
        while len(which):
            at = self._find(keys[which])
            free = self._slots[at, 1] == 0
            self._slots[at[free], 0] = keys[which[free]]  # of several that want one free slot, the last has it
            mine = self._slots[at, 0] == keys[which]
            self._slots[at[mine], 1] = stored(at[mine], free[mine], which[mine])
            self._used += int(np.count_nonzero(mine & free))
            which = which[~mine]

    def _grow(self, more: int) -> None:
        slots = len(self._slots)
        while 2 * (self._used + more) > slots:
            slots *= 2
        if 16 * slots > self._limit_bytes:
            raise EnvironmentFault(
                f"the {self._what} need {16 * slots:,} bytes of temporary files",
                f"a table of the preparation takes at most {self._limit_bytes:,}",
                "build from fewer documents at a time, or leave out that step of data.prepare",
            )
        old = self._slots
        self._allocate(slots)
        for start in range(0, len(old), _BLOCK):  # of a table that is larger than memory, only some is held at once
            block = old[start : start + _BLOCK]
            block = block[block[:, 1] != 0]
            self.put(block[:, 0], block[:, 1].astype(np.int64) - 1)


def _home(keys: np.ndarray) -> np.ndarray:
    """Where the search for a key begins: its high bits matter too."""
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)


class Numbers:
    """int64, appended and read in any order."""

    def __init__(self, directory: Path | None):
        self._directory, self._count = directory, 0
        self._held = np.frombuffer(mapped(directory, 8 * 1024), np.int64)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        return int(self._held[at])

    def extend(self, values: np.ndarray) -> None:
        if self._count + len(values) > len(self._held):
            size = 2 * len(self._held)
            while size < self._count + len(values):
                size *= 2
            grown = np.frombuffer(mapped(self._directory, 8 * size), np.int64)
            grown[: self._count] = self._held[: self._count]
            self._held = grown
        self._held[self._count : self._count + len(values)] = values
        self._count += len(values)


class Names:
    """(source, origin) by number, in order of appending."""

    def __init__(self, directory: Path | None):
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()
        self._ends = Numbers(directory)

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, source: str, origin: str) -> None:
        name = f"{source}\0{origin}".encode("utf-8", "surrogatepass")
        self._file.write(name)
        self._ends.extend(np.array([self._start(len(self)) + len(name)]))

    def __getitem__(self, number: int) -> tuple[str, str]:
        self._file.flush()
        start = self._start(number)
        name = os.pread(self._file.fileno(), self._ends[number] - start, start).decode("utf-8", "surrogatepass")
        source, _, origin = name.partition("\0")
        return source, origin

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def close(self) -> None:
        self._file.close()
