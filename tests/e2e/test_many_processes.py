"""One run in several processes of this machine: the numbers of one process, and one end for all ranks whatever happens to one."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from conftest_e2e import events_of, trace

from headway.base.errors import EnvironmentFault
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.segments import current_chain, read_segments

pytestmark = pytest.mark.e2e

FLOAT32 = ("precision.compute=float32",)
FSDP2, TP2, ALONE = {"default": {"dp_shard": 2}}, {"default": {"tp": 2}}, {}
LAST, TOLERANCE = 24, 1e-6
"""Steps of the recipe; relative, of losses: sums over the same tokens in another order."""
ROUTED = 1e-5
"""A token whose scores are all but equal may go to another expert: one of a few hundred that are scored was seen to."""


@pytest.fixture(scope="module")
def alone(bench, tmp_path_factory):
    return finished(bench, tmp_path_factory.mktemp("alone") / "run", None)


@pytest.fixture(scope="module")
def fsdp2(bench, tmp_path_factory):
    """The run of two processes that nothing disturbed."""
    return finished(bench, tmp_path_factory.mktemp("fsdp2") / "run", FSDP2)


def finished(bench, where, layouts):
    run = bench.run(where, overrides=FLOAT32, layouts=layouts)
    outcome = bench.go(run)
    assert outcome.state == "complete", logs(run, outcome)
    return run


def logs(run, outcome) -> str:
    """What there is to read when a run did not do as it should."""
    return f"{outcome}\n" + "\n".join(path.read_text()[-2000:] for path in sorted(run.segments.rglob("*.log")))


def rows(run, kind):
    return [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == kind]


def assert_same_run(run, other, tolerance=TOLERANCE):
    """The same stream and, within tolerance, the same numbers."""
    position = ("step", "stage", "u", "sequences", "tokens", "rate")
    for mine, theirs in zip(rows(run, "step"), rows(other, "step"), strict=True):
        assert [mine[key] for key in position] == [theirs[key] for key in position]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance), mine["step"]
    for mine, theirs in zip(rows(run, "evaluation"), rows(other, "evaluation"), strict=True):
        assert (mine["step"], mine["targets"]) == (theirs["step"], theirs["targets"])
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
    assert [row["texts"] for row in rows(run, "sample")] == [row["texts"] for row in rows(other, "sample")]


def test_two_processes_train_the_run_of_one(alone, fsdp2):
    assert len(rows(fsdp2, "step")) == LAST
    assert_same_run(fsdp2, alone)
    start, restored = read_steps(fsdp2, 1)[:2]
    assert start["environment"]["layout"] == "dp_shard 2"
    assert restored["phases_ns"].keys() >= {"import", "group", "data", "model", "restore"}
    saves = rows(fsdp2, "save")
    assert saves[-1]["step"] == LAST
    assert rows(fsdp2, "end")[-1]["digest"] == saves[-1]["digest"], "the digest of the state is that of its checkpoint"


@pytest.mark.parametrize(("rank", "point"), [(0, "step.gradients"), (1, "step.updated"), (1, "snapshot.begin")])
def test_F1_a_rank_that_is_killed_ends_all_and_the_run_repeats_itself(bench, fsdp2, tmp_path, rank, point):
    fault = {"point": point, "action": "kill", "step": 8, "rank": rank}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=FLOAT32, layouts=FSDP2)
    outcome = bench.go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 2), logs(run, outcome)
    end = next(event for event in events_of(run) if event["kind"] == "exit")
    assert (end["rank"], end["signal"]) == (rank, 9), end
    again = next(event for event in events_of(run) if event["kind"] == "launch" and event["segment"] == 2)
    assert again["stamp"]["boot_ns"] - end["stamp"]["boot_ns"] < 30e9, "nobody waits out a save that cannot become whole"
    assert trace(run) == trace(fsdp2)


def test_F1_the_error_of_the_rank_that_failed_is_shown_at_once(bench, fsdp2, tmp_path):
    fault = {"point": "step.gradients", "action": "raise", "step": 6, "rank": 1}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=FLOAT32, layouts=FSDP2)
    outcome = bench.go(run)
    assert outcome.state == "complete", logs(run, outcome)
    end = next(event for event in events_of(run) if event["kind"] == "exit")
    assert end["rank"] == 1
    assert "rank 1 exit code 4" in end["reason"]
    assert "RuntimeError: drill: fault at step.gradients" in end["reason"]
    assert end["stamp"]["boot_ns"] - end["last_progress_boot_ns"] < 10e9, "no time-out on the other rank"
    assert trace(run) == trace(fsdp2)


def test_F5_a_stop_that_reaches_one_rank_stops_all_after_the_same_step(bench, fsdp2, tmp_path):
    fault = {"point": "step.gradients", "action": "terminate", "step": 7, "rank": 1}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=FLOAT32, layouts=FSDP2)
    outcome = bench.go(run)
    assert outcome.state == "stopped", logs(run, outcome)
    end = read_steps(run, 1)[-1]
    assert (end["kind"], end["state"], end["step"], end["reason"]) == ("end", "stopped", 7, "another rank was asked to stop")
    assert bench.go(run).state == "complete"
    segment = read_segments(run)[1]
    assert (segment.restored_step, segment.layout["world"]) == (7, 2)
    assert trace(run) == trace(fsdp2)
    restored = next(row for row in read_steps(run, 2) if row["kind"] == "restored")
    assert restored["determinism"] == "bitwise"


def test_F8_a_rank_that_stands_still_is_found_and_all_are_ended(bench, fsdp2, tmp_path):
    fault = {"point": "step.begin", "action": "hang", "step": 20, "rank": 1}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=FLOAT32, layouts=FSDP2)
    outcome = bench.go(run, hang_floor_seconds=15.0, hang_grace_seconds=1.0)
    assert outcome.state == "complete", logs(run, outcome)
    assert [event["segment"] for event in events_of(run) if event["kind"] == "hang"] == [1]
    assert trace(run) == trace(fsdp2)


def test_C10_D1_a_run_goes_on_under_any_other_layout(bench, alone, tmp_path):
    faults = [{"point": "step.gradients", "action": "terminate", "step": step} for step in (5, 11, 17)]
    run = bench.run(tmp_path / "run", faults=faults, overrides=FLOAT32)
    for layouts in (ALONE, FSDP2, TP2):
        outcome = bench.go(run, layouts=layouts)
        assert outcome.state == "stopped", logs(run, outcome)
    outcome = bench.go(run, layouts=ALONE)
    assert outcome.state == "complete", logs(run, outcome)
    segments = read_segments(run)
    assert [(s.restored_step, s.layout["world"]) for s in segments] == [(0, 1), (5, 2), (11, 2), (17, 1)]
    restored = [next(row for row in read_steps(run, s.id) if row["kind"] == "restored") for s in segments]
    assert restored[1]["differences"] == ["layout: 1 process -> dp_shard 2"]
    assert_same_run(run, alone)


def test_C9_a_run_repeats_itself_with_offload_from_the_middle_on(bench, fsdp2, tmp_path):
    """Nothing of a state says where moments and activations lay: a resume is bitwise, to another layout's word."""
    fault = {"point": "step.gradients", "action": "terminate", "step": 7}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=FLOAT32, layouts=FSDP2)
    assert bench.go(run).state == "stopped"
    outcome = bench.go(run, layouts={"default": {"dp_shard": 2, "offload": "all"}})
    assert outcome.state == "complete", logs(run, outcome)
    assert [s.layout["axes"]["offload"] for s in read_segments(run)] == ["none", "all"]
    assert next(row for row in read_steps(run, 2) if row["kind"] == "restored")["determinism"] == "bitwise"
    assert trace(run) == trace(fsdp2)


