"""Reading with proof: whole checkpoints at the speed of the disk, or only the blocks that a part needs.

chunk  |--block 0--|--block 1--|--block 2--|-3-|        digests in the receipt
               |== wanted ==|                           read_span reads and verifies blocks 0 and 1, returns the part
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headway.base.errors import HeadwayError, RunError, from_os_error
from headway.store.coverage import check_coverage
from headway.store.manifest import (
    BLOCK_BYTES,
    Chunk,
    Manifest,
    Receipt,
    TensorEntry,
    content_digest,
    join_chunks,
    load_manifest,
    load_receipt,
)
from headway.store.names import parse_name
from headway.store.rectangle import rectangle_key

REASONS_PER_FILE = 3


@dataclass(frozen=True, kw_only=True)
class OpenCheckpoint:
    """A checkpoint whose manifest and receipts are proven; the data are proven as they are read."""

    directory: Path
    manifest: Manifest
    receipts: tuple[Receipt, ...]
    tensors: dict[str, TensorEntry]
    images: Mapping[str, memoryview] = field(default_factory=dict)
    """Data files that a writer of this host still holds in memory, by name: read from there, verified all the same."""

    def read(self, chunk: Chunk, start_bytes: int, stop_bytes: int, scratch: np.ndarray | None = None) -> np.ndarray:
        """Bytes [start, stop) of a chunk, proven; valid until ``scratch`` is used again."""
        if chunk.file in self.images:
            return _proven_span(np.frombuffer(self.images[chunk.file], np.uint8), chunk, start_bytes, stop_bytes)
        return read_span(self.directory, chunk, start_bytes, stop_bytes, scratch)


@dataclass(frozen=True)
class Verdict:
    """``reasons`` is empty exactly when ``ok``."""

    ok: bool
    reasons: tuple[str, ...]
    bytes_read: int


def open_checkpoint(directory: Path) -> OpenCheckpoint:
    """Manifest, every receipt against its digest, one save throughout, full coverage; else a RunError that says what."""
    manifest = load_manifest(directory)
    named = parse_name(directory.name)
    if named is not None and (named.segment, named.step) != (manifest.segment, manifest.step):
        raise RunError(f"the manifest of {directory.name} speaks of segment {manifest.segment}, step {manifest.step}")
    receipts = tuple(load_receipt(directory, ref.rank, ref.digest) for ref in manifest.receipts)
    for receipt in receipts:
        if (receipt.segment, receipt.step, receipt.world) != (manifest.segment, manifest.step, manifest.world):
            raise RunError(f"the receipt of rank {receipt.rank} belongs to another save", f"path: {directory}")
        if any(chunk.file != receipt.file for entry in receipt.tensors.values() for chunk in entry.chunks):
            raise RunError(f"the receipt of rank {receipt.rank} names files of others", f"path: {directory}")
    tensors = join_chunks(list(receipts))
    check_coverage(tensors)
    if content_digest(tensors) != manifest.state_digest:
        raise RunError("receipts and manifest disagree on the digest of the state", f"path: {directory}")
    return OpenCheckpoint(directory=directory, manifest=manifest, receipts=receipts, tensors=tensors)


def verify(directory: Path) -> Verdict:
    """Read everything again: manifest, receipts, headers, every block of every file. Never raises for damage."""
    try:
        checkpoint = open_checkpoint(directory)
    except HeadwayError as error:
        return Verdict(False, tuple(problem.seen for problem in error.problems), 0)
    reasons: list[str] = []
    bytes_read = 0
    for receipt in checkpoint.receipts:
        try:
            found = _verify_file(directory, receipt)
            bytes_read += receipt.file_bytes
        except HeadwayError as error:
            found = [error.problems[0].seen]
        reasons += found[:REASONS_PER_FILE]
        if len(found) > REASONS_PER_FILE:
            reasons.append(f"{receipt.file}: {len(found) - REASONS_PER_FILE} more")
    return Verdict(not reasons, tuple(reasons), bytes_read)


def read_span(directory: Path, chunk: Chunk, start_bytes: int, stop_bytes: int, scratch: np.ndarray | None = None) -> np.ndarray:
    """Bytes [start, stop) of a chunk; reads whole blocks and verifies each.

    With ``scratch`` (uint8), the result is a view of it where it is large enough: fresh memory costs more than the read.
    """
    first, last = start_bytes // BLOCK_BYTES, -(-stop_bytes // BLOCK_BYTES)
    begin = first * BLOCK_BYTES
    needed = min(last * BLOCK_BYTES, chunk.nbytes) - begin
    buffer = scratch[:needed] if scratch is not None and len(scratch) >= needed else np.empty(needed, np.uint8)
    with _opened(directory / chunk.file) as descriptor:
        _read_exactly(descriptor, buffer, chunk.at + begin, chunk.file)
    for index in range(first, last):
        _prove(buffer[index * BLOCK_BYTES - begin :][:BLOCK_BYTES], chunk, index, f"path: {directory / chunk.file}")
    return buffer[start_bytes - begin : stop_bytes - begin]


def _proven_span(image: np.ndarray, chunk: Chunk, start_bytes: int, stop_bytes: int) -> np.ndarray:
    """As ``read_span``, of a data file in memory: nothing is copied."""
    data = image[chunk.at : chunk.at + chunk.nbytes]
    for index in range(start_bytes // BLOCK_BYTES, -(-stop_bytes // BLOCK_BYTES)):
        _prove(data[index * BLOCK_BYTES :][:BLOCK_BYTES], chunk, index, "in the memory of its writer")
    return data[start_bytes:stop_bytes]


def _prove(block: np.ndarray, chunk: Chunk, index: int, where: str) -> None:
    if xxhash.xxh3_128_hexdigest(block.data) != chunk.blocks[index]:
        seen = f"{chunk.file}: block {index} at byte {chunk.at + index * BLOCK_BYTES:,}: digest differs"
        raise RunError(seen, where, "use an older checkpoint")


def drop_cached(directory: Path) -> None:
    """Ask the kernel to forget the files, so that the next read comes from the storage and not from memory."""
    for path in directory.iterdir():
        with _opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _verify_file(directory: Path, receipt: Receipt) -> list[str]:
    """What is wrong with one rank's data file."""
    chunks = [(chunk, name, entry) for name, entry in receipt.tensors.items() for chunk in entry.chunks]
    chunks.sort(key=lambda item: (item[0].at, item[0].nbytes))
    reasons = []
    with _opened(directory / receipt.file) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != receipt.file_bytes:
            return [f"{receipt.file} has {size:,} bytes instead of {receipt.file_bytes:,}"]
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        header = np.empty(receipt.header_bytes, np.uint8)
        _read_exactly(descriptor, header, 0, receipt.file)
        if wrong := _header_problem(header.tobytes(), receipt, chunks):
            return [f"{receipt.file}: {wrong}"]
        scratch = np.empty(BLOCK_BYTES, np.uint8)
        for chunk, name, _ in chunks:
            reasons += [f"{receipt.file}: {name} block {i}: digest differs" for i in _bad_blocks(descriptor, chunk, scratch)]
    return reasons


