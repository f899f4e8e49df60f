"""Two checkpoints tensor by tensor: which differ, and how far. Layouts may differ; memory stays bounded.

    A: four ranks              B: one rank               read by row groups of the whole tensor, the same ones of both
    |-- 0..63 --|-- 64..127    |------- 0..127 ------|   | group | group | group | ...   bits first, then numbers

Where both cut a tensor into the same rectangles and recorded the same digests for all blocks, its bytes are the same as long as
both files are what they were saved as: it is not read, and counted apart. ``verify`` reads everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.store.assemble import CARRIERS, fill, new_scratch
from headway.store.decode import FLOATS, decode
from headway.store.manifest import DTYPE_BYTES, TensorEntry, tensor_bytes, tensor_digest
from headway.store.verify import OpenCheckpoint, open_checkpoint

GROUP_BYTES = 32 << 20
"""Of rows that are read at once from one side; one row that is larger is read whole."""

PIECE_ELEMENTS = 1 << 14
"""Decoded at once: the arrays stay in the processor's cache, and below the size for which malloc maps fresh memory."""

ONLY_A, ONLY_B, SHAPE, DTYPE, VALUES = "only in A", "only in B", "shape", "dtype", "values"
"""How two tensors of a name differ. With ``DTYPE`` the values are compared too."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far the elements of two tensors lie apart. Norms and the largest difference leave NaN out."""

    elements: int
    differing: int  # of the same dtype: other bits, so that 0 and -0 differ; else: other values
    max_abs: float  # largest |a - b|
    relative_l2: float  # |a - b| / |a|; infinite where only |a| is 0
    nan_a: int
    nan_b: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A tensor that is not the same. ``a``, ``b``: dtype and shape of each side, None where it is missing."""

    name: str
    what: str
    a: TensorEntry | None
    b: TensorEntry | None
    distance: Distance | None = None  # None: there is nothing to subtract


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``differences`` is empty exactly when both hold the same tensors, bit by bit."""

    a: OpenCheckpoint
    b: OpenCheckpoint
    differences: tuple[Difference, ...]
    tensors: int  # names, of both sides together
    by_digest: int  # tensors that are equal by their recorded digests, and were not read
    bytes_read: int  # of both sides together

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(a: Path, b: Path, progress: Callable[[str], None] | None = None) -> Comparison:
    """Compare the checkpoints in two directories; ``progress`` is told each name before its tensor is read.

    RunError where one of them is damaged: every byte that is read is verified.
    """
    left, right = open_checkpoint(a), open_checkpoint(b)
    reader = _Reader(left, right)
    names = sorted(left.tensors.keys() | right.tensors.keys())
    differences, by_digest, bytes_read = [], 0, 0
    with left.ahead, right.ahead:
        for name in names:
            one, other = left.tensors.get(name), right.tensors.get(name)
            if one is None or other is None:
                differences.append(Difference(name=name, what=ONLY_B if one is None else ONLY_A, a=one, b=other))
            elif one.shape != other.shape:
                differences.append(Difference(name=name, what=SHAPE, a=one, b=other))
            elif tensor_digest(one) == tensor_digest(other):
                by_digest += 1
            else:
                if progress is not None:
                    progress(name)
                distance = reader.distance(name)
                bytes_read += tensor_bytes(one.dtype, one.shape) + tensor_bytes(other.dtype, other.shape)
                if one.dtype != other.dtype or distance.differing:
                    what = VALUES if one.dtype == other.dtype else DTYPE
                    differences.append(Difference(name=name, what=what, a=one, b=other, distance=distance))
    return Comparison(
        a=left, b=right, differences=tuple(differences), tensors=len(names), by_digest=by_digest, bytes_read=bytes_read
    )


