"""What every format comes down to: named tensors whose rows can be read, and the small JSON beside them.

    format on disk --open--> Contents --rows [first, last)--> fresh bytes --write--> another format on disk

A tensor is read in pieces of whole rows, so that a conversion needs the memory of a piece and not of a state. Bytes are never
interpreted on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from headway.base.digests import digest_json
from headway.base.errors import RunError
from headway.base.plain import from_plain
from headway.store.manifest import BLOCK_BYTES, Chunk, TensorEntry, tensor_bytes, tensor_digest

PIECE_BYTES = 16 << 20
"""Rows are read in pieces of at most this, or one row."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A tensor without its values. ``dtype``: as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)

    @property
    def rows(self) -> int:
        """Along the first axis; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape[1:])


@dataclass(frozen=True, kw_only=True)
class About:
    """What a checkpoint says beside its tensors. None: the source does not tell."""

    segment: int | None = None
    step: int | None = None
    state: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """With a digest of its own: a wrong count of updates is as bad as a wrong weight."""
        plain = {"kind": KIND, "schema_version": 1, **asdict(self)}
        try:
            return {**plain, "digest": digest_json(plain)}
        except ValueError as error:
            raise RunError(f"the state beside the tensors is no plain JSON: {error}", "numbers are finite") from error


KIND = "converted-state"
AGAIN = "convert again, or take another copy"


def parse_about(text: str, where: str) -> About:
    """``about_from_json`` of text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: the state beside the tensors is no JSON ({error})", "", AGAIN) from error
    return about_from_json(value, where)


def about_from_json(value: Any, where: str) -> About:
    """The inverse of ``About.to_json``; RunError when it is damaged or of another version."""
    try:
        plain = {key: item for key, item in value.items() if key != "digest"}
        whole = digest_json(plain) == value.get("digest")
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{where}: the state beside the tensors is no JSON object ({error})", "", AGAIN) from error
    if plain.pop("kind", None) != KIND or plain.pop("schema_version", None) != 1:
        raise RunError(f"{where}: not the state that a conversion left", f"it has kind {KIND!r} and schema_version 1", AGAIN)
    if not whole:
        raise RunError(f"{where}: the state beside the tensors is damaged", "its digest is that of its content", AGAIN)
    return from_plain(About, plain, where)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Something of the source that the destination does not hold. ``tensors``: how many; 0: it is none."""

    what: str
    why: str
    tensors: int = 0


class Contents(Protocol):
    """An open source."""

    tensors: dict[str, Kind]
    about: About
    left_out: tuple[LeftOut, ...]
    """What lies there and cannot be read as tensors."""

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        """The bytes of rows [first, last), flat, in memory that nobody uses again: a writer may still hold the piece before."""
        ...


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a format's writer has to tell."""

    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def pieces(contents: Contents, name: str, first: int = 0, last: int | None = None) -> Iterator[np.ndarray]:
    """The bytes of a tensor, or of its rows [first, last), in order; nothing for an empty one."""
    kind = contents.tensors[name]
    if kind.nbytes == 0:
        return
    last = kind.rows if last is None else last
    step = max(1, PIECE_BYTES // kind.row_bytes)
    for at in range(first, last, step):
        yield contents.rows(name, at, min(at + step, last))


def in_blocks(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The same bytes cut at multiples of ``BLOCK_BYTES``, as digests are taken over them."""
    carried: list[np.ndarray] = []
    size = 0
    for part in parts:
        while size + len(part) >= BLOCK_BYTES:
            head, part = part[: BLOCK_BYTES - size], part[BLOCK_BYTES - size :]
            yield head if not carried else np.concatenate([*carried, head])
            carried, size = [], 0
        if len(part):
            carried.append(part)
            size += len(part)
    if carried:
        yield np.concatenate(carried)


def whole_chunk(kind: Kind, blocks: tuple[str, ...], file: str = "", at: int = 0) -> TensorEntry:
    """A tensor that lies in one piece."""
    offset = (0,) * len(kind.shape)
    chunk = Chunk(offset=offset, shape=kind.shape, file=file, at=at, nbytes=kind.nbytes, blocks=blocks)
    return TensorEntry(dtype=kind.dtype, shape=kind.shape, chunks=(chunk,))


def digest_of(kind: Kind, blocks: list[str]) -> str:
    """The digest of a tensor as a checkpoint of one rank has it."""
    return tensor_digest(whole_chunk(kind, tuple(blocks)))


def total_bytes(tensors: dict[str, Kind]) -> int:
    return sum(kind.nbytes for kind in tensors.values())


def by_group(names: Iterable[str]) -> dict[str, int]:
    """How many names begin with which word: {"m/": 9, "v/": 9}."""
    counts: dict[str, int] = {}
    for name in names:
        group = name.partition("/")[0] + ("/" if "/" in name else "")
        counts[group] = counts.get(group, 0) + 1
    return counts
