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

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.base.digests import digest_json
from headway.base.errors import ConfigError
from headway.data.block_digests import BLOCKS_SUFFIX
from headway.data.manifest import Packing, SourceEntry
from headway.data.positions import SourceShape
from headway.data.ragged import places_within
from headway.data.tables import TableWriter

MOST_CHUNKS = 65_536
"""The number of bins of each stands in the Spec."""
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
    within = places_within(cuts)
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
    if shape.slots > MOST_CHUNKS:
        raise ConfigError(
            f"source {source.name} has {shape.slots:,} chunks of {shape.chunk_tokens:,} tokens",
            f"best fit packs sources of at most {MOST_CHUNKS:,} chunks",
            "build the data with a larger data.chunk, or without it, in another directory",
        )
    per_chunk, bins_before, pieces_before = [], 0, 0
    rows, pieces = (_new(root, f"{directory}/packing-{capacity}.{kind}") for kind in ("bins", "pieces"))
    for first, last in chunk_borders(shape):
        packed = pack(ends, first, last, capacity)
        rows.append(_pairs(packed.first + pieces_before, packed.filled))
        pieces.append(_pairs(packed.start, packed.tokens))
        per_chunk.append(packed.first.size)
        bins_before += packed.first.size
        pieces_before += packed.start.size
    rows.append(_pairs(np.array([pieces_before]), np.array([0])))
    share = (source.tokens - 1) / (bins_before * capacity)
    return Packing(capacity, VERSION, tuple(per_chunk), share, rows.finish(), pieces.finish())


def _new(root: Path, file: str) -> TableWriter:
    """In place of what a build left that was killed before its manifest named it."""
    for left in (file, file + BLOCKS_SUFFIX):
        (root / left).unlink(missing_ok=True)
    return TableWriter(root, file)


def _pairs(first: np.ndarray, second: np.ndarray) -> bytes:
    return np.stack([first, second], axis=1).astype("<u8").tobytes()


def packing_digest(packing: Packing) -> str:
    """What a Spec names a plan by."""
    rows = [[file.bytes, file.xxh3_128] for file in (packing.rows, packing.pieces)]
    return digest_json({"packing": packing.version, "T": packing.sequence_length, "bins": list(packing.bins), "files": rows})