class _Reader:
    """Both sides of a comparison, and the memory that is read into."""

    def __init__(self, a: OpenCheckpoint, b: OpenCheckpoint):
        self._sides, self._scratch = (a, b), new_scratch()
        self._memory = [np.empty(GROUP_BYTES, np.uint8) for _ in self._sides]

    def distance(self, name: str) -> Distance:
        """``name`` has the same shape on both sides."""
        dtypes = (self._sides[0].tensors[name].dtype, self._sides[1].tensors[name].dtype)
        shape, sums = self._sides[0].tensors[name].shape, _Sums(*dtypes)
        for offset, part in row_groups(shape, max(map(DTYPE_BYTES.__getitem__, dtypes))):
            one, other = (self._rows(side, name, offset, part) for side in (0, 1))
            for at in range(0, one.size, PIECE_ELEMENTS):
                sums.add(one[at : at + PIECE_ELEMENTS], other[at : at + PIECE_ELEMENTS])
        return sums.distance()

    def _rows(self, side: int, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        checkpoint = self._sides[side]
        needed = tensor_bytes(checkpoint.tensors[name].dtype, shape)
        if needed > len(self._memory[side]):
            self._memory[side] = np.empty(needed, np.uint8)
        rows = self._memory[side][:needed].view(CARRIERS[DTYPE_BYTES[checkpoint.tensors[name].dtype]])
        fill(checkpoint, name, rows.reshape(shape), offset, self._scratch)
        return rows


def row_groups(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offset, shape) of groups of whole rows that tile a tensor; a scalar is one group, an empty tensor none."""
    if math.prod(shape) == 0:
        return
    if not shape:
        yield (), ()
        return
    rest = shape[1:]
    rows = max(1, GROUP_BYTES // (math.prod(rest) * item_bytes))
    for first in range(0, shape[0], rows):
        yield (first, *(0 for _ in rest)), (min(rows, shape[0] - first), *rest)


class _Sums:
    """What a ``Distance`` is made of, over pieces."""

    def __init__(self, dtype_a: str, dtype_b: str):
        self._dtypes, self._may_be_nan = (dtype_a, dtype_b), bool({dtype_a, dtype_b} & FLOATS)
        self._elements = self._differing = self._nan_a = self._nan_b = 0
        self._max_abs, self._squares, self._squares_a = 0.0, 0.0, 0.0

    def add(self, bits_a: np.ndarray, bits_b: np.ndarray) -> None:
        """Pieces of equal length. Where the bits are the same, nothing is subtracted."""
        self._elements += bits_a.size
        a = decode(bits_a, self._dtypes[0])
        nan_a = nan_b = self._nans(a)
        if self._dtypes[0] != self._dtypes[1] or not np.array_equal(bits_a, bits_b):
            b = decode(bits_b, self._dtypes[1])
            nan_b = self._nans(b)
            self._differing += self._unequal(bits_a, bits_b, a, b)
            self._add_delta(a, b)
        self._nan_a, self._nan_b = self._nan_a + nan_a, self._nan_b + nan_b
        self._squares_a += _sum_of_squares(a)

    def distance(self) -> Distance:
        squares, norm = self._squares, math.sqrt(self._squares_a)
        relative = 0.0 if squares == 0 else math.sqrt(squares) / norm if norm and math.isfinite(squares) else math.inf
        return Distance(
            elements=self._elements,
            differing=self._differing,
            max_abs=self._max_abs,
            relative_l2=relative,
            nan_a=self._nan_a,
            nan_b=self._nan_b,
        )

    def _nans(self, values: np.ndarray) -> int:
        return int(np.count_nonzero(np.isnan(values))) if self._may_be_nan else 0

    def _unequal(self, bits_a: np.ndarray, bits_b: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
        if self._dtypes[0] == self._dtypes[1]:
            return int(np.count_nonzero(bits_a != bits_b))
        return int(np.count_nonzero((a != b) & ~(np.isnan(a) & np.isnan(b))))

    def _add_delta(self, a: np.ndarray, b: np.ndarray) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # infinite minus infinite is NaN, and counts as one
            delta = np.abs(a - b)
        self._max_abs = max(self._max_abs, float(np.fmax.reduce(delta, initial=0.0)))
        self._squares += _sum_of_squares(delta)


def _sum_of_squares(values: np.ndarray) -> float:
    """NaN left out. Not by ``dot``: its threads would fight those of a run on the same machine."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.multiply(values, values)
    total = float(np.add.reduce(squares))
    return total if not math.isnan(total) else float(np.nansum(squares))
