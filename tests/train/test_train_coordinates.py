"""The coordinate check passes maximal update parametrisation, and nothing else that looks like it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import headway.model.loss
import headway.optim.groups
from headway.experiment.coordinates import Arm, Row, judge
from headway.recipe import mup
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.roles import Role
from headway.recipe.spec import MupSpec, OptimizerSpec, Spec
from headway.train.coordinates import coordinates

WIDTHS, SEEDS, STEPS = (64, 128, 256), (1, 2, 3, 4), 3


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def proxy() -> Spec:
    return resolve(load_recipe("proxy"), None)


def at(width: int, seed: int, *, standard: bool = False, **optimizer) -> Spec:
    """One layer of the proxy with a base width of 64 and heads of 32."""
    heads, base = width // 32, proxy()
    model = replace(
        base.model, layers=1, width=width, heads=heads, kv_heads=heads // 2, ffn_width=width * 11 // 4,
        mup=None if standard else MupSpec(64, 1, 1.0, 32**0.5),
    )  # fmt: skip
    return replace(base, model=model, seed=seed, optimizer=replace(base.optimizer, **optimizer))


def measured(standard: bool = False, seeds=SEEDS, widths=WIDTHS, **optimizer) -> Arm:
    specs = [at(width, seed, standard=standard, **optimizer) for width in widths for seed in seeds]
    rows = [Row(**row) for spec in specs for row in coordinates(spec, STEPS)]
    return Arm(parametrization="standard" if standard else "mup", rows=tuple(rows))


@cache
def control() -> Arm:
    return measured(standard=True, seeds=(1, 2))


def verdict(arm: Arm):
    return judge({"mup": arm, "standard": control()})


def test_mup_passes_and_the_control_fails():
    found = verdict(measured())
    assert found.passed, found.reason


@pytest.mark.parametrize("optimizer", [{"muon_scale": "spectral", "matrix_rate": 0.05}, {"muon_scale": "rms"}])
def test_muon_passes_by_its_own_rows(optimizer):
    """At larger widths: what embeddings and head do by AdamW at once to all tokens adds up only far above their number."""
    found = verdict(measured(kind="muon", widths=(128, 256, 512), **optimizer))
    assert found.passed, found.reason


def changed(monkeypatch, **fields):
    """Another row for hidden matrices: what the table says, times ``fields`` at factor n."""
    true = mup.rule

    def rule(shape, model, optimizer: OptimizerSpec):
        row, (n, _) = true(shape, model, optimizer), mup.ratios(model)
        if shape.role not in (Role.MATRIX, Role.RESIDUAL):
            return row
        return replace(row, **{name: getattr(row, name) * n**power for name, power in fields.items()})

    monkeypatch.setattr(headway.optim.groups, "rule", rule)


def test_a_rate_that_ignores_the_width_is_seen(monkeypatch):
    changed(monkeypatch, rate=1.0)
    assert not verdict(measured(seeds=(1, 2))).passed


def test_a_rate_that_falls_with_the_root_of_the_width_is_seen(monkeypatch):
    changed(monkeypatch, rate=0.5)
    assert not verdict(measured(seeds=(1, 2))).passed


def test_logits_without_their_multiplier_are_seen(monkeypatch):
    true = mup.multipliers
    spoiled = lambda model: replace(true(model), logits=1.0)  # noqa: E731
    monkeypatch.setattr(headway.model.loss, "multipliers", spoiled)
    assert not verdict(measured(seeds=(1, 2))).passed


def test_an_epsilon_that_ignores_the_width_is_seen_where_it_matters(monkeypatch):
    """As large as gradients: then it must shrink as they do."""
    changed(monkeypatch, epsilon=1.0)
    assert not verdict(measured(seeds=(1, 2), epsilon=1e-3)).passed


def test_the_same_measurement_twice_is_the_same():
    assert coordinates(at(64, 1), 2) == coordinates(at(64, 1), 2)
