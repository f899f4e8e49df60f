"""Routers: scores of experts, the choice of k, and what the chosen weigh in the sum.

Scores are softmax or sigmoid of float32 logits. A balancing bias is added to choose, and never to weigh (Wang et al. 2024,
arXiv 2408.15664): it moves once per step against the loads of the whole step (``tally.py``). Every token is routed by itself, so
each rank routes its own.

Shapes: B batch rows, T tokens of a row (of this rank), N tokens, D width, X experts, k experts of a token, G groups of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.model.weight import Weight
from headway.model.wide import wide
from headway.recipe.mup import multipliers
from headway.recipe.spec import ExpertsSpec, ModelSpec

LEAST_SUM = 1e-20
"""Added to the sum of chosen scores before it divides (DeepSeek-V3): sigmoids may all be 0."""

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": lambda logits: torch.softmax(logits, -1), "sigmoid": torch.sigmoid}


class Router(Weight):
    """``weight`` X D; ``bias`` X: of balancing where the model has it, else learned where all projections have one."""

    def __init__(self, spec: ModelSpec):
        assert spec.experts is not None
        super().__init__(spec.experts.experts, spec.width)
        self.balances = spec.experts.router_bias
        if self.balances or spec.bias == "all":
            self.bias = nn.Parameter(torch.empty(spec.experts.experts), requires_grad=not self.balances)
        self.spec = spec

    def forward(self, x_BTD: Tensor) -> Routing:  # type: ignore[override]
        return route(x_BTD, self, self.spec)


@dataclass(frozen=True, eq=False, kw_only=True)
class Routing:
    """What a router says of each token; float32 (or wider) but for the choice."""

    logits_BTX: Tensor
    scores_BTX: Tensor
    choice_BTk: Tensor  # int64, the best first; equal ones by their number
    weight_BTk: Tensor  # of the chosen in the sum


def route(x_BTD: Tensor, router: Router, spec: ModelSpec) -> Routing:
    """Scores, choice and weights of every token, computed in float32 whatever the model computes in."""
    options = spec.experts
    assert options is not None
    learned_X = None if router.balances else router.added()
    learned_X = None if learned_X is None else wide(learned_X)
    logits_BTX = F.linear(wide(x_BTD), wide(router.matrix()), learned_X) * multipliers(spec).router
    scores_BTX = SCORES[options.score](logits_BTX)
    with torch.no_grad():
        balance_X = router.bias if router.balances else None
        choice_BTk = _choose(scores_BTX if balance_X is None else scores_BTX + balance_X, options)
    weight_BTk = scores_BTX.gather(-1, choice_BTk)
    if options.normalise:
        weight_BTk = weight_BTk / (weight_BTk.sum(-1, keepdim=True) + LEAST_SUM)
    return Routing(logits_BTX=logits_BTX, scores_BTX=scores_BTX, choice_BTk=choice_BTk, weight_BTk=weight_BTk * options.scale)


def _choose(value_BTX: Tensor, options: ExpertsSpec) -> Tensor:
    """The ``top_k`` largest, from the best groups where they are limited."""
    if options.groups_per_token > 0:
        value_BTX = _best_groups(value_BTX, options)
    return _largest(value_BTX, options.top_k)


def _best_groups(value_BTX: Tensor, options: ExpertsSpec) -> Tensor:
    """-inf outside the best groups. A group is worth its two best experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    value_BTGX = value_BTX.unflatten(-1, (options.groups, -1))
    worth_BTG = value_BTGX.topk(min(2, value_BTGX.shape[-1])).values.sum(-1)
    kept_BTG = torch.zeros_like(worth_BTG, dtype=torch.bool).scatter_(-1, _largest(worth_BTG, options.groups_per_token), True)
    return torch.where(kept_BTG[..., None], value_BTGX, -torch.inf).flatten(-2)


def _largest(value_NX: Tensor, count: int) -> Tensor:
    """Indices of the largest, equal ones by their number: ``topk`` promises no order, and a stable sort takes longer."""
    left_NX, found = value_NX.clone(), []
    for _ in range(count):
        found.append(left_NX.argmax(-1, keepdim=True))
        left_NX.scatter_(-1, found[-1], -torch.inf)
    return torch.cat(found, -1)
