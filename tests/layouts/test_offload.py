"""Moments and activations in host memory under every kind of layout: the bits of the same layout without, and what is saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from layout_cases import described

from headway.model.host_memory import HostMemory
from headway.optim.home import InHostMemory
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.recipe.offload import Offload
from headway.train.prove.batches import RandomFeed
from headway.train.prove.continuation import Leg, train_alone, train_rank
from headway.train.prove.rank import Work, measure_rank
from headway.train.soundness.repeat import Kept, noted_step
from headway.train.trainee import build_trainee

DENSE, ROUTED = described("proxy", ("model.kv_heads=4",)), described("deepseek-v3")
SHORT = 3


def trained(spec, axes: Axes):
    """State and losses of rank 0."""
    measured = on_ranks(measure_rank, axes.world, Work(spec, 3, SHORT), axes)[0]
    return measured.updated, measured.losses


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (DENSE, {"dp_shard": 2}),
        pytest.param(DENSE, {"dp_shard": 2, "tp": 2, "recompute": "selective"}, marks=pytest.mark.layouts),
        pytest.param(DENSE, {"dp_replicate": 2, "cp": 2, "recompute": "full"}, marks=pytest.mark.layouts),
        pytest.param(DENSE, {"pp": 2, "virtual": 2, "pipeline": "zero-bubble"}, marks=pytest.mark.layouts),
        pytest.param(DENSE, {"pp": 2, "dp_shard": 2, "pipeline": "gpipe", "recompute": "full"}, marks=pytest.mark.layouts),
        pytest.param(ROUTED, {"dp_shard": 2, "ep": 2}, marks=pytest.mark.layouts),
        pytest.param(ROUTED, {"dp_shard": 2, "ep": 2, "tp": 2, "recompute": "selective"}, marks=pytest.mark.layouts),
    ],
    ids=str,
)
def test_bits_are_those_of_the_layout_without(spec, axes):
    (there, losses), (away, others) = (trained(spec, Axes(**axes, offload=kind)) for kind in (Offload.NONE, Offload.ALL))
    assert losses == others
    assert there.keys() == away.keys()
    assert [name for name in there if not torch.equal(there[name], away[name])] == []


@pytest.mark.layouts
@pytest.mark.parametrize("offload", [Offload.OPTIMIZER, Offload.ACTIVATIONS])
def test_each_kind_by_itself_and_muon(offload):
    spec = replace(DENSE, optimizer=replace(DENSE.optimizer, kind="muon"))
    (there, _), (away, _) = (trained(spec, Axes(dp_shard=2, offload=kind)) for kind in (Offload.NONE, offload))
    assert [name for name in there if not torch.equal(there[name], away[name])] == []


@pytest.mark.layouts
def test_a_training_goes_on_from_one_with_offload_and_the_other_way(tmp_path: Path):
    """To the bit under the same axes; state digests do not tell them apart."""
    work, ends = Work(DENSE, 3, 4), {}
    for kind in (Offload.NONE, Offload.ALL):
        root, axes = str(tmp_path / kind), Axes(dp_shard=2, offload=kind)
        other = Axes(dp_shard=2, offload=Offload.ALL if kind is Offload.NONE else Offload.NONE)
        ends[kind] = on_ranks(train_rank, 2, Leg(work=work, root=root, end=1, save=2), axes)[0]
        went_on = on_ranks(train_rank, 2, Leg(work=work, root=root, end=2, load=2), other)[0]
        assert went_on.state_digest == ends[kind].state_digest
        assert went_on.losses == ends[kind].losses[2:]
        alone = train_alone(Leg(work=work, root=root, end=3, load=2))
        assert alone.losses == pytest.approx(went_on.losses, rel=1e-5)
    assert ends[Offload.NONE] == ends[Offload.ALL]


def test_a_repeated_step_restores_moments_wherever_they_lie():
    """As checks for silent corruption do."""
    trainee, feed = build_trainee(DENSE, axes=Axes(offload=Offload.ALL)), RandomFeed(DENSE, 3)
    kept = Kept(trainee)
    first = noted_step(trainee, feed.fetch(0), 1e-3)
    kept.restore(trainee)
    assert noted_step(trainee, feed.fetch(0), 1e-3).notes == first.notes


def moments_at_home(axes: Axes) -> list[bool]:
    """Of a rank: whether each moment is the memory that the state names, and was asked of the host's."""
    asked: list[torch.Tensor] = []

    class Told(HostMemory):
        def empty(self, like):
            asked.append(super().empty(like))
            return asked[-1]

    inside = InHostMemory.__init__
    InHostMemory.__init__ = lambda self: inside(self, Told())
    trainee = build_trainee(DENSE, Mesh(axes))
    own = {tensor.data_ptr() for name, tensor in trainee.own_state().items() if name.startswith(("m/", "v/"))}
    return [tensor.data_ptr() in own for tensor in asked if tensor.numel()]


@pytest.mark.layouts
def test_every_moment_of_a_rank_lies_in_host_memory():
    axes = Axes(dp_shard=2, offload=Offload.OPTIMIZER)
    for found in on_ranks(moments_at_home, 2, axes):
        assert len(found) > 10
        assert all(found)
