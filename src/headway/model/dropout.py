"""Dropout as a pure function of (seed, step, site, global position): any cut of a batch drops the same values.

A site (such as "layers.3.ffn") of a step is one logical tensor [rows, T, D] over the whole batch of that step. Its value
(row, t, d) takes word (row T + t) D + d of the same streams that initial weights come from (counter_random.py), under the name
``dropout/STEP/SITE``, and is dropped where that word lies below share * 2^32. torch's generators play no part, so nothing of
it is in a checkpoint.

Where ranks divide rows, a rank has some of a row's tokens, and says which: it drops what one process drops of them.

Shapes: B rows of a micro-batch, T time, t of it on this rank (alone: all), D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.columns import Columns
from headway.model.counter_random import Words

WORDS = 1 << 32
"""Values of a word."""


@dataclass(frozen=True)
class DropoutKey:
    """Which values a micro-batch drops at each site."""

    seed: int
    step: int
    rows_B: tuple[int, ...]  # of the micro-batch: their indices in the batch of the step, over all ranks
    share: float  # of values that become 0; the others are divided by 1 - share
    columns: Columns | None = None  # of the row, those that this rank has between layers; None: all


def drop(x_BTD: Tensor, key: DropoutKey | None, site: str) -> Tensor:
    """A share of values set to 0 and the others scaled, in the dtype of ``x``. Without a key or a share: ``x`` itself."""
    if key is None or key.share == 0:
        return x_BTD
    return _Drop.apply(x_BTD, dropped(key, site, x_BTD.shape).to(x_BTD.device), 1 / (1 - key.share))


def dropped(key: DropoutKey, site: str, shape: torch.Size) -> Tensor:
    """bool, B T D, on the CPU: which values of the micro-batch are dropped."""
    rows, time, *inner = shape
    columns, width = key.columns or Columns.whole(time), int(np.prod(inner))
    assert len(key.rows_B) == rows, f"{rows} rows, {len(key.rows_B)} of them named"
    assert columns.count == time, f"{time} tokens of a row, and the places of {columns.count}"
    words = Words(key.seed, f"dropout/{key.step}/{site}")
    below = np.uint32(min(round(key.share * WORDS), WORDS - 1))
    mask_BtD = np.empty((rows, time, width), np.bool_)
    for mask_tD, row in zip(mask_BtD, key.rows_B, strict=True):
        for at, column in columns.pieces():
            first, count = (row * columns.length + column) * width, (at.stop - at.start) * width
            np.less(words(first, count), below, out=mask_tD[at].reshape(-1))
    return torch.from_numpy(mask_BtD).view(shape)


class _Drop(Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, dropped_BTD: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(dropped_BTD)
        ctx.scale = scale
        return (x_BTD * scale).masked_fill_(dropped_BTD, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, ...]:
        (dropped_BTD,) = ctx.saved_tensors
        return (grad_BTD * ctx.scale).masked_fill_(dropped_BTD, 0), None, None
