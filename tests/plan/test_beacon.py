"""The Beacon plan (docs/sources.md), figure by figure, through the planner that everybody uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli.describe import describe
from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, make_plan
from headway.plan.published.napkin import three_figures
from headway.recipe.resolve import resolve

DAY, HOUR = 86_400, 3_600


@pytest.fixture(scope="module")
def plan() -> Plan:
    description = describe("beacon", None, None, runnable=False)
    return make_plan(resolve(description.loaded, None), description.deployment)


@pytest.fixture(scope="module")
def known(plan: Plan) -> dict[str, Quantity]:
    return dict(plan.known())


@pytest.fixture(scope="module")
def golden(reference: Path) -> dict[str, Any]:
    return json.loads((reference / "plan" / "golden_beacon.json").read_text())


NAPKIN = {  # golden figure -> quantity, seconds per unit of the figure, relative tolerance (what the text rounds to)
    "flops": ("napkin_flops", 1, 1e-12),
    "cluster_flops_per_s": ("deployment_flops_per_second", 1, 1e-3),
    "days_no_failures": ("napkin_useful_seconds", DAY, 1e-3),
    "tokens_per_parameter": ("napkin_tokens_per_parameter", 1, 1e-12),
    "steps_single_batch": ("napkin_steps", 1, 0),
    "sequences_per_step": ("napkin_sequences_per_step", 1, 0),
    "step_seconds": ("napkin_step_seconds", 1, 5e-3),
    "state_bytes": ("napkin_state_bytes", 1, 1e-12),
    "state_bytes_per_gpu": ("napkin_state_bytes_per_device", 1, 5e-3),
    "weights_bf16_bytes": ("napkin_weight_bytes", 1, 1e-12),
    "checkpoint_write_seconds_at_2TBps": ("napkin_save_seconds", 1, 1e-12),
    "steps_per_checkpoint": ("napkin_steps_per_checkpoint", 1, 0),
    "warmup_steps": ("napkin_warmup_steps", 1, 0),
    "warmup_tokens": ("napkin_warmup_tokens", 1, 0),
    "warmup_hours": ("napkin_warmup_seconds", HOUR, 5e-3),
    "anneal_steps": ("napkin_anneal_steps", 1, 0),
    "expected_failures": ("napkin_failures", 1, 1e-3),
    "lost_days": ("napkin_lost_seconds", DAY, 1e-5),
    "days_with_failures": ("napkin_wall_seconds", DAY, 5e-4),
    "gpu_hours_72_days": ("napkin_device_hours", 1, 1e-2),
}

PLANNED = {  # what the whole plan says in the same place; where it parts from the text, see the tests below
    "flops": ("flops_6n", 1, 1e-5),
    "cluster_flops_per_s": ("deployment_flops_per_second", 1, 1e-3),
    "days_no_failures": ("training_seconds", DAY, 1e-3),
    "tokens_per_parameter": ("tokens_per_parameter", 1, 1e-5),
    "step_seconds": ("step_seconds_main", 1, 5e-3),
    "state_bytes": ("checkpoint_bytes", 1, 0.015),
    "checkpoint_write_seconds_at_2TBps": ("save_seconds", 1, 0.015),
    "steps_per_checkpoint": ("steps_per_checkpoint", 1, 4e-3),
    "warmup_steps": ("warmup_steps", 1, 1e-3),
    "expected_failures": ("expected_failures", 1, 1e-3),
    "lost_days": ("lost_to_failures_seconds", DAY, 1e-3),
}

CORRECTED = {
    "self_consistent_days": ("napkin_wall_seconds_self_consistent", DAY, 1e-5),
    "self_consistent_with_3s_writes_days": ("napkin_wall_seconds_self_consistent_with_saves", DAY, 1e-5),
    "daly_exact_days": ("napkin_wall_seconds_daly", DAY, 1e-5),
    "young_interval_seconds": ("napkin_young_interval", 1, 5e-4),
    "days_at_young_interval": ("napkin_wall_seconds_at_young", DAY, 1e-4),
}


@pytest.mark.parametrize("figure", sorted(NAPKIN))
def test_the_text_from_its_four_inputs(figure: str, known: dict[str, Quantity], golden: dict[str, Any]):
    name, unit, tolerance = NAPKIN[figure]
    assert known[name].number() / unit == pytest.approx(golden["plan"][figure], rel=tolerance)


@pytest.mark.parametrize("figure", sorted(PLANNED))
def test_the_whole_plan_agrees_where_the_text_is_right(figure: str, known: dict[str, Quantity], golden: dict[str, Any]):
    name, unit, tolerance = PLANNED[figure]
    assert known[name].number() / unit == pytest.approx(golden["plan"][figure], rel=tolerance)


@pytest.mark.parametrize("figure", sorted(CORRECTED))
def test_the_corrections(figure: str, known: dict[str, Quantity], golden: dict[str, Any]):
    name, unit, tolerance = CORRECTED[figure]
    assert known[name].number() / unit == pytest.approx(golden["corrected"][figure], rel=tolerance)


def test_every_figure_of_the_text_is_looked_at(golden: dict[str, Any]):
    elsewhere = {"tp", "pp", "cp", "dp", "mixture", "epochs_high_quality_max", "epochs_web_max", "heldout_tokens_per_source"}
    elsewhere |= {"heldout_every_steps", "keep_every_kth_checkpoint", "anneal_tokens", "final_loss_nats_web"}
    elsewhere |= {"spike_skip_batches", "spike_rewind_steps", "recurrence_rate_factor"}
    assert set(golden["plan"]) == set(NAPKIN) | elsewhere


def test_the_chosen_values_stand_in_recipe_and_deployment(golden: dict[str, Any]):
    chosen = golden["plan"]
    description = describe("beacon", None, None, runnable=False)
    recipe, deployment = description.recipe, description.deployment
    layout = deployment.layout("main")
    assert (layout.tp, layout.pp, layout.cp, layout.dp_shard) == tuple(chosen[axis] for axis in ("tp", "pp", "cp", "dp"))
    assert deployment.layout("context-128k").cp == 16
    main = recipe.stages[0]
    assert {name.replace("-", "_"): weight for name, weight in main.mixture.items()} == chosen["mixture"]
    caps = {source.name: source.cap_epochs for source in recipe.data.sources}
    assert caps["web"] == chosen["epochs_web_max"]
    assert caps["math-reasoning"] == caps["code"] == chosen["epochs_high_quality_max"]
    assert recipe.data.held_out == recipe.evaluation.tokens_per_source == chosen["heldout_tokens_per_source"]
    assert recipe.evaluation.every == chosen["heldout_every_steps"] * golden["inputs"]["batch_tokens"]
    assert deployment.checkpoints.permanent_every == chosen["keep_every_kth_checkpoint"]
    assert recipe.stages[-1].tokens == chosen["anneal_tokens"]
    spikes = recipe.interventions.spikes
    assert (spikes.skip_batches, spikes.rewind_steps) == (chosen["spike_skip_batches"], chosen["spike_rewind_steps"])
    assert spikes.recurrence_rate_factor == chosen["recurrence_rate_factor"]
    failures = deployment.failures
    assert failures.every == golden["inputs"]["interruption_every_hours"] * HOUR
    assert failures.restart == golden["inputs"]["restart_minutes"] * 60
    assert deployment.checkpoints.every == golden["inputs"]["checkpoint_every_minutes"] * 60


def test_the_forecast_contains_the_stated_loss(known: dict[str, Quantity], golden: dict[str, Any]):
    loss = known["forecast_loss"]
    assert loss.low is not None
    assert loss.high is not None
    assert loss.low <= golden["plan"]["final_loss_nats_web"] + 0.1
    assert loss.high >= golden["plan"]["final_loss_nats_web"]


def test_the_ramp(plan: Plan, known: dict[str, Quantity], golden: dict[str, Any]):
    ramp = golden["ramp"]
    tables = {table.title: table for section in plan.sections for table in section.tables}
    rows = tables["Ramp in round batches"].rows
    assert [round(row[2]) for row in rows] == ramp["steps"]
    assert [(row[0], row[1]) for row in rows] == [(batch, end - start) for batch, start, end in ramp["phases_tokens"]]
    assert known["napkin_ramp_steps"].value == ramp["total_steps"]
    assert known["steps"].number() == pytest.approx(ramp["total_steps"], rel=1e-4)  # whole sequences


def test_warmup_under_the_ramp(known: dict[str, Quantity], golden: dict[str, Any]):
    wanted = golden["corrected"]["warmup_under_ramp"]
    for name in ("napkin_warmup_under_ramp_tokens", "warmup_tokens"):
        assert known[name].number() == wanted["tokens"]
    for name in ("napkin_warmup_under_ramp_seconds", "warmup_seconds"):
        assert known[name].number() / HOUR == pytest.approx(wanted["hours"], rel=2e-3)


INCONSISTENCIES = {  # a word of the golden line -> the claim that computes it
    "effective time": "effective training time over 90 %",
    "published 54": "every public number met within 20 %",
    "daily checkpoints": "a checkpoint a day makes the run four months long",
    "decay over the last 10 %": "tokens over which the rate falls to zero",
    "context extension": "tokens in all, with the context extension",
    "40 M tokens": "tokens of the annealing",
    "Young's interval": "30 minutes is where write cost and loss per failure balance",
    "do not divide": "sequences of a step over the replicas",
}


@pytest.fixture(scope="module")
def broken(plan: Plan) -> dict[str, tuple]:
    tables = {table.title: table for section in plan.sections for table in section.tables}
    return {row[0]: row for row in tables["What does not agree"].rows}


def test_every_known_inconsistency_is_found(broken: dict[str, tuple], golden: dict[str, Any]):
    lines = golden["inconsistencies_to_report"]
    assert len(lines) == len(INCONSISTENCIES)
    for line in lines:
        claims = [claim for word, claim in INCONSISTENCIES.items() if word in line]
        assert claims, line
        assert all(claim in broken for claim in claims), line


def test_what_follows_is_computed(broken: dict[str, tuple]):
    follows = {claim: row[2] for claim, row in broken.items()}
    remarks = {claim: row[4] for claim, row in broken.items()}
    assert follows["effective training time over 90 %"] == "89.6 %"
    assert remarks["every public number met within 20 %"] == "+33 %"
    assert follows["days of Llama 3 405B's pretraining, from its GPU-hours"] == "78.4 days"
    assert follows["a checkpoint a day makes the run four months long"] == "324 days"
    assert follows["30 minutes is where write cost and loss per failure balance"] == "2 min 30 s"
    assert "2,048" in remarks["sequences of a step over the replicas"]
    assert "4.9 %" in remarks["sequences of a step over the replicas"]
    assert "devices of the layout" not in broken
    assert "shares of the mixture" not in broken


def test_a_napkin_takes_three_figures():
    assert [three_figures(x) for x in (15_998_976, 3_997_696, 8_003_584, 1, 0.012345)] == [16e6, 4e6, 8e6, 1, 0.0123]


def test_no_napkin_without_its_fourth_input():
    description = describe("llama3-405b", None, None, runnable=False)
    made = make_plan(resolve(description.loaded, None), description.deployment)
    assert not any(name.startswith("napkin_") for name in made.known())


def test_a_napkin_recovers_as_the_plan_does():
    """What a failure costs is its detection and its restart, in both."""
    made = []
    for detection in ("0s", "6min"):
        description = describe("beacon", [f"deployment.failures.detection={detection}"], None, runnable=False)
        made.append(make_plan(resolve(description.loaded, None), description.deployment))
    without, found = (plan.quantity("napkin_lost_seconds").number() for plan in made)
    assert found == pytest.approx(without * (15 + 12) / (15 + 6))
    assert found == pytest.approx(made[1].quantity("lost_to_failures_seconds").number(), rel=2e-3)
