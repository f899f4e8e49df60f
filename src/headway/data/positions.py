"""One source: ordinal -> epoch and token. Chunks are shuffled, and so are the windows inside each chunk.

    tokens   |--- chunk 0 ---|--- chunk 1 ---|  ...  |--- chunk G-1 ---|-tail-|        C tokens each; tail < C
    slots    an epoch visits the G chunks in its own order, the tail last:      slot = e * slots + place in the order
    windows  w = floor(C / T) per chunk, w_t = floor(tail / T) in the tail, in an order of their own per chunk and epoch

A window of T needs T + 1 tokens: targets are the tokens one further on, so windows cover tokens 1 .. n - 1 as targets
(hence n - 1 in G). C never follows from T. When T changes, the next window length begins at the first chunk that no window
has touched (H), so nothing seen comes back early and at most one chunk is left unread. CONTRACTS section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from headway.base.errors import RunError
from headway.data.feistel import derive_key, permute


@dataclass(frozen=True)
class Windows:
    """Windows per full chunk, in the tail, and in a whole epoch."""

    per_chunk: int
    tail: int
    epoch: int


@dataclass(frozen=True)
class Entry:
    """Where a window length began in a source: ``slot`` H (counted over epochs), and ``ordinals`` O used since then."""

    slot: int = 0
    ordinals: int = 0


@dataclass(frozen=True)
class Places:
    """Per ordinal: epoch, and the token at which its window starts."""

    epoch: np.ndarray
    token: np.ndarray


Bad = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(first tokens, their places among the ordinals asked for) -> which of these windows must not be read."""


