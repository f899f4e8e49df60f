"""Tensors made of other tensors, read in rows like them: what stands between our layout and another.

    Stored --Permuted / Transposed / Joined / Between / Element / Stacked / Turned--> bytes moved, never changed
           --Scaled-->                                                              values computed

A view holds nothing. It reads what the rows asked for need: a permutation its period, an element of a stack the whole element, a
transposed matrix everything, in pieces, once for every piece asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from headway.base.errors import RunError
from headway.checkpoint.convert.contents import PIECE_BYTES, Contents, Kind
from headway.checkpoint.tensors import DTYPES
from headway.store.manifest import DTYPE_BYTES

WIDER = {"BF16": "F32", "F16": "F32"}
"""Computed values keep more bits than such a tensor has."""


class View(Protocol):
    """``rows``: the bytes of rows [first, last), flat, in memory that nobody changes."""

    @property
    def kind(self) -> Kind: ...

    def rows(self, first: int, last: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Stored:
    """A tensor of some contents."""

    contents: Contents
    name: str

    @property
    def kind(self) -> Kind:
        return self.contents.tensors[self.name]

    def rows(self, first: int, last: int) -> np.ndarray:
        return self.contents.rows(self.name, first, last)


@dataclass(frozen=True)
class Outline:
    """A tensor without values: says what shapes others made of it would have."""

    kind: Kind

    def rows(self, first: int, last: int) -> np.ndarray:
        raise AssertionError("an outline has no values")


@dataclass(frozen=True)
class Between:
    """Rows [start, end) of another."""

    inner: View
    start: int
    end: int

    @property
    def kind(self) -> Kind:
        return Kind(dtype=self.inner.kind.dtype, shape=(self.end - self.start, *self.inner.kind.shape[1:]))

    def rows(self, first: int, last: int) -> np.ndarray:
        return self.inner.rows(self.start + first, self.start + last)


@dataclass(frozen=True)
class Joined:
    """One below the other."""

    parts: tuple[View, ...]

    @property
    def kind(self) -> Kind:
        one = _alike([Kind(dtype=part.kind.dtype, shape=part.kind.shape[1:]) for part in self.parts])
        return Kind(dtype=one.dtype, shape=(sum(part.kind.rows for part in self.parts), *one.shape))

    def rows(self, first: int, last: int) -> np.ndarray:
        found, at = [], 0
        for part in self.parts:
            low, high = max(first - at, 0), min(last - at, part.kind.rows)
            if low < high:
                found.append(part.rows(low, high))
            at += part.kind.rows
        return np.concatenate(found) if found else np.empty(0, np.uint8)


@dataclass(frozen=True)
class Element:
    """Element ``index`` along the first axis, without that axis."""

    inner: View
    index: int

    @property
    def kind(self) -> Kind:
        return Kind(dtype=self.inner.kind.dtype, shape=self.inner.kind.shape[1:])

    def rows(self, first: int, last: int) -> np.ndarray:
        width = self.kind.row_bytes
        return self.inner.rows(self.index, self.index + 1)[first * width : last * width]


@dataclass(frozen=True)
class Stacked:
    """Each is one element along a new first axis."""

    parts: tuple[View, ...]

    @property
    def kind(self) -> Kind:
        one = _alike([part.kind for part in self.parts])
        return Kind(dtype=one.dtype, shape=(len(self.parts), *one.shape))

    def rows(self, first: int, last: int) -> np.ndarray:
        found = [part.rows(0, part.kind.rows) for part in self.parts[first:last]]
        return np.concatenate(found) if found else np.empty(0, np.uint8)


@dataclass(frozen=True)
class Permuted:
    """In every run of len(order) rows, row i is the inner one's row order[i]."""

    inner: View
    order: tuple[int, ...]

    @property
    def kind(self) -> Kind:
        return self.inner.kind

    def rows(self, first: int, last: int) -> np.ndarray:
        period = len(self.order)
        start, end = first // period * period, -(-last // period) * period
        runs = self.inner.rows(start, end).reshape(-1, period, self.kind.row_bytes)
        return runs[:, list(self.order)].reshape(end - start, -1)[first - start : last - start].reshape(-1)


@dataclass(frozen=True)
class Turned:
    """A matrix whose first ``columns`` columns stand behind the others."""

    inner: View
    columns: int

    @property
    def kind(self) -> Kind:
        return self.inner.kind

    def rows(self, first: int, last: int) -> np.ndarray:
        values = self.inner.rows(first, last).reshape(-1, self.kind.row_bytes)
        return np.roll(values, -self.columns * DTYPE_BYTES[self.kind.dtype], axis=1).reshape(-1)


@dataclass(frozen=True)
class Transposed:
    """A matrix with rows and columns exchanged."""

    inner: View

    @property
    def kind(self) -> Kind:
        return Kind(dtype=self.inner.kind.dtype, shape=self.inner.kind.shape[::-1])

    def rows(self, first: int, last: int) -> np.ndarray:
        kind, width = self.inner.kind, DTYPE_BYTES[self.kind.dtype]
        out = np.empty((last - first, kind.rows, width), np.uint8)
        step = max(1, PIECE_BYTES // kind.row_bytes)
        for at in range(0, kind.rows, step):
            values = self.inner.rows(at, min(at + step, kind.rows)).reshape(-1, kind.shape[1], width)
            out[:, at : at + step] = values[:, first:last].swapaxes(0, 1)
        return out.reshape(-1)


@dataclass(frozen=True)
class Scaled:
    """values * factor + offset, computed in float64, rounded once; half-precise ones become float32."""

    inner: View
    factor: float
    offset: float = 0.0

    @property
    def kind(self) -> Kind:
        kind = self.inner.kind
        return Kind(dtype=WIDER.get(kind.dtype, kind.dtype), shape=kind.shape)

    def rows(self, first: int, last: int) -> np.ndarray:
        values = torch.from_numpy(self.inner.rows(first, last)).view(DTYPES[self.inner.kind.dtype]).double()
        return (values * self.factor + self.offset).to(DTYPES[self.kind.dtype]).view(torch.uint8).numpy()


@dataclass(frozen=True)
class Cast:
    """Values in another type, rounded to nearest, ties to even, where it is narrower."""

    inner: View
    dtype: str

    @property
    def kind(self) -> Kind:
        return Kind(dtype=self.dtype, shape=self.inner.kind.shape)

    def rows(self, first: int, last: int) -> np.ndarray:
        values, saved = self.inner.rows(first, last), self.inner.kind.dtype
        if saved == self.dtype:
            return values
        return torch.from_numpy(values).view(DTYPES[saved]).to(DTYPES[self.dtype]).view(torch.uint8).numpy()


def _alike(kinds: Sequence[Kind]) -> Kind:
    """What all of them are; RunError where they differ."""
    if len(set(kinds)) != 1:
        seen = ", ".join(sorted({f"{kind.dtype} {kind.shape}" for kind in kinds}))
        raise RunError(f"tensors that become one are {seen}", "they have one type and shape", "give them one type first")
    return kinds[0]
