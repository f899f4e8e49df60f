"""Whether the chunks of a tensor tile it: nothing outside, no hole, nothing twice.

    edges of all chunks cut the tensor into cells; every cell must lie in exactly one chunk
        0   85   170  255
        |----|----|----|     3 ranks, 255 rows: cells 3, counts 1 1 1

Cells, not pairs of chunks: for the grids that layouts produce there are as many cells as chunks.
"""

from __future__ import annotations

import math

import numpy as np

from headway.base.errors import Problem, RunError
from headway.store.manifest import DTYPE_BYTES, Chunk, TensorEntry, block_count, tensor_bytes


def coverage_problem(entry: TensorEntry) -> str:
    """Empty when the chunks tile the tensor exactly, else what is wrong."""
    if entry.dtype not in DTYPE_BYTES:
        return f"unknown dtype {entry.dtype!r}"
    for chunk in entry.chunks:
        if wrong := _chunk_problem(entry, chunk):
            return wrong
    if math.prod(entry.shape) == 0:
        return "" if entry.chunks else "no chunk names it"
    counts = _cell_counts(entry)
    if counts.min() < 1:
        return "its chunks leave a hole"
    return "its chunks overlap" if counts.max() > 1 else ""


def check_coverage(tensors: dict[str, TensorEntry]) -> None:
    """RunError that lists every tensor whose chunks do not tile it."""
    rule = "the chunks of all ranks cover every tensor exactly once"
    problems = [Problem(f"{name}: {wrong}", rule) for name, entry in tensors.items() if (wrong := coverage_problem(entry))]
    if problems:
        raise RunError(problems)


def _chunk_problem(entry: TensorEntry, chunk: Chunk) -> str:
    if not len(chunk.offset) == len(chunk.shape) == len(entry.shape):
        return f"a chunk has {len(chunk.shape)} dimensions, the tensor {len(entry.shape)}"
    if any(o < 0 or n < 0 or o + n > size for o, n, size in zip(chunk.offset, chunk.shape, entry.shape)):
        return f"chunk {chunk.offset} + {chunk.shape} lies outside {entry.shape}"
    if chunk.nbytes != tensor_bytes(entry.dtype, chunk.shape):
        return f"chunk {chunk.offset} + {chunk.shape} of {entry.dtype} cannot have {chunk.nbytes} bytes"
    if len(chunk.blocks) != block_count(chunk.nbytes):
        return f"chunk {chunk.offset} has {len(chunk.blocks)} block digests for {chunk.nbytes} bytes"
    return ""


def _cell_counts(entry: TensorEntry) -> np.ndarray:
    """In how many chunks each cell lies; a scalar is one cell."""
    cuts = []
    for axis, size in enumerate(entry.shape):
        inside = {edge for c in entry.chunks for edge in (c.offset[axis], c.offset[axis] + c.shape[axis])}
        cuts.append({edge: index for index, edge in enumerate(sorted({0, size} | inside))})
    counts = np.zeros([len(cut) - 1 for cut in cuts], np.int32)
    for chunk in entry.chunks:
        counts[tuple(slice(cut[o], cut[o + n]) for cut, o, n in zip(cuts, chunk.offset, chunk.shape))] += 1
    return counts
