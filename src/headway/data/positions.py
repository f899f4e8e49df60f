"""One source: ordinal -> epoch and token. Chunks are shuffled, and so are the windows inside each chunk.

    tokens   |--- chunk 0 ---|--- chunk 1 ---|  ...  |--- chunk G-1 ---|-tail-|        C tokens each; tail < C
    slots    an epoch visits the G chunks in its own order, the tail last:      slot = e * slots + place in the order
    windows  w = floor(C / T) per chunk, w_t = floor(tail / T) in the tail, in an order of their own per chunk and epoch

In a stage that is packed by best fit, the windows of a chunk are its bins (``packing.py``), whose number differs from chunk to
chunk; everything else is the same.

A window of T needs T + 1 tokens: targets are the tokens one further on, so windows cover tokens 1 .. n - 1 as targets
(hence n - 1 in G). C never follows from T. When T changes, the next window length begins at the first chunk that no window
has touched (H), so nothing seen comes back early and at most one chunk is left unread. CONTRACTS section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

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
    """Per ordinal: epoch, and the token at which its window starts; of a packed source, the number of its bin."""

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
    bins: tuple[int, ...] = ()  # packed by best fit for one window length: bins of every chunk, the tail last; empty: cut

    def __post_init__(self) -> None:
        assert min(self.tokens - 1, self.chunk_tokens) >= 1, self
        assert not self.bins or (len(self.bins) == self.slots and min(self.bins) >= 1), self

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
        """Of a source that is cut."""
        per_chunk, tail = self.chunk_tokens // sequence_length, self.tail_tokens // sequence_length
        return Windows(per_chunk, tail, self.full_chunks * per_chunk + tail)

    def epoch_windows(self, sequence_length: int) -> int:
        """Windows, or bins, of an epoch."""
        return sum(self.bins) if self.bins else self.windows(sequence_length).epoch

    def windows_of(self, chunk: int, sequence_length: int) -> int:
        """Windows, or bins, of one chunk; number ``full_chunks`` is the tail."""
        if self.bins:
            return self.bins[chunk]
        windows = self.windows(sequence_length)
        return windows.per_chunk if chunk < self.full_chunks else windows.tail

    def _before(self, epoch: int, slot: int, sequence_length: int) -> int:
        """Windows in the slots of ``epoch`` before ``slot``, which is one of them."""
        if self.bins:
            return int(_bins_before(self, epoch)[slot])
        return slot * self.windows(sequence_length).per_chunk

    def _slots_touched(self, epoch: int, index: int, sequence_length: int) -> int:
        """Slots of ``epoch`` that its first ``index`` windows lie in."""
        if self.bins:
            return int(_bins_before(self, epoch).searchsorted(index))
        return min(-(-index // self.windows(sequence_length).per_chunk), self.slots)

    def slots_used(self, entry: Entry, sequence_length: int) -> int:
        """First slot that the ``entry.ordinals`` windows since ``entry.slot`` left untouched."""
        if entry.ordinals == 0:
            return entry.slot
        epoch, index = self._last(entry, sequence_length)
        return epoch * self.slots + self._slots_touched(epoch, index, sequence_length)

    def _last(self, entry: Entry, sequence_length: int) -> tuple[int, int]:
        """The epoch that goes on, and how many of its windows are used, those before ``entry.slot`` included. The first epoch
        goes on until one more is asked for, later ones end with their last window."""
        whole, (epoch, slot) = self.epoch_windows(sequence_length), divmod(entry.slot, self.slots)
        index = self._before(epoch, slot, sequence_length) + entry.ordinals
        if index <= whole:
            return epoch, index
        more, left = divmod(index, whole)
        return epoch + more, left

    def unread_windows(self, entry: Entry, sequence_length: int) -> int:
        """Windows of the last touched slot that are left behind when the window length changes after ``entry``.

        A source that the stage does not use may have chunks shorter than the window: nothing begun, nothing left behind.
        """
        if entry.ordinals == 0:
            return 0
        epoch, index = self._last(entry, sequence_length)
        if index == 0:
            return 0
        place = self._slots_touched(epoch, index, sequence_length) - 1
        chunk = int(self._chunks(np.array([epoch]), np.array([place]))[0])
        return self._before(epoch, place, sequence_length) + self.windows_of(chunk, sequence_length) - index

    def allowed_slots(self, cap_epochs: float) -> int:
        """floor(cap * slots), exact for the decimal that was written (2.3 * 100 is 230)."""
        return int(Fraction(repr(float(cap_epochs))) * self.slots)

    def locate(self, entry: Entry, ordinal: np.ndarray, sequence_length: int, bad: Bad | None = None) -> Places:
        """Epoch and first token of the windows ``ordinal`` (flat), counted from ``entry.ordinals``.

        ``bad``: which of windows that begin at these tokens must not be read. Such a one is replaced by the next place of its
        chunk, then of the next chunk of its epoch, whose window is healthy; nothing else moves. RunError where none is.
        """
        whole, (first_epoch, first_slot) = self.epoch_windows(sequence_length), divmod(entry.slot, self.slots)
        index = self._before(first_epoch, first_slot, sequence_length) + entry.ordinals + np.asarray(ordinal, np.int64)
        epoch, index = first_epoch + index // whole, index % whole
        token = self._tokens(epoch, index, sequence_length)
        if bad is None:
            return Places(epoch, token)
        wanting, tried = np.flatnonzero(bad(token, np.arange(token.size))), 0
        while wanting.size:
            tried += 1
            if tried >= whole:
                name = self.key[-1] if isinstance(self.key, tuple) else self.key
                raise RunError(
                    f"every window of source {name} is damaged",
                    "a damaged window is replaced by a healthy one of its epoch",
                    "restore the data from a copy",
                )
            index[wanting] = (index[wanting] + 1) % whole
            token[wanting] = self._tokens(epoch[wanting], index[wanting], sequence_length)
            wanting = wanting[bad(token[wanting], wanting)]
        return Places(epoch, token)

    def _tokens(self, epoch: np.ndarray, index: np.ndarray, sequence_length: int) -> np.ndarray:
        """First token of the window in each place of its epoch; its bin in a packed source."""
        if self.bins:
            return self._bins(epoch, index, sequence_length)
        per_chunk = self.windows(sequence_length).per_chunk
        slot = np.minimum(index // per_chunk, self.full_chunks)
        chunk = self._chunks(epoch, slot)
        window = self._windows_of(epoch, chunk, index - slot * per_chunk, sequence_length)
        return chunk * self.chunk_tokens + window * sequence_length

    def _bins(self, epoch: np.ndarray, index: np.ndarray, sequence_length: int) -> np.ndarray:
        """Chunks are walked one by one: each has bins of its own number."""
        bins, first = np.empty_like(index), np.cumsum((0, *self.bins))
        for e in np.unique(epoch).tolist():
            before, in_epoch = _bins_before(self, e), np.flatnonzero(epoch == e)
            slot = before.searchsorted(index[in_epoch], "right") - 1
            for s in np.unique(slot).tolist():
                at = in_epoch[slot == s]
                chunk = int(self._chunks(np.array([e]), np.array([s]))[0])
                key = derive_key("bins", self.key, e, chunk, sequence_length)
                bins[at] = first[chunk] + permute(index[at] - before[s], self.bins[chunk], key)
        return bins

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


@lru_cache(maxsize=64)
def _bins_before(shape: SourceShape, epoch: int) -> np.ndarray:
    """Bins before each slot of ``epoch``, and of all of them: a running sum in that epoch's order of chunks."""
    slots = np.arange(shape.slots)
    order = shape._chunks(np.full_like(slots, epoch), slots)
    return np.concatenate([[0], np.cumsum(np.array(shape.bins)[order])])
