"""One update: sums over target tokens, one division by their global count, clip, judge, optimize, balance the routers.

The loss is defined on the global batch (law 5). Micro-batches only split its sum, so their number and size cannot be
seen in the result beyond the order of additions. Nothing waits for the device between the backward pass and the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from headway.base import failpoints
from headway.data.windows import WindowBatch
from headway.model.context import Context, make_context
from headway.model.dropout import DropoutKey
from headway.model.objective import MicroBatch, MicroBatches, TrainingSums
from headway.model.precision import Computes
from headway.model.tally import LayerLoad, Loads, update_bias
from headway.optim.clip import clip_by_norm
from headway.parallel.mesh import Mesh
from headway.parallel.sums import of_stages, over_batch, over_routed
from headway.recipe.spec import RopeSpec, StabilitySpec
from headway.train.feed import StepBatch
from headway.train.trainee import Trainee


@dataclass(frozen=True)
class StepResult:
    """``loss`` and ``z_loss`` are nats per target token over the global batch, before the update."""

    loss: float
    z_loss: float
    grad_norm: float
    clipped: bool
    applied: bool  # False: the gradient was bad, weights and moments were left alone
    extra: dict[str, Any] = field(default_factory=dict)  # of heads for further tokens and of routers, for the record
    wish: bool = False  # of any rank: to stop after this step
    own: float = 0.0  # nats over the targets of this rank alone, 0 where its stage of a pipeline has none


class StepLost(Exception):
    """A replica group was lost in a step: nobody has applied anything, and those that are left do it again."""


class Sums:
    """Over the micro-batches of one step, on the device until ``read``."""

    def __init__(self) -> None:
        self.losses: torch.Tensor | None = None  # float64: nll, z, further tokens
        self.routing: torch.Tensor | None = None  # float64, one value; None: no routers
        self.loads = Loads()

    def add(self, sums: TrainingSums) -> None:
        losses = torch.stack([sums.nll_sum, sums.z_sum, sums.further_sum])
        self.losses = losses if self.losses is None else self.losses + losses
        if sums.tally is not None:
            routing = sums.routing_sum.reshape(1)
            self.routing = routing if self.routing is None else self.routing + routing
            self.loads.add(sums.tally)

    def add_up(self, everybody: Callable[[torch.Tensor], torch.Tensor], *, wish: bool) -> bool:
        """Over rank i of all replica groups, before anything is summed within one; whether any of these has a ``wish``."""
        told = everybody(self._numbers(wish, self.losses.device if self.losses is not None else "cpu"))
        self.losses, self.routing = told[:3], told[3:4]
        self.loads.sum_over(everybody)
        return bool(told[4] > 0)

    def _numbers(self, wish: bool, device: torch.device | str) -> torch.Tensor:
        """Losses, routing, wish; a stage of a pipeline may have none of them."""
        losses = torch.zeros(3, dtype=torch.float64, device=device) if self.losses is None else self.losses
        routing = losses.new_zeros(1) if self.routing is None else self.routing
        return torch.cat([losses, routing, losses.new_full((1,), float(wish))])

    def share_loads(self, mesh: Mesh | None) -> None:
        """Loads of the whole batch, on every rank: once per step."""
        if mesh is not None:
            self.loads.sum_over(lambda counts: over_routed(counts, mesh))

    def read(self, mesh: Mesh | None, wish: bool) -> tuple[list[float], bool]:
        """Losses over the whole batch of the step (a stage of a pipeline may have none of them), then routing; and whether any
        rank has a ``wish``, which travels with them."""
        told = self._numbers(wish, mesh.device if mesh is not None else "cpu")
        if mesh is None:
            return told[:4].tolist(), wish
        if mesh.axes.tp > 1:  # each of its ranks has the same losses, and routes tokens of its own
            dist.all_reduce(told[3:4], group=mesh.group("tp"))
        told = over_batch(told, mesh)
        if mesh.axes.tp > 1:  # ranks that share tokens may have another
            dist.all_reduce(told[-1:], dist.ReduceOp.MAX)
        *numbers, wishes = told.tolist()
        return numbers, wishes > 0


def context_of(compute: Computes, batch: WindowBatch, rope: RopeSpec) -> Context:
    """Angles and document pieces of one micro-batch, for this rank's part of the work on it."""
    position_BT, document_BT = torch.from_numpy(batch.position_BT), torch.from_numpy(batch.document_BT)
    return make_context(position_BT, document_BT, compute.spec, rope, compute.dtype, compute.ranks)


def train_step(
    trainee: Trainee,
    batch: StepBatch,
    rate: float,
    wish: Callable[[], bool] = lambda: False,
    look: Callable[[Sums], None] = lambda sums: None,
) -> StepResult:
    """Run one update in place; ``rate`` is the learning rate of this step, ``wish`` is asked at its end, ``look`` is called when
    the gradients are there. StepLost where a replica group was lost meanwhile."""
    failpoints.hit("step.begin", batch.place.step + 1, trainee.memory_of_state)
    sums = accumulate(trainee, batch)
    failpoints.hit("step.gradients", batch.place.step + 1, trainee.memory_of_gradients)
    look(sums)
    if trainee.groups is not None:
        wished = add_up(trainee, sums, batch.place.step, wish())
        return update(trainee, batch, sums, rate, lambda: wished)
    return update(trainee, batch, sums, rate, wish)


