"""How long the devices are held, how often it is saved in that time and what of it stays: one answer each, in every section."""

from __future__ import annotations

import math

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.formulas.failures import Interruptions, wall_seconds_daly
from headway.plan.facts import PlanFacts
from headway.plan.outlook import kept_checkpoints, stored_checkpoints
from headway.plan.plan import make_plan
from headway.recipe.load import preset_names

RAMPED = (*GPT, "stages.0.ramp=[{from=0, batch='65536'}, {from='500M', batch='524288'}]")
HOURLY = ("failures.every=3h", "failures.restart=6min", "failures.detection=4min", "checkpoints.every=2min")
RULE = "checkpoints are far apart for this failure rate"


@pytest.mark.parametrize("name", preset_names())
def test_what_is_paid_for_is_the_wall_time(name):
    """Training is the least of it; saves and evaluations add to it, and failures to both."""
    known = preset(name).known()
    if known["training_seconds"].value is None or "gpu_hours" not in known:
        return
    wall = known["wall_seconds"]
    assert known["gpu_hours"].number() == pytest.approx(known["processes"].number() * wall.number() / 3600)
    assert known["gpu_hours"].high == pytest.approx(known["processes"].number() * wall.high / 3600)
    assert known["training_seconds"].number() < known["predicted_seconds"].number() < wall.number()
    assert wall.inputs["T"].name == "wall_seconds_daly"
    assert wall.number() > wall.inputs["T"].number()


def test_an_assumed_rate_of_failures_is_paid_for_too():
    """deepseek-v3 states no rate: 5 % of its device hours are saves and failures."""
    known = preset("deepseek-v3").known()
    training = known["processes"].number() * known["training_seconds"].number() / 3600
    assert known["gpu_hours"].number() / training > 1.04


def test_without_a_rate_of_failures_it_is_the_predicted_work_by_its_own_name():
    plan = make_plan(draft(), where("price_per_hour=2.0"), {"tokens_per_second": 1_000.0})
    assert "wall_seconds" not in plan.known()
    hours = plan.quantity("gpu_hours")
    assert list(hours.inputs) == ["devices", "predicted_seconds"]
    assert plan.quantity("cost").number() == pytest.approx(2 * plan.quantity("predicted_seconds").number() / 3600)


# --- saves and what stays


def test_saves_by_the_clock_are_counted_over_time_whatever_the_ramp():
    plan = make_plan(draft(*RAMPED), where(*CHIP, *HOURLY))
    saves, training = plan.quantity("checkpoints"), plan.quantity("training_seconds")
    ends = (training.low, training.number(), training.high)
    assert (saves.low, saves.value, saves.high) == tuple(math.ceil(seconds / 120) for seconds in ends)
    by_steps = plan.quantity("steps").number() / plan.quantity("steps_per_checkpoint").number()
    assert by_steps > 1.5 * saves.number(), "steps of a ramp are shorter, so that more of them fit"
    cadence = plan.quantity("steps_per_checkpoint")
    assert cadence.low < cadence.number() < cadence.high
    cost = plan.quantity("save_seconds")
    assert plan.quantity("saving_seconds").high == pytest.approx(saves.high * cost.high)
    assert preset("beacon").quantity("checkpoints").value == 3_086


def test_saves_by_steps_are_counted_over_steps():
    plan = make_plan(draft(*RAMPED), where(*CHIP, "checkpoints.every_steps=70"))
    saves = plan.quantity("checkpoints")
    assert saves.value == math.ceil(plan.quantity("steps").number() / 70)
    assert not saves.is_estimate


def test_by_the_clock_nothing_is_counted_where_no_time_is_known():
    plan = make_plan(draft(), where("checkpoints.every=5min", "storage.capacity=1KiB"))
    for name in ("checkpoints", "steps_per_checkpoint", "stored_checkpoints", "checkpoint_storage"):
        assert plan.quantity(name).value is None
        assert "needs a calibration" in plan.quantity(name).formula


@pytest.mark.parametrize("cadence", [("checkpoints.every=2min",), ("checkpoints.every_steps=10",)])
@pytest.mark.parametrize("permanent", [0, 3])
def test_sections_and_risks_keep_as_many(cadence, permanent):
    sets = (*CHIP, *HOURLY[:3], *cadence, f"checkpoints.permanent_every={permanent}", "checkpoints.keep_last=4")
    facts = PlanFacts(draft(*RAMPED), where(*sets), None)
    kept, stored, size = kept_checkpoints(facts), stored_checkpoints(facts), facts.checkpoint_size.number()
    assert stored.number() == kept.number() + 4
    plan = make_plan(draft(*RAMPED), where(*sets))
    assert plan.quantity("checkpoint_storage").number() == pytest.approx(stored.number() * size)
    if permanent:
        assert plan.quantity("kept_checkpoint_bytes").number() == pytest.approx(kept.number() * size)
        assert kept.number() > 1
    for room, full in ((stored.number() + 0.9, True), (stored.number() + 1.1, False)):
        risks = make_plan(draft(*RAMPED), where(*sets, f"storage.capacity={int(room * size)}")).risks
        assert any(risk.rule == "checkpoints outgrow the storage" for risk in risks) == full


def test_the_risk_of_rare_checkpoints_takes_the_plans_own_symbols():
    """Detection is part of a recovery there too, and the best interval is the one that is shown."""
    plan = make_plan(draft(*RAMPED), where(*CHIP, "failures.every=1h", "failures.detection=4min", "checkpoints.every=30min"))
    useful, save = plan.quantity("training_seconds").number(), plan.quantity("save_seconds").number()
    wall = wall_seconds_daly(useful, Interruptions(3600, 60 + 240, 1_800, save))
    (risk,) = (risk for risk in plan.risks if risk.rule == RULE)
    assert f"{100 * (1 - useful / wall):.0f} % of the wall time is lost" in risk.consequence
    from headway.base.units import format_seconds

    assert f"least is lost at {format_seconds(plan.quantity('best_checkpoint_interval').number())}" in risk.number
