"""One safetensors file, read and written here so that bytes stay bytes and nothing is held whole.

    | 8 bytes: length n | n bytes: JSON | data ... |      {"__metadata__": {...}, NAME: {dtype, shape, data_offsets}, ...}

A reader trusts nothing: lengths, dtypes, shapes and places must fit together and fill the file exactly, as the format demands.
What we write carries the digest of every tensor in its metadata, and one of the header itself, taken with a blank in its place.
The header has its length before they are known, so it is written with blanks, and again when the data have passed.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headway.base.digests import canonical_json
from headway.base.errors import RunError, from_os_error
from headway.checkpoint.convert.contents import Contents, Kind, digest_of, in_blocks, pieces
from headway.checkpoint.convert.reading import COPY, damaged, file_size, is_counts, read_at
from headway.store.durable import DurableWriter
from headway.store.manifest import DTYPE_BYTES
from headway.store.rectangle import Part, in_file_order, safetensors_header

DIGESTS = "headway.digests"
SELF = "headway.header"
"""Metadata keys: {tensor: digest}, and the digest of the header."""

MOST_HEADER_BYTES = 1 << 30
BLANK = "0" * 32


@dataclass(frozen=True, kw_only=True)
class SafetensorsFile:
    """An open file: what lies where. ``places``: byte of the file at which a tensor starts."""

    path: Path
    tensors: dict[str, Kind]
    places: dict[str, int]
    metadata: dict[str, str]
    digests: dict[str, str]


def open_file(path: Path) -> SafetensorsFile:
    """Read and check the header; RunError says what does not fit."""
    size = file_size(path)
    length = struct.unpack("<Q", read_at(path, 0, 8).tobytes())[0] if size >= 8 else -1
    if not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
        raise damaged(path, f"no safetensors file: {size:,} bytes, of which {length:,} would be the header")
    try:
        raw = read_at(path, 0, 8 + length).tobytes()
        header = json.loads(raw[8:])
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, "its metadata are no texts")
    _prove_header(path, raw, metadata)
    tensors = {name: _kind(path, name, entry) for name, entry in header.items()}
    starts = {name: entry["data_offsets"][0] for name, entry in header.items()}
    _check_places(path, tensors, starts, size - 8 - length)
    return SafetensorsFile(
        path=path,
        tensors=tensors,
        places={name: 8 + length + start for name, start in starts.items()},
        metadata=metadata,
        digests=_digests(path, metadata, tensors),
    )


def _prove_header(path: Path, raw: bytes, metadata: dict[str, str]) -> None:
    if SELF not in metadata:
        return
    blank = raw.replace(_self_entry(metadata[SELF]), _self_entry(BLANK))
    if xxhash.xxh3_128_hexdigest(blank) != metadata[SELF]:
        way_out = f"{COPY}; or remove {SELF} from the metadata where another program wrote the file again"
        raise damaged(path, "digest of the header differs from the one in its metadata", way_out)


def _self_entry(value: str) -> bytes:
    return f'"{SELF}":"{value}"'.encode()


def _kind(path: Path, name: str, entry: Any) -> Kind:
    """One entry of the header, checked by itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, f"{name}: an entry has dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in DTYPE_BYTES:
        raise RunError(
            f"{name}: dtype {dtype!r} is unknown here", f"known: {', '.join(DTYPE_BYTES)}; path: {path}", "leave it out"
        )
    if not is_counts(shape) or not is_counts(offsets) or len(offsets) != 2:
        raise damaged(path, f"{name}: shape {shape} or place {offsets} is none")
    kind = Kind(dtype=dtype, shape=tuple(shape))
    if offsets[1] - offsets[0] != kind.nbytes:
        raise damaged(path, f"{name}: {dtype} {shape} takes {kind.nbytes:,} bytes, its place has {offsets[1] - offsets[0]:,}")
    return kind


def _check_places(path: Path, tensors: dict[str, Kind], starts: dict[str, int], data_bytes: int) -> None:
    """No gap, no overlap, nothing behind: bytes that nobody claims are as wrong as bytes that two claim."""
    at = 0
    for name in sorted(tensors, key=lambda name: (starts[name], tensors[name].nbytes)):
        if starts[name] != at:
            raise damaged(path, f"{name} starts at byte {starts[name]:,} of the data, {at:,} was expected")
        at += tensors[name].nbytes
    if at != data_bytes:
        raise damaged(path, f"its tensors end at byte {at:,} of the data, the file at {data_bytes:,}")


def _digests(path: Path, metadata: dict[str, str], tensors: dict[str, Kind]) -> dict[str, str]:
    """Of all tensors, or of none in files that others wrote."""
    if DIGESTS not in metadata:
        return {}
    try:
        digests = json.loads(metadata[DIGESTS])
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"the digests in its metadata are no JSON ({error})") from error
    if not isinstance(digests, dict) or set(digests) != set(tensors):
        raise damaged(path, "the digests in its metadata are not those of its tensors")
    return digests


def write_file(contents: Contents, names: list[str], path: Path, metadata: dict[str, str]) -> None:
    """Write some tensors as one file, durable, with their digests in its metadata."""
    parts = in_file_order([_part(name, contents.tensors[name]) for name in names])
    blank = _header(parts, metadata, dict.fromkeys(names, BLANK))
    digests: dict[str, str] = {}
    try:
        total = len(blank) + sum(part.nbytes for part in parts)
        DurableWriter({}, 0).write(path, _stream(contents, blank, parts, digests), total)
        final = _header(parts, metadata, digests)
        assert len(final) == len(blank), (len(final), len(blank))
        _overwrite_head(path, final)
    except OSError as error:
        raise from_os_error(error, path, "cannot write") from error


def _part(name: str, kind: Kind) -> Part:
    return Part(name=name, dtype=kind.dtype, global_shape=kind.shape, offset=(0,) * len(kind.shape), shape=kind.shape)


def _header(parts: list[Part], metadata: dict[str, str], digests: dict[str, str]) -> bytes:
    told = {"format": "pt", **metadata, DIGESTS: canonical_json(digests).decode(), SELF: BLANK}
    blank = safetensors_header(parts, told)
    return blank.replace(_self_entry(BLANK), _self_entry(xxhash.xxh3_128_hexdigest(blank)))


def _stream(contents: Contents, header: bytes, parts: list[Part], digests: dict[str, str]) -> Iterator[memoryview | bytes]:
    """The file in order; ``digests`` fills as the tensors pass."""
    yield header
    for part in parts:
        blocks = []
        for block in in_blocks(pieces(contents, part.name)):
            blocks.append(xxhash.xxh3_128_hexdigest(block.data))
            yield block.data
        digests[part.name] = digest_of(contents.tensors[part.name], blocks)


def _overwrite_head(path: Path, header: bytes) -> None:
    """The file is not under a name that anyone looks at yet."""
    with open(path, "r+b") as file:
        file.write(header)
        file.flush()
        os.fsync(file.fileno())
