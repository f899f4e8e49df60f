"""One update: sums over target tokens, one division by their global count, clip, AdamW.

The loss is defined on the global batch (law 5). Micro-batches only split its sum, so their number and size cannot be
seen in the result beyond the order of additions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway.base import failpoints
from headway.data.reader import WindowBatch
from headway.model.context import Context, make_context
from headway.model.loss import loss_sums
from headway.model.precision import ComputeModel
from headway.optim.adamw import set_rate
from headway.optim.clip import clip_by_norm
from headway.train.feed import StepBatch
from headway.train.setup import Trainee


@dataclass(frozen=True)
class StepResult:
    """``loss`` and ``z_loss`` are nats per target token over the global batch, before the update."""

    loss: float
    z_loss: float
    grad_norm: float
    clipped: bool
    applied: bool  # False: the gradient was not finite, weights and moments were left alone


def context_of(compute: ComputeModel, batch: WindowBatch, rope_base: float) -> Context:
    """Angles and document pieces of one micro-batch."""
    position_BT, document_BT = torch.from_numpy(batch.position_BT), torch.from_numpy(batch.document_BT)
    return make_context(position_BT, document_BT, rope_base, compute.spec.head_width, compute.dtype)


def train_step(trainee: Trainee, batch: StepBatch, rate: float) -> StepResult:
    """Run one update in place; ``rate`` is the learning rate of this step."""
    step = batch.place.step + 1
    failpoints.hit("step.begin", step)
    nll_sum, z_sum = _backward(trainee, batch)
    failpoints.hit("step.gradients", step)
    clip = clip_by_norm(trainee.parameters, trainee.spec.optimizer.clip_norm)
    if clip.finite:  # a gradient that is not finite never reaches weights or moments (L9)
        set_rate(trainee.optimizer, rate)
        trainee.optimizer.step()
        trainee.updates += 1
        trainee.compute.refresh()
    trainee.optimizer.zero_grad(set_to_none=True)
    failpoints.hit("step.updated", step)
    return StepResult(nll_sum / batch.targets, z_sum / batch.targets, clip.norm, clip.clipped, clip.finite)


def _backward(trainee: Trainee, batch: StepBatch) -> tuple[float, float]:
    stage = trainee.spec.stages[batch.place.stage]
    nll_sum = z_sum = 0.0
    for micro in batch.micro_batches:
        context = context_of(trainee.compute, micro, stage.rope_base)
        hidden_BTD = trainee.compute.forward(torch.from_numpy(micro.tokens_BT), context)
        targets_BT = torch.from_numpy(micro.targets_BT)
        sums = loss_sums(hidden_BTD, trainee.compute.head_weight, targets_BT, None, trainee.spec.stability.z_loss)
        (sums.objective_sum / batch.targets).backward()
        nll_sum += float(sums.nll_sum)
        z_sum += float(sums.z_sum)
    return nll_sum, z_sum