CHAINS = {
    "dense, tied embeddings": (
        (),
        [{"dp_shard": 2, "tp": 2}, {"pp": 2}, {"dp_shard": 3}, {"cp": 2}],
    ),
    "experts": (
        ("model.experts.experts=4", "model.experts.top_k=2", "model.experts.width=32", "model.experts.router_bias=true"),
        [{"dp_shard": 2, "ep": 2}, {"pp": 2, "tp": 2}, {"dp_shard": 2, "tp": 2, "ep": 2}, {}],
    ),
}
"""Overrides, and the layouts one after the other."""


@pytest.mark.parametrize("chain", CHAINS)
def test_C10_a_checkpoint_of_any_layout_goes_on_under_any_other(bench, tmp_path, chain):
    """Four ranks, then a pipeline, then three, then parts of rows: each reads what the one before it wrote."""
    overrides, chained = CHAINS[chain]
    alone = bench.run(tmp_path / "alone", overrides=(*FLOAT32, *overrides))
    assert bench.go(alone).state == "complete"
    faults = [{"point": "step.gradients", "action": "terminate", "step": step} for step in (5, 11, 17)]
    run = bench.run(tmp_path / "run", faults=faults, overrides=(*FLOAT32, *overrides), layouts={"default": chained[0]})
    for axes, state in zip(chained, ("stopped", "stopped", "stopped", "complete"), strict=True):
        outcome = bench.go(run, layouts={"default": axes} if axes else ALONE)
        assert outcome.state == state, logs(run, outcome)
    assert [s.restored_step for s in read_segments(run)] == [0, 5, 11, 17]
    assert_same_run(run, alone, ROUTED if chain == "experts" else TOLERANCE)


def test_each_stage_trains_under_its_own_layout(bench, alone, tmp_path):
    layouts = {"main": {"dp_shard": 2}, "anneal": {"tp": 2}}
    run = finished(bench, tmp_path / "run", layouts)
    assert [(s.restored_step, s.layout["stage"]) for s in read_segments(run)] == [(0, "main"), (18, "anneal")]
    assert [row["state"] for row in rows(run, "end")] == ["relaid", "complete"]
    assert read_segments(run)[1].reason == "the next stage trains under another layout"
    assert_same_run(run, alone)


def test_a_stop_keeps_the_layout_in_force(bench, alone, tmp_path):
    """What a resume was told stands until the next is told otherwise."""
    faults = [{"point": "step.gradients", "action": "terminate", "step": step} for step in (3, 9)]
    run = bench.run(tmp_path / "run", faults=faults, overrides=FLOAT32)
    assert bench.go(run).state == "stopped"
    assert bench.go(run, layouts=FSDP2).state == "stopped"
    assert bench.go(run).state == "complete"
    assert [s.layout["world"] for s in read_segments(run)] == [1, 2, 2]
    assert_same_run(run, alone)


def test_C9_a_second_launch_beside_two_ranks_is_refused(bench, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=FSDP2)
    refused: list[EnvironmentFault] = []

    def second() -> None:
        with pytest.raises(EnvironmentFault) as error:
            bench.go(run)
        refused.append(error.value)

    def on_record(record: dict) -> None:
        if record["kind"] == "step" and record["step"] == 2:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    assert bench.go(run, on_record=on_record).state == "complete"
    assert refused
    assert len(read_segments(run)) == 1


def test_the_segment_record_is_plain(fsdp2):
    segment = dataclasses.asdict(read_segments(fsdp2)[0])
    assert segment["layout"]["axes"]["dp_shard"] == 2
    assert segment["deployment"] is None
