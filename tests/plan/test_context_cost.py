"""Staged against always-long, with assigned and with the model's own costs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_cases import facts_of, named, stage_of, with_model, worked_spec

from headway.base.errors import ConfigError
from headway.formulas.flops import Convention, flops_per_token
from headway.plan.laws.context import attention_extra, context_cost, context_section, model_cost, slow_down
from headway.recipe.spec import RateSpec

FLAT = RateSpec(0, "constant", 1.0, 1.0)


@pytest.fixture
def worked(tmp_path):
    return worked_spec(tmp_path)


@pytest.fixture
def long_run(worked):
    """15 T at 8K, then 150 B at 128K: 1 % of the tokens."""
    stages = (stage_of("main", 14_850_000_000_000, 8192, [(0, 16 * 2**20)], FLAT),)
    stages += (stage_of("long", 150_000_000_000, 131_072, [(0, 16 * 2**20)], FLAT),)
    return replace(worked, stages=stages)


def test_assigned_costs_of_the_lesson():
    """a = 1, b L = .1 and 1.6, shares .99 and .01: 1.115 staged, 2.6 always long."""
    cost = context_cost(1.0, [(8_192, 0.99, 0.1), (131_072, 0.01, 1.6)])
    assert cost.staged == pytest.approx(1.115, abs=1e-12)
    assert cost.always_long == pytest.approx(2.6, abs=1e-12)
    assert cost.slower == pytest.approx(2.6 / 1.115)
    assert sum(cost.compute_share(part) for part in cost.parts) == pytest.approx(1)
    assert cost.compute_share(cost.parts[1]) == pytest.approx(0.026 / 1.115)


@given(st.floats(0.01, 100), st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 50)), min_size=1, max_size=6))
def test_a_stage_never_costs_more_than_always_long(base, parts):
    total = sum(share for share, _ in parts)
    slopes = sorted(slope for _, slope in parts)
    cost = context_cost(base, [(2**i, share / total, slopes[i]) for i, (share, _) in enumerate(parts)])
    assert base - 1e-9 <= cost.staged <= cost.always_long * (1 + 1e-12)


@pytest.mark.parametrize("shares", [(0.99, 0.02), (1.2, -0.2), ()])
def test_shares_that_do_not_sum_to_one_are_refused(shares):
    with pytest.raises(ConfigError, match="sum to 1"):
        context_cost(1.0, [(8192 * (i + 1), share, 0.1) for i, share in enumerate(shares)])


def test_causal_attention_over_6n(reference, worked):
    golden = json.loads((reference / "plan/golden_beacon.json").read_text())["corrected"]
    assert attention_extra(worked.model, 8_192) == pytest.approx(golden["causal_attention_extra_at_8k"], abs=1e-4)
    assert attention_extra(worked.model, 131_072) == pytest.approx(golden["causal_attention_extra_at_128k"], abs=5e-3)


def test_sixteen_times_the_attention_and_only_that(worked):
    known = named(context_section(facts_of(worked)).quantities)
    assert known["attention_128k_over_8k"].value == pytest.approx(16)
    assert known["compute_128k_over_8k"].value == pytest.approx(slow_down(worked.model, 131_072, 8_192))
    assert 1.5 < known["compute_128k_over_8k"].value < 1.7  # not "several-fold": matrices stay what they are
    assert slow_down(worked.model, 131_072, 8_192, Convention.FULL) > 2


@pytest.mark.parametrize("convention", [Convention.CAUSAL, Convention.FULL])
def test_a_and_b_rebuild_the_models_own_flops(worked, convention):
    cost = model_cost(worked.model, {8_192: 0.9, 131_072: 0.1}, convention)
    for part in cost.parts:
        assert part.each == pytest.approx(flops_per_token(worked.model, part.length, convention))
    assert cost.staged == pytest.approx(sum(p.share * flops_per_token(worked.model, p.length, convention) for p in cost.parts))


def test_shares_of_compute_of_a_staged_run(long_run):
    facts = facts_of(long_run)
    section = context_section(facts)
    known = named(section.quantities)
    short, long = section.tables[0].rows
    assert (short[0], long[0]) == (8_192, 131_072)
    assert long[2] == pytest.approx(0.01, rel=1e-3)
    assert long[5] > 1.5 * long[2]
    assert short[5] + long[5] == pytest.approx(1)
    assert known["always_long_over_staged"].value == pytest.approx(long[3] / known["context_flops_per_token"].value)
    assert known["context_flops_per_token"].value == pytest.approx(
        facts.total_flops(Convention.CAUSAL).value / facts.tokens.value
    )


def test_under_a_window_long_context_costs_next_to_nothing(worked):
    windowed = with_model(worked, window=4_096, full_attention_every=0)
    assert slow_down(windowed.model, 131_072, 8_192) < 1.02
