"""Bands of rate and batch: the published laws to the last digit, and the recipe against them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_cases import demo_facts, facts_of, named, with_model, worked_spec

from headway.formulas.flops import Convention, attention_flops_per_token
from headway.formulas.parameters import count_parameters
from headway.plan.laws.hyperparameters import (
    critical_batch_tokens,
    deepseek_batch_tokens,
    deepseek_rate,
    hyperparameters_section,
    outside_bands,
    step_law_batch_tokens,
    step_law_rate,
    trade,
)
from headway.recipe.spec import BatchPhase

SIZES = {"1B": 1e9, "3B": 3e9, "7B": 7e9, "67B": 67e9, "400B": 400e9}
TOKENS = {"20B": 20e9, "2T": 2e12, "6.4T": 6.4e12, "11.2T": 11.2e12, "15T": 15e12}


@pytest.fixture
def worked(tmp_path):
    return worked_spec(tmp_path)


def with_peak(spec, rate: float):
    return replace(spec, optimizer=replace(spec.optimizer, peak_rate=rate))


def test_laws_as_published(reference):
    golden = json.loads((reference / "plan/hparam_golden.json").read_text())
    entries = {key: entry for key, entry in golden.items() if "deepseek_lr" in entry}
    assert len(entries) == 6
    for key, entry in entries.items():
        size, tokens = key.split("/")
        n, d = SIZES[size], TOKENS[tokens]
        assert 6 * n * d == pytest.approx(entry["C"], rel=1e-12)
        assert deepseek_rate(entry["C"]) == pytest.approx(entry["deepseek_lr"], rel=1e-12)
        assert deepseek_batch_tokens(entry["C"]) == pytest.approx(entry["deepseek_B_tokens"], rel=1e-12)
        assert step_law_rate(n, d) == pytest.approx(entry["step_lr"], rel=1e-12)
        assert step_law_batch_tokens(d) == pytest.approx(entry["step_B_tokens"], rel=1e-12)


def test_critical_batch_as_published(reference):
    golden = json.loads((reference / "plan/hparam_golden.json").read_text())["kaplan_Bcrit(L)"]
    assert len(golden) == 4
    for loss, tokens in golden.items():
        assert critical_batch_tokens(float(loss)) == pytest.approx(tokens, rel=1e-12)


@given(st.floats(1e3, 1e9), st.floats(1e3, 1e9))
def test_steps_trade_against_tokens(batch, critical):
    of = trade(batch, critical)
    assert (of.steps - 1) * (of.examples - 1) == pytest.approx(1)
    assert 0 < of.efficiency < 1
    at = trade(critical, critical)
    assert (at.steps, at.examples, at.efficiency) == (2, 2, 0.5)


def test_a_band_is_never_one_number(worked):
    """The worked plan: 1.06e-4 to 1.99e-4 and 19.4 to 66.8 M tokens (golden 400B/15T); its own 8e-5 and 16 M below both."""
    known = named(hyperparameters_section(facts_of(worked)).quantities)
    rate, batch = known["peak_rate_band"], known["batch_band"]
    assert isinstance(rate.value, str)
    assert isinstance(batch.value, str)
    assert not rate.is_estimate
    assert not batch.is_estimate
    rates, batches = (known[f"{name}_beyond_band"].inputs for name in ("peak_rate", "batch"))
    assert (rates["low"], rates["high"]) == (pytest.approx(0.00010608262889409143), pytest.approx(0.00019922245990398776))
    assert (batches["low"], batches["high"]) == (pytest.approx(19363154.13197852), pytest.approx(66811219.5738279))
    assert known["peak_rate_beyond_band"].value == pytest.approx(0.00010608262889409143 / 8e-5)
    assert known["main_batch"].value == 16_000_000
    assert known["batch_beyond_band"].value == pytest.approx(19363154.13 / 16e6)
    critical = known["critical_batch"]
    assert critical.low < critical.value < critical.high
    assert critical.value == pytest.approx(critical_batch_tokens(critical.inputs["L"].value))


def test_without_a_name_the_laws_get_their_own_n_and_c(worked):
    """Non-embedding parameters, and non-embedding FLOPs with the full square of scores."""
    spec = with_model(worked, nominal_parameters=None)
    known = named(hyperparameters_section(facts_of(spec)).quantities)
    rates = known["peak_rate_band"].inputs
    n = count_parameters(spec.model).non_embedding
    c = (6 * n + attention_flops_per_token(spec.model, 8000, Convention.FULL)) * 15e12
    assert rates["Step Law"].value == pytest.approx(step_law_rate(n, 15e12))
    assert rates["DeepSeek LLM"].value == pytest.approx(deepseek_rate(c))


def test_the_main_batch_is_the_one_that_trains_most_tokens(worked):
    """Ten trillion tokens at 8 M against five at 16 M."""
    stage = worked.stages[0]
    small, large = 10**13 // 8_000_000 * 1_000, 5 * 10**12 // 16_000_000 * 2_000
    phases = (BatchPhase(0, 1_000), BatchPhase(small, 2_000))
    facts = facts_of(replace(worked, stages=(replace(stage, phases=phases, sequences=small + large),)))
    assert named(hyperparameters_section(facts).quantities)["main_batch"].value == 8_000_000


@pytest.mark.parametrize(("peak", "side"), [(8e-5, None), (5e-5, "below"), (1.5e-4, None), (3.9e-4, None), (4.1e-4, "above")])
def test_a_rate_beyond_the_band_by_a_factor_is_a_risk(worked, peak, side):
    risks = [risk for risk in outside_bands(facts_of(with_peak(worked, peak))) if "peak rate" in risk.rule]
    assert [side in risk.rule for risk in risks] == ([True] if side else [])


def test_tiny_runs_are_not_judged():
    facts = demo_facts()
    assert list(outside_bands(facts_of(with_peak(facts.spec, 1.0), cluster=False))) == []
    known = named(hyperparameters_section(facts).quantities)
    assert known["critical_batch"].value is None
