"""What a plan says about failures: every formula side by side, ranges, what is assumed, and the simulated distribution."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from headway.formulas.failures import Interruptions, wall_seconds_daly
from headway.formulas.quantity import Quantity, unknown
from headway.plan.failure.faults import Kind
from headway.plan.failure.section import FailureFacts, checkpoint_interval, failures_section
from headway.plan.failure.simulation_section import ASSUMED_REPAIR_SECONDS, simulated_run, simulation_section
from headway.plan.plan import Section
from headway.plan.show.with_numbers import contradicts
from headway.recipe.load import load_deployment

DAY, HOUR = 86_400.0, 3_600.0
CLUSTER = ("nodes=2048", "processes_per_node=8", "layouts.default={tp=8, pp=16, dp_shard=128}")
HALF_HOURLY = (*CLUSTER, "checkpoints.every=30min")
BEACON = (*HALF_HOURLY, "checkpoints.permanent_every=8")
ONE_MACHINE = ("processes_per_node=8", "layouts.default={dp_shard=8}", "accelerator.kind=H100-SXM")
RATE = ("failures.every=3h", "failures.restart=6min")
USEFUL = 3.6e25 / (16_384 * 9.89e14 * 0.4)
TOKENS = 1.5e13


def facts(*settings: str, save: float = 3.0, spread: float = 1.0, known: bool = True) -> SimpleNamespace:
    """What the sections read of a plan's facts, with the worked plan's figures."""
    rate = TOKENS / USEFUL

    def spent(name: str, tokens: float, formula: str) -> Quantity:
        seconds = tokens / rate
        return Quantity(name, seconds, "seconds", formula, {}, "", seconds / spread, seconds * spread)

    seconds = (
        spent("training_seconds", TOKENS, "tokens / rate") if known else unknown("training_seconds", "seconds", "needs a rate")
    )
    return SimpleNamespace(
        deployment=load_deployment(None, list(settings), runnable=False),
        training_seconds=seconds,
        spent=spent,
        tokens=Quantity("tokens", TOKENS, "tokens", ""),
        steps=Quantity("steps", 937_500, "steps", ""),
        tokens_per_second=Quantity("tokens_per_second", rate, "tokens/s", ""),
        save_seconds=Quantity("save_seconds", save, "seconds", "", {}, "", save / spread, save * spread),
        main_step=None,
        checkpoint_size=Quantity("checkpoint_bytes", 6.4e12, "bytes", ""),
        evaluations=Quantity("evaluations", 0, "times", ""),
        evaluation_seconds=Quantity("evaluation_seconds", 0.0, "seconds", ""),
    )


def quantities(section: Section) -> dict[str, Quantity]:
    """On lines and in tables."""
    return {q.name: q for q in (*section.quantities, *(q for table in section.tables for q in table.quantities()))}


def days(section: Section, name: str) -> float:
    return quantities(section)[name].number() / DAY


def test_every_formula_of_the_worked_plan_stands_side_by_side(reference):
    section = failures_section(facts(*BEACON, *RATE))
    shown = quantities(section)
    assert round(shown["expected_failures"].number()) == 514
    assert days(section, "lost_to_failures_seconds") == pytest.approx(7.49997, abs=5e-5)
    assert days(section, "wall_seconds_first_order") == pytest.approx(71.785, abs=5e-4)
    assert days(section, "wall_seconds_self_consistent") == pytest.approx(72.776, abs=5e-4)
    assert days(section, "wall_seconds_self_consistent_with_saves") == pytest.approx(72.897, abs=5e-4)
    assert days(section, "wall_seconds_daly") == pytest.approx(72.455, abs=5e-4)
    assert days(section, "wall_seconds_safe_restarts") < 72.455
    assert shown["young_checkpoint_interval"].value == pytest.approx(254.6, abs=0.05)
    assert shown["save_seconds_that_fit_the_interval"].value == pytest.approx(150)
    assert shown["effective_training_share"].value == pytest.approx(64.285 / 72.455, abs=1e-4)
    assert shown["interruptions_over_wall_time"].number() > shown["expected_failures"].number()
    assert "c" not in shown["wall_seconds_first_order"].inputs
    intervals = {row[0]: row for row in section.tables[1].rows}
    assert intervals["Young"][4] / DAY == pytest.approx(68.12, abs=5e-3)
    assert intervals["declared"][5] / DAY == pytest.approx(72.455, abs=5e-4)
    assert min(row[5] for row in intervals.values()) == intervals["exact"][5]


def test_no_formula_contradicts_its_value_and_no_name_is_used_twice():
    section = failures_section(facts(*BEACON, *RATE, spread=1.2))
    shown = [*section.quantities, *(q for table in section.tables for q in table.quantities())]
    assert [problem for q in shown if (problem := contradicts(q))] == []
    for name in {q.name for q in shown}:
        assert len({id(q) for q in shown if q.name == name}) == 1, name


def test_the_rate_follows_from_devices():
    stated = quantities(failures_section(facts(*BEACON, "failures.per_device=50676h", "failures.restart=6min")))
    between = stated["mean_time_between_interruptions"]
    assert between.value == pytest.approx(3.093 * HOUR, rel=1e-3)
    assert between.low is None


def test_an_assumed_rate_widens_every_answer():
    section = failures_section(facts(*BEACON, "accelerator.kind=H100-SXM"))
    shown = quantities(section)
    between, wall = shown["mean_time_between_interruptions"], shown["wall_seconds_daly"]
    assert (between.low, between.high) == pytest.approx((20_000 * HOUR / 16_384, 100_000 * HOUR / 16_384))
    assert wall.low < wall.value < wall.high
    assert shown["expected_failures"].high == pytest.approx(USEFUL / between.low)
    assert any("No failure rate is stated" in note for note in section.notes)


def test_small_jobs_are_told_that_the_rate_model_flatters_them():
    small = failures_section(facts(*ONE_MACHINE, "failures.per_device=50676h"))
    assert any("3.65" in note for note in small.notes)
    assert quantities(failures_section(facts(*ONE_MACHINE)))["mean_time_between_interruptions"].low == pytest.approx(
        8_000 * HOUR / 8
    )
    assert not any("interrupted" in note for note in failures_section(facts(*BEACON, *RATE)).notes)


def test_ranges_are_those_of_the_inputs():
    wall = quantities(failures_section(facts(*BEACON, *RATE, spread=1.25)))["wall_seconds_daly"]
    fast = wall_seconds_daly(USEFUL / 1.25, Interruptions(3 * HOUR, 360, 1_800, 3 / 1.25))
    slow = wall_seconds_daly(USEFUL * 1.25, Interruptions(3 * HOUR, 360, 1_800, 3 * 1.25))
    assert (wall.low, wall.high) == pytest.approx((fast, slow))


def test_fast_steps_and_rare_failures_are_the_low_end_and_everything_moves_with_them():
    """Saves every n steps: their interval is as long as the step, so that the number of saves stays."""
    settings = (*CLUSTER, "checkpoints.every_steps=304", "accelerator.kind=H100-SXM", "failures.restart=6min")
    shown = quantities(failures_section(facts(*settings, spread=1.25)))
    wall, between = shown["wall_seconds_daly"], shown["mean_time_between_interruptions"]
    tau = 304 * USEFUL / 937_500
    kind = wall_seconds_daly(USEFUL / 1.25, Interruptions(between.high, 360, tau / 1.25, 3 / 1.25))
    hard = wall_seconds_daly(USEFUL * 1.25, Interruptions(between.low, 360, tau * 1.25, 3 * 1.25))
    assert (wall.low, wall.high) == pytest.approx((kind, hard))
    share = shown["effective_training_share"]
    assert (share.low, share.high) == pytest.approx((USEFUL * 1.25 / hard, USEFUL / 1.25 / kind))
    fits = shown["save_seconds_that_fit_the_interval"]
    assert fits.low == pytest.approx((tau / 1.25) ** 2 / (2 * between.high))
    assert fits.high == pytest.approx((tau * 1.25) ** 2 / (2 * between.low))


def test_evaluations_are_interrupted_like_training():
    made = facts(*BEACON, *RATE)
    made.evaluations = Quantity("evaluations", 100, "times", "")
    made.evaluation_seconds = Quantity("evaluation_seconds", USEFUL / 1000, "seconds", "")
    s = FailureFacts(made)
    assert s.wall.number() == pytest.approx(1.1 * s.daly.number())
    assert s.wall.name == "wall_seconds"
    assert contradicts(s.wall) is None


def test_nothing_is_said_where_nothing_is_known():
    unstated = failures_section(facts())
    assert all(q.value is None and "failures.every" in q.formula for q in unstated.quantities)
    assert "expected_failures" in quantities(unstated)
    assert simulation_section(facts()) is None
    unclear = failures_section(facts(*RATE, known=False))
    assert quantities(unclear)["expected_failures"].value is None
    assert simulation_section(facts(*RATE, known=False)) is None


def test_a_cadence_that_never_ends_is_shown_as_such():
    daily = failures_section(facts(*CLUSTER, *RATE, "checkpoints.every=24h"))
    table = {row[0]: row for row in daily.tables[0].rows}
    assert table["self-consistent"][1] == "never"
    assert days(daily, "wall_seconds_first_order") == pytest.approx(323.6, abs=0.05)
    assert days(daily, "wall_seconds_daly") > 20_000


def test_the_interval_comes_from_time_or_from_steps():
    assert checkpoint_interval(facts("checkpoints.every=30min")).value == 1_800
    assert checkpoint_interval(facts("checkpoints.every_steps=304")).value == pytest.approx(304 * USEFUL / 937_500)


def test_no_interval_is_shorter_than_a_step():
    step = Quantity("step_seconds_main", 5.9, "seconds", "", {}, "", 5.0, 7.0)
    made = facts("checkpoints.every=2s")
    made.main_step = step
    tau = checkpoint_interval(made)
    assert (tau.low, tau.value, tau.high) == (5.0, 5.9, 7.0)
    assert "shorter than a step" in tau.source
    made.main_step = Quantity("step_seconds_main", 1.9, "seconds", "", {}, "", 1.5, 2.5)
    assert (checkpoint_interval(made).value, checkpoint_interval(made).high) == (2.0, 2.5)
    made.main_step = Quantity("step_seconds_main", 1.0, "seconds", "")
    assert (checkpoint_interval(made).value, checkpoint_interval(made).formula) == (2.0, "stated")


def test_a_run_that_never_ends_says_so():
    made = quantities(failures_section(facts(*CLUSTER, "failures.per_device=0.01h", "checkpoints.every=30min")))
    assert made["end_with_failures"].value == "never"
    assert "end_with_failures" not in quantities(failures_section(facts(*CLUSTER, *RATE, "checkpoints.every=24h")))


def test_the_section_is_fast():
    made = facts(*BEACON, *RATE)
    failures_section(made)
    fastest = min(_timed(made) for _ in range(5))
    assert fastest < 0.02  # about 2 ms on a quiet machine


def _timed(made: SimpleNamespace) -> float:
    begin = time.process_time()
    failures_section(made)
    return time.process_time() - begin


def test_shrinking_is_shown_where_a_repair_is_waited_for():
    shown = quantities(failures_section(facts(*BEACON, *RATE, "failures.repair=10min", "failures.detection=30s")))
    earned = shown["seconds_earned_by_shrinking"]
    assert earned.value == pytest.approx((1 - 8 / 16_384) * (600 - 390))
    stands_by = quantities(failures_section(facts(*BEACON, *RATE, "failures.repair=10min", "failures.spares=64")))
    assert "seconds_earned_by_shrinking" not in stands_by


# --- the simulation ---------------------------------------------------------------------------------------------------


def test_the_simulated_worked_plan_is_a_distribution_about_the_formula():
    section = simulation_section(facts(*BEACON, *RATE), runs=200, seed=1)
    finish = quantities(section)["simulated_finish_seconds"]
    assert finish.low < finish.value < finish.high
    assert finish.value / DAY == pytest.approx(72.455, abs=2.0)  # a fault in seventy is silent and costs hours
    assert quantities(section)["simulated_goodput"].value == pytest.approx(0.88, abs=0.02)
    shares = [row[2] for row in section.tables[1].rows]
    assert sum(shares) == pytest.approx(1)
    assert any("148 of 419 is 35.3 %" in note for note in section.notes)


def test_the_simulation_takes_what_the_deployment_says():
    settings = ("failures.spares=64", "failures.correlated=0.1", "failures.detection=60s", "storage.read_speed=1TB")
    made = FailureFacts(facts(*BEACON, *RATE, *settings, "accelerator.domain=64", "checkpoints.keep_last=3"))
    run = simulated_run(made)
    assert (run.nodes.standby, run.nodes.repair_seconds) == (8, ASSUMED_REPAIR_SECONDS)
    classes = {fault.name: fault for fault in run.faults}
    assert (classes["domain"].share, classes["domain"].nodes) == (0.1, 8)
    assert classes["node"].share == pytest.approx(0.9 * 315 / 419)
    assert classes["node"].detection_seconds == 60
    kept, newest = run.tiers
    assert (newest.every_seconds, newest.save_seconds, newest.keep) == (1_800, 3.0, 3)
    assert (kept.every_seconds, kept.save_seconds, kept.keep) == (14_400, 0, None)
    assert newest.restore_seconds == pytest.approx(6.4)


def test_silent_corruption_is_left_out_aloud_where_nothing_reaches_back():
    section = simulation_section(facts(*HALF_HOURLY, *RATE), runs=20)
    assert any("would start over" in note for note in section.notes)
    run = simulated_run(FailureFacts(facts(*HALF_HOURLY, *RATE)))
    assert all(fault.kind is not Kind.SILENT for fault in run.faults)
    assert all(fault.nodes == 0 for fault in run.faults)  # no repair time: replaced within the restart


def test_the_simulation_says_when_runs_never_end():
    section = simulation_section(facts(*CLUSTER, *RATE, "checkpoints.every=24h", "checkpoints.permanent_every=1"), runs=5)
    assert quantities(section)["simulated_unfinished_share"].value == 1
    assert section.tables == ()  # the closed form says so at once
    assert "Not simulated" in section.notes[0]
