"""A rank's data file as a stream of proven blocks, from wherever it lies, and several files at once.

|- header -|-- block 0 --|-- block 1 --|-2-|-- block 0 --| ...      digests: the receipt's
'------ read together ----------------' '--- read together ...      nothing is handed on before it is proven
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import xxhash

from headway.base.errors import RunError, from_os_error
from headway.store.manifest import BLOCK_BYTES, Receipt

GROUP_BYTES = 16 << 20
"""Blocks are read in groups of about this size, each with one request."""

FILES_AT_ONCE = 4
"""Bounds the memory: a few groups or parts for each file under way."""

Read = Callable[[int, int], "bytes | None"]
"""Bytes [start, stop), fewer where the file ends before; None where there is none."""

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    at: int  # bytes from the start of the file
    nbytes: int
    digest: str  # xxh3_128 (hex)


class Stopped(Exception):
    """Another file failed: this one need not go on. Never leaves ``side_by_side``."""


def blocks_of(receipt: Receipt) -> list[Block]:
    """The whole file, first byte to last; RunError where the receipt leaves a gap."""
    blocks = [Block(0, receipt.header_bytes, receipt.header_digest)]
    at = receipt.header_bytes
    chunks = [chunk for entry in receipt.tensors.values() for chunk in entry.chunks]
    for chunk in sorted(chunks, key=lambda chunk: (chunk.at, chunk.nbytes)):
        if chunk.at != at:
            raise RunError(f"{receipt.file}: a chunk lies at byte {chunk.at:,}, not {at:,}", "data files have no gaps")
        for index, digest in enumerate(chunk.blocks):
            begin = index * BLOCK_BYTES
            blocks.append(Block(at + begin, min(BLOCK_BYTES, chunk.nbytes - begin), digest))
        at += chunk.nbytes
    if at != receipt.file_bytes:
        raise RunError(f"{receipt.file}: the chunks end at byte {at:,} of {receipt.file_bytes:,}", "data files have no gaps")
    return blocks


def proven(receipt: Receipt, read: Read, where: str, stop: threading.Event) -> Iterator[bytes]:
    """The file's bytes in order, every block compared with its digest; RunError that says ``where`` for any other byte."""
    for group in _groups(blocks_of(receipt)):
        if stop.is_set():
            raise Stopped
        start, end = group[0].at, group[-1].at + group[-1].nbytes
        data = read(start, end)
        if data is None:
            raise RunError(f"{receipt.file} is missing", where, "use another copy, or an older checkpoint")
        if len(data) != end - start:
            seen = f"{receipt.file} ends at byte {start + len(data):,}: truncated"
            raise RunError(seen, where, "use another copy, or an older checkpoint")
        view = memoryview(data)
        for block in group:
            if xxhash.xxh3_128_hexdigest(view[block.at - start :][: block.nbytes]) != block.digest:
                seen = f"{receipt.file}: block at byte {block.at:,}: digest differs"
                raise RunError(seen, where, "use another copy, or an older checkpoint")
        yield data


def flaw(receipt: Receipt, size: int | None, read: Read, where: str, stop: threading.Event) -> str:
    """What is wrong with a copy of the file; empty when every byte is proven."""
    if size is None:
        return f"{receipt.file} is missing"
    if size != receipt.file_bytes:
        return f"{receipt.file} has {size:,} bytes instead of {receipt.file_bytes:,}"
    try:
        for _ in proven(receipt, read, where, stop):
            pass
    except RunError as error:
        return error.problems[0].seen
    return ""


@contextmanager
def reading(path: Path) -> Iterator[Read]:
    """Ranges of a local file; every OSError becomes the map."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RunError(f"{path.name} is missing", f"path: {path}", "use another copy, or an older checkpoint") from error
    except OSError as error:
        raise from_os_error(error, path, "cannot open checkpoint data") from error

    def read(start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        try:
            while start < stop and (piece := os.pread(descriptor, stop - start, start)):
                pieces.append(piece)
                start += len(piece)
        except OSError as error:
            raise from_os_error(error, path, "cannot read checkpoint data") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    try:
        yield read
    finally:
        os.close(descriptor)


def side_by_side(jobs: Sequence[Callable[[threading.Event], T]]) -> list[T]:
    """Run the jobs, a few at a time; results in their order. The first failure stops the others and is raised."""
    stop = threading.Event()
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="mirror") as pool:
        futures = [pool.submit(job, stop) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _groups(blocks: list[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    for block in blocks:
        if group and block.at + block.nbytes - group[0].at > GROUP_BYTES:
            yield group
            group = []
        group.append(block)
    yield group
