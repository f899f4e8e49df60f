"""``headway dryrun`` from the outside, with an engine that answers at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli import engine
from headway.cli.dryrun import folded, order_lines
from headway.cli.main import run_guarded
from headway.plan import reconcile as reconciliation
from headway.plan.reconcile import Line

SEEN = {
    "world": 64,
    "seconds": 3.0,
    "layers_run": [2, 3],
    "layers": 32,
    "rank": 0,
    "passes_run": [3],
    "passes": 16,
    "order": {"layers": 3, "passes": 1, "seen": [{"axis": "tp", "kind": "all_gather", "phase": "forward", "times": 2}]},
    "state_bytes": {"weights": 2**30},
    "host_bytes": {"moments each way": 2**31},
    "not_run": {"gradient norm": 8},
    "assumed": ["every expert gets as many tokens"],
    "exchanges": [],
}


def line(seen_calls: float = 4.0) -> Line:
    return Line(
        what="tp, all-gather, forward",
        planned_calls=6.0,
        planned=6e6,
        expected_calls=4.0,
        expected=4e6,
        seen_calls=seen_calls,
        seen=4e6,
        reasons=("kept, not gathered again",),
    )


@pytest.fixture
def answer(monkeypatch):
    """``answer(lines)`` -> the requests that the engine gets."""

    def with_lines(*lines: Line) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def ask(verb: str, arguments: list[str]) -> dict[str, Any]:
            assert verb == "dryrun"
            asked.append(json.loads(Path(arguments[0]).read_text()))
            return SEEN

        monkeypatch.setattr(engine, "ask_engine", ask)
        monkeypatch.setattr(reconciliation, "reconcile", lambda work, layout, seen: list(lines))
        return asked

    return with_lines


def test_a_dry_run_says_what_it_ran_and_what_follows(answer, capsys):
    (asked,) = [answer(line())]
    assert run_guarded(["dryrun", "llama3-8b", "--layout", "tp=8", "--world", "64"]) == 0
    out = capsys.readouterr().out
    assert "rank 0 of 64 (tp 8, dp_shard 8" in out
    assert "run with 2 and 3 layers; 32 follow" in out
    assert "run with 3 of 16 micro-batches" in out
    assert "tp, all-gather, forward: kept, not gathered again" in out
    assert "over the host's link in a step: moments each way 2 GiB" in out
    assert "assumed, since tensors have no values: every expert gets as many tokens" in out
    assert "verdict: the plan agrees" in out
    assert asked[0]["axes"]["dp_shard"] == 8
    assert asked[0]["passes"] == 128


def test_of_a_pipeline_the_fullest_stage_is_run(answer, capsys, monkeypatch):
    asked = answer(line())
    monkeypatch.setitem(SEEN, "passes_run", [16, 17])
    monkeypatch.setitem(SEEN, "rank", 32)
    assert run_guarded(["dryrun", "llama3-8b", "--layout", "pp=2,tp=8", "--world", "64", "--set", "model.layers=31"]) == 0
    out = capsys.readouterr().out
    assert "of pipeline stage 1 of 2, counted from 0" in out
    assert "run with 16 and 17 micro-batches; 16 follow" in out
    assert asked[0]["pipeline_stage"] == 1


def test_what_does_not_agree_is_exit_code_1(answer, capsys):
    answer(line(seen_calls=5.0))
    assert run_guarded(["dryrun", "llama3-8b", "--layout", "tp=8", "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["reconciled"]
    assert told["agrees"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layout", "tp=x"], "--layout tp=x"),
        (["--layout", "tp=8,dp_shard=4", "--world", "64"], "a layout of 32 for 64 ranks"),
        (["--layout", "tp=3", "--world", "64"], "multiply to 3"),
        (["--layout", "cp=2,offload=all"], "offload=all with cp 2"),
        (["--layout", "tp=8", "--stage", "nothing"], "--stage nothing"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run_is_refused_before_the_engine_starts(answer, capsys, arguments, said):
    asked = answer()
    assert run_guarded(["dryrun", "llama3-8b", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert asked == []


def test_bytes_may_differ_by_two_per_cent_and_calls_by_none():
    def of(calls: float, size: float) -> bool:
        return Line(what="", planned_calls=4, planned=100, expected_calls=4, expected=100, seen_calls=calls, seen=size).agrees

    assert of(4, 101.9)
    assert not of(4, 102.1)
    assert not of(5, 100)


def test_what_repeats_stands_once():
    assert list(folded(list("xababaab"))) == ["x", "(a, b) x 2", "a x 2", "b"]
    order = [{"axis": "tp", "kind": kind, "phase": "forward", "times": 1} for kind in ("all_gather", "reduce_scatter") * 3]
    assert list(order_lines(order)) == ["forward: (tp all-gather, tp reduce-scatter) x 3"]
