"""A tensor as ``torch.save`` wrote it: a zip archive of plainly stored records, one of them a short pickle that explains them.

    archive/data.pkl    _rebuild_tensor_v2(storage("FloatStorage", key "0", 6 elements), offset 0, shape (2, 3), strides (3, 1))
    archive/byteorder   little
    archive/data/0      24 bytes, at a place of the file that the zip directory gives

The pickle is read by the machine of ``pickle_machine`` and never run; ``torch.load`` is not used, not even with weights_only: it
would hold a tensor whole, and here the bytes are read from the file by place. The checksum of a record is proven before its
first byte is used.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.errors import RunError, from_os_error
from headway.checkpoint.convert.contents import PIECE_BYTES, Kind
from headway.checkpoint.convert.pickle_machine import PERSISTENT, Global, Inert, read_pickle
from headway.checkpoint.convert.reading import brief, damaged, file_size, is_counts, read_at, read_through
from headway.checkpoint.tensors import DTYPES
from headway.store.manifest import DTYPE_BYTES

TORCH_DTYPES = {str(dtype): name for name, dtype in DTYPES.items()}
"""{"torch.float32": "F32", ...}"""

_TYPED = {"Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16"}
_TYPED |= {"Char": "I8", "Byte": "U8", "Bool": "BOOL", "Float8_e4m3fn": "F8_E4M3", "Float8_e5m2": "F8_E5M2"}
STORAGES = {f"torch.{kind}Storage": dtype for kind, dtype in _TYPED.items()}
UNTYPED = "torch.storage.UntypedStorage"
REBUILD = {"torch._utils._rebuild_tensor_v2": 6, "torch._utils._rebuild_tensor_v3": 7}
"""With how many arguments; an eighth or seventh, of tensor subclasses, is refused."""

PARAMETER = "torch._utils._rebuild_parameter"
ALLOWED = {*TORCH_DTYPES, *STORAGES, UNTYPED, *REBUILD, PARAMETER, "collections.OrderedDict"}
MOST_PICKLE_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor's values lie. ``at``, ``span_bytes``: its record in the file; ``first``, ``strides``: in elements."""

    path: Path
    kind: Kind
    at: int
    span_bytes: int
    crc: int
    first: int
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Row-major: rows can be read by place."""
        expected = [math.prod(self.kind.shape[axis + 1 :]) for axis in range(len(self.kind.shape))]
        return all(s == e for s, e, size in zip(self.strides, expected, self.kind.shape) if size > 1)

    def prove(self) -> None:
        """RunError unless the record has the checksum that the archive names."""
        crc = 0
        for piece in read_through(self.path, self.at, self.span_bytes, PIECE_BYTES):
            crc = zlib.crc32(piece.data, crc)
        if crc != self.crc:
            raise damaged(self.path, f"checksum of the record at byte {self.at:,} differs")

    def rows(self, first: int, last: int) -> np.ndarray:
        """Values of rows [first, last), as their bytes along a last axis: shape (rows, ..., bytes of an element)."""
        width = DTYPE_BYTES[self.kind.dtype]
        inner = (*(self.kind.shape or (1,))[1:], width)
        if self.is_contiguous:
            at = self.at + self.first * width + first * self.kind.row_bytes
            return read_at(self.path, at, (last - first) * self.kind.row_bytes).reshape(last - first, *inner)
        storage = np.asarray(np.memmap(self.path, np.uint8, "r", offset=self.at, shape=(self.span_bytes,)))
        strides = (*(stride * width for stride in self.strides), 1)
        start = storage[self.first * width :]
        return np.lib.stride_tricks.as_strided(start, (*self.kind.shape, width), strides, writeable=False)[first:last]


class _Window(io.RawIOBase):
    """A stretch of a file as a file of its own, for the zip reader."""

    def __init__(self, file: io.BufferedReader, start: int, length: int):
        self.file, self.start, self.length, self.position = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.length}[whence]
        self.position = max(0, base + offset)
        return self.position

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.start + self.position)
        data = self.file.read(max(0, min(len(buffer), self.length - self.position)))
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def open_tensor(path: Path, start: int, length: int) -> StoredTensor:
    """The tensor in the archive at [start, start + length) of a file; RunError for damage and for anything but a tensor."""
    if start + length > file_size(path):
        raise damaged(path, f"an item ends at byte {start + length:,}, behind the end of the file")
    try:
        with open(path, "rb") as file, zipfile.ZipFile(_Window(file, start, length)) as archive:
            records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            description = _small_record(path, archive, records, "data.pkl")
            if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
                raise damaged(path, "its values are not little-endian", "save it on a machine that is")
    except (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
        raise damaged(path, f"the item at byte {start:,} is no archive of torch.save ({brief(error)})") from error
    except OSError as error:
        raise from_os_error(error, path, "cannot read") from error
    return _interpret(path, start, length, records, read_pickle(description, ALLOWED, f"{path.name}, item at byte {start:,}"))


def _small_record(path: Path, archive: zipfile.ZipFile, records: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    info = records.get(name)
    if info is None or info.file_size > MOST_PICKLE_BYTES:
        raise damaged(path, f"an item has no {name} of a tensor's size")
    return archive.read(info)


def _interpret(path: Path, start: int, length: int, records: dict[str, zipfile.ZipInfo], value: Any) -> StoredTensor:
    """The arguments of the call that would have rebuilt the tensor, checked one by one."""
    if isinstance(value, Inert) and value.name == PARAMETER and value.arguments:
        value = value.arguments[0]
    if not isinstance(value, Inert) or len(value.arguments) != REBUILD.get(value.name, -1):
        raise damaged(path, f"the item at byte {start:,} is no plain tensor")
    storage, first, shape, strides = value.arguments[:4]
    key, elements, dtype = _storage(path, storage, value.arguments[6:])
    if not is_counts((first,)) or not is_counts(shape) or not is_counts(strides) or len(shape) != len(strides):
        raise damaged(path, f"the item at byte {start:,} has no shape and strides of a tensor")
    width, info = DTYPE_BYTES[dtype], records.get(f"data/{key}")
    last = first + sum((size - 1) * stride for size, stride in zip(shape, strides))
    span = info.file_size if info is not None else -1
    if info is None or info.compress_type != zipfile.ZIP_STORED or (math.prod(shape) and (last + 1) * width > span):
        raise damaged(path, f"the item at byte {start:,} has no record of {elements:,} plain elements")
    return StoredTensor(
        path=path,
        kind=Kind(dtype=dtype, shape=tuple(shape)),
        at=start + _data_at(path, start, length, info),
        span_bytes=span,
        crc=info.CRC,
        first=first,
        strides=tuple(strides),
    )


def _storage(path: Path, storage: Any, rest: tuple) -> tuple[str, int, str]:
    """Key of the record, elements, dtype. A v2 tensor has it from its storage, a v3 tensor says it last."""
    described = storage.arguments[0] if isinstance(storage, Inert) and storage.name == PERSISTENT else ()
    if not isinstance(described, tuple) or len(described) != 5 or described[0] != "storage":
        raise damaged(path, "a tensor has no storage")
    _, kind, key, _, elements = described
    named = rest[0] if rest else kind
    dtype = {**TORCH_DTYPES, **STORAGES}.get(named.name) if isinstance(named, Global) else None
    if dtype is None or not isinstance(key, str) or not is_counts((elements,)):
        raise RunError(
            "a tensor's dtype or storage is unknown here", f"known: {', '.join(DTYPE_BYTES)}; path: {path}", "leave it out"
        )
    return key, elements, dtype


def _data_at(path: Path, start: int, length: int, info: zipfile.ZipInfo) -> int:
    """Where a record's bytes begin in the archive: behind its local header, whose length only that header knows."""
    if info.header_offset + _LOCAL_HEADER_BYTES > length:
        raise damaged(path, "a record lies outside its item")
    header = read_at(path, start + info.header_offset, _LOCAL_HEADER_BYTES).tobytes()
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    at = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    if header[:4] != b"PK\x03\x04" or at + info.file_size > length:
        raise damaged(path, "a record lies outside its item")
    return at
