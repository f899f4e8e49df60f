"""R54: a poisoned batch is met by the policy of the recipe, with the numbers of a run that never saw what was skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest_e2e import events_of, trace
from spike_bench import BEFORE, SKIPPED, STEPS, built, kept_steps, poisoned, policy, trained

from headway.monitor.summary import summarise
from headway.recipe.schedules import Schedule
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_steps
from headway.rundir.segments import ACCEPTED, ROLLED_BACK, Segment, current_chain, read_segments, write_segment
from headway.store.admissible import choose
from headway.store.manifest import load_manifest
from headway.supervise.spikes import Answer

pytestmark = pytest.mark.e2e

SPIKE, SECOND = 105, 121
"""Steps whose batches are poisoned, as long as nothing is skipped."""
BATCH = 8
"""Sequences."""
FIRST_SKIPPED = (SPIKE - 1 - BEFORE) * BATCH
SKIPS = ({"stage": 0, "first": FIRST_SKIPPED, "count": SKIPPED * BATCH},)
FLOAT32 = ("precision.compute=float32",)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return built(tmp_path_factory.mktemp("spikes") / "bench")


@pytest.fixture(scope="module")
def once(clean, tmp_path_factory):
    """Data in which the batch of one step is poisoned."""
    return poisoned(clean, tmp_path_factory.mktemp("once") / "bench", (SPIKE,))


def begun(bench, where, **options):
    return bench.run(where, every_steps=10, checkpoints={"keep_last": 1}, **options)


def finished(bench, run, **options):
    outcome = bench.go(run, **options)
    assert outcome.state == "complete", outcome
    return run


def last_statistics(run):
    return load_manifest(run.checkpoints / choose(run, current_chain(read_segments(run))).checkpoint).state["spikes"]


def never_saw(bench, where, overrides, skips, layouts=None) -> RunDirectory:
    """A run that left the batches out from its start."""
    run = begun(bench, where, overrides=overrides, layouts=layouts)
    write_segment(run, Segment(1, None, 0, None, "start", "test", 0, {}, skips=skips))
    return finished(bench, run)


@pytest.fixture(scope="module")
def ignorant(once, tmp_path_factory):
    return never_saw(once, tmp_path_factory.mktemp("ignorant") / "run", policy("roll_back"), SKIPS)


@pytest.fixture(scope="module")
def rolled_back(once, tmp_path_factory):
    return finished(once, begun(once, tmp_path_factory.mktemp("rolled") / "run", overrides=policy("roll_back")))


def assert_each_sample_once(run, skips):
    """But for the skipped, the stream without a hole and without a repetition."""
    gaps = {n for skip in skips for n in range(skip["first"], skip["first"] + skip["count"])}
    expected = [n for n in range(STEPS * BATCH + len(gaps)) if n not in gaps]
    assert trained(run) == expected


def test_R54_a_poisoned_batch_is_left_out_as_if_it_had_never_been_there(rolled_back, ignorant):
    run = rolled_back
    _, second = read_segments(run)
    assert (second.parent, second.restored_step, second.skips) == (1, 80, SKIPS), "20 steps before the spike at least"
    assert second.reason == "spike in step 105: back to step 80, 6 batches skipped"
    end = [row for row in read_steps(run, 1) if row["kind"] == "end"][-1]
    assert (end["state"], end["step"], end["spike"]["batch"]["first"]) == ("spike", SPIKE, (SPIKE - 1) * BATCH)
    assert end["spike"]["reading"]["loss"] > 10
    (record,) = second.spikes
    assert (record["action"], record["step"], record["restored"], record["recurrence"]) == (ROLLED_BACK, SPIKE, 80, 0)
    assert record["loss"] == end["spike"]["loss"]
    (event,) = [event for event in events_of(run) if event["kind"] == "spike"]
    assert (event["segment"], event["step"], event["restored"]) == (1, SPIKE, 80)
    assert trace(run) == trace(ignorant), "losses, digests of every state, the final state"
    assert last_statistics(run) == last_statistics(ignorant)
    assert not any("spike" in row for row in kept_steps(ignorant)), "no false alarm"
    assert_each_sample_once(run, SKIPS)


def test_R54_the_roll_back_is_accounted_for(rolled_back):
    ledger = summarise(rolled_back).ledger
    rows = [row for row in read_steps(rolled_back, 1) if row["kind"] == "step" and row["step"] > 80]
    work = {row["step"]: sum(row["split"].get(name, 0) for name in ("productive", "data_stall")) for row in rows}
    left_out = sum(ns for step, ns in work.items() if step >= SPIKE - BEFORE)
    assert left_out <= ledger.categories["skipped"] <= 1.2 * left_out, "never trained again"
    again = sum(work.values()) - left_out
    assert again <= ledger.categories["rolled_back"] <= 1.2 * again
    assert (ledger.committed.steps, ledger.attempted.steps) == (STEPS, STEPS + SPIKE - 80)


def test_R54_without_a_policy_the_step_is_marked_and_called_out(once, tmp_path):
    run = finished(once, begun(once, tmp_path / "run"))
    assert [row["step"] for row in kept_steps(run) if "spike" in row] == [SPIKE]
    assert len(read_segments(run)) == 1
    assert [finding.step for finding in summarise(run).findings if finding.rule == "spike"] == [SPIKE]


def test_R54_a_spike_that_comes_back_lowers_the_rate(clean, tmp_path):
    bench = poisoned(clean, tmp_path / "bench", (SPIKE, SECOND))
    run = finished(bench, begun(bench, tmp_path / "run", overrides=policy("roll_back")))
    third = read_segments(run)[2]
    again = SECOND - SKIPPED
    assert [one["step"] for one in third.spikes] == [SPIKE, again]
    assert (third.parent, third.restored_step, third.spikes[1]["recurrence"]) == (1, 80, 1), "kept for that, keep_last is 1"
    assert third.rates == ({"first": 80, "factor": 0.8},)
    assert third.reason == f"spike in step {again}: back to step 80, 6 batches skipped, rate x 0.8"
    recipe = Schedule(run.spec())
    for row in kept_steps(run):
        factor = 0.8 if row["step"] > 80 else 1.0
        assert row["rate"] == recipe.rate(row["step"] - 1) * factor
    second = {"stage": 0, "first": (SECOND - 1 - BEFORE) * BATCH, "count": SKIPPED * BATCH}
    assert third.skips == (*SKIPS, second)
    assert_each_sample_once(run, third.skips)


def test_L9_L10_skip_update_costs_one_step_on_all_ranks_alike(once, tmp_path):
    run = begun(once, tmp_path / "run", overrides=(*policy("skip_update"), *FLOAT32), layouts={"default": {"dp_shard": 2}})
    finished(once, run)
    assert len(read_segments(run)) == 1
    rows = kept_steps(run)
    assert [row["step"] for row in rows if not row["applied"]] == [SPIKE]
    before, at = (next(row for row in rows if row["step"] == step) for step in (SPIKE - 1, SPIKE))
    assert at["digest"] == before["digest"], "weights, moments and counts are those of the step before"
    assert at["spike"]["loss"] > 10
    newest = choose(run, current_chain(read_segments(run))).checkpoint
    assert load_manifest(run.checkpoints / newest).state["updates"] == STEPS - 1


def test_R54_a_roll_back_on_two_ranks(once, tmp_path):
    layouts, overrides = {"default": {"dp_shard": 2}}, (*policy("roll_back"), *FLOAT32)
    run = finished(once, begun(once, tmp_path / "run", overrides=overrides, layouts=layouts))
    assert [(segment.restored_step, segment.layout["world"]) for segment in read_segments(run)] == [(0, 2), (80, 2)]
    other = never_saw(once, tmp_path / "other", overrides, SKIPS, layouts)
    assert trace(run) == trace(other)
    assert_each_sample_once(run, SKIPS)


def test_R54_a_stop_asks_a_person_and_takes_the_answer(once, ignorant, tmp_path):
    run = begun(once, tmp_path / "run", overrides=policy("stop"))
    outcome = once.go(run)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("stopped", 1, 1)
    assert f"step {SPIKE} is a spike" in outcome.reason
    assert "--spike roll-back or --spike accept" in outcome.reason
    shutil.copytree(run.root, tmp_path / "copy")
    outcome = once.go(run)  # nothing said: the same steps once more
    assert (outcome.state, [s.restored_step for s in read_segments(run)]) == ("stopped", [0, 100])
    outcome = once.go(run, spike=Answer.ACCEPT)
    assert outcome.state == "complete", outcome
    newest = read_segments(run)[-1]
    assert (newest.restored_step, newest.skips, newest.spikes[0]["action"]) == (100, (), ACCEPTED)
    assert len(kept_steps(run)) == STEPS
    back = RunDirectory.open(tmp_path / "copy")
    assert once.go(back, spike=Answer.ROLL_BACK).state == "complete"
    assert trace(back) == trace(ignorant)


OWNER = """
import os, signal, sys
from headway.rundir.layout import RunDirectory
from headway.supervise.supervisor import SuperviseOptions, supervise

