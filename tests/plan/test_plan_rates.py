"""Where rates come from, in which order, and what stands beside them."""

from __future__ import annotations

import time

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.base.errors import ConfigError
from headway.plan.facts import PlanFacts
from headway.plan.plan import make_plan
from headway.plan.rates import phases_of
from headway.recipe.load import preset_names
from headway.recipe.schedules import Schedule

MEASURED = {"tokens_per_second": 1e6, "low": 0.9e6, "high": 1.1e6}


def test_calibration_then_stated_utilisation_then_prediction_then_nothing():
    spec, chips = draft(*GPT), where(*CHIP)
    stated = where(*CHIP, "accelerator.utilisation=0.4")
    assert make_plan(spec, stated, MEASURED).quantity("rate_from").value == "measured on this machine"
    assert make_plan(spec, stated).quantity("rate_from").value == "assumed: 40 % of the peak (6N)"
    assert make_plan(spec, chips).quantity("rate_from").value == "predicted for this chip and layout"
    unknown = make_plan(spec, where("nodes=1", "processes_per_node=8", CHIP[3]))
    assert unknown.quantity("training_seconds").value is None


def test_a_prediction_is_the_sum_of_its_steps():
    plan = make_plan(draft(*GPT), where(*CHIP))
    facts = PlanFacts(draft(*GPT), where(*CHIP), None)
    by_hand = sum(pace.steps * pace.seconds.number() for pace in facts.paces)
    assert plan.quantity("training_seconds").value == pytest.approx(by_hand)
    low, high = plan.quantity("training_seconds").low, plan.quantity("training_seconds").high
    assert low < by_hand < high
    assert sum(pace.tokens for pace in facts.paces) == plan.quantity("tokens").value
    assert sum(pace.steps for pace in facts.paces) == plan.quantity("steps").value


@pytest.mark.parametrize("name", preset_names())
def test_phases_cover_the_run(name):
    spec = draft(recipe=name)
    phases = phases_of(spec)
    assert sum(phase.steps for phase in phases) == Schedule(spec).total_steps
    assert len({phase.name for phase in phases}) == len(phases)


def test_an_assumed_rate_counts_by_its_convention():
    spec = draft(*GPT)
    rates = {}
    for convention in ("6N", "causal", "full"):
        deployment = where(*CHIP, "accelerator.utilisation=0.4", f"accelerator.utilisation_convention='{convention}'")
        plan = make_plan(spec, deployment)
        rates[convention] = plan.quantity("tokens_per_second").number()
        key = {"6N": "6n"}.get(convention, convention)
        assert plan.quantity(f"mfu_{key}").value == pytest.approx(0.4, rel=1e-6)
    assert rates["full"] < rates["causal"]


def test_the_prediction_stands_beside_an_assumption_and_a_risk_says_when_they_part():
    spec = draft(*GPT)
    predicted = make_plan(spec, where(*CHIP)).quantity("mfu_causal").number()
    near = make_plan(
        spec, where(*CHIP, f"accelerator.utilisation={predicted:.4f}", "accelerator.utilisation_convention='causal'")
    )
    far = make_plan(spec, where(*CHIP, f"accelerator.utilisation={min(0.95, 2.2 * predicted):.4f}"))
    assert near.quantity("predicted_mfu_causal").value == pytest.approx(predicted, rel=1e-6)
    rule = "the assumed utilisation is not what this layout is predicted to reach"
    assert rule not in [risk.rule for risk in near.risks]
    assert rule in [risk.rule for risk in far.risks]


def test_layouts_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="tp"):
        make_plan(draft(*GPT), where(*CHIP[:3], "layouts.default={tp=8, dp_shard=1}", *()))


def test_without_a_layout_the_fastest_that_fits_is_looked_for_and_said():
    plan = make_plan(draft(*GPT), where(*CHIP[:3], "layouts={}"))
    assert any("no layout is stated" in note for note in plan.notes)
    assert plan.quantity("training_seconds").value is not None


def test_layouts_are_per_stage():
    deployment = where(*CHIP, "layouts.anneal={dp_shard=4, cp=2, zero=3}")
    facts = PlanFacts(draft(*GPT), deployment, None)
    assert [facts.layouts[name].cp for name in ("main", "anneal")] == [1, 2]
    by_name = {pace.name: pace.seconds.number() for pace in facts.paces}
    assert by_name["anneal"] != pytest.approx(by_name["main"])


def test_MFU_of_a_prediction_agrees_with_its_step_time():
    plan = make_plan(draft(*GPT), where(*CHIP))
    flops, seconds = plan.quantity("flops_causal").number(), plan.quantity("training_seconds").number()
    assert plan.quantity("mfu_causal").value == pytest.approx(flops / seconds / (8 * 989e12))


def test_figures_of_the_worked_plan():
    """The Beacon plan (docs/sources.md), with the shape's own parameters where the text rounds."""
    plan = preset("beacon")
    assert plan.quantity("flops_6n").value == pytest.approx(3.6e25, rel=1e-3)
    assert plan.quantity("deployment_flops_per_second").value == pytest.approx(6.48e18, rel=1e-3)
    assert plan.quantity("training_seconds").value / 86_400 == pytest.approx(64.3, abs=0.05)
    assert plan.quantity("step_seconds_main").value == pytest.approx(5.9, abs=0.05)
    assert plan.quantity("steps").value == pytest.approx(1_156_250, rel=1e-3)
    assert plan.quantity("expected_failures").value == pytest.approx(514, abs=0.6)
    assert plan.quantity("lost_to_failures_seconds").value / 86_400 == pytest.approx(7.5, abs=0.01)
    assert plan.quantity("decay_tokens").value == pytest.approx(1.5e12, rel=1e-4)
    assert plan.quantity("decay_share").value == pytest.approx(0.1, rel=1e-3)
    assert plan.quantity("context_stage_tokens").value == pytest.approx(840e9, rel=1e-3)
    assert plan.quantity("annealing_steps").value == pytest.approx(2_500, abs=5)
    padding = next(risk for risk in plan.risks if risk.rule == "the batch does not divide over the replicas")
    assert "1,953 sequences over 128 replicas cost 4.9 % extra; 2,048 sequences cost none: " in padding.number
    assert padding.number.endswith('batch = "16777216" (2,048 x 8,192 tokens)')


@pytest.mark.parametrize("name", ["demo", "beacon", "llama3-405b"])
def test_a_plan_feels_instant(name):
    """Processor time after import, the best of three."""
    preset(name)
    spec, deployment = draft(recipe=name), where(preset=name)

    def seconds() -> float:
        start = time.process_time()
        make_plan(spec, deployment)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.1