@dataclass(frozen=True)
class SourceShape:
    """What the position arithmetic needs of a source. ``key`` names it in every key: (data_seed, source name)."""

    key: Hashable
    tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        assert min(self.tokens - 1, self.chunk_tokens) >= 1, self

    @property
    def full_chunks(self) -> int:
        return (self.tokens - 1) // self.chunk_tokens

    @property
    def tail_tokens(self) -> int:
        return self.tokens - 1 - self.full_chunks * self.chunk_tokens

    @property
    def slots(self) -> int:
        return self.full_chunks + (self.tail_tokens > 0)

    def windows(self, sequence_length: int) -> Windows:
        per_chunk, tail = self.chunk_tokens // sequence_length, self.tail_tokens // sequence_length
        return Windows(per_chunk, tail, self.full_chunks * per_chunk + tail)

    def _rest_of_epoch(self, slot: int, windows: Windows) -> int:
        """Windows from chunk slot ``slot`` to the end of its epoch."""
        return (self.full_chunks - slot) * windows.per_chunk + windows.tail

    def slots_used(self, entry: Entry, sequence_length: int) -> int:
        """First slot that the ``entry.ordinals`` windows since ``entry.slot`` left untouched."""
        if entry.ordinals == 0:
            return entry.slot
        windows, (epoch, slot) = self.windows(sequence_length), divmod(entry.slot, self.slots)
        rest = self._rest_of_epoch(slot, windows)
        if entry.ordinals <= rest:
            return epoch * self.slots + min(slot + -(-entry.ordinals // windows.per_chunk), self.slots)
        more, index = divmod(entry.ordinals - rest, windows.epoch)
        return (epoch + 1 + more) * self.slots + min(-(-index // windows.per_chunk), self.slots)

    def unread_windows(self, entry: Entry, sequence_length: int) -> int:
        """Windows of the last touched slot that are left behind when the window length changes after ``entry``.

        A source that the stage does not use may have chunks shorter than the window: nothing begun, nothing left behind.
        """
        if entry.ordinals == 0:
            return 0
        windows, slot = self.windows(sequence_length), entry.slot % self.slots
        rest = self._rest_of_epoch(slot, windows)
        if entry.ordinals < rest:
            index = entry.ordinals + slot * windows.per_chunk
        else:
            index = (entry.ordinals - rest) % windows.epoch
        place = min(index // windows.per_chunk, self.full_chunks)
        read = index - place * windows.per_chunk
        whole = windows.per_chunk if place < self.full_chunks else windows.tail
        return whole - read if read else 0

    def allowed_slots(self, cap_epochs: float) -> int:
        """floor(cap * slots), exact for the decimal that was written (2.3 * 100 is 230)."""
        return int(Fraction(repr(float(cap_epochs))) * self.slots)

    def locate(self, entry: Entry, ordinal: np.ndarray, sequence_length: int, bad: Bad | None = None) -> Places:
        """Epoch and first token of the windows ``ordinal`` (flat), counted from ``entry.ordinals``.

        ``bad``: which of windows that begin at these tokens must not be read. Such a one is replaced by the next place of its
        chunk, then of the next chunk of its epoch, whose window is healthy; nothing else moves. RunError where none is.
        """
        windows, (first_epoch, first_slot) = self.windows(sequence_length), divmod(entry.slot, self.slots)
        ordinal = entry.ordinals + np.asarray(ordinal, np.int64)
        rest = self._rest_of_epoch(first_slot, windows)
        beyond = ordinal - rest
        in_first = beyond < 0
        epoch = np.where(in_first, first_epoch, first_epoch + 1 + beyond // windows.epoch)
        index = np.where(in_first, ordinal + first_slot * windows.per_chunk, beyond % windows.epoch)
        token = self._tokens(epoch, index, sequence_length)
        if bad is None:
            return Places(epoch, token)
        wanting, tried = np.flatnonzero(bad(token, np.arange(token.size))), 0
        while wanting.size:
            tried += 1
            if tried >= windows.epoch:
                name = self.key[-1] if isinstance(self.key, tuple) else self.key
                raise RunError(
                    f"every window of source {name} is damaged",
                    "a damaged window is replaced by a healthy one of its epoch",
                    "restore the data from a copy",
                )
            index[wanting] = (index[wanting] + 1) % windows.epoch
            token[wanting] = self._tokens(epoch[wanting], index[wanting], sequence_length)
            wanting = wanting[bad(token[wanting], wanting)]
        return Places(epoch, token)

    def _tokens(self, epoch: np.ndarray, index: np.ndarray, sequence_length: int) -> np.ndarray:
        """First token of the window in each place of its epoch."""
        per_chunk = self.windows(sequence_length).per_chunk
        slot = np.minimum(index // per_chunk, self.full_chunks)
        chunk = self._chunks(epoch, slot)
        window = self._windows_of(epoch, chunk, index - slot * per_chunk, sequence_length)
        return chunk * self.chunk_tokens + window * sequence_length

    def first_token_of(self, slot: int) -> int:
        """Of the chunk in ``slot``, counted over epochs."""
        epoch, place = divmod(slot, self.slots)
        return int(self._chunks(np.array([epoch]), np.array([place]))[0]) * self.chunk_tokens

    def _chunks(self, epoch: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """The chunk in each slot; the tail (number G) keeps the last one."""
        chunk = slot.copy()
        for e in np.unique(epoch):
            at = (epoch == e) & (slot < self.full_chunks)
            if at.any():
                chunk[at] = permute(slot[at], self.full_chunks, derive_key("chunks", self.key, int(e)))
        return chunk

    def _windows_of(self, epoch: np.ndarray, chunk: np.ndarray, index: np.ndarray, sequence_length: int) -> np.ndarray:
        """The window in each place of its chunk. All chunks at once: a key per element instead of a call per chunk."""
        windows, window = self.windows(sequence_length), index.copy()
        for at, size in ((chunk < self.full_chunks, windows.per_chunk), (chunk == self.full_chunks, windows.tail)):
            if size > 1 and at.any():
                visits, which = np.unique(epoch[at] * (self.full_chunks + 1) + chunk[at], return_inverse=True)
                pairs = (divmod(int(visit), self.full_chunks + 1) for visit in visits)
                keys = [derive_key("win", self.key, e, c, sequence_length) for e, c in pairs]
                window[at] = permute(index[at], size, np.stack(keys, axis=1)[:, which])
        return window
