"""Faults of one rank among several, with real processes: found within the limit, named with its place, and the run goes on."""

from __future__ import annotations

import pytest
from conftest_e2e import events_of, trace

pytestmark = pytest.mark.e2e

FLOAT32 = ("precision.compute=float32",)
FSDP2, PAIRS = {"default": {"dp_shard": 2}}, {"default": {"dp_shard": 2, "tp": 2}}
LIMITS = dict.fromkeys(("data", "step", "record", "evaluation", "save"), 8.0)
SHORT = {"hang_floor_seconds": 6.0, "hang_grace_seconds": 0.5, "hard_seconds": LIMITS, "beat_seconds": 0.25}


@pytest.fixture(scope="module")
def undisturbed(bench, tmp_path_factory):
    run = bench.run(tmp_path_factory.mktemp("undisturbed") / "run", overrides=FLOAT32, layouts=FSDP2)
    assert bench.go(run).state == "complete"
    return run


def drilled(bench, where, fault, layouts=FSDP2, **options):
    run = bench.run(where, faults=[fault], overrides=FLOAT32, layouts=layouts)
    outcome = bench.go(run, **{**SHORT, **options})
    logs = "\n".join(path.read_text()[-1500:] for path in sorted(run.segments.rglob("*.log")))
    assert outcome.state == "complete", f"{outcome}\n{logs}"
    return run


def event(run, kind):
    return next(event for event in events_of(run) if event["kind"] == kind)


PLACES = [
    ("step.gradients", 16, "hang", "stopped", "step", "SIGSTOP"),
    ("step.gradients", 16, "block", "in I/O", "step", "in read of pipe:"),
    ("evaluation.begin", 18, "sleep", "in Python", "evaluation", "_act (base/failpoints.py"),
    ("snapshot.begin", 16, "hang", "stopped", "save", "SIGSTOP"),
]


@pytest.mark.parametrize(("point", "step", "action", "where", "phase", "words"), PLACES)
def test_F2_F8_the_rank_behind_is_named_and_where_it_is(bench, undisturbed, tmp_path, point, step, action, where, phase, words):
    run = drilled(bench, tmp_path / "run", {"point": point, "action": action, "step": step, "rank": 1})
    found = event(run, "hang")
    assert (found["rank"], found["where"], found["phase"]) == (1, where, phase), found
    assert words in found["verdict"], found["verdict"]
    assert [told["rank"] for told in found["ranks"]] == [1, 0], "the rank behind comes first"
    assert found["ranks"][1]["where"] == "in a collective", found
    assert "rank 0 waits for it in a collective" in found["verdict"]
    assert found["stacks"].keys() == ({"0"} if action == "hang" else {"0", "1"}), "a stopped process cannot answer"
    if action == "sleep":
        assert any("failpoints.py" in line for line in found["stacks"]["1"]), found["stacks"]
    end = event(run, "exit")
    assert end["rank"] == 1
    assert "rank 1 on" in end["reason"]
    assert trace(run) == trace(undisturbed)


def test_F8_of_four_ranks_the_one_that_stands_still_is_named(bench, tmp_path):
    run = drilled(bench, tmp_path / "run", {"point": "step.updated", "action": "sleep", "step": 10, "rank": 2}, PAIRS)
    found = event(run, "hang")
    assert (found["rank"], found["step"]) == (2, 9), found["verdict"]
    assert "ranks 0, 1, 3 wait for it in a collective" in found["verdict"]


def test_F1_of_four_ranks_the_text_of_the_first_error_is_shown(bench, tmp_path):
    run = drilled(bench, tmp_path / "run", {"point": "step.updated", "action": "raise", "step": 10, "rank": 3}, PAIRS)
    end = event(run, "exit")
    assert end["rank"] == 3
    assert "rank 3 exit code 4: run failed: RuntimeError: drill: fault at step.updated" in end["reason"]
    assert not [event for event in events_of(run) if event["kind"] == "hang"]


def test_F1_a_rank_without_memory_is_named_with_its_error(bench, undisturbed, tmp_path):
    run = drilled(bench, tmp_path / "run", {"point": "step.gradients", "action": "memory", "step": 14, "rank": 1})
    end = event(run, "exit")
    assert end["rank"] == 1
    assert "MemoryError" in end["reason"]
    assert trace(run) == trace(undisturbed)
