"""Experts under layouts: data parallel, tensor parallel, expert parallel, and what must not be mistaken in them.

Differences from one process and their tolerances: ``train/prove/compare.py``. The bias of routers moves by the sign of a load,
so it is the same bit for bit, on every rank.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_cases import described, failures, reference

from headway.model.tally import LayerTally
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ShardedModel
from headway.parallel.tensor import TensorRanks
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.prove.compare import BFLOAT16, compare
from headway.train.prove.rank import Work, measure_rank
from headway.train.step import Sums, train_step
from headway.train.trainee import build_trainee

pytestmark = pytest.mark.layouts

SOFTMAX = ("mixtral-8x7b", ("model.experts.z_loss=0.001",))
"""Balance and z-losses within every sequence."""
SIGMOID = ("deepseek-v3", ())
"""A bias that balances, groups, a shared expert, latent attention, a head for one more token."""
BIASED = ("mixtral-8x7b", ("model.bias=all",))
"""Every projection has a bias: of experts, and a learned one of routers."""

UNEVEN = {"dp_shard": 5}
"""Replicas of which some have two sequences of the batch of 12 and some three."""
LAYOUTS = {
    "fsdp2": {"dp_shard": 2},
    "fsdp5, which does not divide the batch": UNEVEN,
    "tp2": {"tp": 2},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
    "ep2": {"dp_shard": 2, "ep": 2},
    "ep4": {"dp_shard": 4, "ep": 4},
    "ep2 x fsdp2": {"dp_shard": 4, "ep": 2},
    "ep2 x hsdp2": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "ep2 x tp2": {"dp_shard": 2, "tp": 2, "ep": 2},
}
STEPS = 6


def work_of(case, steps=STEPS, micro_sequences=3, **options) -> Work:
    """``options`` of its experts are set after its sizes were made small."""
    spec = described(case[0], case[1])
    if options:
        spec = replace(spec, model=replace(spec.model, experts=replace(spec.model.experts, **options)))
    return Work(spec, micro_sequences, steps)


@pytest.mark.parametrize("case", [SOFTMAX, SIGMOID], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_experts(prove, case, axes):
    assert failures(prove(work_of(case), **axes)) == []


@pytest.mark.parametrize("axes", [{"tp": 2}, {"dp_shard": 2, "tp": 2, "ep": 2}], ids=["tp2", "ep2 x tp2"])
def test_biases_of_experts_are_added_once(prove, axes):
    assert failures(prove(work_of(BIASED, steps=2), **axes)) == []


def test_three_axes(prove):
    assert failures(prove(work_of(SIGMOID, steps=2), dp_shard=4, tp=2, ep=2)) == []


def test_micro_batches_of_nothing_but_filling(prove):
    """The last of three micro-batches, on replicas that have two sequences."""
    assert failures(prove(work_of(SIGMOID, steps=3, micro_sequences=1), **UNEVEN)) == []


def test_experts_fewer_than_shards_are_cut_behind_their_axis(prove):
    assert failures(prove(work_of(SOFTMAX, steps=2, experts=2), dp_shard=4)) == []


def test_bfloat16(prove):
    work = work_of(SIGMOID, steps=3)
    work = replace(work, spec=described(*SIGMOID, precision="bfloat16"))
    assert failures(prove(work, wider=BFLOAT16, dp_shard=2, ep=2)) == []


MUON = ("mixtral-8x7b", ("optimizer.kind=muon",))
ORTHOGONAL = 2e-5
"""Of updates under Muon: its iteration in bfloat16 turns a difference in an input's last bit into one of 2^-8 here and there.
Matrices made orthogonal in parts differ by 2e-4."""


@pytest.mark.parametrize("axes", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 4, "ep": 2}, {"dp_shard": 2, "tp": 2, "ep": 2}], ids=str)
def test_muon_updates_whole_matrices(prove, axes):
    found = prove(work_of(MUON, steps=2), **axes)
    found["update"] = replace(found["update"], tolerance=ORTHOGONAL)
    assert failures(found) == []


def test_muon_of_experts_fewer_than_shards(prove):
    found = prove(work_of(MUON, steps=1, experts=2), dp_shard=4)
    found["update"] = replace(found["update"], tolerance=ORTHOGONAL)
    assert failures(found) == []


# --- the balancing bias


def biases_after(work: Work, axes: Axes | None) -> dict[str, list[float]]:
    """By layer, on this rank, after the steps of ``work``. None: one process."""
    mesh = None if axes is None else Mesh(axes)
    trainee = build_trainee(work.spec, mesh)
    replica = Replica() if mesh is None else Replica(mesh.replica, mesh.axes.replicas)
    feed = RandomFeed(work.spec, work.micro_sequences, replica)
    for step in range(work.steps):
        train_step(trainee, feed.fetch(step), feed.schedule.rate(step))
    return {layer: bias.tolist() for layer, bias in trainee.balance_biases.items()}


@pytest.mark.parametrize("axes", [UNEVEN, {"dp_shard": 2, "tp": 2, "ep": 2}], ids=str)
def test_the_bias_is_the_same_bit_for_bit(axes):
    work, layout = work_of(SIGMOID, steps=4), Axes(**axes)
    alone = biases_after(work, None)
    assert any(any(bias) for bias in alone.values())
    assert on_ranks(biases_after, layout.world, work, layout) == [alone] * layout.world


def test_records_of_routing_are_those_of_one_process():
    work, layout = work_of(SOFTMAX, steps=1), Axes(dp_shard=2, tp=2, ep=2)
    (alone,), found = records(work, None), on_ranks(records, 4, work, layout)
    for rank in found:
        assert rank[0] == pytest.approx(alone, rel=1e-6)


def records(work: Work, axes: Axes | None) -> list[dict[str, float]]:
    mesh = None if axes is None else Mesh(axes)
    trainee = build_trainee(work.spec, mesh)
    feed = RandomFeed(work.spec, work.micro_sequences, Replica() if mesh is None else Replica(mesh.replica, mesh.axes.replicas))
    return [train_step(trainee, feed.fetch(step), feed.schedule.rate(step)).extra for step in range(work.steps)]


# --- mistakes, made in the ranks' processes and mended behind them


def expert_gradients_doubled(patch: pytest.MonkeyPatch) -> None:
    """Summed over ranks whose tokens they have seen already (P5)."""
    shard = ShardedModel._shard

    def doubled(model: ShardedModel) -> None:
        shard(model)
        for block in model.decoder.layers:
            block.experts.set_gradient_divide_factor(1 / model.mesh.axes.ep)

    patch.setattr(ShardedModel, "_shard", doubled)


def loads_of_each_rank_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sums, "share_loads", lambda sums, mesh: None)


def filling_counted(patch: pytest.MonkeyPatch) -> None:
    record = LayerTally.record
    patch.setattr(LayerTally, "record", lambda tally, routing, mask, ranks: record(tally, routing, None, ranks))


def rows_balanced_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Loads of each rank's part of a sequence, not of the sequence."""
    patch.setattr(TensorRanks, "row_sum", lambda ranks, x: x)


