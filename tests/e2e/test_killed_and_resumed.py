"""The heart of the promise: killed anywhere, the run ends in exactly the state of the uninterrupted one."""

from __future__ import annotations

import random

import pytest
import torch
from conftest_e2e import events_of, trace
from safetensors import safe_open

from headway.base.errors import RunError
from headway.base.failpoints import SAVE_POINTS, SNAPSHOT_POINTS, STEP_POINTS
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.store.admissible import choose
from headway.train.loop import hear, save
from headway.train.setup import set_up
from headway.train.stop import StopRequest

pytestmark = pytest.mark.e2e

EVALUATED, LAST = [10, 18, 24], 24  # after 4,096 and 8,192 tokens, and at the end


@pytest.mark.parametrize("point", SNAPSHOT_POINTS)
def test_C1_a_trainer_killed_at_every_point_of_a_snapshot(bench, uninterrupted, tmp_path, point):
    """Before the seal nothing of it counts; after it the writer commits it without its trainer."""
    run = bench.run(tmp_path / "run", faults=[{"point": point, "action": "kill", "step": 8}])
    outcome = bench.go(run)
    assert outcome.state == "complete"
    assert len(read_segments(run)) == 2, "the kill must have happened"
    assert read_segments(run)[1].restored_step == (8 if point == "snapshot.sealed" else 4)
    restored = next(row for row in read_steps(run, 2) if row["kind"] == "restored")
    assert restored["from_memory"] == (point != "snapshot.copied"), "that one was half overwritten, so the storage had to serve"
    assert trace(run) == uninterrupted


@pytest.mark.parametrize("point", SAVE_POINTS)
def test_C1_a_writer_killed_at_every_point_of_a_save(bench, uninterrupted, tmp_path, point):
    """Training goes on, the loss of the save is on record, the next one works with another writer."""
    run = bench.run(tmp_path / "run", faults=[{"point": point, "action": "kill", "step": 8}])
    assert bench.go(run).state == "complete"
    assert len(read_segments(run)) == 1
    rows = read_steps(run, 1)
    failed = [row["step"] for row in rows if row["kind"] == "save_failed"]
    assert failed in ([8], [8, 12]), "steps are so short that it may have had the next one too"
    assert [row["step"] for row in rows if row["kind"] == "save"] == [s for s in (4, 12, 16, 20, 24) if s not in failed]
    assert trace(run) == uninterrupted


@pytest.mark.parametrize("point", SAVE_POINTS)
def test_C1_trainer_and_writer_killed_at_every_point_of_a_save(bench, uninterrupted, tmp_path, point):
    """The writer at its point, the trainer a step later: what counts is the newest that was committed."""
    faults = [{"point": point, "action": "kill", "step": 8}, {"point": "step.begin", "action": "kill", "step": 10}]
    run = bench.run(tmp_path / "run", faults=faults)
    assert bench.go(run).state == "complete"
    assert len(read_segments(run)) == 2
    committed_before = point in ("save.manifest_renamed", "save.committed")
    assert read_segments(run)[1].restored_step == (8 if committed_before else 4)
    assert trace(run) == uninterrupted


def test_killed_at_random_steps_twice(bench, uninterrupted, tmp_path):
    seed = random.randrange(10**6)
    generator = random.Random(seed)
    faults = [
        {"point": generator.choice(STEP_POINTS), "action": "kill", "step": step}
        for step in generator.sample(range(1, LAST + 1), 2)
    ]
    run = bench.run(tmp_path / "run", faults=faults)
    assert bench.go(run).state == "complete", (seed, faults)
    assert len(read_segments(run)) == 3, (seed, faults)
    assert trace(run) == uninterrupted, (seed, faults)


def test_C14_a_complete_run_resumes_to_itself(bench, uninterrupted, tmp_path):
    run = bench.run(tmp_path / "run")
    assert bench.go(run).state == "complete"
    before = {path: path.read_bytes() for path in sorted(run.root.rglob("*")) if path.is_file()}
    again = bench.go(run)
    assert (again.state, again.attempts) == ("complete", 0)
    assert {path: path.read_bytes() for path in sorted(run.root.rglob("*")) if path.is_file()} == before, "nothing is written"
    assert trace(run).final == uninterrupted.final


