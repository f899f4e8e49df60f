"""Calibrations from measured runs: what is measured, that the file is believed only unchanged, what carries over and what not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_cases import CHIP, GPT, built, draft, told_run, where

from headway.base.digests import digest_json
from headway.base.errors import ConfigError, RunError
from headway.formulas.flops import Convention, flops_per_token
from headway.plan.calibration import calibration_of_run, load_calibration, stored_deployment, write_calibration
from headway.plan.plan import make_plan
from headway.recipe.deployment import Deployment
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
    assert measured["not_predicted"] == "cpu is no chip of the table"


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


def _anew(content: dict, path: Path) -> Path:
    """Written with a digest of its own, as by somebody who knows how."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    write_calibration(path, rest | {"digest": digest_json(rest)})
    return path


@pytest.mark.parametrize("key", ["measured_on", "measured_on.device", "measured_on.flops_per_token", "stages", "stages.main.low"])
@pytest.mark.parametrize("value", [None, "x", -1.0, [], "absent"])
def test_every_field_that_is_absent_or_of_another_type_is_one_clear_message(tmp_path, measured, key, value):
    *path, last = key.split(".")
    inside = measured
    for part in path:
        inside = inside[part]
    if value == "absent":
        del inside[last]
    elif key == "measured_on.device" and value == "x":
        inside[last] = 5
    else:
        inside[last] = value
    with pytest.raises(ConfigError, match=f"c.json.*{last}(?s:.*)write it anew") as error:
        load_calibration(_anew(measured, tmp_path / "c.json"))
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"measured_over_predicted": 0.0},
        {"save_range": [1.0]},
        {"save_range": [3.0, 4.0]},
        {"stages": {}},
    ],
)
def test_numbers_that_no_run_measures_are_refused(tmp_path, measured, change):
    with pytest.raises(ConfigError, match="holds what no run measures"):
        load_calibration(_anew(measured | change, tmp_path / "c.json"))


def test_numbers_that_are_not_finite_are_refused(tmp_path, measured):
    (tmp_path / "c.json").write_text(json.dumps(measured | {"measured_over_predicted": float("nan")}))
    with pytest.raises(ConfigError, match="not finite"):
        load_calibration(tmp_path / "c.json")


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


def test_a_plan_that_saves_more_bytes_takes_longer_to_save_them(measured):
    """Published plans count 16 bytes, this engine writes 12."""
    there = where("threads=2", "checkpoints.bytes_per_parameter=16", preset="demo")
    plan = make_plan(built("model.layers=8"), there, measured)
    save, size = plan.quantity("save_seconds"), plan.quantity("checkpoint_bytes")
    assert size.number() == 16 * plan.quantity("parameters").number()
    assert save.number() == pytest.approx(size.number() / (1_000_000 / 0.25))
    assert save.inputs["bytes"] is size or save.inputs["bytes"] == size


LIVE = {"tokens_per_second": 1_000.0, "low": 900.0, "high": 1_100.0}


def test_a_live_measurement_is_of_the_length_that_was_timed():
    """As many FLOP/s for the longer stage, in a wider range; both lengths alike: one rate."""
    spec = built("stages.1.sequence=4096", "stages.1.batch=16384", "evaluation.every=100k")
    plan = make_plan(spec, where("accelerator.peak_flops=1T"), LIVE)
    main, anneal = (plan.quantity(f"tokens_per_second_{name}") for name in ("main", "anneal"))
    flops = [flops_per_token(spec.model, stage.sequence_length, Convention.CAUSAL) for stage in spec.stages]
    assert main.number() == 1_000
    assert anneal.number() == pytest.approx(1_000 * flops[0] / flops[1])
    assert anneal.number() < 900
    assert anneal.high / anneal.low > main.high / main.low
    tokens = [stage.sequences * stage.sequence_length for stage in spec.stages]
    assert plan.quantity("training_seconds").number() == pytest.approx(tokens[0] / 1_000 + tokens[1] / anneal.number())
    assert any("not measured, so taken from FLOPs: anneal" in note for note in plan.notes)
    alike = make_plan(built(), where(), LIVE)
    assert alike.quantity("tokens_per_second").number() == 1_000
    assert not alike.notes


def test_the_stage_that_is_timed_is_the_one_that_the_plan_takes_for_it():
    pytest.importorskip("torch")
    from headway.train.calibrate import random_batch

    short = ("stages.0.tokens=100k", "stages.0.ramp=[{from=0, batch=16384}]", "stages.0.rate.warmup=10k")
    spec = built(*short, "stages.1.tokens=1M", "stages.1.sequence=512")
    timed = random_batch(spec, Schedule(spec), 8192).place.stage
    plan = make_plan(spec, where(), LIVE)
    assert timed == 1
    assert plan.quantity("tokens_per_second_anneal").number() == 1_000
    assert plan.quantity("tokens_per_second_main").number() > 1_000


def test_a_ratio_is_taken_phase_by_phase(on_chips):
    """The first phase's small batches fill the chips less; they do not run at the rate of the last."""
    spec = draft(*GPT, "stages.0.ramp=[{from=0, batch='4096'}, {from='500M', batch='524288'}]")
    other = where(*CHIP[:3], "layouts.default={dp_shard=4, tp=2, zero=3}")
    plan, without = make_plan(spec, other, on_chips), make_plan(spec, other)
    ratio = on_chips["measured_over_predicted"]
    for name in ("step_seconds_main_phase_1", "step_seconds_main", "step_seconds_anneal"):
        measured, modelled = plan.quantity(name), without.quantity(name)
        assert measured.number() == pytest.approx(ratio * modelled.number(), rel=1e-6)
        assert measured.high == pytest.approx(ratio * modelled.high, rel=1e-6)
    first, last = (plan.quantity(f"tokens_per_second_{name}").number() for name in ("main_phase_1", "main"))
    assert first < 0.995 * last


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


def test_a_stored_deployment_of_another_version_says_what_cannot_be_read():
    plain = where(preset="demo").resolved() | {"colour": "blue"}
    with pytest.raises(RunError, match="colour"):
        stored_deployment(plain)


def test_stored_durations_are_seconds_and_written_ones_need_their_unit():
    plain = where(preset="demo").resolved()
    assert stored_deployment(plain).failures.restart == plain["failures"]["restart"] == 60.0
    with pytest.raises(ValueError, match="no unit of time"):
        Deployment.model_validate(plain)


def test_paths_are_files(tmp_path, measured):
    with pytest.raises(Exception, match="cannot"):
        load_calibration(Path(tmp_path / "missing.json"))
