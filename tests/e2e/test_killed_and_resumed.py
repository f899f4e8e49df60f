"""The heart of the promise: killed anywhere, the run ends in exactly the state of the uninterrupted one."""

from __future__ import annotations

import random

import pytest
from conftest_e2e import events_of, trace

from headway.base.failpoints import SAVE_POINTS, STEP_POINTS
from headway.rundir.metrics import read_steps
from headway.rundir.segments import read_segments

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("point", SAVE_POINTS)
def test_C1_killed_at_every_point_of_a_save(bench, uninterrupted, tmp_path, point):
    run = bench.run(tmp_path / "run", faults=[{"point": point, "action": "kill", "step": 8}])
    outcome = bench.go(run)
    assert outcome.state == "complete"
    assert len(read_segments(run)) == 2, "the kill must have happened"
    committed_before = point in ("save.manifest_renamed", "save.committed")
    assert read_segments(run)[1].restored_step == (8 if committed_before else 4)
    assert trace(run) == uninterrupted


def test_killed_at_random_steps_twice(bench, uninterrupted, tmp_path):
    seed = random.randrange(10**6)
    generator = random.Random(seed)
    faults = [
        {"point": generator.choice(STEP_POINTS), "action": "kill", "step": step} for step in generator.sample(range(1, 27), 2)
    ]
    run = bench.run(tmp_path / "run", faults=faults)
    assert bench.go(run).state == "complete", (seed, faults)
    assert len(read_segments(run)) == 3, (seed, faults)
    assert trace(run) == uninterrupted, (seed, faults)


def test_C14_a_complete_run_resumes_to_itself(bench, uninterrupted, tmp_path):
    run = bench.run(tmp_path / "run")
    assert bench.go(run).state == "complete"
    assert bench.go(run).state == "complete"
    assert trace(run).final == uninterrupted.final


@pytest.mark.parametrize("point", ["step.gradients", "save.data_written"])
def test_F5_a_termination_signal_ends_in_a_commit_and_resumes(bench, uninterrupted, tmp_path, point):
    run = bench.run(tmp_path / "run", faults=[{"point": point, "action": "terminate", "step": 8}])
    outcome = bench.go(run)
    assert outcome.state == "stopped"
    end = read_steps(run, 1)[-1]
    assert (end["kind"], end["state"], end["step"]) == ("end", "stopped", 8)
    assert bench.go(run).state == "complete"
    assert read_segments(run)[1].restored_step == 8
    assert trace(run) == uninterrupted


def test_C3_a_full_disk_in_a_save_is_recorded_and_training_goes_on(bench, uninterrupted, tmp_path):
    run = bench.run(tmp_path / "run", faults=[{"point": "save.data_partial", "action": "disk_full", "step": 8}])
    assert bench.go(run).state == "complete"
    rows = read_steps(run, 1)
    failed = [row for row in rows if row["kind"] == "save_failed"]
    assert [row["step"] for row in failed] == [8]
    assert "No space left" in failed[0]["error"]
    assert [row["step"] for row in rows if row["kind"] == "save"][:3] == [4, 12, 16]
    assert trace(run) == uninterrupted


def test_F4_a_crash_loop_without_progress_is_stopped_with_its_cause(bench, tmp_path):
    faults = [{"point": point, "action": "raise", "step": 2} for point in STEP_POINTS]
    run = bench.run(tmp_path / "run", faults=faults)
    outcome = bench.go(run, max_fruitless_attempts=3)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("failed", 3, 4)
    assert "drill: fault at" in outcome.reason
    assert any(event["kind"] == "finish" for event in events_of(run))