def add_up(trainee: Trainee, sums: Sums, step: int, wish: bool) -> bool:
    """Gradients and sums of the whole batch, where replica groups have parts of it: the same bits in all of them. Whether any
    group has a ``wish``."""
    groups = trainee.groups
    assert groups is not None
    groups.sum_all(list(trainee.gradients().values()))
    wished = sums.add_up(groups.sum, wish=wish)
    if not groups.commits(step):
        trainee.optimizer.zero_grad()
        raise StepLost(groups.error or "another rank did not have all sums")
    return wished


def update(trainee: Trainee, batch: StepBatch, sums: Sums, rate: float, wish: Callable[[], bool] = lambda: False) -> StepResult:
    """Clip, judge and apply the gradients that ``accumulate`` has left, balance the routers.

    A veto of the trainee is asked before the update, and the step waits for the device once more.
    """
    spec, step = trainee.spec, batch.place.step + 1
    clip = clip_by_norm(trainee.parameters, spec.optimizer.clip_norm, trainee.parts)
    told = sums.read(trainee.mesh, wish()) if trainee.veto is not None else None
    if trainee.veto is not None and told is not None and trainee.veto(step, told[0][0] / batch.targets, float(clip.norm)):
        bad = torch.ones_like(clip.norm, dtype=torch.bool)  # the guard's history does not learn it
    else:
        bad = trainee.guard.judge(clip.norm)
    trainee.optimizer.set_rate(rate)
    trainee.optimizer.step(bad)  # a bad gradient never reaches weights or moments (L9)
    reading = clip.read(bad)
    sums.share_loads(trainee.mesh)
    loads = _loads(sums.loads.statistics(), trainee.mesh)  # before they start again
    if reading.applied:
        trainee.updates += 1
        if spec.model.experts is not None:
            update_bias(trainee.balance_biases, sums.loads, spec.model.experts.bias_rate)
        trainee.compute.refresh()
    trainee.optimizer.zero_grad()
    failpoints.hit("step.updated", step, trainee.memory_of_state)
    losses, wished = told or sums.read(trainee.mesh, wish())
    nll, z, further, routing = (loss / batch.targets for loss in losses)
    extra = {"further_loss": further} if spec.model.mtp_layers else {}
    extra |= {"routing_loss": routing, **loads} if loads else {}
    own = 0.0 if sums.losses is None else float(sums.losses[0])
    return StepResult(nll, z, reading.norm, reading.clipped and reading.applied, reading.applied, extra, wished, own)


def must_stop(stability: StabilitySpec, skipped: int) -> bool:
    """Whether so many updates left out in a row end a training."""
    return skipped >= stability.most_skips


def accumulate(trainee: Trainee, batch: StepBatch) -> Sums:
    """Forward and backward passes of all micro-batches: gradients of the global mean in ``.grad`` of the parameters."""
    takes = trainee.passes.takes(len(batch.rows))
    batch = batch if takes is None else batch.evened(takes)
    total = Sums()
    work = MicroBatches(
        count=len(batch.rows),
        make=lambda place: _micro_batch(trainee, batch, place),
        z_weight=trainee.spec.stability.z_loss,
        targets=batch.targets,
    )
    trainee.passes.run(work, total.add)
    trainee.compute.take_gradients()
    return total


def _micro_batch(trainee: Trainee, batch: StepBatch, place: int) -> MicroBatch:
    micro, rope = batch.micro_batches[place], trainee.spec.stages[batch.place.stage].rope
    context = context_of(trainee.compute, micro, rope)
    context = replace(context, dropout=dropout_of(trainee, batch, batch.rows[place]), scored_BT=batch.scored(place))
    return MicroBatch(torch.from_numpy(micro.tokens_BT), torch.from_numpy(micro.targets_BT), context)


def dropout_of(trainee: Trainee, batch: StepBatch, rows: tuple[int, ...]) -> DropoutKey | None:
    """A place in the step's batch is the same under every layout, so what is dropped there is too."""
    share = trainee.spec.model.dropout
    if not share:
        return None
    length = trainee.spec.stages[batch.place.stage].sequence_length
    columns = trainee.compute.ranks.own_columns(length)
    return DropoutKey(trainee.spec.seed, batch.place.step, rows, share, columns)


def _loads(loads: dict[str, LayerLoad], mesh: Mesh | None) -> dict[str, float]:
    """Of the least balanced layer, of all pipeline stages."""
    worst = max(loads.values(), key=lambda load: load.largest, default=LayerLoad(-1.0, 0.0, 0.0, 0.0))
    idle = max((load.idle for load in loads.values()), default=0.0)
    found = of_stages([worst.largest, idle, worst.dropped_at_1_25], mesh)
    largest, _, dropped = max(found)
    return (
        {} if largest < 0 else {"largest_load": largest, "idle_experts": max(row[1] for row in found), "dropped_at_1_25": dropped}
    )
