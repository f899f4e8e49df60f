"""What one backward pass differentiates: sums over the tokens of a micro-batch, which the caller divides once by the step's
count of target tokens (CONTRACTS section 4). However the batch is cut, the quotient is the same.

    objective = nll + z-loss                                    of the next token
              + mtp_weight / heads * sum of the same            of each head for further tokens
              + balance and z-losses of the routers             (``tally.Tally``)

A head for the token d further scores only positions whose row and document go on so far; it is divided by the same count.
Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from headway.model.context import Context
from headway.model.decoder import Hidden
from headway.model.precision import Computes
from headway.model.tally import Tally
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, eq=False)
class TrainingSums:
    """Sums over target tokens, float64 scalars but for ``tally``; ``objective_sum`` carries the gradient."""

    nll_sum: Tensor  # nats, of the next token
    z_sum: Tensor  # weighted
    further_sum: Tensor  # weighted, of the heads for further tokens; 0 without
    routing_sum: Tensor  # weighted, of the routers; 0 without
    objective_sum: Tensor
    tally: Tally | None  # what the routers chose


def training_sums(model: Computes, tokens_BT: Tensor, targets_BT: Tensor, context: Context, z_weight: float) -> TrainingSums:
    """Forward pass and loss of one micro-batch."""
    context = with_tally(model.spec, context)
    return objective_sums(model, model.hidden(tokens_BT, context), targets_BT, context, z_weight)


def with_tally(spec: ModelSpec, context: Context) -> Context:
    """A context in which routers are counted."""
    return context if spec.experts is None else replace(context, tally=Tally(spec))


def objective_sums(model: Computes, hidden: Hidden, targets_BT: Tensor, context: Context, z_weight: float) -> TrainingSums:
    """Of the hidden states that the last piece gave in ``context``."""
    spec = model.spec
    sums = model.loss(hidden.next_BTD, targets_BT, context.scored_BT, z_weight)
    objective, zero = sums.objective_sum, torch.zeros((), dtype=torch.float64, device=sums.nll_sum.device)
    further, routing = zero, zero
    for depth, further_BTD in enumerate(hidden.further_BTD, start=1):
        later_BT = targets_BT.roll(-depth, 1)
        head = model.loss(further_BTD, later_BT, context.scored_further(depth), z_weight)
        further = further + head.objective_sum * (spec.mtp_weight / spec.mtp_layers)
    if context.tally is not None:
        routing = context.tally.objective_sum()
    return TrainingSums(
        nll_sum=sums.nll_sum,
        z_sum=sums.z_sum,
        further_sum=further.detach(),
        routing_sum=routing.detach(),
        objective_sum=objective + further + routing,
        tally=context.tally,
    )


def routing_sums(tally: Tally) -> TrainingSums:
    """Of a piece that ends before the loss: its routers' share of the objective."""
    routing, zero = tally.objective_sum(), torch.zeros((), dtype=torch.float64)
    return TrainingSums(zero, zero, zero, routing.detach(), routing, tally)


# --- all micro-batches of a step


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """What one forward and backward pass reads; ``tokens_BT`` and ``targets_BT``: integers."""

    tokens_BT: Tensor
    targets_BT: Tensor
    context: Context


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """Of one step. ``make(place)`` builds one of ``count``, from 0: each is large, so it is built when it is needed."""

    count: int
    make: Callable[[int], MicroBatch]
    z_weight: float
    targets: int  # of the global batch: what every sum is divided by, once


class Passes(Protocol):
    """How the micro-batches of a step run through the model. Gradients of their sums over ``targets`` are left in it."""

    def takes(self, count: int) -> int | None:
        """Into how many of equal size ``count`` micro-batches are to be filled up; None: as they are."""

    def run(self, work: MicroBatches, add: Callable[[TrainingSums], None]) -> None:
        """``add`` is given the sums of every micro-batch (where pieces run apart, those of every piece)."""


class OneByOne:
    """Forward and backward pass of each, then the next."""

    def __init__(self, model: Computes):
        self.model = model

    def takes(self, count: int) -> int | None:
        return None

    def run(self, work: MicroBatches, add: Callable[[TrainingSums], None]) -> None:
        for place in range(work.count):
            self.model.begin_micro_batch(is_last=place == work.count - 1)
            micro = work.make(place)
            sums = training_sums(self.model, micro.tokens_BT, micro.targets_BT, micro.context, work.z_weight)
            (sums.objective_sum / work.targets).backward()
            add(sums)
