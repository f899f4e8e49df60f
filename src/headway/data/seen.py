"""Which texts a build has kept so far: an open hash table in a file, so that its size is the disk's matter, not memory's.

    slot   16 bytes of the text's digest   some bytes: the number that is known of it, plus one; zero: free

A digest is random, so its first bytes are its place; the next free slot follows where that one is taken. The table is doubled
when it is six tenths full. It is made anew by every build, from the digests that finished sources left.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from headway.base.files import fill_with_zeros

DIGEST_BYTES = 16
_SOURCE_BYTES = 2
_FEWEST_SLOTS = 2**12


class DigestTable:
    """Digest of 16 bytes -> whole number from 0 on, less than 256^value_bytes - 1."""

    def __init__(self, path: Path | None = None, value_bytes: int = 6):
        """``path``: of the table, replaced if it is there; None: in memory."""
        self._path, self._count = path, 0
        self._slot, self._free = DIGEST_BYTES + value_bytes, bytes(value_bytes)
        self._table = self._new(_FEWEST_SLOTS)

    def get(self, digest: bytes) -> int | None:
        return self._value(self._place(self._table, digest))

    def put(self, digest: bytes, value: int) -> None:
        """Of a digest that is not there yet, or is given another number."""
        self._set(self._place(self._table, digest), digest, value)

    def close(self) -> None:
        self._table.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _value(self, place: int) -> int | None:
        held = self._table[place + DIGEST_BYTES : place + self._slot]
        return None if held == self._free else int.from_bytes(held, "little") - 1

    def _set(self, place: int, digest: bytes, value: int) -> None:
        self._count += self._table[place + DIGEST_BYTES : place + self._slot] == self._free
        self._table[place : place + self._slot] = digest + (value + 1).to_bytes(len(self._free), "little")
        if self._count * 10 > len(self._table) // self._slot * 6:
            self._grow()

    def _new(self, slots: int) -> mmap.mmap:
        if self._path is None:
            return mmap.mmap(-1, slots * self._slot)
        self._path.unlink(missing_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fill_with_zeros(descriptor, slots * self._slot)
            return mmap.mmap(descriptor, slots * self._slot)
        finally:
            os.close(descriptor)

    def _place(self, table: mmap.mmap, digest: bytes) -> int:
        """Where ``digest`` stands in ``table``, or the free slot where it would."""
        size = self._slot
        slots = len(table) // size
        place = int.from_bytes(digest[:8], "little") % slots
        while True:
            at = place * size
            if table[at : at + DIGEST_BYTES] == digest or table[at + DIGEST_BYTES : at + size] == self._free:
                return at
            place = (place + 1) % slots

    def _grow(self) -> None:
        old, self._table = self._table, self._new(2 * len(self._table) // self._slot)
        for slot in self._taken(old):
            at = self._place(self._table, slot[:DIGEST_BYTES])
            self._table[at : at + self._slot] = slot
        old.close()

    def _taken(self, table: mmap.mmap) -> Iterator[bytes]:
        for at in range(0, len(table), self._slot):
            if table[at + DIGEST_BYTES : at + self._slot] != self._free:
                yield table[at : at + self._slot]


class Seen(DigestTable):
    """Digests of all documents kept so far, over all sources, with the number of the source that holds each."""

    def __init__(self, path: Path | None = None):
        super().__init__(path, _SOURCE_BYTES)

    def holder(self, digest: bytes, source: int) -> int | None:
        """The source that already holds this text; None: nobody did, ``source`` does now."""
        place = self._place(self._table, digest)
        held = self._value(place)
        if held is None:
            self._set(place, digest, source)
        return held
