"""One update: sums over target tokens, one division by their global count, clip, judge, optimize, balance the routers.

The loss is defined on the global batch (law 5). Micro-batches only split its sum, so their number and size cannot be
seen in the result beyond the order of additions. Nothing waits for the device between the backward pass and the update.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from headway.base import failpoints
from headway.data.reader import WindowBatch
from headway.model.context import Context, make_context
from headway.model.dropout import DropoutKey
from headway.model.experts import LayerLoad, Loads, update_bias
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.optim.clip import clip_by_norm
from headway.recipe.spec import RopeSpec
from headway.train.feed import StepBatch
from headway.train.setup import Trainee


@dataclass(frozen=True)
class StepResult:
    """``loss`` and ``z_loss`` are nats per target token over the global batch, before the update."""

    loss: float
    z_loss: float
    grad_norm: float
    clipped: bool
    applied: bool  # False: the gradient was bad, weights and moments were left alone
    extra: dict[str, Any] = field(default_factory=dict)  # of heads for further tokens and of routers, for the record


@dataclass
class _Sums:
    """Over the micro-batches of one step."""

    nll: float = 0.0
    z: float = 0.0
    further: float = 0.0
    routing: float = 0.0
    loads: Loads = field(default_factory=Loads)


def context_of(compute: ComputeModel, batch: WindowBatch, rope: RopeSpec) -> Context:
    """Angles and document pieces of one micro-batch."""
    position_BT, document_BT = torch.from_numpy(batch.position_BT), torch.from_numpy(batch.document_BT)
    return make_context(position_BT, document_BT, compute.spec, rope, compute.dtype)


def train_step(trainee: Trainee, batch: StepBatch, rate: float) -> StepResult:
    """Run one update in place; ``rate`` is the learning rate of this step."""
    spec, step = trainee.spec, batch.place.step + 1
    failpoints.hit("step.begin", step)
    sums = _backward(trainee, batch)
    failpoints.hit("step.gradients", step)
    clip = clip_by_norm(trainee.parameters, spec.optimizer.clip_norm)
    bad = trainee.guard.judge(clip.norm)
    trainee.optimizer.set_rate(rate)
    trainee.optimizer.step(bad)  # a bad gradient never reaches weights or moments (L9)
    reading = clip.read(bad)
    loads = sums.loads.statistics()
    if reading.applied:
        trainee.updates += 1
        if spec.model.experts is not None:
            update_bias(trainee.balance_biases, sums.loads, spec.model.experts.bias_rate)
        trainee.compute.refresh()
    trainee.optimizer.zero_grad()
    failpoints.hit("step.updated", step)
    n = batch.targets
    extra = _extra(trainee, sums, loads, n)
    return StepResult(sums.nll / n, sums.z / n, reading.norm, reading.clipped, reading.applied, extra)


def _backward(trainee: Trainee, batch: StepBatch) -> _Sums:
    rope, z_weight = trainee.spec.stages[batch.place.stage].rope, trainee.spec.stability.z_loss
    total = _Sums()
    for micro, rows in zip(batch.micro_batches, batch.rows, strict=True):
        context = replace(context_of(trainee.compute, micro, rope), dropout=dropout_of(trainee, batch, rows))
        tokens_BT, targets_BT = torch.from_numpy(micro.tokens_BT), torch.from_numpy(micro.targets_BT)
        sums = training_sums(trainee.compute, tokens_BT, targets_BT, context, z_weight)
        (sums.objective_sum / batch.targets).backward()
        total.nll += float(sums.nll_sum)
        total.z += float(sums.z_sum)
        total.further += float(sums.further_sum)
        total.routing += float(sums.routing_sum)
        if sums.tally is not None:
            total.loads.add(sums.tally)
    return total


def dropout_of(trainee: Trainee, batch: StepBatch, rows: tuple[int, ...]) -> DropoutKey | None:
    """A place in the step's batch is the same under every layout, so what is dropped there is too."""
    share = trainee.spec.model.dropout
    return DropoutKey(trainee.spec.seed, batch.place.step, rows, share) if share else None


def _extra(trainee: Trainee, sums: _Sums, loads: dict[str, LayerLoad], targets: int) -> dict[str, Any]:
    """Loads are those of the least balanced layer."""
    found: dict[str, Any] = {}
    if trainee.spec.model.mtp_layers:
        found["further_loss"] = sums.further / targets
    if loads:
        found["routing_loss"] = sums.routing / targets
        worst = max(loads.values(), key=lambda load: load.largest)
        found["largest_load"], found["idle_experts"] = worst.largest, max(load.idle for load in loads.values())
        found["dropped_at_1_25"] = worst.dropped_at_1_25
    return found
