"""A rank's rectangles in memory and their layout in a safetensors file.

    | 8 bytes: length n | n bytes: JSON, padded with spaces | rectangle | rectangle | ...
    '------------ a multiple of 64 bytes ----------------- '
      {"__metadata__": {...}, "param/x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "param/y@128,0": ...}

No gaps between rectangles (the format forbids them); wide dtypes come first, so each is aligned to its item size.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from headway.base.errors import RunError
from headway.store.manifest import BLOCK_BYTES, DTYPE_BYTES, Chunk, TensorEntry, tensor_bytes

DATA_ALIGNMENT_BYTES = 64
"""Data starts at a multiple of this; wide dtypes come first, so every tensor is aligned to its own item size."""


@dataclass(frozen=True, kw_only=True)
class Rectangle:
    """A rectangle of a logical tensor in memory. ``data``: its bytes, row-major, one dimension of uint8 (no copy)."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    data: np.ndarray

    def key(self) -> str:
        """The key in the safetensors header: the tensor's own name when it is whole."""
        return rectangle_key(self.name, self.offset, self.shape, self.global_shape)


def rectangle_key(name: str, offset: tuple[int, ...], shape: tuple[int, ...], global_shape: tuple[int, ...]) -> str:
    """``name`` when the rectangle is the whole tensor, else ``name@offset,offset``."""
    return name if shape == global_shape else f"{name}@{','.join(map(str, offset))}"


def in_file_order(rectangles: list[Rectangle]) -> list[Rectangle]:
    """Checked and sorted as they will lie in the file."""
    ordered = sorted(rectangles, key=lambda r: (-DTYPE_BYTES.get(r.dtype, 0), r.name, r.offset))
    _check(ordered)
    return ordered


def safetensors_header(rectangles: list[Rectangle], metadata: dict[str, str]) -> bytes:
    """Length field, JSON and padding, for data that follows in this order without gaps."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for r in rectangles:
        entries[r.key()] = {"dtype": r.dtype, "shape": list(r.shape), "data_offsets": [at, at + r.data.nbytes]}
        at += r.data.nbytes
    body = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-(8 + len(body)) % DATA_ALIGNMENT_BYTES)
    return struct.pack("<Q", len(body)) + body


def stream_pieces(header: bytes, rectangles: list[Rectangle], blocks: list[list[str]]) -> Iterator[memoryview | bytes]:
    """The file's bytes in order; each block is hashed from memory just before it is handed to the writer (warm in cache)."""
    yield header
    for r, digests in zip(rectangles, blocks):
        view = r.data.data
        for at in range(0, len(view), BLOCK_BYTES):
            block = view[at : at + BLOCK_BYTES]
            digests.append(xxhash.xxh3_128_hexdigest(block))
            yield block


def chunk_table(rectangles: list[Rectangle], blocks: list[list[str]], file: str, at: int) -> dict[str, TensorEntry]:
    """The chunk table of this rank; ``at`` is where the data start."""
    entries: dict[str, TensorEntry] = {}
    for r, digests in zip(rectangles, blocks):
        chunk = Chunk(offset=r.offset, shape=r.shape, file=file, at=at, nbytes=r.data.nbytes, blocks=tuple(digests))
        seen = entries.get(r.name, TensorEntry(dtype=r.dtype, shape=r.global_shape, chunks=()))
        entries[r.name] = dataclasses.replace(seen, chunks=seen.chunks + (chunk,))
        at += r.data.nbytes
    return entries


def _check(rectangles: list[Rectangle]) -> None:
    """Our own callers' mistakes, found before a byte is written."""
    keys = [r.key() for r in rectangles]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise RunError(f"rectangles given twice: {twice[:3]}", "a rank writes each rectangle once")
    for r in rectangles:
        if "@" in r.name or r.name == "__metadata__" or not r.name:
            raise RunError(f"{r.name!r} cannot be the name of a tensor", "names are not empty and hold no '@'")
        if r.dtype not in DTYPE_BYTES:
            raise RunError(f"{r.name}: dtype {r.dtype!r} cannot be saved", f"known: {', '.join(DTYPE_BYTES)}")
        if r.data.dtype != np.uint8 or r.data.ndim != 1 or r.data.nbytes != tensor_bytes(r.dtype, r.shape):
            raise RunError(
                f"{r.name}: {r.data.nbytes} bytes for {r.dtype} {r.shape}", "data are the bytes of the rectangle, flat"
            )
