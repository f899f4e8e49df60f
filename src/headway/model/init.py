"""Initial weights as a pure function of (seed, name, index): any layout fills its own rectangles and gets the same model.

Element i (row-major) of the tensor NAME takes word i of the stream NAME (``counter_random.py``). Its upper 23 bits are a
uniform in the middle of one of 2^23 cells, which the inverse normal turns into a value: 24 bits would round to 1.0 in float32
and give inf.

    logical tensor            rectangle: rows 1-2, columns 4-7
    .  .  .  .  .  .  .  .    long rows (>= 512 elements): the counter is set to the start of each row's run
    .  .  .  .  X  X  X  X    short ones: whole rows are generated in tiles and cut
    .  .  .  .  X  X  X  X

Values are computed on the CPU and copied (the inverse error function may differ in its last bit elsewhere).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headway.model.counter_random import Words
from headway.recipe.mup import init_std
from headway.recipe.roles import ParameterShape, parameter_shapes
from headway.recipe.spec import ModelSpec

LONG_RUN_ELEMENTS = 512
TILE_ELEMENTS = 1 << 20


def _normal(words: np.ndarray, std: float) -> Tensor:
    """Inverse normal of the words' upper 23 bits, at the middle of their cells."""
    uniform = torch.from_numpy((words >> np.uint32(9)).astype(np.float32))
    return uniform.add_(0.5).mul_(2.0**-22).sub_(1.0).erfinv_().mul_(std * math.sqrt(2.0))


def logical_normal(
    name: str,
    shape: Sequence[int],
    std: float,
    seed: int,
    offset: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """The rectangle [offset, offset + lengths) of the logical tensor ``name`` of ``shape``, float32 on the CPU.

    No offset and lengths: the whole tensor. Any rectangle equals the same cut of the whole, bit for bit.
    """
    offset = tuple(offset) if offset is not None else (0,) * len(shape)
    lengths = tuple(lengths) if lengths is not None else tuple(n - o for n, o in zip(shape, offset, strict=True))
    inside = all(o >= 0 and n >= 0 and o + n <= s for o, n, s in zip(offset, lengths, shape, strict=True))
    assert inside, f"{name}: rectangle {offset} + {lengths} leaves {tuple(shape)}"
    out = np.empty(lengths, np.uint32)
    if out.size:
        _fill(out.reshape(-1, lengths[-1]), Words(seed, name), _rows(shape, offset, lengths), offset[-1], shape[-1])
    return _normal(out.reshape(-1), std).view(lengths)


def _rows(shape: Sequence[int], offset: tuple[int, ...], lengths: tuple[int, ...]) -> Iterator[int]:
    """Row-major index of each row (last axis) of the rectangle, in order."""
    for index in np.ndindex(*lengths[:-1]):
        row = 0
        for i, o, s in zip(index, offset, shape):
            row = row * s + i + o
        yield row


def _fill(out_RC: np.ndarray, words: Words, rows: Iterator[int], column: int, width: int) -> None:
    """Words of the rectangle's rows: run by run where runs are long, else whole rows in tiles, cut."""
    count = out_RC.shape[1]
    whole = count == width
    if count >= LONG_RUN_ELEMENTS and not whole:
        for i, row in enumerate(rows):
            out_RC[i] = words(row * width + column, count)
        return
    done = 0
    for first, height in _consecutive(rows, max(1, TILE_ELEMENTS // width)):
        tile = words(first * width, height * width).reshape(height, width)
        out_RC[done : done + height] = tile[:, column : column + count]
        done += height


def _consecutive(rows: Iterator[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs (first, height) of neighbouring rows, at most ``most`` high."""
    first, height = next(rows), 1
    for row in rows:
        if row == first + height and height < most:
            height += 1
        else:
            yield first, height
            first, height = row, 1
    yield first, height


def _fill_normal(part: Tensor, shape: ParameterShape, offset: Sequence[int], std: float, seed: int) -> None:
    """In tiles of the leading axis: the memory beside the part itself does not grow with it."""
    rows, *rest = part.shape
    height = max(1, TILE_ELEMENTS // max(1, math.prod(rest)))
    for first in range(0, rows, height):
        lengths, at = (min(height, rows - first), *rest), (offset[0] + first, *offset[1:])
        part[first : first + height].copy_(logical_normal(shape.name, shape.shape, std, seed, at, lengths))


@torch.no_grad()
def initialise_part(part: Tensor, shape: ParameterShape, offset: Sequence[int], spec: ModelSpec, seed: int) -> None:
    """Fill the rectangle of a parameter that begins at ``offset`` in place, by the parameter's role."""
    std = init_std(shape, spec)
    if not std:
        part.fill_(1.0 if std is None else 0.0)
    else:
        _fill_normal(part, shape, offset, std, seed)


def initialise(model: nn.Module, spec: ModelSpec, seed: int) -> None:
    """Fill every parameter of ``model`` in place by its role. Neither order nor torch's generator plays a part."""
    parameters = dict(model.named_parameters())
    for wanted in parameter_shapes(spec):
        parameter = parameters.pop(wanted.name)
        assert tuple(parameter.shape) == wanted.shape, wanted.name
        initialise_part(parameter.detach(), wanted, (0,) * parameter.dim(), spec, seed)
    assert not parameters, f"parameters without a role: {sorted(parameters)}"
