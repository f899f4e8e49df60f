"""Parts of a source as tokens: the unit of work that a killed build does not do again.

    PARTS/00/   000007.tokens   flat tokens of the part's documents, document token first
                000007.sizes    uint64 pairs per document: tokens, bytes of text
                000007.json     receipt, written last: digests of the two; without it they are of no use

A part is a range of positions of a source's shuffled order, cut by bytes of text. Where it is cut follows from the documents
alone, and its content from them and the tokenizer: whoever makes a part, whenever, makes the same bytes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from headway.base.digests import sealed
from headway.base.errors import EnvironmentFault, HeadwayError
from headway.base.failpoints import hit
from headway.base.files import read_json, unique_sibling, write_json
from headway.base.plain import from_plain
from headway.data.manifest import DTYPES
from headway.data.split import Order
from headway.data.spool import SealedSpool, file_digest, unsealed
from headway.data.tokenizer import Tokenizer, lost

FEWEST_BYTES, MOST_BYTES, PARTS_PER_SOURCE = 4 * 2**20, 64 * 2**20, 256
MOST_DOCUMENTS = 2**16
_BATCH_DOCUMENTS, _BATCH_BYTES = 512, 2**20
Tell = Callable[[int, int, int], None]


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """Positions [start, stop) of source ``source``; ``bytes`` of text."""

    source: int
    number: int
    start: int
    stop: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PartReceipt:
    start: int
    stop: int
    tokens: int
    tokens_xxh3_128: str
    sizes_xxh3_128: str


@dataclass(frozen=True)
class Part:
    """``tokens`` of all documents; ``counts`` and ``sizes``: tokens and bytes of text of each."""

    tokens: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray

    def documents(self, start: int, stop: int | None) -> Part:
        """A range of its documents."""
        before, upto = int(self.counts[:start].sum()), int(self.counts[:stop].sum())
        return Part(self.tokens[before:upto], self.counts[start:stop], self.sizes[start:stop])


@dataclass(frozen=True, kw_only=True)
class PartPlace:
    """Where parts are kept, and in which type."""

    root: Path
    dtype: str

    def directory(self, source: int) -> Path:
        return self.root / f"{source:02d}"

    def stem(self, task: PartTask) -> Path:
        return self.directory(task.source) / f"{task.number:06d}"

    def find(self, task: PartTask) -> PartReceipt | None:
        """The finished part, verified to the last byte; None: not there, or damaged."""
        stem = self.stem(task)
        try:
            receipt = self._receipt(stem)
            digests = [file_digest(stem.with_suffix(suffix)) for suffix in (".tokens", ".sizes")]
        except (HeadwayError, OSError):
            return None
        is_whole = digests == [receipt.tokens_xxh3_128, receipt.sizes_xxh3_128]
        return receipt if is_whole and (receipt.start, receipt.stop) == (task.start, task.stop) else None

    def read(self, task: PartTask) -> Part:
        """EnvironmentFault if it is not what was written."""
        stem = self.stem(task)
        receipt = self._receipt(stem)
        tokens, sizes = (stem.with_suffix(suffix).read_bytes() for suffix in (".tokens", ".sizes"))
        if [xxhash.xxh3_128_hexdigest(d) for d in (tokens, sizes)] != [receipt.tokens_xxh3_128, receipt.sizes_xxh3_128]:
            raise EnvironmentFault(
                f"a finished part is damaged: {stem}.tokens",
                "what was tokenised is read back whole or not at all",
                "build again: that part alone is made anew. If it comes back, check the storage",
            )
        pairs = np.frombuffer(sizes, "<u8").astype(np.int64).reshape(-1, 2)
        return Part(np.frombuffer(tokens, DTYPES[self.dtype]), pairs[:, 0], pairs[:, 1])

    @staticmethod
    def _receipt(stem: Path) -> PartReceipt:
        path = stem.with_suffix(".json")
        return from_plain(PartReceipt, unsealed(read_json(path, "receipt of a part"), path))


def plan(source: int, spool: SealedSpool, order: Order, part_bytes: int | None) -> Iterator[PartTask]:
    """Where the source is cut. ``part_bytes`` None: such that a large source has some hundred parts."""
    wanted = part_bytes or min(MOST_BYTES, max(FEWEST_BYTES, spool.total_bytes // PARTS_PER_SOURCE))
    number = start = position = size = 0
    for block in order.blocks(0, len(spool)):
        for document in spool.sizes(block).tolist():
            position, size = position + 1, size + document
            if size >= wanted or position - start == MOST_DOCUMENTS or position == len(spool):
                yield PartTask(source=source, number=number, start=start, stop=position, bytes=size)
                number, start, size = number + 1, position, 0


def tokenise(task: PartTask, spool: SealedSpool, order: Order, tokenizer: Tokenizer, place: PartPlace, tell: Tell) -> PartReceipt:
    """Make one part. ``tell``: documents, bytes of text and tokens since it was last told."""
    hit("build.part_begin", task.number)
    stem = place.stem(task)
    written = {suffix: unique_sibling(stem.with_suffix(suffix)) for suffix in (".tokens", ".sizes")}
    digests = {suffix: xxhash.xxh3_128() for suffix in written}
    total = 0
    try:
        with open(written[".tokens"], "xb") as tokens, open(written[".sizes"], "xb") as sizes:
            files = {".tokens": tokens, ".sizes": sizes}
            for documents in _batches(spool, order.block(task.start, task.stop)):
                flat, pairs = _tokens(spool, documents, tokenizer, place.dtype)
                for suffix, data in ((".tokens", flat.tobytes()), (".sizes", pairs.tobytes())):
                    files[suffix].write(data)
                    digests[suffix].update(data)
                total += flat.size
                tell(len(documents), int(pairs[:, 1].sum()), flat.size)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for suffix, path in written.items():
            os.replace(path, stem.with_suffix(suffix))
    finally:
        for path in written.values():
            path.unlink(missing_ok=True)
    hit("build.part_written", task.number)
    receipt = PartReceipt(
        start=task.start,
        stop=task.stop,
        tokens=total,
        tokens_xxh3_128=digests[".tokens"].hexdigest(),
        sizes_xxh3_128=digests[".sizes"].hexdigest(),
    )
    write_json(stem.with_suffix(".json"), sealed(dataclasses.asdict(receipt)))
    hit("build.part_sealed", task.number)
    return receipt


def token_counts(spool: SealedSpool, documents: np.ndarray, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Of some documents after the other, as a part would have them."""
    for some in _batches(spool, documents):
        yield np.array([ids.size + 1 for ids in tokenizer.encode_arrays(list(spool.texts(some)))], np.int64)


