"""Calibrations from measured runs: what is measured, that the file is believed only unchanged, what carries over and what not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_cases import CHIP, GPT, built, draft, told_run, where

from headway.base.digests import digest_json
from headway.base.errors import ConfigError
from headway.plan.calibration import calibration_of_run, load_calibration, stored_deployment, write_calibration
from headway.plan.plan import make_plan
from headway.recipe.schedules import Schedule

SECONDS = {"main": 0.5, "anneal": 0.4}


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def here():
    return where("threads=2", preset="demo")


@pytest.fixture
def measured(tmp_path, here) -> dict:
    return calibration_of_run(told_run(tmp_path / "run", built(), SECONDS, here))


def test_medians_by_stage_without_warm_up(measured):
    """The first two steps of each attempt took ten times as long, and show nowhere."""
    main, anneal = measured["stages"]["main"], measured["stages"]["anneal"]
    assert main["step_seconds"] == pytest.approx(0.5, rel=0.03)
    assert anneal["step_seconds"] == pytest.approx(0.4, rel=0.03)
    assert anneal["tokens_per_second"] == pytest.approx(4096 / 0.4, rel=0.03)
    assert anneal["low"] <= anneal["tokens_per_second"] <= anneal["high"] < 1.05 * anneal["tokens_per_second"]
    steps = Schedule(built()).total_steps
    assert main["steps_timed"] + anneal["steps_timed"] == steps - 4, "rolled-back steps count once, warm-up steps never"


def test_saves_and_evaluations(measured):
    assert measured["seconds_per_save"] == pytest.approx(0.25)
    assert measured["seconds_per_evaluation"] == pytest.approx(2.0)
    assert measured["evaluation_tokens_per_second"] == pytest.approx(2000)
    assert measured["measured_on"]["device"] == "cpu"
    assert "measured_over_predicted" not in measured, "nobody predicts a CPU"


def test_the_plan_of_the_same_run_stands_on_it(measured, here):
    plan = make_plan(built(), here, measured)
    schedule = Schedule(built())
    main, anneal = (schedule.stage_steps(stage) for stage in (0, 1))
    rates = {name: timed["tokens_per_second"] for name, timed in measured["stages"].items()}
    spans = [stage.sequences * stage.sequence_length for stage in built().stages]
    expected = spans[0] / rates["main"] + spans[1] / rates["anneal"]
    assert plan.quantity("training_seconds").value == pytest.approx(expected, rel=1e-6)
    assert plan.quantity("training_seconds").low < expected < plan.quantity("training_seconds").high
    assert main > anneal > 0
    assert plan.quantity("save_seconds").value == pytest.approx(0.25)
    assert plan.quantity("evaluation_seconds").value == pytest.approx(2.0)
    assert "measured on demo" in plan.quantity("rate_from").value
    assert plan.quantity("step_seconds_anneal").value == pytest.approx(0.4, rel=0.03)
    assert plan.to_json()["calibration_digest"]


def test_a_file_keeps_its_digest_and_is_refused_once_changed(measured, tmp_path):
    path = tmp_path / "c.json"
    write_calibration(path, measured)
    assert load_calibration(path) == measured
    assert measured["digest"] == digest_json({key: value for key, value in measured.items() if key != "digest"})
    path.write_text(path.read_text().replace('"seconds_per_save": 0.25', '"seconds_per_save": 0.01'))
    with pytest.raises(ConfigError, match="was changed after it was written"):
        load_calibration(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"kind": "plan", "schema_version": 1}', "no json", "null"])
def test_what_is_no_calibration_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_calibration(path)


def test_a_run_that_hardly_ran_has_nothing_to_say(tmp_path, here):
    run = told_run(tmp_path / "run", built(), SECONDS, here, last=6)
    with pytest.raises(ConfigError, match="fewer than 5 steps"):
        calibration_of_run(run)


# --- what carries over


def test_another_model_on_the_same_machine_takes_its_flops_in_a_wide_range(measured, here):
    larger = built("model.layers=8")
    plan = make_plan(larger, here, measured)
    same = make_plan(built(), here, measured)
    rate = plan.quantity("tokens_per_second")
    assert 0.4 < rate.number() / same.quantity("tokens_per_second").number() < 0.8
    assert rate.high / rate.low > 2.5
    assert "FLOP/s of the" in plan.quantity("rate_from").value
    assert any("of another model" in note for note in plan.notes)
    written = 12 * plan.quantity("parameters").number() / (1_000_000 / 0.25)
    assert plan.quantity("save_seconds").value == pytest.approx(written)


def test_a_stage_that_was_not_reached_takes_its_flops(tmp_path, here):
    steps = Schedule(built()).stage_steps(0)
    measured = calibration_of_run(told_run(tmp_path / "run", built(), SECONDS, here, last=steps))
    plan = make_plan(built(), here, measured)
    assert any("not measured, so taken from FLOPs: anneal" in note for note in plan.notes)
    assert plan.quantity("step_seconds_anneal").value == pytest.approx(0.5 * 4096 / 4096, rel=0.4)


@pytest.mark.parametrize("change", ["threads=1", "micro_batch=4096", "accelerator.kind=M7"])
def test_another_machine_or_layout_is_refused_by_name(measured, change):
    key = change.partition("=")[0].removeprefix("accelerator.").replace("kind", "device")
    with pytest.raises(ConfigError, match=key):
        make_plan(built(), where("threads=2", change, preset="demo"), measured)


@pytest.fixture
def on_chips(tmp_path) -> dict:
    """Measured on chips that the model of a step knows, and a quarter slower than it says."""
    spec, deployment = draft(*GPT), where(*CHIP)
    predicted = {name: make_plan(spec, deployment).quantity(f"step_seconds_{name}").number() for name in ("main", "anneal")}
    slower = {name: 1.25 * seconds for name, seconds in predicted.items()}
    built_spec = built(*GPT, tokens=2_000_000_000, vocabulary=50_304)
    return calibration_of_run(told_run(tmp_path / "run", built_spec, slower, deployment, last=300))


def test_the_ratio_to_the_prediction_is_measured(on_chips):
    assert on_chips["measured_over_predicted"] == pytest.approx(1.25, rel=0.02)


def test_on_another_layout_only_the_ratio_carries_over(on_chips):
    other = where(*CHIP[:3], "layouts.default={dp_shard=4, tp=2, zero=3}")
    spec = draft(*GPT)
    plan, without = make_plan(spec, other, on_chips), make_plan(spec, other)
    ratio = plan.quantity("training_seconds").number() / without.quantity("training_seconds").number()
    assert ratio == pytest.approx(on_chips["measured_over_predicted"], rel=0.01)
    assert any("another layout" in note and "is taken over; saves and evaluations are not" in note for note in plan.notes)
    assert "assumed" in plan.quantity("save_seconds").source


def test_on_another_chip_too_and_the_prediction_stays_beside(on_chips):
    other = where("accelerator.kind=A100-SXM-80GB", *CHIP[1:])
    plan = make_plan(draft(*GPT), other, on_chips)
    assert "prediction x 1.25" in plan.quantity("rate_from").value
    assert plan.quantity("training_seconds").number() == pytest.approx(
        1.25 * plan.quantity("predicted_training_seconds").number(), rel=0.03
    )


def test_the_stored_deployment_of_a_run_is_read_back():
    for deployment in (
        where(preset="beacon"),
        where(preset="demo"),
        where(*CHIP, "failures.every=3h", "checkpoints.every=30min"),
    ):
        plain = json.loads(json.dumps(deployment.resolved()))
        assert stored_deployment(plain).resolved() == deployment.resolved()


def test_paths_are_files(tmp_path, measured):
    with pytest.raises(Exception, match="cannot"):
        load_calibration(Path(tmp_path / "missing.json"))
