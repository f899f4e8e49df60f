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
    """Appends documents (their tokens, document token first) to the shards of ``root/relative``."""

    def __init__(self, root: Path, relative: str, *, dtype: str, shard_bytes: int = SHARD_BYTES):
        self._root, self._relative = root, relative
        self._type = np.dtype(DTYPES[dtype])
        self._shard_tokens = max(1, shard_bytes // self._type.itemsize)
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0
        self._shards: list[ShardEntry] = []
        self._ends: list[int] = []
        self._bytes = 0
        self.tokens = 0
        make_directory(root / relative, "shard directory")

    def add(self, tokens: np.ndarray | list[int], text_bytes: int) -> None:
        """One document."""
        array = np.asarray(tokens, self._type)
        self.tokens += array.size
        self._bytes += text_bytes
        self._ends.append(self.tokens)
        while array.size:
            part = array[: self._shard_tokens - self._pending_tokens]
            self._pending.append(part)
            self._pending_tokens += part.size
            array = array[part.size :]
            if self._pending_tokens == self._shard_tokens:
                self._flush()

    def _flush(self) -> None:
        if not self._pending_tokens:
            return
        data = memoryview(np.concatenate(self._pending).tobytes())
        file = f"{self._relative}/shard-{len(self._shards):05d}.bin"
        first = self._shards[-1].first_token + self._shards[-1].tokens if self._shards else 0
        digest = xxhash.xxh3_128_hexdigest(data)
        self._shards.append(ShardEntry(file, first, self._pending_tokens, digest, block_digests(data)))
        _write(self._root / file, data)
        self._pending, self._pending_tokens = [], 0

    def finish(self) -> TokenSet:
        self._flush()
        ends = np.asarray(self._ends, "<u8").tobytes()
        file = f"{self._relative}/documents.ends"
        _write(self._root / file, ends)
        return TokenSet(
            tokens=self.tokens,
            documents=len(self._ends),
            bytes=self._bytes,
            shards=tuple(self._shards),
            ends=EndsEntry(file, xxhash.xxh3_128_hexdigest(ends)),
        )
