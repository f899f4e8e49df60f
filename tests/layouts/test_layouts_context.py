"""Context parallelism gives the run of one process: rows in chunks, whatever looks along them, and planted faults in that.

P5: neither the loss nor a gradient is scaled by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from layout_cases import described, failures, reference

from headway.base.errors import ConfigError, RunError
from headway.evaluate.held_out import HeldOut, held_out_loss
from headway.evaluate.sample import greedy
from headway.model import context, objective
from headway.model.columns import Columns
from headway.model.context import Visible
from headway.model.objective import TrainingSums, training_sums
from headway.model.ranks import Ranks
from headway.parallel import context_parallel
from headway.parallel.context_parallel import BalancedChunks, length_step, refuse_length
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ranks_of
from headway.recipe.spec import BatchPhase, LatentSpec, PrecisionSpec, Spec, YarnSpec
from headway.train.prove.batches import RandomFeed
from headway.train.prove.compare import BFLOAT16, compare
from headway.train.prove.miniature import LENGTH
from headway.train.prove.rank import Measured, Work, measure_rank
from headway.train.trainee import build_trainee

pytestmark = pytest.mark.layouts

HEADS = ("model.kv_heads=4",)
STEPS = 2


def changed(preset: str = "proxy", **model: object) -> Spec:
    spec = described(preset, HEADS if preset == "proxy" else ())
    return replace(spec, model=replace(spec.model, **model))


def yarn() -> Spec:
    spec = changed(bias="qkv")
    stages = tuple(replace(stage, yarn=YarnSpec(4.0, 8)) for stage in spec.stages)
    return replace(spec, stages=stages)


LATENT = {"latent": LatentSpec(24, 16, 8, 8, 12), "qk_norm": False}
CASES = {
    "windows": changed(window=7, full_attention_every=2),
    "latent attention and two further tokens": changed(**LATENT, mtp_layers=2),
    "soft caps": changed(attention_softcap=1.0, logit_softcap=2.0, window=12),
    "dropout": changed(dropout=0.3),
    "YaRN": yarn(),
    "learned positions": changed("gpt2-124m", dropout=0.0, bias="norm"),
}
LAYOUTS = {
    "cp2": {"cp": 2},
    "cp4": {"cp": 4},
    "cp2 x fsdp2": {"cp": 2, "dp_shard": 2},
    "cp2 x tp2": {"cp": 2, "tp": 2},
}


def work_of(spec: Spec, *, steps: int = STEPS) -> Work:
    return Work(spec, micro_sequences=3, steps=steps)


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_P5_dense_packed_documents(prove, axes):
    assert failures(prove(work_of(changed(), steps=8), **axes)) == []


@pytest.mark.parametrize("layout", ["cp4", "cp2 x tp2"])
@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_P5_what_looks_along_a_row(prove, spec, layout):
    assert failures(prove(work_of(spec), **LAYOUTS[layout])) == []


def test_bfloat16(prove):
    spec = replace(changed(), precision=PrecisionSpec("bfloat16"))
    assert failures(prove(work_of(spec), wider=BFLOAT16, cp=2)) == []


def test_replicas_that_do_not_divide_the_batch(prove):
    spec = changed(mtp_layers=1, dropout=0.1)
    stage = replace(spec.stages[0], phases=(BatchPhase(0, 11),), sequences=64 * 11, tokens=64 * 11 * LENGTH)
    assert failures(prove(work_of(replace(spec, stages=(stage,))), cp=2, dp_shard=2)) == []


def test_three_axes(prove):
    assert failures(prove(work_of(CASES["windows"]), cp=2, dp_shard=2, tp=2)) == []


@pytest.mark.parametrize("axes", [{"tp": 2}, {"dp_shard": 2}], ids=str)
def test_dropout_drops_the_same_values(prove, axes):
    assert failures(prove(work_of(CASES["dropout"]), **axes)) == []


# --- evaluation and sums


ODD = 27
"""Tokens of a row, which no layout here divides."""


@dataclass(frozen=True)
class Rows:
    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray


def batches(spec: Spec) -> list[Rows]:
    """The same rows whole, and cut to an odd length."""
    whole = RandomFeed(spec, 12).fetch(0).micro_batches[0]
    kinds = (whole.tokens_BT, whole.targets_BT, whole.document_BT, whole.position_BT)
    return [Rows(*kinds), Rows(*(np.ascontiguousarray(kind[:, :ODD]) for kind in kinds))]


def held_out(spec: Spec, axes: Axes | None) -> HeldOut:
    trainee = build_trainee(spec, None if axes is None else Mesh(axes))
    return held_out_loss(trainee.compute, batches(spec), spec.stages[0].rope)


@pytest.mark.parametrize("axes", [{"cp": 2}, {"cp": 2, "tp": 2}, {"tp": 2}], ids=str)
def test_L2_held_out_loss_is_the_same_on_every_rank(axes):
    spec, layout = CASES["windows"], Axes(**axes)
    expected = held_out(spec, None)
    for found in on_ranks(held_out, layout.world, spec, layout):
        assert found.targets == expected.targets == 12 * (LENGTH + ODD)
        assert found.nll_sum == pytest.approx(expected.nll_sum, rel=1e-6)


PROMPTS = [[7, 3, 200, 11, 5], [1], [9, 9, 9, 42, 17, 30, 2, 8]]


def sampled(spec: Spec, axes: Axes | None) -> list[list[int]]:
    trainee = build_trainee(spec, None if axes is None else Mesh(axes))
    return greedy(trainee.compute, PROMPTS, 5, spec.stages[0].rope)


@pytest.mark.parametrize("axes", [{"cp": 2}, {"cp": 2, "tp": 2}, {"tp": 2}], ids=str)
def test_continuations_of_prompts_are_the_same_on_every_rank(axes):
    spec, layout = CASES["windows"], Axes(**axes)
    expected = sampled(spec, None)
    assert len({tuple(ids) for ids in expected}) == len(PROMPTS)  # the model says something of its own to each
    assert on_ranks(sampled, layout.world, spec, layout) == [expected] * layout.world


def row_sum_on_rank(axes: Axes) -> tuple[list[int], int]:
    """Own columns of a row of 8 tokens, and their squares' sum over the row."""
    ranks = ranks_of(Mesh(axes))
    own_1t = ranks.own(torch.arange(8)[None])
    return own_1t[0].tolist(), int(ranks.row_sum((own_1t**2).sum()))