def _tokens(spool: SealedSpool, documents: np.ndarray, tokenizer: Tokenizer, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The flat tokens of some documents, and their sizes as pairs."""
    texts = list(spool.texts(documents))
    ids = tokenizer.encode_arrays(texts)
    if not tokenizer.keeps_text:
        _refuse_lost(texts, ids, tokenizer)
    counts = np.array([of_one.size + 1 for of_one in ids])
    flat = np.full(counts.sum(), tokenizer.document_token_id, DTYPES[dtype])
    for start, of_one in zip((np.cumsum(counts) - counts).tolist(), ids, strict=True):
        flat[start + 1 : start + 1 + of_one.size] = of_one
    return flat, np.stack([counts, spool.sizes(documents)], axis=1).astype("<u8")


def _refuse_lost(texts: list[str], ids: list[np.ndarray], tokenizer: Tokenizer) -> None:
    for text, back in zip(texts, tokenizer.decode_batch(ids), strict=True):
        if text != back:
            raise lost(text, back)


def _batches(spool: SealedSpool, order: np.ndarray) -> Iterator[np.ndarray]:
    start = size = 0
    for at, document in enumerate(spool.sizes(order).tolist(), 1):
        size += document
        if size >= _BATCH_BYTES or at - start >= _BATCH_DOCUMENTS or at == len(order):
            yield order[start:at]
            start, size = at, 0
