"""Documents on their way to shards: normalised, without exact duplicates, in a temporary file instead of memory.

normalised   line ends become \\n, a byte order mark at the head is removed. Unicode is left as it was written: forms that
             differ (NFC, NFD) are different bytes to a byte-level tokenizer, and code depends on them
left out     undecodable (lone surrogates too: no UTF-8 can hold them), not_a_regular_file, empty (white space only), duplicate
             (in its source), duplicate_elsewhere (in an earlier source), all counted. Duplicates over sources would put one
             source's held-out text into another's training
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from headway.data.sources import Document
from headway.data.tokenizer import Tokenizer

_BATCH_DOCUMENTS, _BATCH_BYTES = 512, 4 * 2**20


def normalise(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


class Seen:
    """Digests of all documents kept so far, over all sources, with the number of the source that holds each."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, int] = {}

    def holder(self, digest: bytes, source: int) -> int | None:
        """The source that already holds this text; None: nobody did, ``source`` does now."""
        before = self._by_digest.get(digest)
        if before is None:
            self._by_digest[digest] = source
        return before


class Spool:
    """One source's documents, appended once and then read in any order."""

    def __init__(self, path: Path):
        self._file: BinaryIO = open(path, "w+b")  # noqa: SIM115 - closed by close()
        self._offsets: list[int] = [0]
        self._digest = hashlib.sha256()
        self.dropped: Counter[str] = Counter()

    def fill(self, documents: Iterable[Document], source: int, seen: Seen) -> None:
        for document in documents:
            reason = document.dropped or self._keep(normalise(document.text or ""), source, seen)
            if reason:
                self.dropped[reason] += 1

    def _keep(self, text: str, source: int, seen: Seen) -> str:
        """Append ``text``, or say why not."""
        if not text.strip():
            return "empty"
        try:
            data = text.encode()
        except UnicodeEncodeError:  # lone surrogates out of JSON escapes
            return "undecodable"
        digest = hashlib.blake2b(data, digest_size=16).digest()
        holder = seen.holder(digest, source)
        if holder is not None:
            return "duplicate" if holder == source else "duplicate_elsewhere"
        self._file.write(data)
        self._offsets.append(self._offsets[-1] + len(data))
        self._digest.update(digest)
        return ""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def total_bytes(self) -> int:
        return self._offsets[-1]

    @property
    def digest(self) -> str:
        """Of the kept documents in the order they were found."""
        return self._digest.hexdigest()

    def size(self, index: int) -> int:
        """Bytes of document ``index``."""
        return self._offsets[index + 1] - self._offsets[index]

    def text(self, index: int) -> str:
        self._file.seek(self._offsets[index])
        return self._file.read(self.size(index)).decode()

    def texts(self, order: np.ndarray) -> Iterator[str]:
        for index in order:
            yield self.text(int(index))

    def close(self) -> None:
        self._file.close()


def tokenised(spool: Spool, order: np.ndarray, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
    """Per document of ``order``: its ids, document token first, and its bytes of text. Tokenised in batches."""
    head = [tokenizer.document_token_id]
    for batch in _batches(spool, order):
        ids_of_batch = tokenizer.encode_batch([spool.text(int(index)) for index in batch])
        for index, ids in zip(batch, ids_of_batch, strict=True):
            yield np.asarray(head + ids, np.int64), spool.size(int(index))


def _batches(spool: Spool, order: np.ndarray) -> Iterator[np.ndarray]:
    start = size = 0
    for at, index in enumerate(order):
        size += spool.size(int(index))
        if size >= _BATCH_BYTES or at + 1 - start >= _BATCH_DOCUMENTS:
            yield order[start : at + 1]
            start, size = at + 1, 0
    if start < len(order):
        yield order[start:]
