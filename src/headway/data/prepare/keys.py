"""A table from 64-bit keys to whole numbers in two numpy arrays: what the steps remember of the documents that were kept.

Open addressing with linear probing, at most half full, doubled when it is: 16 bytes per slot, 32 to 64 per key (a dict of
Python integers takes about three times that). Batches of keys are looked up at once; the cost per key does not grow.
"""

from __future__ import annotations

import numpy as np

from headway.base.errors import EnvironmentFault

LIMIT_BYTES = 8 * 2**30
"""Of one table. A build that needs more is refused instead of driving the machine into swap."""

ABSENT = -1


class KeyTable:
    """uint64 -> int64 from 0 on. ``what`` names it in the one error: more keys than ``limit_bytes`` hold."""

    def __init__(self, what: str, limit_bytes: int = LIMIT_BYTES):
        self._what, self._limit_bytes = what, limit_bytes
        self._allocate(1024)
        self.probes = 0

    def _allocate(self, slots: int) -> None:
        self._keys, self._values = np.zeros(slots, np.uint64), np.full(slots, ABSENT, np.int64)
        self._mask, self._used = np.uint64(slots - 1), 0

    def __len__(self) -> int:
        return self._used

    @property
    def bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def get(self, keys: np.ndarray) -> np.ndarray:
        """The value of each key, ABSENT where there is none."""
        values = np.full(len(keys), ABSENT, np.int64)
        at, waiting = _home(keys) & self._mask, np.arange(len(keys))
        while len(waiting):
            self.probes += len(waiting)
            slots = at[waiting]
            found = self._values[slots]
            hit = (self._keys[slots] == keys[waiting]) & (found != ABSENT)
            values[waiting[hit]] = found[hit]
            waiting = waiting[~hit & (found != ABSENT)]
            at[waiting] = (at[waiting] + np.uint64(1)) & self._mask
        return values

    def put(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Set the value of each key; ``keys`` are distinct, ``values`` 0 or more."""
        if 2 * (self._used + len(keys)) > len(self._keys):
            self._grow(len(keys))
        at, waiting = _home(keys) & self._mask, np.arange(len(keys))
        while len(waiting):
            self.probes += len(waiting)
            slots = at[waiting]
            free = self._values[slots] == ABSENT
            self._keys[slots[free]] = keys[waiting[free]]  # of several that want one free slot, the last has it
            mine = self._keys[slots] == keys[waiting]
            self._used += int((mine & free).sum())
            self._values[slots[mine]] = values[waiting[mine]]
            waiting = waiting[~mine]
            at[waiting] = (at[waiting] + np.uint64(1)) & self._mask

    def _grow(self, more: int) -> None:
        slots = len(self._keys)
        while 2 * (self._used + more) > slots:
            slots *= 2
        if 16 * slots > self._limit_bytes:
            raise EnvironmentFault(
                f"the {self._what} need {16 * slots:,} bytes of memory",
                f"a table of the preparation takes at most {self._limit_bytes:,}",
                "build from fewer documents at a time, or leave out that step of data.prepare",
            )
        taken = self._values != ABSENT
        keys, values = self._keys[taken], self._values[taken]
        self._allocate(slots)
        self.put(keys, values)


def _home(keys: np.ndarray) -> np.ndarray:
    """Where the search for a key begins: its high bits matter too."""
    return (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
