"""Mixture of experts: a router sends every token to k of X feed-forwards. None is dropped, whatever an expert's load.

Pairs of token and choice are sorted by expert, so that the rows of one expert lie together and each matrix product runs
over runs of rows. N = 4 tokens, k = 2, X = 3 experts:

    token  choice         row     0  1  2  3  4  5  6  7
    0      2 0            token   0  1  2  3  0  1  2  3         token 0 = .7 row 4 + .3 row 0
    1      0 2       ->   expert  0  0  1  1  2  2  2  2    ->   token 1 = .6 row 1 + .4 row 5
    2      2 1            ends of experts: 2, 4, 8               ...
    3      1 2

A token's way back is a sum over its k rows, taken from known places: its order is fixed, so results repeat bit for bit,
and the gradient of spreading rows is that same sum (and the other way round).

Where ranks share the inner width of experts, each routes its own tokens, all of them are gathered with what they have chosen,
and each rank's sum is a part of the whole (``ranks.py``). Where ranks share the experts themselves, rows travel (``Exchange``).

Shapes: B batch rows, T tokens of a row (t: of this rank), N = B T tokens, D width, X experts, k experts of a token, M = N k rows,
F inner width of an expert, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.feed_forward import GATES, PLAIN
from headway.model.ranks import ALONE, Ranks
from headway.model.routing import Router
from headway.model.shape_only import even, is_shape_only
from headway.model.tally import LayerTally
from headway.model.weight import Weight
from headway.model.wide import wide
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class Runs:
    """Rows in the order of their experts."""

    expert_M: Tensor  # int64, ascending
    ends_X: Tensor  # int32: rows of experts 0 to x


class Exchange(Protocol):
    """How rows reach experts of other ranks."""

    def __call__(self, rows_MD: Tensor, runs: Runs, compute: Callable[[Tensor, Runs], Tensor]) -> Tensor:
        """``compute`` of each row by the rank that has its expert (numbered from its first), in the order of ``rows_MD``."""


class Experts(nn.Module):
    """All feed-forwards of a layer, each matrix with a leading axis of experts.

    ``exchange``: the models of ``parallel/`` set it where other ranks have the other experts; None: all are here.
    """

    exchange: Exchange | None = None

    def __init__(self, spec: ModelSpec):
        super().__init__()
        assert spec.experts is not None
        X, D, F_, biased = spec.experts.experts, spec.width, spec.experts.width, spec.bias == "all"
        self.spec = spec
        if spec.gated:
            self.gate = Weight(X, F_, D, biased=biased)
        self.up, self.down = Weight(X, F_, D, biased=biased), Weight(X, D, F_, biased=biased)

    def forward(self, rows_MD: Tensor, runs: Runs, ranks: Ranks) -> Tensor:
        """Each row through its expert -> M D; where ``ranks`` share the inner width, this one's part of a sum."""
        if self.exchange is None:
            return self._compute(rows_MD, runs, ranks)
        return self.exchange(rows_MD, runs, lambda rows, there: self._compute(rows, there, ranks))

    def _compute(self, rows_MD: Tensor, runs: Runs, ranks: Ranks) -> Tensor:
        inner_MF = project_each(rows_MD, self.up, runs)
        if self.spec.gated:
            inner_MF = GATES[self.spec.ffn](project_each(rows_MD, self.gate, runs), inner_MF)
        else:
            inner_MF = PLAIN[self.spec.ffn](inner_MF)
        return project_each(inner_MF, self.down, runs, adds_bias=ranks.adds_once)


def mixture(
    x_BtD: Tensor,
    router: Router,
    experts: Experts,
    tally: LayerTally | None,
    mask_BT: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """What the chosen experts give together, B t D. Masked tokens pass like others and are left out of ``tally`` only."""
    routing = router(x_BtD)
    if tally is not None:
        tally.record(routing, None if mask_BT is None else ranks.own(mask_BT), ranks)
    x_BTD, choice_BTk, weight_BTk = (ranks.all(x) for x in (x_BtD, routing.choice_BTk, routing.weight_BTk))
    plan = make_plan(choice_BTk.flatten(0, 1), routing.scores_BTX.shape[-1])
    rows_MD = _Spread.apply(x_BTD.flatten(0, 1), plan.token_M, plan.place_Nk)
    rows_MD = experts(rows_MD, plan, ranks)
    y_ND = _Collect.apply(rows_MD, weight_BTk.flatten(0, 1), plan.token_M, plan.place_Nk)
    return ranks.own_sum(y_ND.view_as(x_BTD))


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Runs):
    """Which row is whose."""

    token_M: Tensor  # int64
    place_Nk: Tensor  # int64: row of a token's j-th choice


