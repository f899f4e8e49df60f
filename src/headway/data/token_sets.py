"""One token set: shards as one run of tokens, mapped when they are read, verified block by block, and its document ends."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import DamagedData, EnvironmentFault
from headway.data.block_digests import BlockDigests, with_blocks
from headway.data.cache import Held, Traffic
from headway.data.ends import Ends
from headway.data.manifest import BLOCK_BYTES, ShardEntry, TokenSet
from headway.data.mapped import check_size, damaged, map_file, read_plainly
from headway.data.place import DataPlace
from headway.data.ragged import places_within

_GATHERED_TOKENS = 2**17
"""Copied at once: what stays in a core's cache between reading and widening."""


@dataclass(frozen=True)
class DocumentSpan:
    """Document ``number`` of its source: tokens [first_token, end_token) of it, document token first."""

    number: int
    first_token: int
    end_token: int


class _Shard:
    """One file and which of its blocks have been verified. It is mapped when a window first touches it, until ``release``."""

    __slots__ = (
        "_give_up",
        "_held",
        "_itemsize",
        "_left",
        "_unverified",
        "entry",
        "path",
        "remote",
        "size",
        "source",
        "tokens",
        "traffic",
    )

    def __init__(self, of: Tokens, entry: ShardEntry):
        self.entry, self.path, self.source = entry, of.place.directory / entry.file, of.source
        self.size, self._itemsize = entry.tokens * of.itemsize, of.itemsize
        self.tokens = np.empty(0, of.dtype)
        self.remote, self.traffic, self._give_up = of.place.shards, of.traffic, of.give_up
        self._held: Held | None = None
        self._unverified: np.ndarray | None = None
        self._left = len(entry.blocks) if of.verify else 0

    @property
    def bytes(self) -> np.ndarray:
        return self._attached().view(np.uint8)

    def _attached(self) -> np.ndarray:
        """The tokens, mapped."""
        if not self.tokens.size and self.size:
            began_ns = time.monotonic_ns()
            if self.remote is None:
                data = map_file(self.path, self.size)
            else:
                self._held = self.remote.cache.hold(self.remote.remote, self.entry, self.size, self.traffic, self._give_up)
                data = self._held.bytes
            self.tokens = data.view(self.tokens.dtype)
            self.traffic.wait_ns += time.monotonic_ns() - began_ns
        return self.tokens

    def release(self) -> None:
        """No window is expected to touch it soon: it may be taken out of the cache, and is verified again when it is back."""
        if not self.tokens.size:
            return
        self.tokens = self.tokens[:0].copy()
        if self.remote is not None:
            self._held = None
            self.remote.cache.release(self.entry, self.size)
            self._distrust()

    def _distrust(self) -> None:
        """What was verified was another file."""
        if self._unverified is not None:
            self._unverified[:] = True
            self._left = self._unverified.size

    def touch(self, first: int, last: int) -> np.ndarray:
        """The tokens of this shard, of which those in [first, last) are verified."""
        return self.touch_all(np.array([first]), np.array([last]))

    def touch_all(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """As ``touch``, for many ranges at once."""
        tokens = self._attached()
        if not self._left:
            return tokens
        if self._unverified is None:
            self._unverified = np.ones(len(self.entry.blocks), bool)
        low, high = first * self._itemsize // BLOCK_BYTES, (last * self._itemsize - 1) // BLOCK_BYTES
        spans = range(int((high - low).max(initial=0)) + 1)
        wanted = np.unique(np.concatenate([np.minimum(low + k, high) for k in spans]))
        while (waiting := wanted[self._unverified[wanted]]).size:  # again, where a new copy took the place of the one before
            for block in waiting.tolist():
                began_ns = time.monotonic_ns()
                self._verify(block)
                self.traffic.blocks += 1
                self.traffic.wait_ns += time.monotonic_ns() - began_ns
                self._unverified[block] = False
                self._left -= 1
        return self.tokens

    def _verify(self, block: int) -> None:
        at, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.size)
        if self.remote is None:
            read_plainly(self.path, at, end)
            if not self._is_whole(block, at, end):
                raise self._damaged(block, at, end)
        elif not self._is_whole_here(block, at, end):
            assert self._held is not None
            self._held = self.remote.cache.again(self.remote.remote, self.entry, self._held, self.traffic)
            self.tokens = self._held.bytes.view(self.tokens.dtype)
            self._distrust()
            if not self._is_whole_here(block, at, end):
                raise self._damaged(block, at, end)

    def _is_whole(self, block: int, at: int, end: int) -> bool:
        return xxhash.xxh3_64_hexdigest(self.bytes[at:end].data) == self.entry.blocks[block]

    def _is_whole_here(self, block: int, at: int, end: int) -> bool:
        """In the cache: a file that cannot be read is one that is damaged, and another's file says nothing of what is mapped."""
        assert self._held is not None
        try:
            is_mapped = os.stat(self._held.path).st_ino == self._held.inode
            read_plainly(self._held.path, at, end)
        except (OSError, EnvironmentFault):
            return False
        if not is_mapped:
            return False
        return self._is_whole(block, at, end)

    def _damaged(self, block: int, at: int, end: int) -> EnvironmentFault:
        """Training tokens can be named, so that a run may go on without them."""
        fault = damaged(self.where, f"block {block}, bytes {at} to {end}")
        if self.source is None:
            return fault
        first, last = at // self._itemsize, end // self._itemsize
        where = {"source": self.source, "token": self.entry.first_token + first, "tokens": last - first}
        return DamagedData({**where, "shard": self.entry.file, "block": block}, fault)

    @property
    def where(self) -> Path | str:
        return self.path if self.remote is None else self.remote.remote.where(self.entry.file)

    @property
    def is_open(self) -> bool:
        return self.tokens.size > 0

    def verify_all(self) -> None:
        if xxhash.xxh3_128_hexdigest(self.bytes.data) != self.entry.xxh3_128:
            raise damaged(self.where, "the whole file")


