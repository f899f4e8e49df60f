"""Documents on their way to shards: normalised, without exact duplicates, in a directory instead of memory.

    SPOOL/   text           the documents' UTF-8, one after the other
             ends           uint64 per document: the byte after its last one
             digests        16 bytes per document
             facts, origins, index   where each document is from (``facts.py``)
             keys           uint64 per document where its place decides whether it is held out (``split.py``); else empty
             receipt.json   written last: digests of them, what was read and left out; without it the rest is of no use

normalised   line ends become \\n, a byte order mark at the head is removed. Unicode is left as it was written: forms that
             differ (NFC, NFD) are different bytes to a byte-level tokenizer, and code depends on them
left out     undecodable (lone surrogates too: no UTF-8 can hold them), not_a_regular_file, empty (white space only), duplicate
             (in its source), duplicate_elsewhere (in an earlier source), all counted. Duplicates over sources would put one
             source's held-out text into another's training
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from headway.base.digests import digest_json, is_sealed, sealed
from headway.base.errors import HeadwayError, RunError
from headway.base.files import make_directory, read_json, write_json
from headway.base.plain import from_plain
from headway.data.facts import FactLines, Found
from headway.data.feistel import derive_key, permute
from headway.data.seen import DIGEST_BYTES, Seen
from headway.data.sources import Document
from headway.data.split import KeyOf

RECEIPT = "receipt.json"
_FILES = ("text", "ends", "digests", "facts", "origins", "index", "keys")
_TELL_EVERY_DOCUMENTS = 512
_BLOCK, _PIECE = 2**14, 2**20
_LEFT_OUT = (2**64 - 1).to_bytes(8, "little")
"""In a snapshot's digest, in place of a length that no text has."""


