"""PyTorch Distributed Checkpoint: a directory with ``.metadata`` and ``.distcp`` files.

    .metadata       pickle: {name: dtype, shape, chunks} and {(name, offset): file, place} ---- read by ``dcp_metadata``
    __0_0.distcp    archives of torch.save, one behind the other, one per chunk -------------- read by ``torch_archive``
    headway.json    the state beside the tensors, for the way back, and the digest of .metadata; others may ignore it

Written by torch's own writer, so that ``torch.distributed.checkpoint.load`` reads it; read without a line of torch, because its
own reader unpickles ``.metadata``. What a checkpoint holds beside tensors (numbers, optimizer settings) is pickled objects: that
is left out and named.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from headway.base.digests import digest_file
from headway.base.files import read_json, write_json
from headway.checkpoint.convert.contents import About, Contents, LeftOut, Written, about_from_json
from headway.checkpoint.convert.dcp_metadata import Metadata, StoredChunk, read_metadata
from headway.checkpoint.convert.dcp_writer import write_checkpoint
from headway.checkpoint.convert.options import Options
from headway.checkpoint.convert.reading import COPY, damaged
from headway.checkpoint.convert.torch_archive import StoredTensor, open_tensor
from headway.store.assemble import overlap
from headway.store.manifest import DTYPE_BYTES

METADATA = ".metadata"
ABOUT = "headway.json"


def recognise(path: Path) -> bool:
    return path.is_dir() and (path / METADATA).is_file()


class DcpContents:
    """Rows put together from the chunks of all ranks; each archive is proven by its checksum when first used."""

    def __init__(self, directory: Path, metadata: Metadata, about: About):
        self.directory, self.about, self.tensors = directory, about, metadata.tensors
        self.left_out = tuple(LeftOut(what=name, why="a pickled object: such are not read") for name in metadata.objects)
        self._chunks = metadata.chunks
        self._open: dict[tuple[str, int], StoredTensor] = {}

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        kind = self.tensors[name]
        out = np.empty((last - first, *kind.shape[1:], DTYPE_BYTES[kind.dtype]), np.uint8)
        for stored in self._chunks[name]:
            self._copy(name, _with_an_axis(stored), first, out)
        return out.reshape(-1)

    def _copy(self, name: str, stored: StoredChunk, first: int, out: np.ndarray) -> None:
        """What a chunk has of the rows from ``first`` on."""
        common = overlap(stored.chunk, (first, *(0 for _ in stored.chunk.shape[1:])), out.shape[:-1])
        if common is not None:
            rows = self._archive(name, stored).rows(common.in_chunk[0].start, common.in_chunk[0].stop)
            out[common.in_destination] = rows[(slice(None), *common.in_chunk[1:])]

    def _archive(self, name: str, stored: StoredChunk) -> StoredTensor:
        """The archive of a chunk, proven, and what the metadata say it is."""
        chunk = stored.chunk
        key = (chunk.file, chunk.at)
        if key not in self._open:
            found = open_tensor(self.directory / chunk.file, chunk.at, stored.archive_bytes)
            kind, dtype = found.kind, self.tensors[name].dtype
            if kind.dtype != dtype or (kind.shape or (1,)) != chunk.shape:
                seen = f"{name}: {kind.dtype} {kind.shape} lies where the metadata have {dtype} {chunk.shape}"
                raise damaged(self.directory / chunk.file, seen)
            found.prove()
            self._open[key] = found
        return self._open[key]


def _with_an_axis(stored: StoredChunk) -> StoredChunk:
    """A scalar as one row."""
    if stored.chunk.shape:
        return stored
    return dataclasses.replace(stored, chunk=dataclasses.replace(stored.chunk, offset=(0,), shape=(1,)))


def open_contents(path: Path) -> DcpContents:
    return DcpContents(path, read_metadata(path / METADATA), _about(path))


def _about(path: Path) -> About:
    if not (path / ABOUT).is_file():
        return About()
    beside = read_json(path / ABOUT, "state beside the tensors")
    if not isinstance(beside, dict) or set(beside) != {"state", "metadata_digest"}:
        raise damaged(path / ABOUT, "it is not what a conversion left")
    if beside["metadata_digest"] != digest_file(path / METADATA):
        way_out = f"{COPY}; or remove {ABOUT} where another program saved here again"
        raise damaged(path / METADATA, f"its digest is not the one in {ABOUT}", way_out)
    return about_from_json(beside["state"], str(path / ABOUT))


def write(contents: Contents, staging: Path, options: Options) -> Written:
    staging.mkdir()
    files = write_checkpoint(contents, staging, options.shard_bytes)
    beside = {"state": contents.about.to_json(), "metadata_digest": digest_file(staging / METADATA)}
    write_json(staging / ABOUT, beside)
    return Written(details={"files": files})
