"""A rank's rectangles in memory and their layout in a safetensors file.

    | 8 bytes: length n | n bytes: JSON, padded with spaces | rectangle | rectangle | ...
    '------------ a multiple of 64 bytes ----------------- '
      {"__metadata__": {...}, "param/x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "param/y@128,0": ...}

No gaps between rectangles (the format forbids them); wide dtypes come first, so each is aligned to its item size.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import xxhash

from headway.base.errors import RunError
from headway.store.manifest import BLOCK_BYTES, DTYPE_BYTES, Chunk, TensorEntry, tensor_bytes

DATA_ALIGNMENT_BYTES = 64
"""Data starts at a multiple of this; wide dtypes come first, so every tensor is aligned to its own item size."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A rectangle of a logical tensor: which one, without its values."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def key(self) -> str:
        """The key in the safetensors header: the tensor's own name when it is whole."""
        return rectangle_key(self.name, self.offset, self.shape, self.global_shape)

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True, kw_only=True)
class Rectangle(Part):
    """A rectangle in memory. ``data``: its bytes, row-major, one dimension of uint8 (no copy)."""

    data: np.ndarray


_Parts = TypeVar("_Parts", bound=Part)


def rectangle_key(name: str, offset: tuple[int, ...], shape: tuple[int, ...], global_shape: tuple[int, ...]) -> str:
    """``name`` when the rectangle is the whole tensor, else ``name@offset,offset``."""
    return name if shape == global_shape else f"{name}@{','.join(map(str, offset))}"


def in_file_order(parts: list[_Parts]) -> list[_Parts]:
    """Checked and sorted as they will lie in the file."""
    ordered = sorted(parts, key=lambda r: (-DTYPE_BYTES.get(r.dtype, 0), r.name, r.offset))
    _check(ordered)
    return ordered


def file_header(ordered: Sequence[Part], segment: int, step: int, rank: int) -> bytes:
    """The header of a rank's data file. Its length depends on the parts alone, so that they lie where they lay before."""
    save = {"segment": f"{segment:012d}", "step": f"{step:012d}", "rank": f"{rank:06d}"}
    return safetensors_header(ordered, {"format": "pt", **save})


def safetensors_header(rectangles: Sequence[Part], metadata: dict[str, str]) -> bytes:
    """Length field, JSON and padding, for data that follows in this order without gaps."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for r in rectangles:
        entries[r.key()] = {"dtype": r.dtype, "shape": list(r.shape), "data_offsets": [at, at + r.nbytes]}
        at += r.nbytes
    body = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-(8 + len(body)) % DATA_ALIGNMENT_BYTES)
    return struct.pack("<Q", len(body)) + body


def places(ordered: Sequence[Part], header_bytes: int) -> list[int]:
    """Where each part starts in the file."""
    return [header_bytes + before for before in itertools.accumulate((part.nbytes for part in ordered), initial=0)][:-1]


def stream_pieces(header: bytes, rectangles: list[Rectangle], blocks: list[list[str]]) -> Iterator[memoryview | bytes]:
    """The file's bytes in order; each block is hashed from memory just before it is handed to the writer (warm in cache)."""
    yield header
    for r, digests in zip(rectangles, blocks):
        view = r.data.data
        for at in range(0, len(view), BLOCK_BYTES):
            block = view[at : at + BLOCK_BYTES]
            digests.append(xxhash.xxh3_128_hexdigest(block))
            yield block


def image_pieces(image: memoryview, rectangles: list[Rectangle], at: int, blocks: list[list[str]]) -> Iterator[memoryview]:
    """As ``stream_pieces``, where the whole file lies in memory already: pieces that start at multiples of ``BLOCK_BYTES``."""
    due = ((at + begin, r, digests, begin) for r, digests, at in _placed(rectangles, blocks, at) for begin in _starts(r))
    waiting = next(due, None)
    for begin in range(0, len(image), BLOCK_BYTES):
        piece = image[begin : begin + BLOCK_BYTES]
        while waiting is not None and waiting[0] < begin + len(piece):
            _, r, digests, start = waiting
            digests.append(xxhash.xxh3_128_hexdigest(r.data.data[start : start + BLOCK_BYTES]))
            waiting = next(due, None)
        yield piece


def _placed(rectangles: list[Rectangle], blocks: list[list[str]], at: int) -> Iterator[tuple[Rectangle, list[str], int]]:
    return zip(rectangles, blocks, places(rectangles, at))


def _starts(r: Rectangle) -> range:
    return range(0, r.data.nbytes, BLOCK_BYTES)


def chunk_table(rectangles: list[Rectangle], blocks: list[list[str]], file: str, at: int) -> dict[str, TensorEntry]:
    """The chunk table of this rank; ``at`` is where the data start."""
    entries: dict[str, TensorEntry] = {}
    for r, digests in zip(rectangles, blocks):
        chunk = Chunk(offset=r.offset, shape=r.shape, file=file, at=at, nbytes=r.data.nbytes, blocks=tuple(digests))
        seen = entries.get(r.name, TensorEntry(dtype=r.dtype, shape=r.global_shape, chunks=()))
        entries[r.name] = dataclasses.replace(seen, chunks=seen.chunks + (chunk,))
        at += r.data.nbytes
    return entries


def _check(rectangles: Sequence[Part]) -> None:
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
        if isinstance(r, Rectangle) and not _is_flat(r):
            raise RunError(
                f"{r.name}: {r.data.nbytes} bytes for {r.dtype} {r.shape}", "data are the bytes of the rectangle, flat"
            )


def _is_flat(r: Rectangle) -> bool:
    return r.data.dtype == np.uint8 and r.data.ndim == 1 and r.data.nbytes == r.nbytes
