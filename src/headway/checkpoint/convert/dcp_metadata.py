"""The ``.metadata`` file of a PyTorch Distributed Checkpoint: which tensors there are, how they are cut, where the parts lie.

    Metadata.state_dict_metadata   {"w": TensorStorageMetadata(properties=(torch.float32, ...), size=Size((4, 3)), chunks=[...])}
    Metadata.storage_data          {MetadataIndex("w", offset=Size((2, 0))): _StorageInfo("__1_0.distcp", offset 0, length 1261)}

It is a pickle. ``pickle_machine`` turns it into inert records, and what they must look like is checked here field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import RunError, from_os_error
from headway.checkpoint.convert.contents import Kind
from headway.checkpoint.convert.pickle_machine import Global, Inert, read_pickle
from headway.checkpoint.convert.reading import COPY, damaged, is_counts
from headway.checkpoint.convert.torch_archive import TORCH_DTYPES
from headway.store.coverage import check_coverage
from headway.store.manifest import Chunk, TensorEntry, block_count, tensor_bytes

_DCP = "torch.distributed.checkpoint.metadata."
_OLD = "torch.distributed._shard.sharded_tensor.metadata."  # until torch 2.2
_CLASSES = ("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "StorageMeta")
SIZE, INFO = "torch.Size", "torch.distributed.checkpoint.filesystem._StorageInfo"
ALLOWED = {*(_DCP + name for name in _CLASSES), *TORCH_DTYPES, SIZE, INFO, "torch.serialization._get_layout"}
ALLOWED |= {f"{module}{name}" for module in (_DCP, _OLD) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")}
ALLOWED |= {_OLD + "MEM_FORMAT_ENCODING", "pathlib.PosixPath", "pathlib._local.PosixPath", "collections.OrderedDict"}


@dataclass(frozen=True, kw_only=True)
class StoredChunk:
    """A part of a tensor: where it belongs, and the archive in ``chunk.file`` at ``chunk.at`` that holds it. No digests."""

    chunk: Chunk
    archive_bytes: int


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """``objects``: names of what is pickled there and no tensor."""

    tensors: dict[str, Kind]
    chunks: dict[str, tuple[StoredChunk, ...]]
    objects: tuple[str, ...]


def read_metadata(path: Path) -> Metadata:
    """RunError for damage, for names that have no business there, and for tensors whose parts do not cover them."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, "cannot read checkpoint metadata") from error
    fields = _fields(path, read_pickle(data, ALLOWED, f"{path.parent.name}/{path.name}"), "Metadata")
    described, places = fields.get("state_dict_metadata"), _places(path, fields.get("storage_data"))
    if not isinstance(described, dict) or not all(isinstance(name, str) for name in described):
        raise damaged(path, "it describes no state")
    objects = tuple(name for name, item in described.items() if _is(item, "BytesStorageMetadata"))
    tensors, chunks = {}, {}
    for name, item in described.items():
        if name not in objects:
            tensors[name] = _kind(path, name, item)
            chunks[name] = tuple(_chunks(path, name, item, tensors[name], places))
    check_coverage({name: _entry(tensors[name], chunks[name]) for name in tensors})
    return Metadata(tensors=tensors, chunks=chunks, objects=objects)


def _entry(kind: Kind, chunks: tuple[StoredChunk, ...]) -> TensorEntry:
    return TensorEntry(dtype=kind.dtype, shape=kind.shape, chunks=tuple(stored.chunk for stored in chunks))


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Inert) and value.name.rpartition(".")[2] == name


def _fields(path: Path, value: Any, name: str) -> dict:
    """The attributes of an object that must be a ``name``."""
    if not _is(value, name) or not isinstance(value.state, dict):
        raise damaged(path, f"it has no {name} where one belongs")
    return value.state


def _size(path: Path, value: Any) -> tuple[int, ...]:
    """The whole numbers of a torch.Size."""
    if not _is(value, "Size") or len(value.arguments) != 1 or not is_counts(value.arguments[0]):
        raise damaged(path, "a shape or an offset is none")
    return tuple(value.arguments[0])


def _kind(path: Path, name: str, item: Any) -> Kind:
    fields = _fields(path, item, "TensorStorageMetadata")
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, Inert) and _is(properties, "TensorProperties") else None
    dtype = TORCH_DTYPES.get(state[0].name) if isinstance(state, tuple) and state and isinstance(state[0], Global) else None
    if dtype is None:
        raise damaged(path, f"{name} has no dtype that is known here")
    return Kind(dtype=dtype, shape=_size(path, fields.get("size")))


def _chunks(path: Path, name: str, item: Any, kind: Kind, places: dict[tuple, tuple]) -> Iterator[StoredChunk]:
    chunks = _fields(path, item, "TensorStorageMetadata").get("chunks")
    for value in chunks if isinstance(chunks, list) else ():
        fields = _fields(path, value, "ChunkStorageMetadata")
        offset, shape = _size(path, fields.get("offsets")), _size(path, fields.get("sizes"))
        place = places.get((name, offset)) or (None if any(offset) else places.get((name, None)))  # old: None for the whole
        if place is None:
            raise damaged(path, f"{name} at {offset} is stored nowhere")
        file, at, length = place
        nbytes = tensor_bytes(kind.dtype, shape)
        blank = ("",) * block_count(nbytes)
        chunk = Chunk(offset=offset, shape=shape, file=file, at=at, nbytes=nbytes, blocks=blank)
        yield StoredChunk(chunk=chunk, archive_bytes=length)


def _places(path: Path, value: Any) -> dict[tuple, tuple[str, int, int]]:
    """(name, offset) -> file, byte, length of the archive."""
    if not isinstance(value, dict):
        raise damaged(path, "it says of nothing where it lies")
    found = {}
    for index, info in value.items():
        key, place = _fields(path, index, "MetadataIndex"), _fields(path, info, "_StorageInfo")
        if place.get("transform_descriptors"):
            raise RunError(
                "the checkpoint was written through an extension, such as compression", f"path: {path}", "save it without one"
            )
        offset = key.get("offset")
        where = (key.get("fqn"), _size(path, offset) if offset is not None else None)
        found[where] = _place(path, place)
    return found


def _place(path: Path, info: dict) -> tuple[str, int, int]:
    """A file beside the metadata, and nowhere else."""
    file, at, length = info.get("relative_path"), info.get("offset"), info.get("length")
    if not isinstance(file, str) or not file or "/" in file or "\0" in file or file in (".", "..") or not is_counts((at, length)):
        raise damaged(path, "a part lies in no file beside it", COPY)
    return file, at, length  # type: ignore[return-value]