root, kind, segment = sys.argv[1:]

def look(record):
    if record["kind"] == kind and record.get("segment", int(segment)) == int(segment):
        os.kill(os.getpid(), signal.SIGKILL)

supervise(RunDirectory.open(root), options=SuperviseOptions(backoff_seconds=0.0, ttl_seconds=2.0), on_record=look)
"""


@pytest.fixture(scope="module")
def near(once, tmp_path_factory):
    """A run that was stopped ten steps before the spike."""
    faults = [{"point": "step.gradients", "action": "terminate", "step": SPIKE - 10}]
    run = begun(once, tmp_path_factory.mktemp("near") / "run", faults=faults, overrides=policy("roll_back"))
    assert once.go(run).state == "stopped"
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "segment"), [("end", 2), ("spike", 2), ("launch", 3)])
def test_R54_F6_an_owner_killed_in_the_middle_of_a_roll_back(once, near, ignorant, tmp_path, kind, segment):
    """Before the trainer's exit, before the segment is written, and right after its trainer was started."""
    shutil.copytree(near.root, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    script = Path(tmp_path / "owner.py")
    script.write_text(OWNER)
    killed = subprocess.run([sys.executable, str(script), str(run.root), kind, str(segment)], capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    finished(once, run, ttl_seconds=2.0)
    segments = read_segments(run)
    assert [s.restored_step for s in segments[:3]] == [0, SPIKE - 10, 80]
    assert len(segments[-1].spikes) == 1, "it was one spike, whoever dealt with it"
    assert segments[-1].skips == SKIPS
    assert trace(run) == trace(ignorant)
    assert_each_sample_once(run, SKIPS)