@pytest.mark.parametrize("axes", [{"cp": 2}, {"cp": 2, "tp": 2}, {"tp": 2}], ids=str)
def test_a_sum_over_a_row(axes):
    answers = on_ranks(row_sum_on_rank, Axes(**axes).world, Axes(**axes))
    assert sorted(column for columns, _ in answers for column in columns) == list(range(8))
    assert {value for _, value in answers} == {sum(column**2 for column in range(8))}


# --- what divides


def test_rows_that_do_not_divide_are_refused():
    assert [length_step(cp, tp) for cp, tp in ((1, 1), (1, 3), (2, 1), (2, 2), (2, 4), (3, 2), (4, 3))] == [1, 3, 4, 4, 8, 6, 24]
    refuse_length(24, 2, 3)
    with pytest.raises(ConfigError, match="rows of 22 tokens under cp 2 x tp 3") as error:
        refuse_length(22, 2, 3)
    assert "multiple of 12" in str(error.value)
    assert "12 or 24 tokens" in str(error.value)


def test_a_rank_refuses_them_too():
    spec = changed()
    stage = replace(spec.stages[0], sequence_length=30, tokens=64 * 12 * 30)
    with pytest.raises(RunError, match="rows of 30 tokens under cp 2"):
        on_ranks(measure_rank, 2, work_of(replace(spec, stages=(stage,))), Axes(cp=2))


# --- planted faults


def document_starts_of_the_token_before(start_BT: torch.Tensor, *rest: Any) -> Visible:
    shifted_BT = torch.cat([start_BT[:, :1], start_BT[:, :-1]], 1)
    return ORIGINAL_FULL(shifted_BT, *rest)


def neighbouring_chunks(self: BalancedChunks, length: int) -> Columns:
    count = length // self.count
    return Columns.of(length, range(self.index * count, (self.index + 1) * count))


def columns_on_the_rank(self: Ranks, length: int) -> Columns:
    return Columns.whole(self.chunks.columns(length).count)


def gradients_of_own_queries_alone(ctx: Any, grad_BT: torch.Tensor) -> tuple[torch.Tensor, None]:
    return context_parallel._by_rank(grad_BT, ctx.group.size())[dist.get_rank(ctx.group)], None


def a_mean_over_ranks(*arguments: Any) -> TrainingSums:
    sums = training_sums(*arguments)
    return replace(sums, objective_sum=sums.objective_sum / 2)


ORIGINAL_FULL = context._full
FAULTS = {
    "document masks shifted by a column": (context, "_full", document_starts_of_the_token_before),
    "keys left in the order of ranks": (context_parallel, "_in_order", lambda parts_RBs: torch.cat([*parts_RBs], 1)),
    "gradients of keys dealt in the order of the row": (
        context_parallel,
        "_by_rank",
        lambda x_BT, ranks: torch.stack(x_BT.chunk(ranks, 1)),
    ),
    "gradients of keys not summed": (context_parallel._Whole, "backward", staticmethod(gradients_of_own_queries_alone)),
    "chunks taken in the order of ranks": (BalancedChunks, "columns", neighbouring_chunks),
    "dropout by the place on the rank": (Ranks, "own_columns", columns_on_the_rank),
    "gradients divided by the ranks": (objective, "training_sums", a_mean_over_ranks),
}


def measure_with(fault: str, work: Work, axes: Axes) -> Measured | None:
    owner, name, wrong = FAULTS[fault]
    with mock.patch.object(owner, name, wrong):
        return measure_rank(work, axes)


@pytest.mark.parametrize("fault", FAULTS)
def test_P5_a_planted_fault_is_caught(fault):
    work = work_of(CASES["dropout"], steps=1)
    findings = compare(on_ranks(measure_with, 2, fault, work, Axes(cp=2))[0], reference(work))
    assert "gradients" in {finding.what for finding in findings if not finding.holds}


def test_without_a_fault_that_run_is_right(prove):
    assert failures(prove(work_of(CASES["dropout"], steps=1), cp=2)) == []
