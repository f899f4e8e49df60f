"""Which texts a build has kept so far: an open hash table in a file, so that its size is the disk's matter, not memory's.

    slot   16 bytes of the text's digest   2 bytes: number of the source that holds it, plus one; zero: free

A digest is random, so its first bytes are its place; the next free slot follows where that one is taken. The table is doubled
when it is six tenths full. It is made anew by every build, from the digests that finished sources left.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

DIGEST_BYTES = 16
_SLOT = DIGEST_BYTES + 2
_FREE = b"\0\0"
_FEWEST_SLOTS = 2**12


class Seen:
    """Digests of all documents kept so far, over all sources, with the number of the source that holds each."""

    def __init__(self, path: Path | None = None):
        """``path``: of the table, replaced if it is there; None: in memory."""
        self._path, self._count = path, 0
        self._table = self._new(_FEWEST_SLOTS)

    def holder(self, digest: bytes, source: int) -> int | None:
        """The source that already holds this text; None: nobody did, ``source`` does now."""
        found = self._place(self._table, digest)
        held = self._table[found + DIGEST_BYTES : found + _SLOT]
        if held != _FREE:
            return int.from_bytes(held, "little") - 1
        self._table[found : found + _SLOT] = digest + (source + 1).to_bytes(2, "little")
        self._count += 1
        if self._count * 10 > len(self._table) // _SLOT * 6:
            self._grow()
        return None

    def close(self) -> None:
        self._table.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _new(self, slots: int) -> mmap.mmap:
        if self._path is None:
            return mmap.mmap(-1, slots * _SLOT)
        self._path.unlink(missing_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, slots * _SLOT)
            return mmap.mmap(descriptor, slots * _SLOT)
        finally:
            os.close(descriptor)

    def _place(self, table: mmap.mmap, digest: bytes) -> int:
        """Where ``digest`` stands in ``table``, or the free slot where it would."""
        slots = len(table) // _SLOT
        place = int.from_bytes(digest[:8], "little") % slots
        while True:
            at = place * _SLOT
            if table[at : at + DIGEST_BYTES] == digest or table[at + DIGEST_BYTES : at + _SLOT] == _FREE:
                return at
            place = (place + 1) % slots

    def _grow(self) -> None:
        old, self._table = self._table, self._new(2 * len(self._table) // _SLOT)
        for slot in _taken(old):
            at = self._place(self._table, slot[:DIGEST_BYTES])
            self._table[at : at + _SLOT] = slot
        old.close()


def _taken(table: mmap.mmap) -> Iterator[bytes]:
    for at in range(0, len(table), _SLOT):
        if table[at + DIGEST_BYTES : at + _SLOT] != _FREE:
            yield table[at : at + _SLOT]
