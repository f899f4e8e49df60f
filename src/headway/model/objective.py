"""What one backward pass differentiates: sums over the tokens of a micro-batch, which the caller divides once by the step's
count of target tokens (CONTRACTS section 4). However the batch is cut, the quotient is the same.

    objective = nll + z-loss                                    of the next token
              + mtp_weight / heads * sum of the same            of each head for further tokens
              + balance and z-losses of the routers             (``tally.Tally``)

A head for the token d further scores only positions whose row and document go on so far; it is divided by the same count.
Shapes: B batch, T time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.model.context import Context
from headway.model.precision import Computes
from headway.model.tally import Tally


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
    spec = model.spec
    tally = Tally(spec) if spec.experts is not None else None
    hidden = model.hidden(tokens_BT, replace(context, tally=tally))
    sums = model.loss(hidden.next_BTD, targets_BT, context.scored_BT, z_weight)
    objective, zero = sums.objective_sum, torch.zeros((), dtype=torch.float64, device=sums.nll_sum.device)
    further, routing = zero, zero
    for depth, further_BTD in enumerate(hidden.further_BTD, start=1):
        later_BT = targets_BT.roll(-depth, 1)
        head = model.loss(further_BTD, later_BT, context.scored_further(depth), z_weight)
        further = further + head.objective_sum * (spec.mtp_weight / spec.mtp_layers)
    if tally is not None:
        routing = tally.objective_sum()
    return TrainingSums(
        nll_sum=sums.nll_sum,
        z_sum=sums.z_sum,
        further_sum=further.detach(),
        routing_sum=routing.detach(),
        objective_sum=objective + further + routing,
        tally=tally,
    )
