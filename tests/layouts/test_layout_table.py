"""The layout table: every layout gives the run of one process. Differences and tolerances: ``train/prove/compare.py``.

What is peculiar to an axis stands beside this file: context, experts, pipelines. Here: data and tensor parallelism, and products
of axes that were built apart.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from layout_cases import described, failures

from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.recipe.spec import BatchPhase
from headway.train.prove.compare import BFLOAT16
from headway.train.prove.rank import Measured, Work, measure_alone, measure_rank

pytestmark = pytest.mark.layouts

LAYOUTS = {
    "mesh of 1": {},
    "fsdp2": {"dp_shard": 2},
    "fsdp2, weights kept": {"dp_shard": 2, "zero": 2},
    "fsdp2, gradients whole": {"dp_shard": 2, "zero": 1},
    "fsdp4": {"dp_shard": 4},
    "fsdp5, which does not divide the batch of 12": {"dp_shard": 5},
    "hsdp2x2": {"dp_replicate": 2, "dp_shard": 2},
    "hsdp2x2, gradients whole": {"dp_replicate": 2, "dp_shard": 2, "zero": 1},
    "3 replicas": {"dp_replicate": 3},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
}
PRODUCTS = {
    "pp2 x fsdp2 x tp2": {"pp": 2, "dp_shard": 2, "tp": 2},
    "pp2 x cp2": {"pp": 2, "cp": 2},
    "pp2 x cp2 x tp2": {"pp": 2, "cp": 2, "tp": 2},
    "hsdp2x2 x tp2": {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    "fsdp2 x cp2 x tp2": {"dp_shard": 2, "cp": 2, "tp": 2},
}
OF_EXPERTS = {
    "cp2": {"cp": 2},
    "cp2, ep2": {"cp": 2, "ep": 2},
    "pp2": {"pp": 2},
    "pp2 x fsdp2, ep2": {"pp": 2, "dp_shard": 2, "ep": 2},
    "pp2 x tp2": {"pp": 2, "tp": 2},
    "fsdp2 x cp2, ep4": {"dp_shard": 2, "cp": 2, "ep": 4},
}
HEADS = ("model.kv_heads=4",)
SHORT = 4
"""Steps of a curve where the first ones say it all."""


def dense(*overrides: str, precision: str = "float32", steps: int = 20) -> Work:
    return Work(described("proxy", (*HEADS, *overrides), precision), micro_sequences=3, steps=steps)


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_dense(prove, axes):
    assert failures(prove(dense(), **axes)) == []


@pytest.mark.parametrize("axes", PRODUCTS.values(), ids=PRODUCTS)
def test_products_of_axes(prove, axes):
    assert failures(prove(dense(steps=SHORT), **axes)) == []


@pytest.mark.parametrize("axes", OF_EXPERTS.values(), ids=OF_EXPERTS)
def test_products_with_experts(prove, axes):
    """Softmax with balance and z-loss; sigmoid with a bias, shared experts, latent attention and a head for further tokens."""
    for preset in ("mixtral-8x7b", "deepseek-v3"):
        assert failures(prove(Work(described(preset), 3, SHORT), **axes)) == [], preset


@pytest.mark.parametrize("axes", [{"dp_shard": 2}, {"tp": 2}], ids=str)
def test_tied_embeddings_and_a_z_loss(prove, axes):
    work = dense("model.tied_embeddings=true", "stability.z_loss=1e-3", steps=SHORT)
    assert failures(prove(work, **axes)) == []


@pytest.mark.parametrize("axes", [{"dp_shard": 2}, {"dp_shard": 2, "tp": 2}], ids=str)
def test_bfloat16(prove, axes):
    assert failures(prove(dense(precision="bfloat16", steps=SHORT), wider=BFLOAT16, **axes)) == []


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("axes", [{}, {"dp_shard": 2}, {"dp_shard": 2, "tp": 2}, {"pp": 2, "dp_shard": 2}], ids=str)
def test_recomputation_changes_nothing(prove, axes, recompute):
    assert failures(prove(dense(steps=SHORT), recompute=recompute, **axes)) == []


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_L6_routers_that_run_twice_count_once(prove, recompute):
    assert failures(prove(Work(described("deepseek-v3"), 3, SHORT), dp_shard=2, ep=2, recompute=recompute)) == []


def test_L5_a_batch_ramp(prove):
    """8 sequences, then 12 and 7: the replicas' shares and micro-batches change with it."""
    spec = described("proxy", HEADS)
    phases = (BatchPhase(0, 8), BatchPhase(16, 12), BatchPhase(40, 7))
    ramp = replace(spec, stages=(replace(spec.stages[0], phases=phases, sequences=16 + 24 + 7 * 60),))
    for axes in ({"dp_shard": 2}, {"pp": 2, "dp_shard": 2}, {"dp_replicate": 3}):
        assert failures(prove(Work(ramp, 3, 8), **axes)) == [], axes


@pytest.mark.parametrize("axes", [{"tp": 2, "dp_shard": 4}, {"tp": 2, "cp": 2, "dp_shard": 2}], ids=str)
def test_P1_a_vocabulary_of_which_nothing_divides(prove, axes):
    """Rows are cut over tp, then each part over the shards: 257 = 129 + 128 = (33 + 33 + 33 + 30) + 4 x 32."""
    spec = described("proxy", HEADS)
    odd = replace(spec, model=replace(spec.model, vocabulary=257))
    assert failures(prove(Work(odd, 3, SHORT), **axes)) == []


def test_gradients_that_are_nothing_but_rounding_are_no_difference(prove):
    """The bias of a key shifts all scores of a query alike where nothing rotates."""
    assert failures(prove(Work(described("gpt2-124m"), 3, 2), tp=2)) == []


# --- bit for bit


def two_micro_batches_of_six(spec) -> Work:
    return Work(spec, micro_sequences=6, steps=3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_shards_are_two_micro_batches_bit_for_bit(precision):
    """A sum of two has one order. Only the norm is summed over parts."""
    work = two_micro_batches_of_six(described("proxy", (*HEADS, "optimizer.clip_norm=0"), precision))
    alone, found = measure_alone(work), on_ranks(measure_rank, 2, work, Axes(dp_shard=2))[0]
    assert found.losses == alone.losses
    assert all(torch.equal(found.gradients[name], gradient) for name, gradient in alone.gradients.items())
    assert all(torch.equal(found.updated[name], value) for name, value in alone.updated.items())


def seeded_otherwise(work: Work, axes: Axes) -> Measured | None:
    """torch's generator is another on every rank."""
    torch.manual_seed(torch.distributed.get_rank())
    return measure_rank(work, axes)


def test_torchs_generator_plays_no_part():
    work, axes = dense("model.dropout=0.1", steps=2), Axes(dp_shard=2)
    found, again = (on_ranks(task, 2, work, axes)[0] for task in (measure_rank, seeded_otherwise))
    assert found.losses == again.losses
    assert all(torch.equal(again.updated[name], value) for name, value in found.updated.items())
