"""One update: the loss is a sum over the global batch, whatever it was cut into; nothing that is not finite gets through."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.checkpoint.digest import state_digest, tensor_digests
from headway.data.windows import WindowBatch
from headway.recipe.schedules import StepPlace
from headway.recipe.spec import (
    BatchPhase,
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RateSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)
from headway.train.feed import StepBatch
from headway.train.step import train_step
from headway.train.trainee import build_trainee

T, VOCABULARY = 32, 97


def make_spec(compute: str = "float32") -> Spec:
    stage = StageSpec("main", 4096, T, 128, (BatchPhase(0, 8),), RateSpec(0, "constant", 1.0, 1.0), (65_536,), 10_000.0)
    return Spec(
        name="unit",
        seed=3,
        data_seed=3,
        objective={},
        tokenizer=TokenizerSpec("bpe", VOCABULARY, "<|document|>", "t"),
        model=ModelSpec(2, 32, 4, 2, 8, 64, VOCABULARY, 10_000.0, 1e-5, True, True, 0.02),
        sources=(),
        stages=(stage,),
        optimizer=OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(1e-4),
        precision=PrecisionSpec(compute),
        evaluation=EvaluationSpec(10**9, T, (), 0),
        manifest_digest="m",
        recipe_digest="r",
    )


def make_batch(sizes: tuple[int, ...], seed: int = 0) -> StepBatch:
    """The same eight sequences, cut into micro-batches of ``sizes``."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, VOCABULARY, (8, T + 1))
    document = np.sort(generator.integers(0, 3, (8, T)), axis=1).astype(np.int32)
    opens = np.concatenate([np.ones((8, 1), bool), document[:, 1:] != document[:, :-1]], axis=1)
    position = np.arange(T) - np.maximum.accumulate(np.where(opens, np.arange(T), 0), axis=1)
    edges = np.cumsum((0, *sizes))
    assert edges[-1] == 8
    micro = tuple(
        WindowBatch(tokens[a:b, :-1], tokens[a:b, 1:], document[a:b], position[a:b], np.zeros(b - a, np.int64))
        for a, b in itertools.pairwise(edges)
    )
    rows = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))
    return StepBatch(StepPlace(0, 0, 0, 8), micro, 8 * T, rows)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FP32_SUM_ORDER = 2e-6  # additions in another order: a few ulp of the largest terms


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (3, 3, 2), (1,) * 8])
def test_L1_micro_batches_only_split_the_sum(sizes):
    whole, cut = build_trainee(make_spec()), build_trainee(make_spec())
    a, b = train_step(whole, make_batch((8,)), 1e-3), train_step(cut, make_batch(sizes), 1e-3)
    assert a.loss == pytest.approx(b.loss, rel=FP32_SUM_ORDER)
    assert a.z_loss == pytest.approx(b.z_loss, rel=FP32_SUM_ORDER)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=FP32_SUM_ORDER)
    for name, moment in whole.state().items():  # m after one step is the gradient, up to a factor
        if name.startswith("m/"):
            assert torch.allclose(moment, cut.state()[name], rtol=1e-4, atol=1e-9), name


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_R46_the_same_steps_twice_are_bitwise_equal(compute):
    def run() -> list[str]:
        trainee, digests = build_trainee(make_spec(compute)), []
        for step in range(4):
            train_step(trainee, make_batch((4, 4), seed=step), 1e-3)
            digests.append(state_digest(trainee.state()))
        return digests

    first = run()
    torch.manual_seed(12345)
    torch.rand(7)  # torch's global generator has no influence
    np.random.seed(1)
    assert run() == first
    assert len(set(first)) == 4


def test_L9_a_gradient_that_is_not_finite_reaches_nothing():
    trainee = build_trainee(make_spec())
    train_step(trainee, make_batch((8,)), 1e-3)
    before, updates = tensor_digests(trainee.state()), trainee.updates
    gain = dict(trainee.compute.decoder.named_parameters())["norm.weight"]
    kept = gain.detach().clone()
    with torch.no_grad():
        gain[0] = math.inf
    trainee.compute.refresh()
    result = train_step(trainee, make_batch((8,), seed=1), 1e-3)
    assert (result.applied, math.isfinite(result.grad_norm)) == (False, False)
    with torch.no_grad():
        gain.copy_(kept)
    assert tensor_digests(trainee.state()) == before
    assert trainee.updates == updates
    assert all(parameter.grad is None for parameter in trainee.parameters)


def test_weights_learn_and_gains_do_not_decay():
    trainee = build_trainee(make_spec())
    losses = [train_step(trainee, make_batch((8,)), 3e-3).loss for _ in range(40)]
    assert losses[-1] < losses[0] - 1.0
    assert losses[0] == pytest.approx(math.log(VOCABULARY), abs=0.05)  # an untrained model knows nothing


def test_a_trainer_of_one_process_never_imports_torchs_compiler():
    """It takes as long as torch itself, at every restart."""
    code = (
        "import sys, headway.train.loop\n"
        "from headway.train.setup import set_up\n"
        "from test_train_step import build_trainee, make_batch, make_spec, train_step\n"
        "for compute in ('float32', 'bfloat16'):\n"
        "    train_step(build_trainee(make_spec(compute)), make_batch((4, 4)), 1e-3)\n"
        "print({'torch', 'torch._dynamo', 'sympy', 'torch.distributed.tensor'} & set(sys.modules))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert found.stdout == "{'torch'}\n"
