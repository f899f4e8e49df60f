"""The verbs from the outside: real recipes, data and run directories; the trainer and the engine are fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.cli import engine, run
from headway.cli.main import run_guarded
from headway.rundir.layout import RunDirectory
from headway.supervise.options import Outcome

RECIPE = """
kind = "recipe"
schema_version = 1
name = "tiny"

[tokenizer]
vocabulary = 300

[model]
layers = 1
width = 32
heads = 2

[data]
held_out = 200

[[data.sources]]
name = "text"
kind = "jsonl"
path = "PATH"
licence = "CC0-1.0"

[[stages]]
name = "main"
tokens = 2048
sequence = 32
batch = 128
rate = { warmup = 256, shape = "linear" }
mixture = { text = 1.0 }

[optimizer]
peak_rate = 1e-3

[evaluation]
every = 512
tokens_per_source = 64
prompts = ["the "]
sample_tokens = 4
"""
STEPS = 16


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A directory with a recipe and its data."""
    root = tmp_path_factory.mktemp("tiny")
    words = ["the cat sat on the mat", "a dog ran in the fog", "birds sing words in spring"]
    documents = [{"text": f"{words[i % 3]} number {i} and {words[(i * 7 + 1) % 3]} " * 3} for i in range(120)]
    (root / "text.jsonl").write_text("\n".join(map(json.dumps, documents)) + "\n")
    (root / "tiny.toml").write_text(RECIPE.replace("PATH", str(root / "text.jsonl")))
    assert run_guarded(["data", "build", str(root / "tiny.toml"), "--out", str(root / "data")]) == 0
    return root


