"""Trials of a sweep: the same training as a run's, a record each, nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from headway.base.files import read_json, write_json
from headway.rundir.metrics import read_chain_rows
from headway.rundir.processes import session_members
from headway.rundir.segments import current_chain, read_segments
from headway.train.trials import run_trials

pytestmark = pytest.mark.e2e


def plan_of(bench, root, trials: dict[str, tuple[str, ...]]):
    """Trial id -> overrides of the small recipe."""
    entries = []
    for name, overrides in trials.items():
        write_json(root / f"{name}.json", bench.spec(overrides).to_json())
        settings = {"parametrization": "standard", "width": 64, "rate": 3e-3, "warmup_tokens": 1024, "init_std": 0.02, "seed": 7}
        entries.append({"id": name, "spec": f"{name}.json", **settings})
    write_json(root / "plan.json", {"kind": "mup_plan", "schema_version": 1, "trials": entries})
    return root / "plan.json"


def test_a_trial_is_the_run_without_its_checkpoints(bench, tmp_path):
    plan = plan_of(bench, tmp_path, {"plain": ()})
    assert run_trials(plan, tmp_path / "out", bench.data, workers=1) == {"done": 1, "skipped": 0, "failed": 0}
    record = read_json(tmp_path / "out" / "trials" / "plain.json", "mup_trial")
    run = bench.run(tmp_path / "run")
    assert bench.go(run).state == "complete"
    rows = read_chain_rows(run, current_chain(read_segments(run))).kept
    steps = [row for row in rows if row["kind"] == "step"]
    evaluation = [row for row in rows if row["kind"] == "evaluation"][-1]
    targets = sum(evaluation["targets"].values())
    held_out = sum(evaluation["loss"][name] * count for name, count in evaluation["targets"].items()) / targets
    assert record["loss"] == pytest.approx(held_out, rel=1e-6)
    assert record["train_loss"] == pytest.approx(sum(row["loss"] for row in steps[-2:]) / 2, rel=1e-6)
    assert (record["steps"], record["diverged"], record["spec_digest"]) == (24, False, bench.spec().digest())


def test_what_has_a_record_is_not_trained_again(bench, tmp_path):
    plan = plan_of(bench, tmp_path, {"one": (), "two": ("optimizer.peak_rate=1e-3",)})
    (tmp_path / "out" / "trials").mkdir(parents=True)
    (tmp_path / "out" / "trials" / "one.json").write_text(json.dumps({"kind": "mup_trial", "schema_version": 1}))
    assert run_trials(plan, tmp_path / "out", bench.data, workers=2) == {"done": 1, "skipped": 1, "failed": 0}
    assert sorted(path.name for path in (tmp_path / "out" / "trials").iterdir()) == ["one.json", "two.json"]


def test_a_trial_that_diverges_says_so(bench, tmp_path):
    plan = plan_of(bench, tmp_path, {"wild": ("optimizer.peak_rate=0.9", "optimizer.clip_norm=0", "model.qk_norm=false")})
    assert run_trials(plan, tmp_path / "out", bench.data, workers=1)["failed"] == 1
    record = read_json(tmp_path / "out" / "trials" / "wild.json", "mup_trial")
    assert record["diverged"]
    assert record["loss"] is None
    assert record["steps"] < 24


@pytest.mark.parametrize("others", [1, 3], ids=["while the engine starts", "while workers start or train"])
def test_trials_end_with_whoever_asked_for_them(bench, tmp_path, others):
    """A killed sweep leaves nobody training beside the next one."""
    endless = ("stages.0.tokens=262144", "data.sources.0.cap_epochs=1000", "data.sources.1.cap_epochs=1000")
    plan = plan_of(bench, tmp_path, {"one": endless, "two": (*endless, "seed=8")})
    code = "import sys; from headway.cli.engine import ask_engine; ask_engine('mup-trials', sys.argv[1:])"
    arguments = [str(plan), str(tmp_path / "out"), str(bench.data), "--workers", "2"]
    owner = subprocess.Popen([sys.executable, "-c", code, *arguments], start_new_session=True)
    wait_for(lambda: len(session_members(owner.pid)) > others, "its processes")
    owner.kill()
    owner.wait()
    wait_for(lambda: not session_members(owner.pid), "everybody to end")
    assert not list((tmp_path / "out" / "trials").glob("*.json"))


def wait_for(condition, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)
