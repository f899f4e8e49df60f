"""Tensor parallelism with sequence parallelism: the exchanges between layers (``model/ranks.py`` shows where).

Each exchange of the forward pass is mirrored in the backward pass: gathering tokens becomes summing and dealing out their
gradients, and the other way round.

Shapes: B rows, T tokens of a row on the ranks together, t on this one; of whole rows, s in this rank's chunks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import _functional_collectives as functional

from headway.model.columns import Columns
from headway.model.ranks import WHOLE_ROWS, Chunks, Ranks
from headway.parallel.context_parallel import length_step
from headway.parallel.divide import part


class TensorRanks(Ranks):
    """The ranks of ``group`` (axis tp)."""

    divide_tokens = True

    def __init__(self, group: dist.ProcessGroup, chunks: Chunks = WHOLE_ROWS):
        super().__init__(chunks)
        self.group, self.size, self.index = group, group.size(), dist.get_rank(group)
        self.length_step = length_step(chunks.count, self.size)
        self.adds_once = self.index == 0

    def all(self, x_BtD: Tensor) -> Tensor:
        return _All.apply(x_BtD, self.group)

    def own_sum(self, x_BTD: Tensor) -> Tensor:
        return _OwnSum.apply(x_BTD, self.group)

    def own(self, x_BT: Tensor) -> Tensor:
        x_Bs = self.chunks.mine(x_BT)
        return x_Bs[:, part(x_Bs.shape[1], self.index, self.size)]

    def own_columns(self, length: int) -> Columns:
        columns = self.chunks.columns(length)
        return columns.part(part(columns.count, self.index, self.size))

    def first_row(self, rows: int) -> int:
        return part(rows, self.index, self.size).start

    def all_columns(self, x_NV: Tensor) -> Tensor:
        """Parts may differ in width: the widest travel, and are cut."""
        widest = self.maximum(torch.tensor(x_NV.shape[1], device=x_NV.device))
        own = torch.tensor([x_NV.shape[1]], device=x_NV.device)
        widths = functional.wait_tensor(functional.all_gather_single(own, 0, self.group)).tolist()
        padded = torch.nn.functional.pad(x_NV, (0, int(widest) - x_NV.shape[1]))
        parts = _gathered(padded, self.group).split(int(widest), 1)
        return torch.cat([piece[:, :width] for piece, width in zip(parts, widths, strict=True)], 1)

    def sum(self, x: Tensor) -> Tensor:
        return _reduced(x, "sum", self.group)

    def maximum(self, x: Tensor) -> Tensor:
        return _reduced(x, "max", self.group)


def _reduced(x: Tensor, how: str, group: dist.ProcessGroup) -> Tensor:
    return functional.wait_tensor(functional.all_reduce(x, how, group))


def _gathered(x_BtD: Tensor, group: dist.ProcessGroup) -> Tensor:
    return functional.wait_tensor(functional.all_gather_single(x_BtD.contiguous(), 1, group))


def _dealt(x_BTD: Tensor, group: dist.ProcessGroup) -> Tensor:
    return functional.wait_tensor(functional.reduce_scatter_single(x_BTD.contiguous(), "sum", 1, group))


class _All(Function):
    @staticmethod
    def forward(ctx: Any, x_BtD: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x_BtD, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, None]:
        return _dealt(grad_BTD, ctx.group), None


class _OwnSum(Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _dealt(x_BTD, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BtD: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad_BtD, ctx.group), None
