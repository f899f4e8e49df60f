"""Mistakes that layouts invite, made on purpose in the ranks' processes: each must be seen against one process.

Those of context parallelism, experts and pipelines stand in the files of these axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from layout_cases import described, failures, reference
from torch.distributed.fsdp import FSDPModule

from headway.model import counter_random, loss, objective
from headway.parallel import model as sharded
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.parallel.state import LocalParts
from headway.parallel.tensor import TensorRanks
from headway.train import step
from headway.train.feed import StepBatch
from headway.train.prove.compare import compare
from headway.train.prove.rank import Measured, Work, measure_rank

pytestmark = pytest.mark.layouts


@contextmanager
def a_mean_of_each_rank() -> Iterator[None]:
    """The loss of a rank's own tokens, averaged over ranks: right only where all have as many."""
    honest = step.accumulate

    def accumulate(trainee, batch):
        own = sum(map(len, batch.rows)) - batch.padded
        targets = own * batch.micro_batches[0].tokens_BT.shape[1] * trainee.mesh.axes.replicas
        return honest(trainee, StepBatch(batch.place, batch.micro_batches, targets, batch.rows, batch.padded))

    with mock.patch("headway.train.prove.rank.accumulate", accumulate):
        yield


@contextmanager
def the_factor_on_the_root_alone() -> Iterator[None]:
    """Neither the divide factor nor the forced sum reaches modules below, which are summed by torch, for ours refuses means."""
    with (
        mock.patch.object(sharded.ShardedModel, "_groups", lambda self: iter([self.decoder])),
        mock.patch.object(sharded, "exchange_on_host"),
    ):
        yield


@contextmanager
def an_infinite_filling() -> Iterator[None]:
    """No fault: whatever fills a batch up counts for nothing."""
    honest = objective.objective_sums

    def filled(model, hidden, targets_BT, context, z_weight):
        if context.scored_BT is not None:
            hidden_BTD = torch.where(context.scored_BT[..., None], hidden.next_BTD, torch.inf)
            hidden = objective.Hidden(hidden_BTD, hidden.further_BTD)
        return honest(model, hidden, targets_BT, context, z_weight)

    with mock.patch.object(objective, "objective_sums", filled):
        yield


@contextmanager
def a_filling_that_is_multiplied_by_zero() -> Iterator[None]:
    """0 x inf is NaN."""

    def as_they_are(hidden_GD, targets_G, keep_G):
        return hidden_GD, targets_G, keep_G

    with (
        an_infinite_filling(),
        mock.patch.object(loss, "_kept", as_they_are),
        mock.patch.object(loss._Chunk, "kept", lambda self, x_C: x_C if self.keep_C is None else x_C * self.keep_C),
    ):
        yield


@contextmanager
def a_norm_of_own_parts() -> Iterator[None]:
    with mock.patch.object(LocalParts, "norm", lambda self, norm: norm):
        yield


@contextmanager
def a_norm_that_counts_copies() -> Iterator[None]:
    """Of what every rank has whole."""
    with mock.patch.object(LocalParts, "counted", lambda self, parameters: list(parameters)):
        yield


@contextmanager
def parts_that_begin_alike() -> Iterator[None]:
    """Every rank draws from the beginning of its stream, as with one seed per rank and no offset."""
    with mock.patch.object(sharded, "rectangle_of", lambda tensor: mock.Mock(offset=(0,) * tensor.dim())):
        yield


@contextmanager
def streams_of_each_rank() -> Iterator[None]:
    """Another seed on every rank: what they have alike is no longer alike."""
    honest = counter_random.Words.__init__

    def init(self, seed, name):
        honest(self, seed + dist.get_rank(), name)

    with mock.patch.object(counter_random.Words, "__init__", init):
        yield


@contextmanager
def gradients_of_gains_not_summed() -> Iterator[None]:
    """What every tensor rank has whole is used on its own tokens: its gradient is a part."""
    from headway.model import weight

    def read(parameter, dtype):
        part = parameter.to_local() if weight.is_distributed(parameter) else parameter
        return part if dtype is None else part.to(dtype)

    with mock.patch.object(weight, "read", read):
        yield


@contextmanager
def a_sum_that_is_not_dealt_out() -> Iterator[None]:
    """The backward pass of a gathering keeps a rank's own gradients and drops the others'."""
    from headway.parallel import tensor

    def own(ctx, grad_BTD):
        size, index = ctx.group.size(), dist.get_rank(ctx.group)
        return grad_BTD.chunk(size, 1)[index].contiguous(), None

    with mock.patch.object(tensor._All, "backward", staticmethod(own)):
        yield


@contextmanager
def a_vocabulary_whose_sum_is_each_ranks() -> Iterator[None]:
    with mock.patch.object(TensorRanks, "sum", lambda self, x: x):
        yield


@contextmanager
def no_sum_over_replicas() -> Iterator[None]:
    honest = FSDPModule.set_requires_gradient_sync
    with (
        mock.patch.object(FSDPModule, "set_requires_gradient_sync", lambda self, sync, **rest: honest(self, True, **rest)),
        mock.patch("torch.distributed.fsdp._fully_shard._fsdp_collectives.dist.all_reduce", return_value=None),
    ):
        yield


FAULTS: dict[Callable, dict[str, int]] = {
    a_mean_of_each_rank: {"dp_shard": 5},
    the_factor_on_the_root_alone: {"dp_shard": 2},
    a_filling_that_is_multiplied_by_zero: {"dp_shard": 5},
    a_norm_of_own_parts: {"tp": 2},
    a_norm_that_counts_copies: {"dp_replicate": 2},
    parts_that_begin_alike: {"tp": 2},
    streams_of_each_rank: {"tp": 2},
    gradients_of_gains_not_summed: {"tp": 2},
    a_sum_that_is_not_dealt_out: {"tp": 2},
    a_vocabulary_whose_sum_is_each_ranks: {"tp": 2},
    no_sum_over_replicas: {"dp_replicate": 2, "dp_shard": 2},
}


def measure_faulty(fault: Callable, work: Work, axes: Axes) -> Measured | None:
    with fault():
        return measure_rank(work, axes)


@functools.cache
def work() -> Work:
    return Work(described("proxy", ("model.kv_heads=4",)), micro_sequences=3, steps=1)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault):
    axes = Axes(**FAULTS[fault])
    assert failures({f.what: f for f in compare(on_ranks(measure_rank, axes.world, work(), axes)[0], reference(work()))}) == []
    found = on_ranks(measure_faulty, axes.world, fault, work(), axes)[0]
    assert failures({f.what: f for f in compare(found, reference(work()))})


def test_what_fills_a_batch_up_may_be_infinite():
    found = on_ranks(measure_faulty, 5, an_infinite_filling, work(), Axes(dp_shard=5))[0]
    assert failures({f.what: f for f in compare(found, reference(work()))}) == []
