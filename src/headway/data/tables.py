"""Files beside the shards, written in one go and read in blocks: document ends, facts, plans.

Whoever reads maps them and verifies a 1 MiB block when it is first touched: opening takes no longer for a larger file.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import from_os_error
from headway.base.files import make_directory, write_all
from headway.data.block_digests import BLOCKS_SUFFIX, BlockDigests, kept_apart
from headway.data.manifest import BLOCK_BYTES, TableFile
from headway.data.mapped import damaged, map_file, read_plainly

_WRITE_BYTES = 2**17


class TableWriter:
    """Appends to one new file. Little of it is held: digests grow with what is written."""

    def __init__(self, root: Path, file: str):
        self._root, self._path, self._file = root, root / file, file
        self._waiting, self._blocks, self._bytes = bytearray(), list[str](), 0
        self._whole, self._block = xxhash.xxh3_128(), xxhash.xxh3_64()
        make_directory(self._path.parent, "directory of documents")
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write data file") from error

    def append(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            write_all(self._descriptor, bytes(self._waiting))
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write data file") from error
        self._whole.update(self._waiting)
        view = memoryview(self._waiting)
        while len(view):
            piece = view[: BLOCK_BYTES - self._bytes % BLOCK_BYTES]
            self._block.update(piece)
            self._bytes += len(piece)
            view = view[len(piece) :]
            if self._bytes % BLOCK_BYTES == 0:
                self._end_block()
        view.release()
        self._waiting = bytearray()

    def _end_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block.reset()

    def finish(self) -> TableFile:
        """The file, which is durable."""
        self._flush()
        if self._bytes % BLOCK_BYTES:
            self._end_block()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise from_os_error(error, self._path, "cannot write data file") from error
        finally:
            os.close(self._descriptor)
        apart = kept_apart(self._root, self._file + BLOCKS_SUFFIX, self._blocks)
        return TableFile(self._file, self._bytes, self._whole.hexdigest(), () if apart else tuple(self._blocks), apart)


class MappedTable:
    """A file's bytes, of which a block is verified when it is first touched. EnvironmentFault for what has another digest."""

    def __init__(self, root: Path, entry: TableFile, verify: bool):
        self._path = root / entry.file
        self.bytes = map_file(self._path, entry.bytes)
        self._digests = BlockDigests.open(root, entry.blocks, entry.block_digests)
        self._unverified = np.full(len(self._digests), verify)
        self.is_verified = not self._unverified.any()

    def touch(self, at: np.ndarray) -> None:
        """The blocks that these bytes lie in."""
        if self.is_verified:
            return
        blocks = np.unique(at // BLOCK_BYTES)
        for block in blocks[self._unverified[blocks]].tolist():
            self._verify(block)
        self.is_verified = not self._unverified.any()

    def verify_all(self) -> None:
        self.touch(np.arange(0, self.bytes.size, BLOCK_BYTES))

    def _verify(self, block: int) -> None:
        at, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.bytes.size)
        read_plainly(self._path, at, end)
        if not self._digests.agrees(block, self.bytes[at:end].data):
            raise damaged(self._path, f"block {block}, bytes {at} to {end}")
        self._unverified[block] = False