def bias_added_by_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TensorRanks, "adds_once", property(lambda ranks: True, lambda ranks, value: None), raising=False)


def measure_mistaken(work: Work, axes: Axes, mistake) -> object:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        return measure_rank(work, axes)


MISTAKES = {
    expert_gradients_doubled: (SOFTMAX, {"dp_shard": 2, "ep": 2}, "gradients", ".experts."),
    loads_of_each_rank_alone: (SIGMOID, {"dp_shard": 2}, "update", "router.bias"),
    filling_counted: (SIGMOID, UNEVEN, "update", "router.bias"),
    rows_balanced_in_parts: (SOFTMAX, {"tp": 2}, "gradients", "router.weight"),
    bias_added_by_all: (BIASED, {"tp": 2}, "gradients", "experts.down.bias"),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistakes_are_found(mistake):
    case, axes, kind, where = MISTAKES[mistake]
    work, layout = work_of(case, steps=1), Axes(**axes)
    measured = on_ranks(measure_mistaken, layout.world, work, layout, mistake)[0]
    found = {finding.what: finding for finding in compare(measured, reference(work))}
    assert not found[kind].holds
    assert where in found[kind].where


def test_filling_that_is_counted_is_found_in_the_gradients_too():
    """Through the balance and z-losses."""
    work, layout = work_of(SOFTMAX, steps=1), Axes(**UNEVEN)
    measured = on_ranks(measure_mistaken, layout.world, work, layout, filling_counted)[0]
    assert not {finding.what: finding for finding in compare(measured, reference(work))}["gradients"].holds
