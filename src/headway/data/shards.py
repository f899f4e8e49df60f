"""Writes token sets: documents in, shards with block digests and document ends out.

A shard is put together in memory and hashed there before it is written, so a digest is of what was meant, not of what the
disk returned.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import xxhash

from headway.base.files import make_directory
from headway.data.block_digests import BLOCKS_SUFFIX, digests_of, kept_apart, write_durably
from headway.data.ends import ends_entry
from headway.data.manifest import DTYPES, ShardEntry, TokenSet
from headway.data.tables import TableWriter

SHARD_BYTES = 64 * 2**20
ENDS_FILE = "documents.ends"
DIGESTS_FILE = "shards" + BLOCKS_SUFFIX
_MOST_SHARDS = 2**10
_TEXT_PER_STORED_BYTE = 2  # some four bytes of text are a token, and a token is stored in two


def shard_bytes_for(text_bytes: int, least: int = SHARD_BYTES) -> int:
    """``least``, doubled until there are about a thousand shards at most: each takes a little of every opening."""
    size = least
    while text_bytes > size * _MOST_SHARDS * _TEXT_PER_STORED_BYTE:
        size *= 2
    return size


class TokenSetWriter:
    """Appends documents (their tokens, document token first) to the shards of ``root/relative``. Holds one shard in memory."""

    def __init__(self, root: Path, relative: str, *, dtype: str, shard_bytes: int = SHARD_BYTES):
        self._root, self._relative = root, relative
        self._type = np.dtype(DTYPES[dtype])
        self._shard = np.empty(max(1, shard_bytes // self._type.itemsize), self._type)
        self._filled = 0
        self._shards: list[ShardEntry] = []
        self._digests: list[str] = []
        self._ends = TableWriter(root, f"{relative}/{ENDS_FILE}")
        self._bytes = self._documents = 0
        self.tokens = 0
        make_directory(root / relative, "shard directory")

    def add(self, tokens: np.ndarray | list[int], text_bytes: int) -> None:
        """One document."""
        array = np.asarray(tokens, self._type)
        self.extend(array, np.array([array.size]), text_bytes)

    def extend(self, tokens: np.ndarray, counts: np.ndarray, text_bytes: int) -> None:
        """Documents of so many tokens each, one after the other; ``text_bytes`` of text in all."""
        self._ends.append((self.tokens + np.cumsum(counts)).astype("<u8").tobytes())
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
        digest, blocks = xxhash.xxh3_128_hexdigest(data), digests_of(data)
        self._shards.append(ShardEntry(file, first, self._filled, digest, blocks, len(self._digests)))
        self._digests += blocks
        write_durably(self._root / file, data, "cannot write shard")
        self._filled = 0

    def finish(self) -> TokenSet:
        self._flush()
        apart = kept_apart(self._root, f"{self._relative}/{DIGESTS_FILE}", self._digests)
        without = {"blocks": ()} if apart else {"first_block": None}
        return TokenSet(
            tokens=self.tokens,
            documents=self._documents,
            bytes=self._bytes,
            shards=tuple(dataclasses.replace(shard, **without) for shard in self._shards),
            ends=ends_entry(self._ends.finish()),
            block_digests=apart,
        )
