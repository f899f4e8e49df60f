"""What ranks do in tests of pipelines: measure with something broken, and evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B

import headway.parallel.model as sharded
import headway.parallel.pipeline as pipeline
import headway.parallel.schedule as schedule
from headway.evaluate.held_out import held_out_loss
from headway.evaluate.sample import greedy
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.state import holds_first_copy
from headway.train.prove.batches import RandomFeed
from headway.train.prove.rank import Measured, Work, measure_rank
from headway.train.step import accumulate, train_step, update
from headway.train.trainee import build_trainee


def held_out(work: Work, axes: Axes | None) -> tuple[float, list[int], list[float]]:
    """Held-out loss, tokens that go on from a prompt, and losses of the steps before and after: nothing is left behind."""
    trainee = build_trainee(work.spec, None if axes is None else Mesh(axes))
    feed, rope = RandomFeed(work.spec, work.micro_sequences), work.spec.stages[0].rope
    losses = [train_step(trainee, feed.fetch(0), feed.schedule.rate(0)).loss]
    held = held_out_loss(trainee.compute, feed.fetch(5).micro_batches, rope)
    tokens = greedy(trainee.compute, [[1, 2, 3]], 4, rope)[0] if axes is None or axes.tp == 1 else []
    losses.append(train_step(trainee, feed.fetch(1), feed.schedule.rate(1)).loss)
    return held.loss, tokens, losses


def recorded(work: Work, axes: Axes | None) -> tuple[float, float, dict]:
    """What each rank writes down of the first step."""
    trainee = build_trainee(work.spec, None if axes is None else Mesh(axes))
    feed = RandomFeed(work.spec, work.micro_sequences)
    result = train_step(trainee, feed.fetch(0), feed.schedule.rate(0))
    return result.loss, result.z_loss, result.extra


def left_alone(work: Work, axes: Axes) -> bool:
    """Whether a gradient that is not finite on the last stage changes nothing on any."""
    trainee = build_trainee(work.spec, Mesh(axes))
    feed = RandomFeed(work.spec, work.micro_sequences)
    before = [parameter.detach().clone() for parameter in trainee.parameters]
    batch = feed.fetch(0)
    sums = accumulate(trainee, batch)
    if dist.get_rank() == axes.pp - 1:
        assert trainee.parameters[-1].grad is not None
        trainee.parameters[-1].grad.view(-1)[0] = torch.nan
    applied = update(trainee, batch, sums, feed.schedule.rate(0)).applied
    return not applied and all(map(torch.equal, before, trainee.parameters))


def measure_broken(broken: str, work: Work, axes: Axes) -> Measured | None:
    with BROKEN[broken]():
        return measure_rank(work, axes)


@contextmanager
def _resharding() -> Iterator[None]:
    group = sharded.ShardedModel._group

    def reshards(self, module, mesh, *, reshard):
        group(self, module, mesh, reshard=module is not self.decoder)

    with mock.patch.object(sharded.ShardedModel, "_group", reshards):
        yield


@contextmanager
def _alike() -> Iterator[None]:
    """Chunks draw as the first of their rank does."""
    initialise = sharded.initialise_part

    def drawn(part, shape, offset, spec, seed):
        kind, _, rest = shape.name.partition(".")
        if kind == "layers":
            layer, _, rest = rest.partition(".")
            shape = replace(shape, name=f"layers.{int(layer) % 2}.{rest}")
        initialise(part, shape, offset, spec, seed)

    with mock.patch.object(sharded, "initialise_part", drawn):
        yield


def _counted(self, parameters):
    return [parameter for parameter in parameters if holds_first_copy(self._sharded_of[parameter])]


def _alone(x_BtD, _):
    return x_BtD


def _scaling(stage, count, *, loss_fn, scale_grads):
    return Schedule1F1B(stage, count, loss_fn=loss_fn)


BROKEN = {
    "weights are freed under a zero-bubble schedule": _resharding,
    "chunks are initialised alike": _alike,
    "losses of routers are lost before the last stage": lambda: mock.patch.object(
        schedule.Carried, "apply", lambda x_BtD, _: x_BtD
    ),
    "torch divides by the number of micro-batches": lambda: mock.patch.dict(schedule.SINGLE, {"1f1b": _scaling}),
    "the embedding counts twice in the norm": lambda: mock.patch.object(pipeline.LocalParts, "counted", _counted),
    "each holder of the embedding has its own gradient": lambda: mock.patch.object(pipeline.Pipeline, "_share_embedding"),
}