@pytest.fixture
def here(built, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return built


@pytest.fixture
def supervised(monkeypatch) -> list[RunDirectory]:
    """Replaces the supervisor by one that shows two records and ends; returns the runs that it was given."""
    runs: list[RunDirectory] = []

    def supervise(run, *, options, on_record, deployment=None, change=None, spike=None):
        runs.append(run)
        on_record({"kind": "launch", "segment": 1, "pid": 4711})
        on_record({"kind": "finish", "state": "complete", "reason": "all steps are trained"})
        return Outcome(state="complete", reason="all steps are trained", attempts=1, exit_code=0)

    monkeypatch.setattr("headway.supervise.supervisor.supervise", supervise)
    return runs


def run_tiny(here: Path, *more: str) -> int:
    return run_guarded(["run", str(here / "tiny.toml"), "--data", str(here / "data"), *more])


# --- plan, data


def test_plan_of_a_recipe_and_of_its_data(here, capsys):
    assert run_guarded(["plan", str(here / "tiny.toml"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["draft"] is True
    assert run_guarded(["plan", str(here / "tiny.toml"), "--data", str(here / "data"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["draft"] is False


def test_plan_why_and_markdown(here, capsys):
    assert run_guarded(["plan", str(here / "tiny.toml"), "--why", "parameters"]) == 0
    assert capsys.readouterr().out.startswith("parameters = ")
    assert run_guarded(["plan", str(here / "tiny.toml"), "--why", "paramters"]) == 2
    assert "parameters" in capsys.readouterr().err
    run_guarded(["plan", str(here / "tiny.toml"), "--markdown"])
    assert "| quantity | value |" in capsys.readouterr().out


def test_overrides_reach_the_recipe_and_the_deployment(here, capsys):
    changes = ["--set", "model.layers=3", "--set", "deployment.checkpoints.every_steps=7"]
    run_guarded(["plan", str(here / "tiny.toml"), "--why", "model", *changes])
    assert "3 layers" in capsys.readouterr().out
    assert run_guarded(["plan", str(here / "tiny.toml"), "--set", "deployment.checkpoints.evry_steps=7"]) == 2
    assert "every_steps" in capsys.readouterr().err


def test_a_preset_is_planned_with_its_own_deployment(here, capsys):
    """``headway plan demo`` shows what ``headway demo`` will do; a recipe file or a named deployment changes nothing."""

    def checkpoints(*arguments: str) -> int:
        run_guarded(["plan", *arguments, "--json"])
        return json.loads(capsys.readouterr().out)["values"]["checkpoints"]["value"]

    assert checkpoints("demo") == 9
    assert checkpoints("demo", "--set", "deployment.checkpoints.every_steps=200") == 2
    Path("other.toml").write_text('kind = "deployment"\nschema_version = 1\n')
    assert checkpoints("demo", "--deployment", "other.toml") == 4
    assert checkpoints(str(here / "tiny.toml")) == 1


def test_the_deployment_is_stored_resolved(here, supervised):
    run_tiny(here)
    deployment = supervised[0].info()["deployment"]
    assert deployment["micro_batch"] == 8192
    assert deployment["threads"] >= 1


def test_calibration_comes_from_the_engine(here, capsys, monkeypatch):
    asked = []
    measured = {"kind": "calibration", "tokens_per_second": 1000.0, "low": 900.0, "high": 1100.0}

    def answer(command, **options):
        spec = json.loads(Path(command[6]).read_text())
        asked.append([*command[1:6], spec["name"]])
        return subprocess.CompletedProcess(command, 0, json.dumps(measured), "")

    monkeypatch.setattr(engine.subprocess, "run", answer)
    run_guarded(["plan", str(here / "tiny.toml"), "--calibrate", "--json"])
    assert asked == [["-m", "headway.engine", "--owner", str(os.getpid()), "calibrate", "tiny"]]
    assert json.loads(capsys.readouterr().out)["calibration"]["tokens_per_second"] == 1000.0


def test_data_build_tells_what_was_built(here, capsys):
    assert run_guarded(["data", "build", str(here / "tiny.toml"), "--out", str(here / "data")]) == 0
    shown = capsys.readouterr().out
    assert "used again" in shown
    assert "CC0-1.0" in shown
    assert run_guarded(["data", "build", str(here / "tiny.toml"), "--out", str(here / "data"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["digest"].startswith("sha256:")
    assert [source["name"] for source in facts["sources"]] == ["text"]


# --- run, resume


def test_run_creates_a_whole_run_directory(here, supervised, capsys):
    assert run_tiny(here) == 0
    created = supervised[0]
    assert created.root == Path("runs/tiny")
    info = created.info()
    assert info["drill"] is False
    assert info["data"] == str(here / "data")
    assert info["spec_digest"] == created.spec().digest()
    assert info["recipe_digest"] == created.spec().recipe_digest
    assert created.recipe_file.read_text() == (here / "tiny.toml").read_text()
    assert json.loads(created.plan_file.read_text())["spec_digest"] == info["spec_digest"]
    assert "headway report runs/tiny" in capsys.readouterr().out


def test_taken_names_are_never_overwritten(here, supervised):
    assert [run_tiny(here) for _ in range(3)] == [0, 0, 0]
    assert [run.root.name for run in supervised] == ["tiny", "tiny-2", "tiny-3"]
    assert run_tiny(here, "--run", "runs/tiny") == 2


def test_drills_are_marked_and_faults_checked(here, supervised, capsys):
    assert run_tiny(here, "--drill", "step.gradients:kill:5", "--drill", "save.committed:io_error") == 0
    assert supervised[0].info()["drill"] is True
    faults = json.loads((supervised[0].root / "drill.json").read_text())["faults"]
    assert faults[0] == {"point": "step.gradients", "action": "kill", "step": 5}
    assert faults[1] == {"point": "save.committed", "action": "io_error", "step": None}
    for wrong in ("step.gradients", "nowhere:kill:5", "step.begin:explode:5", "step.begin:kill:five", "step.begin:kill:\u00b2"):
        capsys.readouterr()
        assert run_tiny(here, "--drill", wrong) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_run_without_data_names_the_command(here, supervised, capsys):
    assert run_guarded(["run", str(here / "tiny.toml")]) == 2
    assert "headway data build" in capsys.readouterr().err
    assert supervised == []


def test_run_as_json_is_lines_of_json(here, supervised, capsys):
    assert run_tiny(here, "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["kind"] for record in records] == ["launch", "finish", "outcome"]
    assert records[-1]["state"] == "complete"


def test_resume_takes_the_run_that_is_there(here, supervised):
    run_tiny(here)
    assert run_guarded(["resume", "runs/tiny"]) == 0
    assert [run.root for run in supervised] == [Path("runs/tiny")] * 2
    assert run_guarded(["resume", "runs"]) == 2


@pytest.mark.parametrize(("exit_code", "label"), [(2, "configuration error"), (3, "environment error"), (4, "run failed")])
def test_a_failed_run_shows_what_its_trainer_said(here, supervised, monkeypatch, capsys, exit_code, label):
    cause = {"error": {"label": "x", "problems": [{"seen": "the shard is gone", "rule": "r", "way_out": "put it back"}]}}
    finish = {"kind": "finish", "state": "failed", "reason": "the trainer cannot run", "cause": cause}
    monkeypatch.setattr("headway.rundir.events.read_events", lambda run: [finish])
    outcome = Outcome(state="failed", reason="the trainer cannot run", attempts=1, exit_code=exit_code)
    monkeypatch.setattr("headway.supervise.supervisor.supervise", lambda *_, **__: outcome)
    assert run_tiny(here) == exit_code
    shown = capsys.readouterr().err
    assert shown.startswith(f"headway: {label}\n")
    assert "the shard is gone" in shown
    assert "put it back" in shown


# --- status, report, sample


def test_status_says_how_long_each_category_took():
    from headway.cli.status import time_lines
    from headway.monitor.ledger import build_ledger

    stamps = [{"boot_ns": at * 10**9, "boot_id": "b", "real_ns": at * 10**9} for at in (0, 3, 93)]
    events = [
        {"kind": "open", "epoch": 1, "previous": None, "stamp": stamps[0]},
        {"kind": "launch", "segment": 1, "closes": "provision", "stamp": stamps[1]},
        {"kind": "exit", "segment": 1, "closes": "detection_to_stop", "stamp": stamps[2]},
    ]
    shown = [" ".join(line.split()) for line in time_lines(build_ledger(events, {1: []}, []))]
    assert "3.2% provision 3 s" in shown


def test_status_of_a_run_that_never_started(here, supervised, capsys):
    run_tiny(here)
    capsys.readouterr()
    assert run_guarded(["status", "runs/tiny"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("tiny: created")
    assert f"0 of {STEPS}" in shown
    assert run_guarded(["status", "runs/tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total_steps"] == STEPS


def test_status_counts_a_crash_as_a_finding(here, supervised, monkeypatch, capsys):
    from dataclasses import replace

    from headway.monitor import summary

    run_tiny(here)
    crashed = replace(summary.summarise(RunDirectory.open(Path("runs/tiny"))), state="crashed")
    monkeypatch.setattr(summary, "summarise", lambda run: crashed)
    assert run_guarded(["status", "runs/tiny"]) == 1


def test_report_of_a_run_that_never_started(here, supervised, capsys):
    run_tiny(here)
    capsys.readouterr()
    assert run_guarded(["report", "runs/tiny", "--out", "page", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {Path(file).suffix for file in files} >= {".html", ".md"}
    assert all(Path(file).is_file() for file in files)


def test_sample_asks_the_engine_and_shows_the_texts(here, supervised, monkeypatch, capsys):
    run_tiny(here)
    sent = []

    def answer(command, *, input, **options):
        sent.append((command[5:], json.loads(input)))
        texts = [{"prompt": "the ", "text": "cat\nsat"}]
        value = {"checkpoint": "g0001-s00000016", "step": 16, "texts": texts, "rejected": []}
        return subprocess.CompletedProcess(command, 0, json.dumps(value), "")

    monkeypatch.setattr(engine.subprocess, "run", answer)
    capsys.readouterr()
    assert run_guarded(["sample", "runs/tiny"]) == 0
    assert capsys.readouterr().out.splitlines() == ["checkpoint g0001-s00000016, step 16", "", "  the |cat", "  sat"]
    assert sent[0] == (["sample", "runs/tiny", "--prompts-json", "-"], {"prompts": ["the "], "tokens": 4})
    assert (
        run_guarded(["sample", "runs/tiny", "--prompt", "a", "--prompt", "b", "--tokens", "9", "--checkpoint", "c", "--json"])
        == 0
    )
    assert sent[1] == (
        ["sample", "runs/tiny", "--checkpoint", "c", "--prompts-json", "-"],
        {"prompts": ["a", "b"], "tokens": 9},
    )
    assert run_guarded(["sample", "runs/tiny", "--tokens", "0"]) == 2


# --- the engine's answers


@pytest.mark.parametrize(
    ("code", "kind"), [(2, ConfigError), (3, EnvironmentFault), (4, RunError), (1, RunError), (-9, RunError)]
)
def test_engine_errors_keep_their_kind(code, kind):
    error = engine.engine_error("sample", code, "", "Traceback ...\nZeroDivisionError: division by zero")
    assert type(error) is kind
    assert "ZeroDivisionError" in str(error)
    assert "HEADWAY_DEBUG=1" in str(error)


@pytest.mark.parametrize("before", ["", "a line that a library printed\n"])
def test_engine_errors_as_json_keep_their_map(before):
    value = {"label": "run failed", "problems": [{"seen": "s", "rule": "r", "way_out": "w"}], "exit_code": 4}
    problem = engine.engine_error("sample", 4, before + json.dumps(value) + "\n", "noise").problems[0]
    assert (problem.seen, problem.rule, problem.way_out) == ("s", "r", "w")


@pytest.mark.parametrize("stdout", ["[]", "{}", '{"problems": []}', '{"problems": [{}]}', '{"problems": null}', "null"])
def test_engine_errors_without_problems_show_the_tail(stdout):
    assert "the last words" in str(engine.engine_error("sample", 4, stdout, "the last words"))


def test_the_real_engine_says_why_on_stdout(here, supervised, capsys):
    """The protocol between the two, not a fake of it: a run without a checkpoint has nothing to sample from."""
    run_tiny(here)
    capsys.readouterr()
    assert run_guarded(["sample", "runs/tiny", "--json"]) == 4
    shown = capsys.readouterr()
    problem = json.loads(shown.out)["problems"][0]
    assert problem["seen"] == "this run has no committed checkpoint yet"
    assert problem["rule"] == "sampling reads a checkpoint"
    assert problem["way_out"] == "wait for the first save"
    assert "Traceback" not in shown.err


def test_debug_lets_the_engines_stderr_through(monkeypatch, capfd):
    command = "import sys; sys.stderr.write('all that it says'); print(1)"
    real = subprocess.run
    monkeypatch.setattr(engine.subprocess, "run", lambda _, **options: real([sys.executable, "-c", command], **options))
    for debug, shown in (("0", ""), ("1", "all that it says")):
        monkeypatch.setenv("HEADWAY_DEBUG", debug)
        assert engine.ask_engine("sample", []) == 1
        assert capfd.readouterr().err == shown


def test_engine_answers_that_are_no_json_are_an_error(monkeypatch):
    monkeypatch.setattr(engine.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, "hello", ""))
    with pytest.raises(RunError, match="not JSON"):
        engine.ask_engine("sample", [])


def test_free_directory(tmp_path):
    assert run.free_directory(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").touch()
    assert run.free_directory(tmp_path / "a") == tmp_path / "a-3"
