"""What a checkpoint says about itself: chunks, receipts, the manifest, and the digest of its content.

    MANIFEST.json --sha256--> receipt-00000.json --xxh3_128 per block--> rank00000.safetensors
         |                    receipt-00001.json ----------------------> rank00001.safetensors
         '- its own digest (sha256 of everything else in it)

So every byte that can change a run is covered, and a partial read can verify what it reads. All of it is JSON or raw
bytes; loading checks kind, schema, the exact keys and the type of every value.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headway.base.digests import canonical_json, digest_bytes, digest_json
from headway.base.errors import RunError, from_os_error
from headway.base.plain import from_plain
from headway.store.names import MANIFEST, data_file, receipt_file

BLOCK_BYTES = 4 << 20
"""Digests cover blocks of at most this many bytes, counted from the start of a chunk."""

DTYPE_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
DTYPE_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One rectangle of a tensor and where its bytes lie."""

    offset: tuple[int, ...]  # in the logical tensor
    shape: tuple[int, ...]
    file: str
    at: int  # bytes from the start of the file
    nbytes: int
    blocks: tuple[str, ...]  # xxh3_128 (hex) of each block


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """A logical tensor: ``shape`` is global, ``chunks`` are those of one rank (receipt) or of all (merged)."""

    dtype: str  # as safetensors names them
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one rank wrote. Written after its data file is durable."""

    segment: int
    step: int
    rank: int
    world: int
    file: str
    file_bytes: int
    header_bytes: int  # length field, JSON and padding: everything before the data
    header_digest: str  # xxh3_128 (hex) of those bytes
    tensors: dict[str, TensorEntry]
    kind: str = "receipt"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class ReceiptRef:
    """A receipt as the manifest names it."""

    rank: int
    file: str
    digest: str  # sha256 of the receipt's bytes


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The checkpoint. ``state`` is the small JSON beside the tensors; ``digest`` covers every other field."""

    segment: int
    step: int
    world: int
    mesh: dict[str, Any]
    placements: dict[str, Any]
    receipts: tuple[ReceiptRef, ...]
    state: dict[str, Any]
    state_digest: str  # of the tensors: independent of time and segment
    created: dict[str, Any]  # stamp
    digest: str = ""
    kind: str = "checkpoint"
    schema_version: int = SCHEMA_VERSION


def hash_blocks(data: Any) -> tuple[str, ...]:
    """xxh3_128 of each block of a bytes-like object (one byte per item)."""
    view = memoryview(data)
    return tuple(xxhash.xxh3_128_hexdigest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES))


