"""Digests of the 1 MiB blocks of data files: listed in the manifest while they are few, else in a file of their own.

    shards of 8 GiB     8,192 blocks   ->  "blocks": []  "first_block": n   ->   shards.blocks   8 bytes a block, in their order
    shards of 40 MiB       40 blocks   ->  "blocks": ["9a...", ...]

A manifest stays small that way, whatever the corpus: that of 1 T tokens would hold two million digests, and take seconds to open.
A file of digests is mapped, and hashed when it is opened: it is 1/131,072 of what it judges.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import from_os_error
from headway.base.files import write_all
from headway.data.manifest import BLOCK_BYTES, DigestsFile, ShardEntry
from headway.data.mapped import damaged, map_file

DIGEST_BYTES = 8
LISTED_BLOCKS = 2**12
"""So many are listed: a change gives other digests to data of every size between the two."""
BLOCKS_SUFFIX = ".blocks"


def digests_of(data: bytes | memoryview) -> tuple[str, ...]:
    """xxh3_64 of each 1 MiB of ``data``."""
    view = memoryview(data)
    return tuple(xxhash.xxh3_64_hexdigest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES))


def kept_apart(root: Path, file: str, digests: Sequence[str]) -> DigestsFile | None:
    """Writes them to ``file``, durably, if they are too many to be listed."""
    if len(digests) <= LISTED_BLOCKS:
        return None
    data = bytes.fromhex("".join(digests))
    write_durably(root / file, data, "cannot write digests of blocks")
    return DigestsFile(file, len(data), xxhash.xxh3_128_hexdigest(data))


def write_durably(path: Path, data: bytes | memoryview, what: str) -> None:
    """A file that is not there yet."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, path, what) from error


class BlockDigests:
    """Of the blocks of one file, or of the files of a token set one after the other."""

    def __init__(self, listed: tuple[str, ...], apart: np.ndarray | None = None):
        """``apart``: bytes of a file of digests, in place of a list."""
        self._listed, self._apart = listed, apart

    @staticmethod
    def open(directory: Path, listed: tuple[str, ...], apart: DigestsFile | None) -> BlockDigests:
        """EnvironmentFault for a file of digests that is not the one that the manifest names."""
        return BlockDigests(listed, None if apart is None else _opened(directory / apart.file, apart))

    def __len__(self) -> int:
        return len(self._listed) if self._apart is None else self._apart.size // DIGEST_BYTES

    def __getitem__(self, block: int) -> str:
        if self._apart is None:
            return self._listed[block]
        return self._apart[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES].tobytes().hex()

    def agrees(self, block: int, data: bytes | memoryview) -> bool:
        return xxhash.xxh3_64_hexdigest(data) == self[block]


def with_blocks(shard: ShardEntry, digests: BlockDigests, itemsize: int) -> ShardEntry:
    """``shard`` with its blocks listed; ``digests``: those of its set."""
    if shard.first_block is None:
        return shard
    last = shard.first_block - (-shard.tokens * itemsize // BLOCK_BYTES)
    return dataclasses.replace(shard, blocks=tuple(digests[block] for block in range(shard.first_block, last)))


def _opened(path: Path, entry: DigestsFile) -> np.ndarray:
    data = map_file(path, entry.bytes)
    if xxhash.xxh3_128_hexdigest(data.data) != entry.xxh3_128:
        raise damaged(path, "the whole file")
    return data
