"""Expert parallelism: the experts of a layer lie over the ranks of axis ep, and rows of tokens travel to them and back.

Two ranks, experts 0 1 on the first and 2 3 on the second; letters are rows, in the order of their experts:

    rank 0   0: a b   1:    | 2: c   3: d           arrive       rank 0   0: a b e   1: f          (of rank 0, then of rank 1)
    rank 1   0: e     1: f  | 2:     3: g h i     -------->      rank 1   2: c       3: d g h i
             `--- to 0 --'   `--- to 1 ----'      <--------
                                                   leave

No row is dropped and none is padded: counts are exchanged first, whatever they are. Arriving and leaving are each other's
mirror, forward and backward. Rows of one expert stand in the order of ranks, then of tokens, so results repeat bit for bit.
An expert sees the rows of all ranks of its group, so its gradient is complete there: copies on other groups alone are summed.

Where tp divides the inner width, its ranks have gathered all their tokens before, and each sends them to its own like.

Shapes: M rows of this rank's tokens, R rows of this rank's experts, D width, X all experts, x those of this rank, G ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import _functional_collectives as functional

from headway.model.experts import Runs
from headway.model.shape_only import even, is_shape_only


class ExpertExchange:
    """Between the ranks of ``group`` (axis ep), which have as many experts each; an ``experts.Exchange``."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group

    def __call__(self, rows_MD: Tensor, runs: Runs, compute: Callable[[Tensor, Runs], Tensor]) -> Tensor:
        routes = make_routes(runs, self.group)
        return _Leave.apply(compute(_Arrive.apply(rows_MD, routes), routes.runs), routes)


@dataclass(frozen=True, eq=False, kw_only=True)
class Routes:
    """Who sends how many rows to whom, and where those that have come stand in the order of experts."""

    group: dist.ProcessGroup
    sent: list[int]  # rows of this rank's tokens, by the rank that has their expert
    got: list[int]  # rows of this rank's experts, by the rank that has their token
    order_R: Tensor  # int64: which of the rows, as they come, is next in the order of experts
    place_R: Tensor  # int64: the way back
    runs: Runs

    def arrive(self, rows_MD: Tensor) -> Tensor:
        """Rows of this rank's tokens -> rows of its experts, R D."""
        return _exchanged(rows_MD, self.got, self.sent, self.group).index_select(0, self.order_R)

    def leave(self, rows_RD: Tensor) -> Tensor:
        """The way back, M D."""
        return _exchanged(rows_RD.index_select(0, self.place_R), self.sent, self.got, self.group)


def make_routes(runs: Runs, group: dist.ProcessGroup) -> Routes:
    """Counts by expert are exchanged; the host waits for them, since rows of uneven numbers need sizes."""
    size, device = group.size(), runs.ends_X.device
    count_Gx = runs.ends_X.long().diff(prepend=runs.ends_X.new_zeros(1).long()).view(size, -1)
    got_Gx = functional.wait_tensor(functional.all_to_all_single(count_Gx, None, None, group))
    if is_shape_only(got_Gx):
        sent = got = even(len(runs.expert_M), size)
    else:
        sent, got = torch.stack([count_Gx.sum(1), got_Gx.sum(1)]).tolist()
    expert_x = torch.arange(got_Gx.shape[1], device=device)
    expert_R, order_R = expert_x.repeat(size).repeat_interleave(got_Gx.flatten(), output_size=sum(got)).sort(stable=True)
    return Routes(
        group=group,
        sent=sent,
        got=got,
        order_R=order_R,
        place_R=torch.empty_like(order_R).scatter_(0, order_R, torch.arange(len(order_R), device=device)),
        runs=Runs(expert_M=expert_R, ends_X=got_Gx.sum(0).cumsum(0).int()),
    )


def _exchanged(rows_MD: Tensor, got: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    return functional.wait_tensor(functional.all_to_all_single(rows_MD.contiguous(), got, sent, group))


class _Arrive(Function):
    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return routes.arrive(rows_MD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None]:
        return ctx.routes.leave(grad_RD), None


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return routes.leave(rows_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None]:
        return ctx.routes.arrive(grad_MD), None
