"""The save transaction, as seen by one rank and by the coordinator.

    begin_save   a fresh directory                                        save.begin
    write_rank   data file: hash block, write block, ... fsync, rename    save.data_partial, data_written, data_renamed
                 receipt                                                  save.receipt_written
    commit       exact set of receipts, full coverage,
                 manifest: write, fsync, rename, fsync of the directory   save.manifest_partial, manifest_renamed
                                                                          save.committed
Older checkpoints are never touched. A failed save names the path and the cause and removes what it wrote.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from headway.base import failpoints
from headway.base.clocks import SystemClock
from headway.base.digests import digest_file
from headway.base.errors import RunError, from_os_error
from headway.base.files import fsync_directory, make_directory, require_room, write_atomic
from headway.base.records import read_records
from headway.store.coverage import check_coverage
from headway.store.durable import DurableWriter, Stage, remove_quietly
from headway.store.manifest import (
    Manifest,
    Receipt,
    ReceiptRef,
    content_digest,
    join_chunks,
    load_receipt,
    manifest_bytes,
    receipt_bytes,
    seal,
)
from headway.store.names import DELETED, MANIFEST, CheckpointName, data_file, receipt_file
from headway.store.rectangle import Rectangle, chunk_table, file_header, image_pieces, in_file_order, stream_pieces

__all__ = ["Image", "ManifestFields", "Rectangle", "begin_save", "commit", "discard", "enter_save", "saving", "write_rank"]

DATA_POINTS = {Stage.PARTIAL: "save.data_partial", Stage.WRITTEN: "save.data_written", Stage.RENAMED: "save.data_renamed"}
MANIFEST_POINTS = {Stage.PARTIAL: "save.manifest_partial", Stage.RENAMED: "save.manifest_renamed"}


@dataclass(frozen=True, kw_only=True)
class ManifestFields:
    """What the coordinator knows beside the receipts. ``state``: small JSON."""

    segment: int
    step: int
    world: int
    state: dict[str, Any]
    mesh: dict[str, Any] = field(default_factory=dict)
    placements: dict[str, Any] = field(default_factory=dict)


@contextmanager
def saving(checkpoints_root: Path, segment: int, step: int) -> Iterator[Path]:
    """A save from begin to end: yields the fresh directory; if the save fails before its commit, the directory goes."""
    directory = begin_save(checkpoints_root, segment, step)
    with _undoing(directory, "cannot save checkpoint", lambda: discard(directory)):
        yield directory


def begin_save(checkpoints_root: Path, segment: int, step: int) -> Path:
    """Create the directory of this save; a name that was ever used, also by a deleted checkpoint, is not used again."""
    make_directory(checkpoints_root, "checkpoint directory")
    used = {record.get("checkpoint") for record in read_records(checkpoints_root / DELETED).records}
    attempt = 0
    while True:
        directory = checkpoints_root / str(CheckpointName(segment, step, attempt))
        try:
            if directory.name not in used:
                return _enter(directory, step)
        except FileExistsError:
            pass
        except OSError as error:
            raise from_os_error(error, directory, "cannot begin checkpoint") from error
        attempt += 1


def enter_save(checkpoints_root: Path, name: CheckpointName) -> Path:
    """The directory of a save that several ranks name alike without asking each other: whoever comes first makes it.

    The name is fresh because segments are launched once and their trainers count how often they save a step.
    """
    make_directory(checkpoints_root, "checkpoint directory")
    directory = checkpoints_root / str(name)
    try:
        return _enter(directory, name.step)
    except FileExistsError:
        return directory
    except OSError as error:
        raise from_os_error(error, directory, "cannot begin checkpoint") from error


def _enter(directory: Path, step: int) -> Path:
    directory.mkdir()
    try:
        fsync_directory(directory.parent)
        failpoints.hit("save.begin", step)
    except BaseException:
        discard(directory)
        raise
    return directory


def discard(directory: Path) -> None:
    """Remove an uncommitted directory where possible; one with a manifest is a checkpoint and stays."""
    if not (directory / MANIFEST).exists():
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Image:
    """A rank's data file as it lies in memory, its header included. ``pace`` may hold each piece back before it is written."""

    memory: memoryview
    pace: Callable[[int], None]


