"""Hands tensors to the writer of torch.distributed.checkpoint one after the other, read only when it asks for them.

    plan of items (name, rows) --> torch's writer --asks for the next--> rows read and proven --> one file per item

Its usual planner wants the whole state as tensors in memory; this one plans from shapes. The writer keeps the tensors of the file
at hand, and the last one of the file before: files of one item, of half a shard at most, bound both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from headway.base.errors import from_os_error
from headway.checkpoint.convert.contents import Contents, Kind, pieces
from headway.checkpoint.tensors import DTYPES


def write_checkpoint(contents: Contents, directory: Path, shard_bytes: int) -> int:
    """Write all tensors; returns the number of files. Errors of reading pass through as they are."""
    planner = _Planner(contents, max(1, shard_bytes // 2))
    writer = _Writer(directory, single_file_per_rank=False, sync_files=True, thread_count=1, per_thread_copy_ahead=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there is no process group, which is as meant
            save({}, storage_writer=writer, planner=planner, no_dist=True)
    except CheckpointException as error:  # a BaseException of torch's that wraps ours
        cause = next(iter(error.failures.values()))[0]
        if isinstance(cause, OSError):
            raise from_os_error(cause, directory, "cannot write") from cause
        raise cause from None
    return sum(1 for path in directory.iterdir() if path.suffix == ".distcp")


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Nothing: it would be the path of the moment and a random id."""


class _Planner(DefaultSavePlanner):
    """Items from shapes; values when they are asked for."""

    def __init__(self, contents: Contents, item_bytes: int):
        super().__init__()
        self.contents, self.item_bytes = contents, item_bytes

    def create_local_plan(self) -> SavePlan:
        items = [item for name, kind in self.contents.tensors.items() for item in self._items(name, kind)]
        self.plan = SavePlan(items, planner_data={name: (name,) for name in self.contents.tensors})
        return self.plan

    def _items(self, name: str, kind: Kind) -> Iterator[WriteItem]:
        """A tensor by groups of rows; one item where it is small, a scalar or empty."""
        step = max(1, self.item_bytes // max(1, kind.row_bytes)) if kind.nbytes else max(1, kind.rows)
        for first in range(0, max(1, kind.rows), step):
            offset = torch.Size((first, *(0 for _ in kind.shape[1:])) if kind.shape else ())
            size = torch.Size((min(step, kind.rows - first), *kind.shape[1:]) if kind.shape else ())
            yield WriteItem(
                index=MetadataIndex(name, offset),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=offset, sizes=size),
                    properties=TensorProperties(dtype=DTYPES[kind.dtype]),
                    size=torch.Size(kind.shape),
                ),
            )

    def resolve_data(self, write_item: WriteItem) -> Any:
        """The rows of one item, as a tensor that owns its memory."""
        assert write_item.tensor_data is not None
        chunk, kind = write_item.tensor_data.chunk, self.contents.tensors[write_item.index.fqn]
        first = chunk.offsets[0] if kind.shape else 0
        rows = chunk.sizes[0] if kind.shape else 1
        values = np.empty(rows * kind.row_bytes, np.uint8)
        at = 0
        for piece in pieces(self.contents, write_item.index.fqn, first=first, last=first + rows):
            values[at : at + len(piece)] = piece
            at += len(piece)
        if not at:
            return torch.empty(chunk.sizes, dtype=DTYPES[kind.dtype])
        return torch.from_numpy(values).view(DTYPES[kind.dtype]).reshape(chunk.sizes)