def normalise(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


class AsRead:
    """Documents on their way, and the digest of all that passed: texts as they were read, reasons in place of what is left out.

    Names are no content: the same texts in the same order have the same digest wherever they lie.
    """

    def __init__(self, documents: Iterable[Document]):
        self._documents, self._digest = documents, hashlib.sha256()
        self.count = 0

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            self.count += 1
            if document.text is None:
                self._digest.update(_LEFT_OUT + document.dropped.encode() + b"\0")
            else:
                data = document.text.encode("utf-8", "surrogatepass")
                self._digest.update(len(data).to_bytes(8, "little") + data)
            yield document

    @property
    def digest(self) -> str:
        return "sha256:" + self._digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a finished spool holds. ``key``: what it was made of and how; ``content``: digest of the kept documents, in order."""

    key: str
    where: str
    snapshot: str
    found: int
    read_at: str
    documents: int
    bytes: int
    content: str
    dropped: dict[str, int]
    files: dict[str, str]  # xxh3_128


class Spool:
    """One source's documents, appended once and then read in any order."""

    def __init__(self, directory: Path):
        """An empty one. What was there is removed."""
        self.directory = directory
        remove(directory)
        make_directory(directory, "directory for documents")
        self._write: dict[str, BinaryIO] = {name: open(directory / name, "wb") for name in _FILES}  # noqa: SIM115 - closed by close()
        self._hash = {name: xxhash.xxh3_128() for name in _FILES}
        self._digest = hashlib.sha256()
        self._documents = self._bytes = 0
        self._lines = FactLines()
        self.dropped: Counter[str] = Counter()

    def fill(
        self,
        documents: Iterable[Document],
        source: int,
        seen: Seen,
        tell: Callable[[int, int], None] = lambda documents, size: None,
        key_of: KeyOf | None = None,
    ) -> None:
        """``tell``: documents and bytes kept so far, now and then. ``key_of``: None: nothing asks for keys."""
        for number, document in enumerate(documents, 1):
            reason = document.dropped or self._keep(document, normalise(document.text or ""), source, seen, key_of)
            if reason:
                self.dropped[reason] += 1
            if number % _TELL_EVERY_DOCUMENTS == 0:
                tell(self._documents, self._bytes)

    def _keep(self, document: Document, text: str, source: int, seen: Seen, key_of: KeyOf | None) -> str:
        """Append ``document`` with ``text``, or say why not."""
        if not text.strip():
            return "empty"
        try:
            data = text.encode()
        except UnicodeEncodeError:  # lone surrogates out of JSON escapes
            return "undecodable"
        digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
        holder = seen.holder(digest, source)
        if holder is not None:
            return "duplicate" if holder == source else "duplicate_elsewhere"
        self._documents += 1
        self._bytes += len(data)
        facts, origin, index = self._lines.lines(document.origin, document.facts)
        pieces = {"text": data, "ends": self._bytes.to_bytes(8, "little"), "digests": digest}
        pieces |= {"facts": facts, "origins": origin, "index": index}
        if key_of is not None:
            pieces["keys"] = key_of(text, document.facts).to_bytes(8, "little")
        for name, piece in pieces.items():
            self._write[name].write(piece)
            self._hash[name].update(piece)
        self._digest.update(digest)
        return ""

    def seal(self, *, key: str, where: str, read: AsRead, read_at: str) -> SealedSpool:
        """The finished spool, durable."""
        for file in self._write.values():
            file.flush()
            os.fsync(file.fileno())
        self.close()
        receipt = Receipt(
            key=key,
            where=where,
            snapshot=read.digest,
            found=read.count,
            read_at=read_at,
            documents=self._documents,
            bytes=self._bytes,
            content=self._digest.hexdigest(),
            dropped=dict(sorted(self.dropped.items())),
            files={name: hashed.hexdigest() for name, hashed in self._hash.items()},
        )
        write_json(self.directory / RECEIPT, sealed(dataclasses.asdict(receipt)))
        return SealedSpool(self.directory, receipt)

    def close(self) -> None:
        for file in self._write.values():
            file.close()


class SealedSpool:
    """A finished spool: nothing of it is held but its files, mapped and open."""

    def __init__(self, directory: Path, receipt: Receipt):
        self.directory, self.receipt = directory, receipt
        self._text = open(directory / "text", "rb")  # noqa: SIM115 - closed by close()
        self._ends = np.memmap(directory / "ends", "<u8", "r") if receipt.documents else np.zeros(0, "<u8")

    @cached_property
    def found(self) -> Found:
        """Where each document is from."""
        facts, origins, index = (self.directory / name for name in ("facts", "origins", "index"))
        return Found(facts, origins, index, self.receipt.documents)

    @cached_property
    def keys(self) -> np.ndarray:
        """Of every document, in the order found; only where keys were asked for."""
        return np.memmap(self.directory / "keys", "<u8", "r", shape=(self.receipt.documents,))

    @property
    def facts_digest(self) -> str:
        """Of where all documents are from, in the order found."""
        return digest_json([self.receipt.files[name] for name in ("facts", "origins")])

    @staticmethod
    def open(directory: Path) -> SealedSpool:
        """As its receipt says: whoever asks for it to be read has verified it."""
        return SealedSpool(directory, _receipt(directory))

    @staticmethod
    def find(directory: Path, key: str) -> SealedSpool | None:
        """What a build that was killed had finished, verified; None: nothing, or of other documents, or damaged."""
        try:
            receipt = _receipt(directory)
            whole = receipt.key == key and all(file_digest(directory / n) == d for n, d in receipt.files.items())
        except (HeadwayError, OSError):
            return None
        return SealedSpool(directory, receipt) if whole and set(receipt.files) == set(_FILES) else None

    def __len__(self) -> int:
        return self.receipt.documents

    @property
    def total_bytes(self) -> int:
        return self.receipt.bytes

    def starts(self, indices: np.ndarray) -> np.ndarray:
        return np.where(indices > 0, self._ends[np.maximum(indices, 1) - 1], 0).astype(np.int64)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Bytes of documents."""
        return self._ends[indices].astype(np.int64) - self.starts(indices)

    def texts(self, indices: np.ndarray) -> Iterator[str]:
        for start, size in zip(self.starts(indices).tolist(), self.sizes(indices).tolist(), strict=True):
            self._text.seek(start)
            yield self._text.read(size).decode()

    def digests(self) -> Iterator[bytes]:
        """Of every document, in the order found."""
        with open(self.directory / "digests", "rb") as file:
            while digest := file.read(DIGEST_BYTES):
                yield digest

    def close(self) -> None:
        self._text.close()


def _receipt(directory: Path) -> Receipt:
    return from_plain(Receipt, unsealed(read_json(directory / RECEIPT, "receipt of documents"), directory / RECEIPT))


def unsealed(plain: Any, path: Path) -> dict[str, Any]:
    """The content of a sealed object; RunError for one that was altered."""
    if not isinstance(plain, dict) or not is_sealed(plain):
        raise RunError(
            f"{path} was altered", "a receipt carries the digest of its own content", "remove it: the work is done again"
        )
    return {name: value for name, value in plain.items() if name != "digest"}


def file_digest(path: Path) -> str:
    """xxh3_128 of a file of any size."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """A file or a directory with all it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Shuffled:
    """The documents of a spool in their shuffled order, computed in blocks: position -> document."""

    def __init__(self, documents: int, seed: int, source: str):
        self.documents, self._key = documents, derive_key("documents", seed, source)

    def block(self, start: int, stop: int) -> np.ndarray:
        return permute(np.arange(start, stop), self.documents, self._key)

    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]:
        for at in range(start, stop, _BLOCK):
            yield self.block(at, min(at + _BLOCK, stop))
