"""Context parallelism: the ranks of axis cp divide the tokens of every row; in attention, keys and values are gathered.

A row is cut into 2 cp chunks, and rank i has chunks i and 2 cp - 1 - i. A query meets the keys before it, so a pair of an early
and a late chunk has the same work on every rank (cp 2, 4 chunks; queries down, keys across, by rank):

    chunk   0 1 2 3
      0     0                  rank 0: 1 + 4 squares
      1     1 1                rank 1: 2 + 3
      2     1 1 1
      3     0 0 0 0

    own chunks of keys  B s K E  --whole-->  keys in the order of the row  B T K E      backward: sums, dealt out to their chunks

Tensor parallelism divides a rank's chunks again, joined in the order of the row; so rows must divide both ways (``length_step``).
A ConfigError says where they do not.

Shapes: B rows, T tokens of a row, s of them on this rank, C of a chunk.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import _functional_collectives as functional

from headway.base.errors import ConfigError
from headway.model.columns import Columns
from headway.model.ranks import Chunks


def length_step(cp: int, tp: int) -> int:
    """What the tokens of a row must be a multiple of: 2 cp equal chunks, and equal parts over tp of the two that a rank has.

    Under cp 2 that is 4, under cp 2 x tp 3 it is 12, under tp 3 alone 3.
    """
    return cp * math.lcm(2, tp) if cp > 1 else tp


def refuse_length(length: int, cp: int, tp: int = 1) -> None:
    """ConfigError unless rows of ``length`` tokens can be divided over ``cp`` and ``tp``."""
    step = length_step(cp, tp)
    if length % step:
        below, above = length // step * step, -(-length // step) * step
        raise ConfigError(
            f"rows of {length:,} tokens under cp {cp} x tp {tp}",
            f"they must be a multiple of {step:,}: cp cuts a row into 2 x {cp} chunks, and tp divides the two of a rank",
            f"sequences of {f'{below:,} or ' if below else ''}{above:,} tokens, or smaller axes",
        )


class BalancedChunks(Chunks):
    """Of the ranks of ``group`` (axis cp)."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.count, self.index = group, group.size(), dist.get_rank(group)
        self.step = length_step(self.count, 1)

    def columns(self, length: int) -> Columns:
        refuse_length(length, self.count)
        chunk, last = length // (2 * self.count), 2 * self.count - 1 - self.index
        return Columns.of(length, *(range(place * chunk, (place + 1) * chunk) for place in (self.index, last)))

    def mine(self, x_BT: Tensor) -> Tensor:
        return self.columns(x_BT.shape[1]).of_row(x_BT)

    def whole(self, x_Bs: Tensor) -> Tensor:
        return _Whole.apply(x_Bs, self.group)

    def sum(self, x: Tensor) -> Tensor:
        return functional.wait_tensor(functional.all_reduce(x, "sum", self.group))


class _Whole(Function):
    @staticmethod
    def forward(ctx: Any, x_Bs: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = functional.wait_tensor(functional.all_gather_single(x_Bs.contiguous(), 0, group))
        return _in_order(parts.unflatten(0, (group.size(), -1)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BT: Tensor) -> tuple[Tensor, None]:
        parts = _by_rank(grad_BT, ctx.group.size()).flatten(0, 1)
        return functional.wait_tensor(functional.reduce_scatter_single(parts, "sum", 0, ctx.group)), None


def _in_order(parts_RBs: Tensor) -> Tensor:
    """What each rank has -> B T ..."""
    early_RBC, late_RBC = parts_RBs.unflatten(2, (2, -1)).unbind(2)
    return torch.cat([*early_RBC.unbind(0), *reversed(late_RBC.unbind(0))], 1)


def _by_rank(x_BT: Tensor, ranks: int) -> Tensor:
    """The way back -> R B s ..., what each rank has."""
    chunks = x_BT.chunk(2 * ranks, 1)
    return torch.stack([torch.cat([chunks[rank], chunks[-1 - rank]], 1) for rank in range(ranks)])