def block_count(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPE_BYTES[dtype]


def tensor_digest(entry: TensorEntry) -> str:
    """Digest of one tensor's content: dtype, shape and blocks by rectangle; not where the bytes lie."""
    chunks = sorted([list(chunk.offset), list(chunk.shape), list(chunk.blocks)] for chunk in entry.chunks)
    return xxhash.xxh3_128_hexdigest(canonical_json([entry.dtype, list(entry.shape), chunks]))


def content_digest(tensors: dict[str, TensorEntry]) -> str:
    """Digest of a whole state. Equal states cut into the same rectangles have equal digests."""
    lines = [[name, tensor_digest(tensors[name])] for name in sorted(tensors)]
    return "xxh3_128:" + xxhash.xxh3_128_hexdigest(canonical_json(lines))


def join_chunks(receipts: list[Receipt]) -> dict[str, TensorEntry]:
    """The tensors of all receipts, chunks put together. Ranks must agree on dtype and shape."""
    kinds: dict[str, TensorEntry] = {}
    chunks: dict[str, list[Chunk]] = {}
    for receipt in receipts:
        for name, entry in receipt.tensors.items():
            seen = kinds.setdefault(name, entry)
            if (seen.dtype, seen.shape) != (entry.dtype, entry.shape):
                raise RunError(
                    f"ranks disagree on {name}: {seen.dtype} {seen.shape} and {entry.dtype} {entry.shape} (rank {receipt.rank})",
                    "a tensor has one dtype and one global shape on all ranks",
                )
            chunks.setdefault(name, []).extend(entry.chunks)
    return {name: dataclasses.replace(kinds[name], chunks=tuple(found)) for name, found in chunks.items()}


def state_digest(receipts: list[Receipt]) -> str:
    """``content_digest`` of what the receipts describe together."""
    return content_digest(join_chunks(receipts))


def receipt_bytes(receipt: Receipt) -> bytes:
    return canonical_json(dataclasses.asdict(receipt))


def seal(manifest: Manifest) -> Manifest:
    """The manifest as it will be read back (plain JSON inside), with its digest filled in."""
    try:
        plain = json.loads(canonical_json(dataclasses.asdict(manifest)))
    except (TypeError, ValueError) as error:
        raise RunError(f"the state beside the tensors is no plain JSON: {error}", "numbers are finite, keys are text") from error
    plain.pop("digest")
    return from_plain(Manifest, {**plain, "digest": digest_json(plain)}, "manifest")


def manifest_bytes(manifest: Manifest) -> bytes:
    return canonical_json(dataclasses.asdict(manifest))


def load_manifest(directory: Path) -> Manifest:
    """Read and check MANIFEST.json; any damage is a RunError that names the path."""
    path = directory / MANIFEST
    plain = _json_object(_read(path, "manifest"), path)
    manifest: Manifest = _parse_saved(Manifest, plain, "checkpoint", path)
    try:
        seen = digest_json({key: value for key, value in plain.items() if key != "digest"})
    except ValueError as error:  # NaN: json reads it, canonical JSON has none
        raise _damaged(str(error), path) from error
    if seen != manifest.digest:
        raise _damaged("its digest differs", path)
    expected = tuple(receipt_file(rank) for rank in range(manifest.world))
    if tuple(ref.file for ref in manifest.receipts) != expected or any(r.rank != i for i, r in enumerate(manifest.receipts)):
        raise _damaged(f"it does not name one receipt for each of {manifest.world} ranks", path)
    return manifest


def load_receipt(directory: Path, rank: int, digest: str | None = None) -> Receipt:
    """Read and check one rank's receipt; ``digest`` is the one the manifest names (None: not yet committed)."""
    path = directory / receipt_file(rank)
    data = _read(path, "receipt")
    if digest is not None and digest_bytes(data) != digest:
        raise _damaged("its digest is not the one in the manifest", path)
    receipt: Receipt = _parse_saved(Receipt, _json_object(data, path), "receipt", path)
    if receipt.rank != rank or receipt.file != data_file(rank):
        raise _damaged(f"it speaks of rank {receipt.rank} and {receipt.file}", path)
    return receipt


def _damaged(why: str, path: Path | str) -> RunError:
    return RunError(f"{Path(path).name} is damaged: {why}", f"path: {path}", "use an older checkpoint, or restore the file")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise RunError(f"{path.name} is missing", f"path: {path}", "use an older checkpoint, or restore the file") from error
    except OSError as error:
        raise from_os_error(error, path, f"cannot read {what}") from error


def _json_object(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"no JSON ({error})", path) from error
    if not isinstance(value, dict):
        raise _damaged("no JSON object", path)
    return value


def _parse_saved(cls: Any, value: dict[str, Any], kind: str, path: Path) -> Any:
    """Kind and schema first: a newer schema deserves a better message than a list of keys."""
    if value.get("kind") != kind:
        raise _damaged(f"kind is {value.get('kind')!r}, not {kind!r}", path)
    if value.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"{path.name} has schema version {value.get('schema_version')!r}",
            f"this version of headway reads {SCHEMA_VERSION}; path: {path}",
            "use the version of headway that wrote it",
        )
    try:
        return from_plain(cls, value, kind)
    except RunError as error:
        raise _damaged(error.problems[0].seen, path) from error
