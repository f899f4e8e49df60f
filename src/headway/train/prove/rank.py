"""What the ranks of a layout measure, and what one process measures: the same names, so that they are compared.

    initial weights    bit for bit                      the loss of step 1, every raw gradient of it, the norm before clipping
    after the update   weights and moments              the losses of the steps that follow

Raw gradients are what convinces: AdamW divides by them, so a curve hides a factor that is wrong everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from headway.parallel.group import limit_waits
from headway.parallel.local_ranks import TIMEOUT_SECONDS
from headway.parallel.mesh import Axes, Mesh
from headway.recipe.spec import Spec
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.step import accumulate, train_step, update
from headway.train.trainee import Trainee, build_trainee

CURVE_STEPS = 20


@dataclass(frozen=True)
class Work:
    """One proof: what is trained, ``micro_sequences`` per forward pass of a replica, for how many steps."""

    spec: Spec
    micro_sequences: int
    steps: int = CURVE_STEPS


@dataclass
class Measured:
    """Of a run; tensors are whole, float32, by parameter or state name."""

    initial: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    updated: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norm: float = 0.0


def measure_alone(work: Work) -> Measured:
    """One process."""
    return _measure(work, build_trainee(work.spec), RandomFeed(work.spec, work.micro_sequences))


def measure_rank(work: Work, axes: Axes) -> Measured | None:
    """One rank of the default group; rank 0 has the answer, the others have helped."""
    mesh = Mesh(axes)
    limit_waits(TIMEOUT_SECONDS)
    trainee = build_trainee(work.spec, mesh)
    measured = _measure(work, trainee, RandomFeed(work.spec, work.micro_sequences, Replica(mesh.replica, axes.replicas)))
    return measured if torch.distributed.get_rank() == 0 else None


def _measure(work: Work, trainee: Trainee, feed: RandomFeed) -> Measured:
    measured, schedule = Measured(), feed.schedule
    measured.initial = _whole(_parameters(trainee), trainee.mesh)
    batch = feed.fetch(0)
    sums = accumulate(trainee, batch)
    measured.gradients = _whole(_gradients(trainee), trainee.mesh)
    result = update(trainee, batch, sums, schedule.rate(0))
    measured.losses.append(result.loss)
    measured.norm = result.grad_norm
    measured.updated = _whole(trainee.state(), trainee.mesh)
    for step in range(1, work.steps):
        measured.losses.append(train_step(trainee, feed.fetch(step), schedule.rate(step)).loss)
    return measured


def _parameters(trainee: Trainee) -> dict[str, Tensor]:
    return {name.removeprefix("param/"): value for name, value in trainee.state().items() if name.startswith("param/")}


def _gradients(trainee: Trainee) -> dict[str, Tensor]:
    names = list(_parameters(trainee))
    found = zip(names, trainee.parameters, strict=True)
    return {name: trainee.parts.logical(name, p.grad) for name, p in found if p.grad is not None}


def _whole(tensors: dict[str, Tensor], mesh: Mesh | None) -> dict[str, Tensor]:
    """Every rank takes part; nothing of the state is shared with what is returned. Of a pipeline, its first rank has all."""
    whole = {name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for name, t in tensors.items()}
    if mesh is None or mesh.axes.pp == 1:
        return whole
    found: list[Any] | None = [None] * mesh.axes.pp if mesh.root.get_local_rank("pp") == 0 else None
    dist.gather_object(whole, found, group=mesh.group("pp"), group_dst=0)
    for stage, more in enumerate(found or ()):
        for name, tensor in more.items():
            assert torch.equal(whole.setdefault(name, tensor), tensor), f"{name} on stage {stage} is another than before it"
    return whole
