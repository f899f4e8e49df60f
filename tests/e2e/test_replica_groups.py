"""Replica groups by torchft: one that is killed costs a step, the others go on, and it comes back with their state."""

from __future__ import annotations

import importlib.util

import pytest
from conftest_e2e import events_of, trace

from headway.monitor.ledger import build_ledger
from headway.rundir.metrics import read_all_steps, read_chain_rows, read_steps
from headway.rundir.processes import is_alive
from headway.rundir.segments import current_chain, read_segments

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason='torchft is not installed: pip install "headway[ft]"'),
]

FLOAT32 = ("precision.compute=float32",)
LAST, BEFORE, TOLERANCE = 24, 8, 1e-5
"""Steps of the recipe; the step in which a group is killed; relative, of losses: the same sums in another order."""
LONG_ENOUGH = {"point": "step.begin", "action": "slow", "step": BEFORE + 1, "rank": 0, "share": 40.0}
"""The leading group takes its time from there on, so that a process can be started meanwhile."""


@pytest.fixture(scope="module")
def plain(bench, tmp_path_factory):
    """Two replicas whose ranks live and die together."""
    run = bench.run(tmp_path_factory.mktemp("plain") / "run", overrides=FLOAT32, layouts={"default": {"dp_replicate": 2}})
    outcome = bench.go(run)
    assert outcome.state == "complete", outcome
    return run


def grouped(bench, where, faults=None, **axes):
    """A finished run whose replicas may be lost one by one, and how it ended."""
    layouts, checks = {"default": {"dp_replicate": 2} | axes}, {"compare_every": 4, "repeat_every": 0}
    run = bench.run(where, faults=faults, overrides=FLOAT32, layouts=layouts, corruption=checks, per_step="torchft")
    outcome = bench.go(run)
    assert outcome.state in ("complete", "stopped"), logs(run, outcome)
    return run, outcome


def logs(run, outcome) -> str:
    return f"{outcome}\n{events_of(run)}\n" + "\n".join(path.read_text()[-2000:] for path in sorted(run.segments.rglob("*.log")))


def rows(run, kind):
    return [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == kind]


def groups_events(run, state):
    return [event for event in events_of(run) if event["kind"] == "group" and event["state"] == state]


def assert_whole(run):
    """Every sequence is trained exactly once, commits only grow, all time is told, all groups end alike, nobody is left."""
    at = {}
    for row in rows(run, "step"):
        assert row["u"] == at.get(row["stage"], 0) + row["sequences"], row["step"]
        at[row["stage"]] = row["u"]
    assert [row["step"] for row in rows(run, "step")] == list(range(1, LAST + 1))
    saved = [row["step"] for row in rows(run, "save")]
    assert saved == sorted(saved)
    assert saved[-1] == LAST
    chain = current_chain(read_segments(run))
    ledger = build_ledger(events_of(run), read_all_steps(run), chain)
    ledger.check()
    assert ledger.flags == ()
    end = rows(run, "end")[-1]
    assert set(end["groups"].values()) == {end["digest"]}, "the groups hold other states"
    starts = [event for event in events_of(run) if event["kind"] in ("launch", "group")]
    started = [rank for event in starts for rank in event.get("ranks", ())]
    assert not [rank for rank in started if is_alive(rank["pid"], rank["start_ticks"])], "a rank was left behind"
    return ledger