class Tokens:
    """One token set: its shards as one run of tokens, and its document ends."""

    def __init__(self, place: DataPlace, entry: TokenSet, dtype: np.dtype, verify: bool, source: str | None = None):
        """``source``: whose training tokens these are; None: tokens that are held out."""
        self.entry, self.traffic = entry, Traffic()
        self.place, self.dtype, self.verify, self.source = place, dtype, verify, source
        self.siblings: list[Tokens] = [self]
        self._first = np.array([shard.first_token for shard in entry.shards], np.int64)
        self._open: dict[int, _Shard] = {}
        self._opened = False
        if place.shards is None:
            for shard in entry.shards:
                check_size(f"{place.directory}/{shard.file}", shard.tokens * dtype.itemsize)
        self.ends = Ends(place.directory, entry.ends, entry.documents, verify)
        self._digests = BlockDigests.open(place.directory, (), entry.block_digests)
        self.reading = ""

    def shard(self, number: int) -> _Shard:
        """It stays open until ``keep`` releases it: open files are few, however many there are."""
        found = self._open.get(number)
        if found is None:
            found = _Shard(self, self.shard_entry(number))
            self._open[number] = found
        self._opened |= not found.is_open
        return found

    def shard_entry(self, number: int) -> ShardEntry:
        """With its blocks listed, wherever their digests stand."""
        return with_blocks(self.entry.shards[number], self._digests, self.itemsize)

    def give_up(self) -> bool:
        """Release one shard of those that the same thread reads; False: none is open. Another window may want it back."""
        shard = next((s for tokens in self.siblings for s in tokens._open.values() if s.is_open), None)
        if shard is not None:
            shard.release()
        return shard is not None

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def keep(self, low: np.ndarray, high: np.ndarray) -> None:
        """Release every shard that has no token in any [low, high): the chunks that are being read."""
        if not self._opened:
            return
        self._opened = False
        for shard in self._open.values():
            first, end = shard.entry.first_token, shard.entry.first_token + shard.entry.tokens
            if shard.is_open and not ((low < end) & (high > first)).any():
                shard.release()

    def numbers(self, low: int, high: int) -> range:
        """The shards that have a token in [low, high)."""
        first, last = self._first.searchsorted([low, high - 1], "right").tolist()
        return range(max(0, first - 1), last)

    def copy(self, start: int, out: np.ndarray) -> None:
        """Tokens [start, start + len(out)) into ``out``, over shard borders."""
        number = int(self._first.searchsorted(start, "right")) - 1
        done = 0
        while done < out.size:
            shard = self.shard(number)
            first = start + done - shard.entry.first_token
            last = min(first + out.size - done, shard.entry.tokens)
            self.reading = shard.entry.file
            out[done : done + last - first] = shard.touch(first, last)[first:last]
            done, number = done + last - first, number + 1
        self.reading = ""

    def gather(self, start_N: np.ndarray, out_BL: np.ndarray, rows_N: np.ndarray) -> None:
        """Tokens [start, start + L) into rows of ``out_BL``: all windows of a shard at once, those over borders one by one."""
        L = out_BL.shape[1]
        shard_N = self._first.searchsorted(start_N, "right") - 1
        whole_N = self._first.searchsorted(start_N + L - 1, "right") - 1 == shard_N
        for number in np.unique(shard_N[whole_N]).tolist():
            here = np.flatnonzero(whole_N & (shard_N == number))
            shard = self.shard(number)
            self.reading = shard.entry.file
            first = start_N[here] - shard.entry.first_token
            windows = _every_window(shard.touch_all(first, first + L), L)
            for at in range(0, here.size, step := max(1, _GATHERED_TOKENS // L)):
                out_BL[rows_N[here[at : at + step]]] = windows[first[at : at + step]]
        self.reading = ""
        for place in np.flatnonzero(~whole_N).tolist():
            self.copy(int(start_N[place]), out_BL[rows_N[place]])

    def scatter(self, start_N: np.ndarray, size_N: np.ndarray, at_N: np.ndarray, tokens: np.ndarray, targets: np.ndarray) -> None:
        """Parts of so many tokens each into ``tokens`` at ``at_N``, and those one further on into ``targets``: flat, int64."""
        shard_N = self._first.searchsorted(start_N, "right") - 1
        whole_N = self._first.searchsorted(start_N + size_N, "right") - 1 == shard_N
        for number in np.unique(shard_N[whole_N]).tolist():
            here = np.flatnonzero(whole_N & (shard_N == number))
            shard = self.shard(number)
            self.reading = shard.entry.file
            first = start_N[here] - shard.entry.first_token
            data = shard.touch_all(first, first + size_N[here] + 1)
            for a, size, at in zip(first.tolist(), size_N[here].tolist(), at_N[here].tolist()):
                tokens[at : at + size] = data[a : a + size]
                targets[at : at + size] = data[a + 1 : a + size + 1]
        self.reading = ""
        for place in np.flatnonzero(~whole_N).tolist():
            size, at = int(size_N[place]), int(at_N[place])
            both = np.empty(size + 1, np.int64)
            self.copy(int(start_N[place]), both)
            tokens[at : at + size], targets[at : at + size] = both[:-1], both[1:]

    def borders(self, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of every document token inside the windows at ``start``, their first column left out, sorted."""
        first = self.ends.searchsorted(start, "right")
        count = self.ends.searchsorted(start + length, "left") - first
        row = np.repeat(np.arange(start.size), count)
        return row, self.ends[first[row] + places_within(count)] - start[row]

    def spans(self, start: int, end: int) -> list[DocumentSpan]:
        """The documents that have a token in [start, end)."""
        first, last = self.ends.searchsorted([start, end - 1], "right").tolist()
        borders = [0 if first == 0 else int(self.ends[first - 1]), *self.ends[first : last + 1].tolist()]
        return [DocumentSpan(first + i, a, b) for i, (a, b) in enumerate(pairwise(borders))]

    def verify_all(self) -> None:
        self.ends.verify_all()
        for number in range(len(self.entry.shards)):
            shard = self.shard(number)
            shard.verify_all()
            shard.release()


def _every_window(tokens: np.ndarray, L: int) -> np.ndarray:
    """Row i is a view of tokens [i, i + L). (numpy's sliding_window_view leaves cycles, which would hold a shard open.)"""
    return np.ndarray((tokens.size - L + 1, L), tokens.dtype, tokens.data, strides=tokens.strides * 2)
