"""Tiers, pauses and shrinking from a deployment to what the plan shows of the simulated run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.reference import SURVIVAL_EXAMPLE
from headway.formulas.failures import productive_seconds_of_shrunken_run
from headway.formulas.quantity import Quantity
from headway.plan.failure.checkpoints import Shelf
from headway.plan.failure.faults import FaultClass, Kind, Pauses, SimulatedRun, Tier
from headway.plan.failure.section import FailureFacts, failures_section
from headway.plan.failure.simulate import simulate
from headway.plan.failure.simulation_section import simulated_run, simulation_section
from headway.plan.plan import Section, Table
from headway.plan.show.with_numbers import contradicts
from headway.recipe.load import load_deployment

DAY, HOUR = 86_400.0, 3_600.0
CLUSTER = ("nodes=2048", "processes_per_node=8", "layouts.default={tp=8, pp=16, dp_shard=128}")
STORAGE = ("storage.write_speed=2TB", "checkpoints.permanent_every=8")


def facts(*settings: str, tmp_path: Any = None, useful: float = 20 * DAY) -> Any:
    """What the sections read; ``tmp_path``: the example of the reference page lies under the settings."""
    path = None
    if tmp_path is not None:
        path = tmp_path / "d.toml"
        path.write_text(SURVIVAL_EXAMPLE)
    rate = 1.5e13 / useful
    return SimpleNamespace(
        deployment=load_deployment(path, [*CLUSTER, *settings], runnable=False),
        training_seconds=Quantity("training_seconds", useful, "seconds", ""),
        spent=lambda name, tokens, formula: Quantity(name, tokens / rate, "seconds", formula),
        tokens=Quantity("tokens", 1.5e13, "tokens", ""),
        steps=Quantity("steps", 937_500, "steps", ""),
        tokens_per_second=Quantity("tokens_per_second", rate, "tokens/s", ""),
        main_step=None,
        save_seconds=Quantity("save_seconds", 3.2, "seconds", ""),
        checkpoint_size=Quantity("checkpoint_bytes", 6.4e12, "bytes", ""),
        evaluations=Quantity("evaluations", 0, "times", ""),
        evaluation_seconds=Quantity("evaluation_seconds", 0.0, "seconds", ""),
    )


def run_of(*settings: str, **other: Any) -> SimulatedRun:
    return simulated_run(FailureFacts(facts(*settings, **other)))


def table(section: Section, title: str) -> Table:
    return next(made for made in section.tables if title in made.title)


def quantity(section: Section, name: str) -> Quantity:
    return next(q for q in section.quantities if q.name == name)


def test_the_simulated_run_has_all_that_the_example_states(tmp_path):
    run = run_of(*STORAGE, tmp_path=tmp_path)
    memory, disk, kept, storage = run.tiers
    assert (memory.name, memory.every_seconds, memory.save_seconds, memory.restore_seconds, memory.keep) == (
        "host memory",
        60,
        0.2,
        5,
        2,
    )
    assert memory.survives == {"process": 1, "node": 0, "network": 0, "silent": 0}
    assert disk.survives == {"process": 1, "node": 0, "network": 1, "silent": 0}
    assert (kept.every_seconds, storage.every_seconds, storage.survives) == (8 * 1_800, 1_800, {})
    assert storage.restore_seconds == pytest.approx(3.2)  # as it is written, on top of the restart
    assert run.pauses == (Pauses(what="firmware", every_seconds=30 * DAY, seconds=4 * HOUR),)
    assert run.nodes.shrunken_pace == pytest.approx(1 - 1 / 2048)
    assert (run.nodes.reconfigure_seconds, run.nodes.repair_seconds) == (90, 12 * HOUR)


def test_a_stated_pace_and_the_class_of_domains_are_taken():
    tier = "checkpoints.tiers=[{name='m', every='1min', cost='0s', restore='0s', survives=['domain']}]"
    elastic = ("failures.repair=12h", "failures.elastic={reconfigure='1min', pace=0.9}", "failures.correlated=0.1")
    run = run_of(tier, *elastic, "failures.every=3h", "checkpoints.every=30min")
    assert run.nodes.shrunken_pace == 0.9
    assert run.tiers[0].survives["domain"] == 1
    assert run.tiers[0].survives["process"] == 0


def test_a_tier_that_reaches_behind_a_silent_fault_keeps_that_fault_in_the_run():
    """Found after 4 h: thirty checkpoints at every ten minutes reach 4.8 h back, twenty do not."""
    every = "name='f', every='10min', cost='1s', restore='1s'"
    for keep, survives, reaches in ((30, "'stop', 'silent'", True), (20, "'stop', 'silent'", False), (30, "'stop'", False)):
        tier = f"checkpoints.tiers=[{{{every}, keep={keep}, survives=[{survives}]}}]"
        run = run_of(tier, "failures.every=3h", "checkpoints.every=30min")
        assert any(fault.kind is Kind.SILENT for fault in run.faults) == reaches


def test_the_section_says_which_tier_served_how_many_restores(tmp_path):
    section = simulation_section(facts(*STORAGE, tmp_path=tmp_path), runs=60)
    rows = {row[0]: row for row in table(section, "Restores by tier").rows}
    assert sum(row[4] for row in rows.values()) == pytest.approx(1)
    interruptions = float(section.tables[0].rows[3][4].replace(",", ""))  # as shown, in four digits
    assert sum(row[3] for row in rows.values()) == pytest.approx(interruptions, rel=1e-3)
    assert rows["host memory"][4] == pytest.approx(63 / 419, abs=0.03)  # processes
    assert 0.5 * 35 / 419 < rows["local disk"][4] < 35 / 419  # network, where no node was lost just before
    assert rows["storage, kept for good"][4] < 0.03  # silent corruption only
    assert rows["storage"][4] > 0.7
    assert any(note == "Planned: firmware, 4 h 0 min every 30 days." for note in section.notes)


def test_shrinking_is_held_against_waiting_with_the_formula_beside_it(tmp_path):
    made = facts(*STORAGE, tmp_path=tmp_path)
    section = simulation_section(made, runs=100)
    gain, times = quantity(section, "simulated_gain_of_shrinking"), quantity(section, "simulated_times_shrunk").number()
    earned = quantity(section, "seconds_earned_by_shrinking")
    assert earned.value == pytest.approx(productive_seconds_of_shrunken_run(12 * HOUR, 90, 1 - 1 / 2048))
    assert quantity(section, "gain_of_shrinking_by_formula").value == pytest.approx(times * earned.number())
    assert gain.low < gain.value < gain.high
    # each repair at least; waiting also makes the run longer, so more repairs are waited for
    assert gain.value == pytest.approx(times * earned.number(), rel=0.2)
    waits, shrinks = table(section, "Shrinking against waiting").rows
    assert waits[1] - shrinks[1] == pytest.approx(gain.value)
    assert (waits[3], shrinks[2]) == (0, 0)
    assert [problem for q in section.quantities if (problem := contradicts(q))] == []
    assert quantity(failures_section(made), "seconds_earned_by_shrinking") == earned


def test_435_seconds_of_the_text():
    """R = 600 s, d = 20 s, r = .75."""
    settings = ("failures.every=3h", "failures.repair=600s", "failures.elastic={reconfigure='20s', pace=0.75}")
    section = simulation_section(facts(*settings, "checkpoints.every=30min", useful=5 * DAY), runs=5)
    assert quantity(section, "seconds_earned_by_shrinking").value == 435


def test_a_run_that_is_practically_never_done_is_not_simulated():
    section = simulation_section(facts("failures.every=2min", "checkpoints.every=30min"))
    assert [q.name for q in section.quantities] == ["simulated_unfinished_share"]
    assert quantity(section, "simulated_unfinished_share").value == 1.0
    assert section.tables == ()
    assert "Practically never done" in section.notes[0]
    assert not contradicts(section.quantities[0])


def test_fewer_runs_than_asked_for_are_said():
    section = simulation_section(facts("failures.every=10min", "failures.restart=1min", "checkpoints.every=2min"), runs=5_000)
    assert "runs instead of 5,000" in section.notes[0]


def test_without_any_of_it_nothing_is_added():
    section = simulation_section(facts("failures.every=3h", "checkpoints.every=30min"), runs=5)
    assert not any("shrinking" in q.name for q in section.quantities)
    assert len(table(section, "Restores by tier").rows) in (1, 2)  # the storage, and perhaps the beginning
    closed = failures_section(facts("failures.every=3h", "checkpoints.every=30min"))
    assert not any("--simulate" in note for note in closed.notes)


def test_the_closed_forms_say_what_they_leave_out(tmp_path):
    note = next(note for note in failures_section(facts(*STORAGE, tmp_path=tmp_path)).notes if "--simulate" in note)
    assert "tiers of checkpoints, planned pauses, shrinking" in note


def test_a_tier_slower_than_a_cadence_in_steps_is_named():
    """Intervals in steps are only known as time where the step is."""
    tier = "checkpoints.tiers=[{name='disk', every='5min', cost='1s', restore='1s', survives=['process']}]"
    section = simulation_section(facts(tier, "failures.every=3h", "checkpoints.every_steps=10", useful=5 * DAY), runs=3)
    assert any("disk costs its writes and adds nothing" in note for note in section.notes)


# --- the simulation itself --------------------------------------------------------------------------------------------


def still(**changes: Any) -> SimulatedRun:
    base = {
        "useful_seconds": 20 * HOUR,
        "between_seconds": np.inf,
        "tiers": (Tier(name="t", every_seconds=DAY, save_seconds=30),),
    }
    return SimulatedRun(**(base | changes))


def test_pauses_of_several_kinds_by_hand():
    """Every 6 h for 1 h, every 9 h for 2 h: at 6, 9, 12, 18 and 24 h; at 18 h both are due and the longer one counts."""
    both = (Pauses(every_seconds=6 * HOUR, seconds=HOUR), Pauses(every_seconds=9 * HOUR, seconds=2 * HOUR))
    outcome = simulate(still(useful_seconds=19 * HOUR, pauses=both), runs=2)
    assert outcome.spent["planned"].tolist() == [7 * HOUR] * 2
    assert outcome.spent["writes"].tolist() == [6 * 30] * 2  # the last at the end, after 26 h
    apart = simulate(still(useful_seconds=19 * HOUR, pauses=(both[1], both[0])), runs=2)
    assert apart.wall_seconds.tolist() == outcome.wall_seconds.tolist()


@given(st.permutations([3.0, 1.0, 2.0]))
def test_of_equally_new_checkpoints_the_one_read_fastest_is_taken(restores):
    """All tiers are written together; their order does not matter."""
    tiers = tuple(Tier(name=str(i), every_seconds=10, restore_seconds=seconds) for i, seconds in enumerate(restores))
    shelf, row = Shelf(still(useful_seconds=100, tiers=tiers), 1), np.array([0])
    shelf.written(row, np.zeros((3, 1), dtype=np.int64), np.full((3, 1), 5))
    restored = shelf.restore_from(row, np.ones((3, 1), dtype=bool), np.array([np.inf]))
    assert (restored.seconds[0], restored.tier[0]) == (1.0, restores.index(1.0))


def test_every_interruption_is_one_restore():
    faults = (
        FaultClass(name="process", share=0.7),
        FaultClass(name="silent", share=0.3, kind=Kind.SILENT, detection_seconds=HOUR),
    )
    fast = Tier(name="fast", every_seconds=60, survives={"silent": 0.5})
    slow = Tier(name="slow", every_seconds=1_800, save_seconds=3, keep=2)
    outcome = simulate(still(useful_seconds=5 * DAY, between_seconds=3 * HOUR, faults=faults, tiers=(fast, slow)), runs=50)
    assert outcome.restores.sum(axis=0).tolist() == sum(outcome.stops.values()).tolist()
    assert outcome.restores[2].sum() > 0  # from the beginning: wrong for longer than what is kept
