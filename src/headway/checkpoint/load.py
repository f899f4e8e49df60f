"""Load a state in place: any layout of chunks into whole tensors or into any other rectangles.

    chunks in the files          destination              what is copied
    |--- 0..127 ---|                                       rows 85..127 of the first chunk,
    |--- 128..254 -|             |-- 85..169 --|           rows 128..169 of the second

Strict: key sets equal both ways, dtype, shape, full coverage; every byte that is used was verified. After an error the
destination holds a mixture and must not be trained on: load another checkpoint over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headway.base.errors import Problem, RunError
from headway.checkpoint.tensors import DTYPES, dtype_name
from headway.store.manifest import BLOCK_BYTES, DTYPE_BYTES, Chunk, Manifest
from headway.store.verify import OpenCheckpoint, open_checkpoint, read_span

GROUP_BYTES = 16 << 20
"""Rows are read in groups of about this size: bounds the memory beside the destination."""


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


def load_checkpoint(directory: Path, tensors: dict[str, torch.Tensor]) -> Manifest:
    """Fill ``tensors`` in place with the checkpoint's values; RunError for damage or any difference in kind."""
    checkpoint = open_checkpoint(directory)
    check_fits(checkpoint, tensors)
    scratch = np.empty(GROUP_BYTES + 2 * BLOCK_BYTES, np.uint8)
    for name in sorted(tensors):
        tensor = tensors[name]
        load_rectangle(checkpoint, name, tensor, (0,) * tensor.ndim, scratch)
    return checkpoint.manifest


def check_fits(checkpoint: OpenCheckpoint, tensors: dict[str, torch.Tensor]) -> None:
    """Every difference between what is saved and what is wanted, all at once."""
    saved = checkpoint.tensors
    problems = [Problem(f"{name} is in the checkpoint, but the model has none") for name in sorted(set(saved) - set(tensors))]
    problems += [Problem(f"{name} is missing in the checkpoint") for name in sorted(set(tensors) - set(saved))]
    for name in sorted(set(saved) & set(tensors)):
        have, want = saved[name], tensors[name]
        if have.shape != tuple(want.shape):
            problems.append(Problem(f"{name}: saved with shape {have.shape}, wanted {tuple(want.shape)}"))
        if DTYPES[have.dtype] != want.dtype:
            problems.append(Problem(f"{name}: saved as {have.dtype}, wanted {dtype_name(name, want.dtype)}"))
    if problems:
        way_out = f"load it with the recipe and code that wrote it; path: {checkpoint.directory}"
        raise RunError([Problem(p.seen, "a state is loaded whole or not at all", way_out) for p in problems])


def load_rectangle(
    checkpoint: OpenCheckpoint, name: str, destination: torch.Tensor, offset: Sequence[int], scratch: np.ndarray | None = None
) -> None:
    """Fill ``destination``, the rectangle of tensor ``name`` that starts at ``offset``, reading only what it needs.

    ``scratch``: uint8 memory to read into, for callers that load many.
    """
    entry = checkpoint.tensors[name]
    if DTYPES[entry.dtype] != destination.dtype:
        raise RunError(f"{name}: saved as {entry.dtype}, wanted {destination.dtype}", "dtypes are never converted silently")
    target, filled = destination.detach(), 0
    for chunk in entry.chunks:
        common = overlap(chunk, offset, destination.shape)
        if common is not None:
            _copy(_Source(checkpoint.directory, entry.dtype, chunk, scratch), common, target)
            filled += common.size()
    if filled != destination.numel():
        raise RunError(
            f"{name}: {filled} of {destination.numel()} elements at {tuple(offset)} + {tuple(destination.shape)} were filled",
            "the chunks must cover the destination",
        )


@dataclass(frozen=True)
class _Source:
    """A chunk that can be read row by row. A scalar counts as one row."""

    directory: Path
    dtype: str
    chunk: Chunk
    scratch: np.ndarray | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.chunk.shape or (1,)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype]

    def rows(self, first: int, last: int) -> torch.Tensor:
        raw = read_span(self.directory, self.chunk, first * self.row_bytes, last * self.row_bytes, self.scratch)
        return torch.from_numpy(raw).view(DTYPES[self.dtype]).view(last - first, *self.shape[1:])


def _copy(source: _Source, common: Overlap, target: torch.Tensor) -> None:
    """Read the rows of the common part in groups and copy the wanted columns."""
    in_chunk, in_target = common.in_chunk or (slice(0, 1),), common.in_destination or (slice(0, 1),)
    target = target.reshape(1) if target.ndim == 0 else target
    group_rows = max(1, GROUP_BYTES // source.row_bytes)
    shift = in_target[0].start - in_chunk[0].start
    for first in range(in_chunk[0].start, in_chunk[0].stop, group_rows):
        last = min(first + group_rows, in_chunk[0].stop)
        rows = source.rows(first, last)[(slice(None), *in_chunk[1:])]
        target[(slice(first + shift, last + shift), *in_target[1:])].copy_(rows)