def assert_same_losses(run, other):
    for mine, theirs in zip(rows(run, "step"), rows(other, "step"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=TOLERANCE), mine["step"]


def test_two_groups_train_the_run_of_two_plain_replicas(bench, plain, tmp_path):
    run, outcome = grouped(bench, tmp_path / "run")
    assert outcome.attempts == 1
    assert_whole(run)
    assert not rows(run, "repeated")
    assert not groups_events(run, "lost")
    assert trace(run) == trace(plain), "two replicas add the same two numbers"


SHAPES = [
    pytest.param({"dp_replicate": 2}, 1, 1, id="2 groups of 1"),
    pytest.param({"dp_replicate": 3}, 1, 1, id="3 groups of 1"),
    pytest.param({"dp_replicate": 2, "dp_shard": 2}, 3, 1, id="2 groups of 2", marks=pytest.mark.slow),
    pytest.param({"dp_replicate": 2, "pp": 2}, 2, 1, id="2 groups of 2 stages", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("axes", "rank", "group"), SHAPES)
def test_a_group_that_is_killed_costs_one_step_and_comes_back(bench, plain, tmp_path, axes, rank, group):
    kill = {"point": "step.gradients", "action": "kill", "step": BEFORE, "rank": rank}
    run, outcome = grouped(bench, tmp_path / "run", [kill, LONG_ENOUGH], **axes)
    assert (outcome.attempts, len(read_segments(run))) == (1, 1), "the leading group's attempt goes on"
    assert [row["step"] for row in rows(run, "repeated")] == [BEFORE]
    lost, back = groups_events(run, "lost"), groups_events(run, "back")
    assert [event["group"] for event in lost] == [event["group"] for event in back] == [group]
    assert lost[0]["reason"] == f"rank {rank} ended by SIGKILL"
    assert BEFORE - 1 <= back[0]["step"] < LAST
    ledger = assert_whole(run)
    assert 0 < ledger.categories["rolled_back"] < 30e9, "the time of the step that did not count"
    assert_same_losses(run, plain)


@pytest.mark.slow
def test_a_group_comes_back_when_what_the_segment_began_with_is_gone(bench, plain, tmp_path):
    """A stop behind step 4; the next segment keeps two checkpoints, and loses a group when it has written three."""
    stop = {"point": "step.gradients", "action": "terminate", "step": 4, "rank": 0}
    kill = {"point": "step.gradients", "action": "kill", "step": 18, "rank": 1}
    run, outcome = grouped(bench, tmp_path / "run", [stop, kill, LONG_ENOUGH | {"step": 18, "share": 120.0}])
    assert outcome.state == "stopped", logs(run, outcome)
    outcome = bench.go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 1), logs(run, outcome)
    assert not (run.checkpoints / read_segments(run)[1].checkpoint).exists(), "retention has deleted it"
    assert [event["group"] for event in groups_events(run, "back")] == [1]
    assert_whole(run)
    assert_same_losses(run, plain)


def test_a_group_that_dies_behind_a_step_takes_nothing_with_it(bench, plain, tmp_path):
    kill = {"point": "step.updated", "action": "kill", "step": BEFORE, "rank": 1}
    run, outcome = grouped(bench, tmp_path / "run", [kill, LONG_ENOUGH])
    assert outcome.attempts == 1
    assert len(rows(run, "repeated")) <= 1, "it had said that the step counts"
    assert_whole(run)
    assert_same_losses(run, plain)


def test_the_leading_group_is_lost_with_its_attempt(bench, plain, tmp_path):
    run, outcome = grouped(bench, tmp_path / "run", [{"point": "step.gradients", "action": "kill", "step": BEFORE, "rank": 0}])
    assert outcome.attempts == 2, logs(run, outcome)
    assert [segment.restored_step for segment in read_segments(run)] == [0, 4]
    assert_whole(run)
    assert trace(run) == trace(plain)


def test_a_group_that_dies_again_and_again_ends_the_attempt(bench, plain, tmp_path):
    deaths = [("step.begin", "kill"), ("step.begin", "raise"), ("step.gradients", "kill")]
    faults = [{"point": point, "action": action, "rank": 1} for point, action in deaths]
    run, outcome = grouped(bench, tmp_path / "run", [*faults, LONG_ENOUGH | {"step": 1}])
    assert outcome.attempts == 2, logs(run, outcome)
    lost = groups_events(run, "lost")
    assert len(lost) == 3
    assert "RuntimeError: drill: fault at step.begin" in lost[1]["reason"]
    end = next(event for event in events_of(run) if event["kind"] == "exit")
    assert (end["rank"], end["signal"]) == (1, 9)
    assert_whole(run)
    assert_same_losses(run, plain)


def test_a_bit_that_flips_in_one_group_is_found_before_the_others_follow_it(bench, plain, tmp_path):
    """In that group alone: what it adds is in everybody's gradient, and its own weights stay others."""
    tensor = "param/layers.1.attention.q.weight"
    flip = {"point": "step.updated", "action": "flip", "step": 6, "rank": 2, "tensor": tensor, "bit": 8 * 40 + 29}
    run, outcome = grouped(bench, tmp_path / "run", [flip], dp_replicate=3)
    assert (outcome.state, outcome.attempts) == ("complete", 2), logs(run, outcome)
    [found] = [event for event in events_of(run) if event["kind"] == "corruption"]
    assert (found["step"], found["rank"], found["parameter"]) == (8, 2, "layers.1.attention.q.weight")
    assert [segment.restored_step for segment in read_segments(run)] == [0, 4], "the step after which all were equal"
    assert_whole(run)
    assert_same_losses(run, plain)


def test_a_stop_that_reaches_one_group_stops_all_after_the_same_step(bench, plain, tmp_path):
    run, outcome = grouped(bench, tmp_path / "run", [{"point": "step.gradients", "action": "terminate", "step": 7, "rank": 1}])
    assert outcome.state == "stopped", logs(run, outcome)
    end = read_steps(run, 1)[-1]
    assert (end["kind"], end["state"], end["step"]) == ("end", "stopped", 7)
    assert set(end["groups"].values()) == {end["digest"]}
    assert bench.go(run).state == "complete"
    assert_whole(run)
    assert trace(run) == trace(plain)
