"""Rectangles put together from chunks: any layout that was saved into any layout that is wanted. Bytes only, no torch.

    chunks in the files          destination              what is copied
    |--- 0..127 ---|                                       rows 85..127 of the first chunk,
    |--- 128..254 -|             |-- 85..169 --|           rows 128..169 of the second

Values travel as unsigned integers of their size, so that nothing is ever converted. Every byte that is used was verified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.base.errors import RunError
from headway.store.manifest import BLOCK_BYTES, DTYPE_BYTES, Chunk
from headway.store.verify import OpenCheckpoint

GROUP_BYTES = 16 << 20
"""Rows are read in groups of about this size: bounds the memory beside the destination."""

CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""By bytes of an element: the numpy type that carries its bits."""


@dataclass(frozen=True)
class Overlap:
    """The common part of a chunk and a destination, as slices of each."""

    in_chunk: tuple[slice, ...]
    in_destination: tuple[slice, ...]

    def size(self) -> int:
        return math.prod(part.stop - part.start for part in self.in_chunk)


def overlap(chunk: Chunk, offset: Sequence[int], shape: Sequence[int]) -> Overlap | None:
    """Where a chunk meets the rectangle ``offset`` + ``shape`` of its tensor; None when they do not."""
    in_chunk, in_destination = [], []
    for c, c_size, d, d_size in zip(chunk.offset, chunk.shape, offset, shape):
        start, stop = max(c, d), min(c + c_size, d + d_size)
        if start >= stop:
            return None
        in_chunk.append(slice(start - c, stop - c))
        in_destination.append(slice(start - d, stop - d))
    return Overlap(tuple(in_chunk), tuple(in_destination))


def new_scratch() -> np.ndarray:
    """Memory for ``fill`` to read into, for callers that fill many."""
    return np.empty(GROUP_BYTES + 2 * BLOCK_BYTES, np.uint8)


def fill(
    checkpoint: OpenCheckpoint, name: str, destination: np.ndarray, offset: Sequence[int], scratch: np.ndarray | None = None
) -> None:
    """Fill ``destination``, the rectangle of tensor ``name`` that starts at ``offset``, reading only what it needs.

    ``destination``: of a type in ``CARRIERS``, any strides. RunError for damage, and where the chunks do not cover it.
    """
    entry, filled = checkpoint.tensors[name], 0
    assert destination.dtype == CARRIERS[DTYPE_BYTES[entry.dtype]], (name, destination.dtype)
    for chunk in entry.chunks:
        common = overlap(chunk, offset, destination.shape)
        if common is None:
            continue
        source = _Source(checkpoint, chunk, destination.dtype, scratch)
        if source.row_bytes and _is_whole_rows(common, chunk, destination):
            _read_rows(source, common, destination)
        else:
            _copy(source, common, destination)
        filled += common.size()
    if filled != destination.size:
        raise RunError(
            f"{name}: {filled} of {destination.size} elements at {tuple(offset)} + {destination.shape} were filled",
            "the chunks must cover the destination",
        )


@dataclass(frozen=True)
class _Source:
    """A chunk that can be read row by row. A scalar counts as one row."""

    checkpoint: OpenCheckpoint
    chunk: Chunk
    carrier: np.dtype
    scratch: np.ndarray | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.chunk.shape or (1,)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.carrier.itemsize

    def rows(self, first: int, last: int) -> np.ndarray:
        raw = self.checkpoint.read(self.chunk, first * self.row_bytes, last * self.row_bytes, self.scratch)
        return raw.view(self.carrier).reshape(last - first, *self.shape[1:])


def _is_whole_rows(common: Overlap, chunk: Chunk, destination: np.ndarray) -> bool:
    """The common part is one piece of memory on both sides: as in a restart under the same layout, or one that splits rows."""
    inner = destination.shape[1:]
    is_full = all(part.stop - part.start == size for part, size in zip(common.in_chunk[1:], chunk.shape[1:]))
    return is_full and chunk.shape[1:] == inner and destination.flags.c_contiguous


def _read_rows(source: _Source, common: Overlap, target: np.ndarray) -> None:
    """Straight into the destination."""
    in_chunk, in_target = (common.in_chunk or (slice(0, 1),))[0], (common.in_destination or (slice(0, 1),))[0]
    flat = target.reshape(-1).view(np.uint8)
    begin, end = in_target.start * source.row_bytes, in_target.stop * source.row_bytes
    source.checkpoint.read_into(source.chunk, in_chunk.start * source.row_bytes, flat[begin:end])


def _copy(source: _Source, common: Overlap, target: np.ndarray) -> None:
    """Read the rows of the common part in groups and copy the wanted columns."""
    in_chunk, in_target = common.in_chunk or (slice(0, 1),), common.in_destination or (slice(0, 1),)
    target = target.reshape(1) if target.ndim == 0 else target  # a view: one element
    group_rows = max(1, GROUP_BYTES // source.row_bytes)
    shift = in_target[0].start - in_chunk[0].start
    for first in range(in_chunk[0].start, in_chunk[0].stop, group_rows):
        last = min(first + group_rows, in_chunk[0].stop)
        rows = source.rows(first, last)[(slice(None), *in_chunk[1:])]
        np.copyto(target[(slice(first + shift, last + shift), *in_target[1:])], rows)