def _bad_blocks(descriptor: int, chunk: Chunk, scratch: np.ndarray) -> Iterator[int]:
    for index, expected in enumerate(chunk.blocks):
        begin = index * BLOCK_BYTES
        block = scratch[: min(BLOCK_BYTES, chunk.nbytes - begin)]
        _read_exactly(descriptor, block, chunk.at + begin, chunk.file)
        if xxhash.xxh3_128_hexdigest(block.data) != expected:
            yield index


def _header_problem(header: bytes, receipt: Receipt, chunks: list[tuple[Chunk, str, TensorEntry]]) -> str:
    """The header's own bytes, and that it tells other readers the same as the receipt tells us."""
    if xxhash.xxh3_128_hexdigest(header) != receipt.header_digest:
        return "digest of the header differs"
    expected: dict[str, Any] = {}
    at = receipt.header_bytes
    for chunk, name, entry in chunks:
        if chunk.at != at:
            return f"{name} lies at byte {chunk.at:,}, not {at:,}"
        offsets = [at - receipt.header_bytes, at - receipt.header_bytes + chunk.nbytes]
        key = rectangle_key(name, chunk.offset, chunk.shape, entry.shape)
        expected[key] = {"dtype": entry.dtype, "shape": list(chunk.shape), "data_offsets": offsets}
        at += chunk.nbytes
    if at != receipt.file_bytes:
        return f"the chunks end at byte {at:,} of {receipt.file_bytes:,}"
    try:
        told = json.loads(header[8:])
        told.pop("__metadata__", None)
    except (ValueError, RecursionError, AttributeError) as error:
        return f"header is no JSON object ({error})"
    agrees = told == expected and struct.unpack("<Q", header[:8])[0] == len(header) - 8
    return "" if agrees else "header and receipt disagree"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor for reading; every OSError inside becomes the map."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RunError(f"{path.name} is missing", f"path: {path}", "use an older checkpoint") from error
    except OSError as error:
        raise from_os_error(error, path, "cannot open checkpoint data") from error
    try:
        yield descriptor
    except OSError as error:
        raise from_os_error(error, path, "cannot read checkpoint data") from error
    finally:
        os.close(descriptor)


def _read_exactly(descriptor: int, buffer: np.ndarray, at: int, file: str) -> None:
    """Fill ``buffer`` from byte ``at``; a file that ends before is damage, not an OSError."""
    view = buffer.data
    while len(view):
        count = os.preadv(descriptor, [view], at)
        if count == 0:
            raise RunError(f"{file} ends at byte {at:,}: truncated", "", "use an older checkpoint")
        view, at = view[count:], at + count
