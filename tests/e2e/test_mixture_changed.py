"""A mixture changed while a run goes on: on record, exact in every replay, and only where the recipe allows it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conftest_e2e import trace

from headway.cli.main import run_guarded
from headway.data.stream import Stream
from headway.data.transition import MixtureChange
from headway.recipe.schedules import Schedule
from headway.rundir.events import read_events
from headway.rundir.segments import read_segments
from headway.supervise.options import SuperviseOptions
from headway.supervise.supervisor import supervise

pytestmark = pytest.mark.e2e

ADAPTIVE = ("interventions.mixture=adaptive",)
CHANGE = MixtureChange(weights={"numbers": 0.2, "words": 0.8}, reason="words lag behind")
STOPPED = 13


def changed_run(bench, where, *faults: dict):
    """Stopped after a step, gone on under another mixture to its end, through whatever else ``faults`` bring."""
    run = bench.run(where, overrides=ADAPTIVE, faults=[{"point": "step.begin", "action": "terminate", "step": STOPPED}, *faults])
    assert bench.go(run).state == "stopped"
    options = SuperviseOptions(backoff_seconds=0.0, author="ada")
    assert supervise(run, options=options, change=CHANGE).state == "complete"
    return run


@pytest.fixture(scope="module")
def changed(bench, tmp_path_factory):
    return changed_run(bench, tmp_path_factory.mktemp("changed") / "run")


def test_a_change_is_a_segment_with_reason_author_and_what_was_consumed(changed, uninterrupted, capsys):
    first, second = read_segments(changed)
    assert first.transitions == ()
    (record,) = second.transitions
    spec, restored = changed.spec(), second.restored_step
    place = Schedule(spec).place(restored)
    assert (record["stage"], record["first"]) == (place.stage, place.first_sequence)
    assert (record["weights"], record["reason"], record["author"]) == (dict(CHANGE.weights), CHANGE.reason, "ada")
    read = Stream(spec).locate(place.stage, np.arange(place.first_sequence)).source
    counted = {source.name: int((read == k).sum()) * 64 for k, source in enumerate(spec.sources)}
    assert record["consumed"] == counted
    assert second.reason.startswith("mixture: numbers 0.2, words 0.8: words lag behind")
    (event,) = [event for event in read_events(changed) if event["kind"] == "mixture"]
    assert event["consumed"] == counted
    assert trace(changed).losses[:restored] == uninterrupted.losses[:restored]
    assert trace(changed).losses[restored:] != uninterrupted.losses[restored:]
    for verb in (
        ["data", "mixture", str(changed.root)],
        ["data", "show", str(changed.root), "15"],
        ["status", str(changed.root)],
    ):
        assert run_guarded(verb) in (0, 1)
        assert "words 0.8" in capsys.readouterr().out, verb


@pytest.mark.parametrize("step", [15, 20])
def test_D6_a_crash_after_the_change_replays_it_exactly(bench, changed, tmp_path, step):
    """15: before any checkpoint was written under the record."""
    run = changed_run(bench, tmp_path / "run", {"point": "step.gradients", "action": "kill", "step": step})
    segments = read_segments(run)
    assert len(segments) == 3
    assert segments[2].transitions == segments[1].transitions
    assert trace(run) == trace(changed)


def test_a_recipe_that_does_not_allow_it_is_not_touched(bench, tmp_path, capsys):
    run = bench.run(tmp_path / "run", faults=[{"point": "step.begin", "action": "terminate", "step": STOPPED}])
    assert bench.go(run).state == "stopped"
    before = (len(read_segments(run)), len(read_events(run)))
    assert run_guarded(["resume", str(run.root), "--mixture", "numbers=1,words=3", "--reason", "why not"]) == 2
    assert "this run's mixture is fixed" in capsys.readouterr().err
    assert (len(read_segments(run)), len(read_events(run))) == before


def test_the_command_line_changes_it(bench, tmp_path, capsys):
    run = bench.run(
        tmp_path / "run", overrides=ADAPTIVE, faults=[{"point": "step.begin", "action": "terminate", "step": STOPPED}]
    )
    assert bench.go(run).state == "stopped"
    for wrong in (["--mixture", "numbers=1,wods=3", "--reason", "r"], ["--mixture", "numbers=1"], ["--reason", "r"]):
        assert run_guarded(["resume", str(run.root), *wrong]) == 2
    assert len(read_segments(run)) == 1
    assert "did you mean words?" in capsys.readouterr().err
    assert run_guarded(["resume", str(run.root), "--mixture", "numbers=1,words=3", "--reason", "more words"]) == 0
    assert [dataclasses.asdict(one)["weights"] for one in Stream.of_segment(run.spec(), read_segments(run)[-1]).transitions] == [
        {"numbers": 1.0, "words": 3.0}
    ]
    assert "mixture of stage main" in capsys.readouterr().out