@pytest.mark.parametrize("point", ["step.gradients", "snapshot.copied"])
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


def kept(run, kind):
    return [row["step"] for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == kind]


@pytest.mark.parametrize("action", ["terminate", "kill"])
@pytest.mark.parametrize("step", [10, LAST])
def test_an_evaluation_that_was_cut_off_is_caught_up(bench, uninterrupted, tmp_path, action, step):
    run = bench.run(tmp_path / "run", faults=[{"point": "evaluation.begin", "action": action, "step": step}])
    first = bench.go(run)
    if action == "terminate":
        assert first.state == "stopped"
        assert kept(run, "evaluation") == [at for at in EVALUATED if at < step]
        assert bench.go(run).state == "complete"
    assert len(read_segments(run)) == 2
    assert kept(run, "evaluation") == EVALUATED
    assert kept(run, "sample") == [0, LAST]
    assert trace(run) == uninterrupted


def test_killed_after_the_last_save_nothing_is_lost_or_doubled(bench, uninterrupted, tmp_path):
    run = bench.run(tmp_path / "run", faults=[{"point": "snapshot.sealed", "action": "kill", "step": LAST}])
    assert bench.go(run).state == "complete"
    assert [s.restored_step for s in read_segments(run)] == [0, LAST]
    assert (kept(run, "evaluation"), kept(run, "sample")) == (EVALUATED, [0, LAST])
    assert trace(run) == uninterrupted


def test_C5_a_trainer_that_was_replaced_deletes_nothing(bench, tmp_path):
    run = bench.run(tmp_path / "run", faults=[{"point": "step.begin", "action": "terminate", "step": 13}])
    assert bench.go(run).state == "stopped"
    old = set_up(run.root, 1, StopRequest())
    before = {path.name for path in run.checkpoints.iterdir()}
    write_segment(run, Segment(2, 1, 13, "g0001-s00000013", "resume", "test", 9, {}))
    old.step = 14  # it has not noticed yet, trains on and saves
    save(old)
    hear(old, old.saver.settle())
    old.close()
    late = "g0001-s00000014"
    assert {path.name for path in run.checkpoints.iterdir()} == before | {late}
    assert choose(run, current_chain(read_segments(run))).checkpoint == "g0001-s00000013", "it came late: no part of the history"
    with pytest.raises(RunError, match="not the newest"):
        set_up(run.root, 1, StopRequest())
    old.close()


def test_F4_a_crash_loop_without_progress_is_stopped_with_its_cause(bench, tmp_path):
    faults = [{"point": point, "action": "raise", "step": 2} for point in STEP_POINTS]
    run = bench.run(tmp_path / "run", faults=faults)
    outcome = bench.go(run, max_fruitless_attempts=3)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("failed", 3, 4)
    assert "drill: fault at" in outcome.reason
    assert any(event["kind"] == "finish" for event in events_of(run))


def test_L9_a_run_that_diverges_stops_with_its_cause_and_keeps_the_last_good_checkpoint(bench, tmp_path):
    diverging = ("optimizer.peak_rate=0.99", "optimizer.weight_decay=10.0", "model.init_std=9.0", "optimizer.clip_norm=1e9")
    run = bench.run(tmp_path / "run", every_steps=1, overrides=diverging)
    outcome = bench.go(run)
    assert (outcome.state, outcome.exit_code) == ("failed", 4)
    assert "not finite" in outcome.reason
    segments = read_segments(run)
    good = segments[-1].restored_step
    assert 0 < good < LAST
    assert [s.restored_step for s in segments] == [0] + [good] * (len(segments) - 1), "no attempt may pass the cause by"
    assert (run.checkpoints / f"g0001-s{good:08d}" / "MANIFEST.json").exists()
    with safe_open(run.checkpoints / f"g0001-s{good:08d}" / "rank00000.safetensors", "pt") as file:
        assert all(bool(torch.isfinite(file.get_tensor(name)).all()) for name in file.keys())  # noqa: SIM118
