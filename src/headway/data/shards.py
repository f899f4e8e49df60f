"""Writes token sets: documents in, shards with block digests and document ends out.

A shard is put together in memory and hashed there before it is written, so a digest is of what was meant, not of what the
disk returned.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import from_os_error
from headway.base.files import make_directory, write_all
from headway.data.manifest import BLOCK_BYTES, DTYPES, EndsEntry, ShardEntry, TokenSet

SHARD_BYTES = 64 * 2**20
ENDS_FILE = "documents.ends"
_ENDS_BYTES = 2**17


def block_digests(data: bytes | memoryview) -> tuple[str, ...]:
    """xxh3_64 of each 1 MiB of ``data``."""
    view = memoryview(data)
    return tuple(xxhash.xxh3_64_hexdigest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES))


def _write(path: Path, data: bytes | memoryview) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, path, "cannot write shard") from error


class TokenSetWriter:
    """Appends documents (their tokens, document token first) to the shards of ``root/relative``. Holds one shard in memory."""

    def __init__(self, root: Path, relative: str, *, dtype: str, shard_bytes: int = SHARD_BYTES):
        self._root, self._relative = root, relative
        self._type = np.dtype(DTYPES[dtype])
        self._shard = np.empty(max(1, shard_bytes // self._type.itemsize), self._type)
        self._filled = 0
        self._shards: list[ShardEntry] = []
        self._ends = _EndsWriter(root / relative / ENDS_FILE)
        self._bytes = self._documents = 0
        self.tokens = 0
        make_directory(root / relative, "shard directory")

    def add(self, tokens: np.ndarray | list[int], text_bytes: int) -> None:
        """One document."""
        array = np.asarray(tokens, self._type)
        self.extend(array, np.array([array.size]), text_bytes)

    def extend(self, tokens: np.ndarray, counts: np.ndarray, text_bytes: int) -> None:
        """Documents of so many tokens each, one after the other; ``text_bytes`` of text in all."""
        self._ends.append(self.tokens + np.cumsum(counts))
        self._documents += counts.size
        self._bytes += text_bytes
        self.tokens += tokens.size
        while tokens.size:
            part = tokens[: self._shard.size - self._filled]
            self._shard[self._filled : self._filled + part.size] = part
            self._filled += part.size
            tokens = tokens[part.size :]
            if self._filled == self._shard.size:
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        data = self._shard[: self._filled].view(np.uint8).data
        file = f"{self._relative}/shard-{len(self._shards):05d}.bin"
        first = self._shards[-1].first_token + self._shards[-1].tokens if self._shards else 0
        digest = xxhash.xxh3_128_hexdigest(data)
        self._shards.append(ShardEntry(file, first, self._filled, digest, block_digests(data)))
        _write(self._root / file, data)
        self._filled = 0

    def finish(self) -> TokenSet:
        self._flush()
        return TokenSet(
            tokens=self.tokens,
            documents=self._documents,
            bytes=self._bytes,
            shards=tuple(self._shards),
            ends=EndsEntry(f"{self._relative}/{ENDS_FILE}", self._ends.finish()),
        )


class _EndsWriter:
    """Appends document ends to their file, a piece at a time: there may be more documents than memory holds."""

    def __init__(self, path: Path):
        self._path, self._digest = path, xxhash.xxh3_128()
        self._waiting = bytearray()
        self._descriptor = -1

    def append(self, ends: np.ndarray) -> None:
        self._waiting += ends.astype("<u8").tobytes()
        if len(self._waiting) >= _ENDS_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            self._digest.update(self._waiting)
            write_all(self._descriptor, bytes(self._waiting))
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write document ends") from error
        self._waiting.clear()

    def finish(self) -> str:
        """The digest of the file, which is durable."""
        self._flush()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write document ends") from error
        finally:
            os.close(self._descriptor)
        return self._digest.hexdigest()
