"""The verbs as a user types them, on the real engine: exit codes, facts, a second launch, a supervisor that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest_e2e import trace

from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_steps
from headway.rundir.segments import read_segments

pytestmark = pytest.mark.e2e

HEADWAY = [sys.executable, "-m", "headway.cli.main"]


def headway(*arguments: str, cwd, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([*HEADWAY, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def recipe(bench, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "small.toml"
    path.write_text(bench.recipe_text)
    return path


def test_the_whole_story_by_its_verbs(bench, recipe, uninterrupted, tmp_path):
    plan = json.loads(headway("plan", recipe, "--json", cwd=tmp_path).stdout)
    assert plan["kind"] == "plan"
    built = json.loads(headway("data", "build", recipe, "--out", tmp_path / "data", "--json", cwd=tmp_path).stdout)
    assert built
    options = ("--data", tmp_path / "data", "--run", tmp_path / "run", "--set", "deployment.state_digest_every=1")
    options += ("--set", "deployment.checkpoints.every_steps=4", "--set", "deployment.threads=1")
    options += (
        "--set",
        "deployment.checkpoints.when_busy=wait",
    )  # steps are so short that a save may still be under way
    headway("run", recipe, *options, "--drill", "step.updated:kill:14", cwd=tmp_path)
    run = RunDirectory.open(tmp_path / "run")
    assert [s.restored_step for s in read_segments(run)] == [0, 12]
    assert trace(run) == uninterrupted
    status = json.loads(headway("status", tmp_path / "run", "--json", cwd=tmp_path).stdout)
    assert status["state"] == "complete"
    sampled = json.loads(
        headway("sample", tmp_path / "run", "--prompt", "one two", "--tokens", "5", "--json", cwd=tmp_path).stdout
    )
    assert sampled["texts"][0]["prompt"] == "one two"
    headway("report", tmp_path / "run", cwd=tmp_path)
    assert (tmp_path / "run" / "report" / "report.html").stat().st_size > 10_000
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    again = next(line for line in page.splitlines() if line.startswith("headway run"))
    assert "--set deployment.checkpoints.every_steps=4" in again, "the whole command, or it is not the run"
    headway("resume", tmp_path / "run", cwd=tmp_path)
    assert len(read_segments(run)) == 2, "nothing is left to train"


def test_C12_a_named_checkpoint_that_is_missing_is_an_error(bench, tmp_path):
    run = bench.run(tmp_path / "run")
    bench.go(run)
    refused = headway("sample", run.root, "--prompt", "one", "--checkpoint", "g0001-s00000099", cwd=tmp_path, code=4)
    assert "does not exist" in refused.stderr


def test_usage_and_configuration_errors_exit_with_2(recipe, tmp_path):
    misspelt = headway("plan", recipe, "--set", "model.layrs=3", cwd=tmp_path, code=2)
    assert "layers" in misspelt.stderr
    headway("plan", "no-such-recipe", cwd=tmp_path, code=2)
    headway("status", tmp_path, cwd=tmp_path, code=2)
    headway("plan", recipe, "--no-such-option", cwd=tmp_path, code=2)


def wait_for(condition, what: str, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"did not happen in {seconds} s: {what}")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_F6_C9_a_killed_supervisor_leaves_no_orphan_and_a_new_one_takes_over(bench, uninterrupted, tmp_path):
    run = bench.run(tmp_path / "run", faults=[{"point": "step.begin", "action": "hang", "step": 11}])
    first = subprocess.Popen([*HEADWAY, "resume", str(run.root)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: any(row.get("step") == 10 for row in read_steps(run, 1) if row["kind"] == "step"), "step 10")
        second = headway("resume", run.root, cwd=tmp_path, code=3)
        assert "in use" in second.stderr
        assert str(first.pid) in second.stderr
        trainer = next(row["pid"] for row in read_steps(run, 1) if row["kind"] == "start")
        first.send_signal(signal.SIGKILL)
        first.wait()
        os.kill(trainer, signal.SIGCONT)  # the drill stopped it; awake, it must see that its owner is gone
        wait_for(lambda: not alive(trainer), "the trainer ends by itself")
    finally:
        first.kill()
        first.communicate()
    assert bench.go(run, ttl_seconds=3.0).state == "complete"
    assert trace(run) == uninterrupted