def make_plan(choice_Nk: Tensor, experts: int) -> Plan:
    """Rows in the order of experts, of one expert in the order of tokens. Nothing is read back from the device."""
    expert_M, order_M = choice_Nk.flatten().sort(stable=True)
    place_M = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
    ends_X = torch.searchsorted(expert_M, torch.arange(experts, device=expert_M.device), right=True, out_int32=True)
    return Plan(token_M=order_M // choice_Nk.shape[-1], expert_M=expert_M, place_Nk=place_M.view_as(choice_Nk), ends_X=ends_X)


class _Spread(Function):
    """Rows of tokens; its gradient is the sum over a token's rows."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, token_M: Tensor, place_Nk: Tensor) -> Tensor:
        ctx.save_for_backward(place_Nk)
        return x_ND.index_select(0, token_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
        (place_Nk,) = ctx.saved_tensors
        return _sum_rows(grad_MD, place_Nk, None), None, None


class _Collect(Function):
    """The weighted sum over a token's rows; its gradient is spread."""

    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, weight_Nk: Tensor, token_M: Tensor, place_Nk: Tensor) -> Tensor:
        ctx.save_for_backward(rows_MD, weight_Nk, token_M, place_Nk)
        return _sum_rows(rows_MD, place_Nk, weight_Nk)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        rows_MD, weight_Nk, token_M, place_Nk = ctx.saved_tensors
        weight_M = weight_Nk.new_empty(place_Nk.numel()).scatter_(0, place_Nk.flatten(), weight_Nk.flatten())
        grad_MD = wide(grad_ND.index_select(0, token_M))
        grad_weight_M = torch.linalg.vecdot(grad_MD, wide(rows_MD))
        return grad_MD.mul_(weight_M[:, None]).to(rows_MD.dtype), grad_weight_M[place_Nk], None, None


def _sum_rows(rows_MD: Tensor, place_Nk: Tensor, weight_Nk: Tensor | None) -> Tensor:
    """Sum over k of rows at their places, in float32 with one rounding."""
    sum_ND: Tensor | None = None
    for choice in range(place_Nk.shape[-1]):
        row_ND = wide(rows_MD.index_select(0, place_Nk[:, choice]))
        if weight_Nk is not None:
            row_ND.mul_(weight_Nk[:, choice, None])
        sum_ND = row_ND if sum_ND is None else sum_ND.add_(row_ND)
    assert sum_ND is not None
    return sum_ND.to(rows_MD.dtype)


def project_each(x_MI: Tensor, module: Weight, runs: Runs, *, adds_bias: bool = True) -> Tensor:
    """x W' + b with each row's own expert -> M O; types as in ``weight.Weight``. Without ``adds_bias`` b counts as zeros."""
    weight_XOI, bias_XO = module.matrix(), module.added()
    on_device = x_MI.is_cuda or is_shape_only(x_MI)
    way = product_grouped if on_device and _is_aligned(weight_XOI) else product_in_loop
    y_MO = way(x_MI.to(weight_XOI.dtype), weight_XOI, runs.ends_X)
    if bias_XO is not None:  # as a product: its gradient sums rows in a fixed order on every device
        bias_XO = bias_XO if adds_bias else bias_XO.masked_fill(bias_XO.new_ones((), dtype=torch.bool), 0)
        y_MO = y_MO + F.one_hot(runs.expert_M, len(bias_XO)).to(bias_XO.dtype) @ bias_XO
    return y_MO.to(x_MI.dtype)


def _is_aligned(weight_XOI: Tensor) -> bool:
    """What the grouped kernel asks for."""
    bytes_ = weight_XOI.element_size()
    return weight_XOI.dtype == torch.bfloat16 and all(size * bytes_ % 16 == 0 for size in weight_XOI.shape[1:])


def product_grouped(x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One kernel for all experts; the host waits for nothing."""
    return F.grouped_mm(x_MI, weight_XOI.transpose(1, 2), offs=ends_X)


def product_in_loop(x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One product per expert, in any dtype. On a CPU as fast as the grouped kernel, which is such a loop there."""
    return _Loop.apply(x_MI, weight_XOI, ends_X)


class _Loop(Function):
    """Gradients of weights are written in place: autograd's own of a slice is as large as all experts together."""

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
        ctx.save_for_backward(x_MI, weight_XOI, ends_X)
        y_MO = x_MI.new_empty(x_MI.shape[0], weight_XOI.shape[1])
        for expert, rows in enumerate(_runs(ends_X, len(x_MI))):
            torch.mm(x_MI[rows], weight_XOI[expert].t(), out=y_MO[rows])
        return y_MO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor | None, ...]:
        x_MI, weight_XOI, ends_X = ctx.saved_tensors
        grad_x_MI, grad_weight_XOI = torch.empty_like(x_MI), torch.empty_like(weight_XOI)
        for expert, rows in enumerate(_runs(ends_X, len(x_MI))):  # an expert without rows gets a gradient of zeros
            torch.mm(grad_MO[rows], weight_XOI[expert], out=grad_x_MI[rows])
            torch.mm(grad_MO[rows].t(), x_MI[rows], out=grad_weight_XOI[expert])
        return grad_x_MI, grad_weight_XOI, None


def _runs(ends_X: Tensor, rows: int) -> list[slice]:
    ends = list(accumulate(even(rows, len(ends_X)))) if is_shape_only(ends_X) else ends_X.tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends)]
