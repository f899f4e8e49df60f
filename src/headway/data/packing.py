"""Best-fit packing: whole documents in windows, as a plan that the build makes for one window length and source.

    chunk     |  doc 7  |3|   doc 9   | 10 |  11  | ...          the same chunks that windows of any length are cut from
    pieces    documents of the chunk; longer ones cut at T       (Fewer Truncations Improve Language Modeling, arXiv 2404.10830)
    bins      [ doc 7 | 10 |  ]  [ doc 9 | 3 ]  [ 11 ... ]       best fit decreasing: a piece goes where least room is left

A bin is a window: its pieces stand one after the other, padding stands at its end and is no target. Every token of a chunk but
the last of a source is in one bin of it as input, and the token behind it is the target there: so a source's documents are read
once per epoch, whichever way a stage reads them, and stages may alternate. Bins do not cross chunks.

    packing-T.bins     two uint64 per bin: its first piece, its tokens        one more at the end: number of pieces, 0
    packing-T.pieces   two uint64 per piece: first token, its tokens

A plan follows from document ends, chunk and T alone: it is no content of the data, but a Spec names the plans it reads.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from headway.base.digests import digest_json
from headway.base.errors import from_os_error
from headway.base.files import make_directory
from headway.data.manifest import BLOCK_BYTES, Packing, ShardEntry, SourceEntry
from headway.data.positions import SourceShape

VERSION = 1
"""Raised when the same documents would be packed otherwise."""


@dataclass(frozen=True)
class Bins:
    """Pieces in the order of their bins: ``start`` and ``tokens`` per piece, ``first`` piece and ``filled`` tokens per bin."""

    start: np.ndarray
    tokens: np.ndarray
    first: np.ndarray
    filled: np.ndarray


def best_fit(tokens: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """The bin of each piece of so many ``tokens`` (1 to ``capacity``), and how many bins there are.

    Best fit decreasing, exactly, but for whole groups: pieces of one length go into bins with as much room left at once, so the
    time grows with the number of different lengths, not of pieces.
    """
    order = np.argsort(-tokens, kind="stable")
    lengths, begins = np.unique(-tokens[order], return_index=True)
    ends = [*begins[1:].tolist(), tokens.size]
    bin_of, room = np.empty(tokens.size, np.int64), _Room()
    bins = 0
    for length, at, end in zip((-lengths).tolist(), begins.tolist(), ends):
        while at < end:
            found = room.least(length)
            if found is None:
                fits = capacity // length
                wanted = -(-(end - at) // fits)
                left, group = capacity, np.arange(bins, bins + wanted)
                bins += wanted
            else:
                left, group = found
                fits = left // length
            into = group[: max(1, (end - at) // fits)]  # filled as far as they go, the last one alone perhaps not
            each = min(fits, end - at)
            bin_of[order[at : at + into.size * each]] = np.repeat(into, each)
            at += into.size * each
            room.add(left - each * length, into)
            if into.size < group.size:
                room.add(left, group[into.size :])
    return bin_of, bins


class _Room:
    """Bins by the room that is left in them."""

    def __init__(self) -> None:
        self._bins: dict[int, list[np.ndarray]] = {}
        self._present: list[int] = []  # rooms of which there are bins, ascending

    def add(self, room: int, bins: np.ndarray) -> None:
        if room and room not in self._bins:
            insort(self._present, room)
        if room:
            self._bins.setdefault(room, []).append(bins)

    def least(self, length: int) -> tuple[int, np.ndarray] | None:
        """Bins with the least room that ``length`` fits in, and that room; they are taken out."""
        at = bisect_left(self._present, length)
        if at == len(self._present):
            return None
        room = self._present[at]
        group = self._bins[room].pop()
        if not self._bins[room]:
            del self._bins[room], self._present[at]
        return room, group


def pieces(ends: np.ndarray, first: int, last: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and tokens of the pieces of the documents in tokens [first, last); ``ends``: of all documents, ascending."""
    low, high = int(ends.searchsorted(first, "right")), int(ends.searchsorted(last, "left"))
    starts = np.concatenate([[first], ends[low:high].astype(np.int64)])
    tokens = np.diff(starts, append=last)
    cuts = -(-tokens // capacity)
    of = np.repeat(np.arange(starts.size), cuts)
    within = np.arange(of.size) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    return starts[of] + within * capacity, np.minimum(tokens[of] - within * capacity, capacity)


def pack(ends: np.ndarray, first: int, last: int, capacity: int) -> Bins:
    """The bins of one chunk, tokens [first, last)."""
    start, tokens = pieces(ends, first, last, capacity)
    bin_of, bins = best_fit(tokens, capacity)
    order = np.lexsort((start, bin_of))
    of_bin = np.bincount(bin_of, minlength=bins)
    filled = np.bincount(bin_of, tokens, minlength=bins).astype(np.int64)
    return Bins(start[order], tokens[order], np.cumsum(of_bin) - of_bin, filled)


# --- the plan of a source


def chunk_borders(shape: SourceShape) -> Iterator[tuple[int, int]]:
    """First and last token of every chunk, the tail last; a source's last token is no input."""
    for chunk in range(shape.slots):
        first = chunk * shape.chunk_tokens
        yield first, min(first + shape.chunk_tokens, shape.tokens - 1)


def write_packing(root: Path, source: SourceEntry, capacity: int, ends: np.ndarray) -> Packing:
    """Plan the windows of ``capacity`` tokens of ``source`` and write them beside its shards, below ``root``. In the memory of a
    chunk's documents."""
    directory = Path(source.ends.file).parent
    shape = SourceShape("", source.tokens, source.chunk_tokens)
    make_directory(root / directory, "directory of a source")
    per_chunk, bins_before, pieces_before = [], 0, 0
    with (
        _Rows(root, f"{directory}/packing-{capacity}.bins") as bins,
        _Rows(root, f"{directory}/packing-{capacity}.pieces") as written,
    ):
        for first, last in chunk_borders(shape):
            packed = pack(ends, first, last, capacity)
            bins.write(np.stack([packed.first + pieces_before, packed.filled], axis=1))
            written.write(np.stack([packed.start, packed.tokens], axis=1))
            per_chunk.append(packed.first.size)
            bins_before += packed.first.size
            pieces_before += packed.start.size
        bins.write(np.array([[pieces_before, 0]]))
    share = (source.tokens - 1) / (bins_before * capacity)
    return Packing(capacity, VERSION, tuple(per_chunk), share, bins.entry(), written.entry())


def packing_digest(packing: Packing) -> str:
    """What a Spec names a plan by."""
    rows = [[file.tokens, file.xxh3_128] for file in (packing.rows, packing.pieces)]
    return digest_json({"packing": packing.version, "T": packing.sequence_length, "bins": list(packing.bins), "files": rows})


class _Rows:
    """A file of uint64 and its digests, as of a shard."""

    def __init__(self, root: Path, file: str):
        self._path, self._file = root / file, file
        self._whole, self._block, self._bytes = xxhash.xxh3_128(), bytearray(), 0
        self._blocks: list[str] = []
        self._out: BinaryIO | None = None

    def __enter__(self) -> _Rows:
        try:
            self._out = self._path.open("wb")
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write packing") from error
        return self

    def write(self, rows: np.ndarray) -> None:
        data = rows.astype("<u8").tobytes()
        assert self._out is not None
        try:
            self._out.write(data)
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write packing") from error
        self._whole.update(data)
        self._bytes += len(data)
        self._block += data
        while len(self._block) >= BLOCK_BYTES:
            self._blocks.append(xxhash.xxh3_64_hexdigest(self._block[:BLOCK_BYTES]))
            del self._block[:BLOCK_BYTES]

    def __exit__(self, *_: object) -> None:
        assert self._out is not None
        try:
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write packing") from error

    def entry(self) -> ShardEntry:
        blocks = [*self._blocks, *([xxhash.xxh3_64_hexdigest(self._block)] if self._block else [])]
        return ShardEntry(self._file, 0, self._bytes // 8, self._whole.hexdigest(), tuple(blocks))
