"""``headway prove`` from the outside, with an engine that answers at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.base.errors import RunError
from headway.cli import engine
from headway.cli.main import run_guarded
from headway.cli.prove import COLUMNS, most_ranks, read_layout

TOLERANCES = {what: {"tolerance": 0.0 if what == "initial weights" else 1e-6, "reason": "sums"} for what in COLUMNS}


def finding(what: str, difference: float | None, tolerance: float, where: str = "step 1") -> dict[str, Any]:
    holds = difference is not None and difference <= tolerance
    return {"what": what, "difference": difference, "tolerance": tolerance, "where": where, "holds": holds}


def layout(name: str, **differences: float | None) -> dict[str, Any]:
    by_kind = dict.fromkeys(COLUMNS, 0.0) | {what.replace("_", " "): value for what, value in differences.items()}
    findings = [finding(what, value, TOLERANCES[what]["tolerance"], "layers.0.ffn.up.weight") for what, value in by_kind.items()]
    verdict = "holds" if all(f["holds"] for f in findings) else "differs"
    return {"kind": "layout", "name": name, "verdict": verdict, "reason": "", "seconds": 1.5, "findings": findings}


NOT_RUN = {"kind": "layout", "name": "pp2", "verdict": "not run", "reason": "pp 2: planned", "seconds": None, "findings": []}
CONTINUED = {
    "kind": "continuation",
    "name": "fsdp2, killed -> the same",
    "verdict": "holds",
    "reason": "",
    "seconds": 2.0,
    "findings": [finding("the same state, to the bit", 0.0, 0.0), finding("the curve goes on", 0.0, 0.0)],
}


class Engine:
    """Stands in for the engine's verb; keeps the request."""

    def __init__(self, *layouts: dict[str, Any]):
        self.layouts, self.request = list(layouts), {}

    def __call__(self, verb: str, arguments: list[str], on_record) -> None:
        assert verb == "prove"
        self.request = json.loads(Path(arguments[0]).read_text())
        on_record({"kind": "begin", "layouts": ["fsdp2"], "ranks": 2, "steps": self.request["steps"]})
        for record in (*self.layouts, CONTINUED):
            on_record(record)
        on_record(
            {
                "kind": "proof",
                "holds": all(record["verdict"] in ("holds", "not run") for record in self.layouts),
                "tolerances": TOLERANCES,
                "wider_in_16_bits": 65536.0,
                "layouts": self.layouts,
                "continuations": [CONTINUED],
            }
        )


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """``answer(*layouts)``: the engine that will be asked."""
    monkeypatch.chdir(tmp_path)

    def with_layouts(*layouts: dict[str, Any]) -> Engine:
        made = Engine(*layouts)
        monkeypatch.setattr(engine, "follow_engine", made)
        return made

    return with_layouts


def test_a_proof_is_a_table_and_a_file(answer, capsys, tmp_path):
    asked = answer(layout("fsdp2", gradients=2.5e-7), NOT_RUN)
    assert run_guarded(["prove", "proxy", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "- fsdp2: holds, 1.5 s" in out
    assert "2.5e-07" in out
    assert "not run: pp2: pp 2: planned" in out
    assert "the same bits" in out
    evidence = json.loads((tmp_path / "prove-proxy" / "prove.json").read_text())
    assert evidence["recipe"] == "proxy"
    assert asked.request["steps"] == 6
    assert asked.request["spec"]["name"] == "proxy"


def test_a_difference_is_named_with_its_parameter_and_is_exit_code_1(answer, capsys):
    answer(layout("tp2", gradients=0.32, update=None))
    assert run_guarded(["prove"]) == 1
    out = capsys.readouterr().out
    assert "3.2e-01 *" in out
    assert "differs: tp2: gradients: 3.2e-01, tolerance 1e-06, at layers.0.ffn.up.weight" in out
    assert "differs: tp2: update: nothing to compare" in out
    assert "NOT the run of one process" in out


def test_json_stands_alone_on_stdout(answer, capsys):
    answer(layout("fsdp2"))
    assert run_guarded(["prove", "--json", "--out", "there"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["file"] == "there/prove.json"
    assert "- fsdp2: holds" in captured.err


def test_layouts_and_counts_reach_the_engine(answer):
    asked = answer(layout("x"))
    assert run_guarded(["prove", "--layout", "dp_shard=2,tp=2", "--layout", "dp=3", "--steps", "4"]) == 0
    assert asked.request["layouts"] == [{"dp_shard": 2, "tp": 2}, {"dp_shard": 3}]
    assert (asked.request["ranks"], asked.request["steps"]) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layout", "tp=x"], "--layout tp=x"),
        (["--layout", "micro_batch=4"], "micro_batch is for plans"),
        (["--ranks", "1"], "--ranks 1"),
        (["--steps", "1"], "--steps 1"),
        (["--set", "deployment.nodes=2"], "--set deployment.nodes=2"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_proven_is_refused_before_the_engine_starts(answer, capsys, arguments, said):
    asked = answer()
    assert run_guarded(["prove", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert asked.request == {}


def test_a_run_directory_is_proven_with_its_own_spec_and_keeps_the_evidence(answer, tmp_path):
    from headway.recipe.load import load_recipe
    from headway.recipe.resolve import resolve
    from headway.rundir.layout import RunDirectory

    spec = resolve(load_recipe("proxy", ("seed=11",)), None)
    root = tmp_path / "run"
    root.mkdir()
    info = {"kind": "run", "schema_version": 1, "name": "proxy", "run_id": "r", "drill": False, "data": "d", "deployment": {}}
    (root / "run.json").write_text(json.dumps(info | {"spec_digest": spec.digest()}))
    (root / "spec.json").write_text(json.dumps(spec.to_json()))
    assert RunDirectory.open(root).spec().seed == 11
    asked = answer(layout("fsdp2"))
    assert run_guarded(["prove", str(root)]) == 0
    assert asked.request["spec"]["seed"] == 11
    assert (root / "prove.json").is_file()


def test_processes_by_default():
    assert most_ranks([{"dp_shard": 2, "tp": 4}]) == 8
    assert 4 <= most_ranks([]) <= 8
    assert read_layout("tp=2 pp=2,pipeline=zero-bubble") == {"tp": 2, "pp": 2, "pipeline": "zero-bubble"}


# --- following an engine


def test_records_come_one_by_one_and_errors_keep_their_words(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho \'{"kind": "a"}\'\necho not json\necho \'{"kind": "b"}\'\nexit ${CODE:-0}\n')
    script.chmod(0o755)
    monkeypatch.setattr(engine.sys, "executable", str(script))
    heard: list[str] = []
    engine.follow_engine("prove", [], lambda record: heard.append(record["kind"]))
    assert heard == ["a", "b"]
    monkeypatch.setenv("CODE", "4")
    with pytest.raises(RunError, match=r"failed at prove \(exit code 4\)"):
        engine.follow_engine("prove", [], lambda record: None)