def write_rank(
    directory: Path, rectangles: list[Rectangle], segment: int, step: int, rank: int, world: int, *, image: Image | None = None
) -> Receipt:
    """Write this rank's data file and receipt, durably. Digests come from memory, before a block is written.

    ``image``: the memory that the rectangles are views of, where they lie in it as they will in the file.
    """
    path = directory / data_file(rank)
    ordered = in_file_order(rectangles)
    header = file_header(ordered, segment, step, rank)
    file_bytes = len(header) + sum(r.data.nbytes for r in ordered)
    blocks: list[list[str]] = [[] for _ in ordered]
    pieces = _image_pieces(image, header, ordered, blocks) if image else stream_pieces(header, ordered, blocks)
    _refuse_second(path, directory / receipt_file(rank))
    with _undoing(path, "cannot write checkpoint data", lambda: remove_quietly(path, directory / receipt_file(rank))):
        require_room(directory, file_bytes)
        DurableWriter(DATA_POINTS, step).write(path, pieces, file_bytes)
        receipt = Receipt(
            segment=segment,
            step=step,
            rank=rank,
            world=world,
            file=path.name,
            file_bytes=file_bytes,
            header_bytes=len(header),
            header_digest=xxhash.xxh3_128_hexdigest(header),
            tensors=chunk_table(ordered, blocks, path.name, len(header)),
        )
        write_atomic(directory / receipt_file(rank), receipt_bytes(receipt))
        failpoints.hit("save.receipt_written", step)
    return receipt


def _image_pieces(image: Image, header: bytes, ordered: list[Rectangle], blocks: list[list[str]]) -> Iterator[memoryview | bytes]:
    image.memory[: len(header)] = header
    for piece in image_pieces(image.memory, ordered, len(header), blocks):
        image.pace(len(piece))
        yield piece


def _refuse_second(*paths: Path) -> None:
    """Nobody writes a rank's files of one save twice: a second launch of the same segment must not mix in."""
    for path in paths:
        if path.exists():
            raise RunError(f"{path.name} is there already", f"each rank writes once per save; path: {path}", "save again")


def commit(directory: Path, fields: ManifestFields) -> Manifest:
    """The coordinator's part: check the exact set of receipts and full coverage, then write the manifest."""
    if (directory / MANIFEST).exists():
        raise RunError(f"{directory.name} is committed already", f"path: {directory}", "begin another save")
    receipts = _collect(directory, fields)
    tensors = join_chunks(receipts)
    check_coverage(tensors)
    names = [receipt_file(receipt.rank) for receipt in receipts]
    refs = tuple(ReceiptRef(rank=rank, file=name, digest=digest_file(directory / name)) for rank, name in enumerate(names))
    stamp = SystemClock().stamp().to_json()
    manifest = seal(Manifest(**vars(fields), receipts=refs, state_digest=content_digest(tensors), created=stamp))
    data, path = manifest_bytes(manifest), directory / MANIFEST
    # If it was renamed but is perhaps not durable: a save that reports failure leaves no checkpoint.
    with _undoing(path, "cannot commit checkpoint", lambda: remove_quietly(path)):
        DurableWriter(MANIFEST_POINTS, fields.step).write(path, [data], len(data))
    with _undoing(path, "fault after the commit of a checkpoint", lambda: None):
        failpoints.hit("save.committed", fields.step)
    return manifest


def _collect(directory: Path, fields: ManifestFields) -> list[Receipt]:
    """Exactly the receipts of this save: one per rank, no stranger, each with its data file of the right size."""
    seen = sorted(path.name for path in directory.glob("receipt-*.json"))
    if seen != [receipt_file(rank) for rank in range(fields.world)]:
        raise RunError(
            f"receipts {seen} for a world of {fields.world}", f"each rank leaves one receipt; path: {directory}", "save again"
        )
    receipts = [load_receipt(directory, rank) for rank in range(fields.world)]
    for receipt in receipts:
        if (receipt.segment, receipt.step, receipt.world) != (fields.segment, fields.step, fields.world):
            raise RunError(f"{receipt_file(receipt.rank)} belongs to another save", f"path: {directory}", "save again")
        data = directory / receipt.file
        if not data.is_file() or data.stat().st_size != receipt.file_bytes:
            raise RunError(f"{receipt.file} is missing or not {receipt.file_bytes:,} bytes", f"path: {directory}", "save again")
    return receipts


@contextmanager
def _undoing(path: Path, doing: str, undo: Callable[[], None]) -> Iterator[None]:
    """On any failure: undo, and turn the machine's errors into the map."""
    try:
        yield
    except BaseException as error:
        undo()
        if isinstance(error, OSError):
            raise from_os_error(error, path, doing) from error
        raise
