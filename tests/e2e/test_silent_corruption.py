"""Flipped bits in real processes: found, named, and the run goes on to the state of one that nothing disturbed (R55, P7)."""

from __future__ import annotations

import socket

import pytest
from conftest_e2e import events_of, trace

from headway.rundir.categories import Category
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.segments import current_chain, read_segments
from headway.train.soundness.finding import REPEAT, REPLICAS

pytestmark = pytest.mark.e2e

FLOAT32 = ("precision.compute=float32",)
HOST = socket.gethostname()
QUERY, UP = "layers.1.attention.q.weight", "layers.0.ffn.up.weight"
HIGH = 8 * 40 + 29
"""A bit of the exponent of an early float32: the value changes at once by orders of magnitude."""
ALONE = None


def layout(**axes):
    return {"default": axes}


def flip(point, tensor, step, rank=0, bit=HIGH):
    return {"point": point, "action": "flip", "step": step, "rank": rank, "tensor": tensor, "bit": bit}


def go(bench, where, layouts=ALONE, faults=None, *, compare=8, repeat=0, every_steps=4, overrides=FLOAT32):
    """A run with these checks until it is complete."""
    run = bench.run(
        where,
        faults=faults,
        overrides=overrides,
        layouts=layouts,
        every_steps=every_steps,
        corruption={"compare_every": compare, "repeat_every": repeat},
    )
    outcome = bench.go(run)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(run.segments.rglob("*.log")))
    assert outcome.state == "complete", f"{outcome}\n{logs}"
    return run


def found(run):
    return [event for event in events_of(run) if event["kind"] == "corruption"]


def rows(run, kind):
    return [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == kind]


@pytest.fixture(scope="module")
def undisturbed(bench, tmp_path_factory):
    """By layout: the run without faults and without checks."""
    known = {}

    def of(layouts):
        key = str(layouts)
        if key not in known:
            known[key] = go(bench, tmp_path_factory.mktemp("undisturbed") / "run", layouts, compare=0)
        return known[key]

    return of


CLEAN = {"alone": ALONE, "copies": layout(dp_replicate=2), "shards": layout(dp_shard=2), "tp": layout(tp=2), "pp": layout(pp=2)}


@pytest.mark.parametrize("kind", CLEAN)
def test_checks_change_nothing_and_raise_no_false_alarm(bench, undisturbed, tmp_path, kind):
    """Every step is compared and repeated: the same bits as without."""
    run = go(bench, tmp_path / "run", CLEAN[kind], compare=1, repeat=1)
    assert trace(run) == trace(undisturbed(CLEAN[kind]))
    assert len(read_segments(run)) == 1
    checks = rows(run, "check")
    assert [row["step"] for row in checks if row["by"] == REPEAT] == list(range(1, 25))
    compared = [row["step"] for row in checks if row["by"] == REPLICAS]
    assert compared == (list(range(1, 25)) if kind in ("copies", "tp") else [])
    assert all(row["split"].get(Category.VALIDATION_REPLAY, 0) > 0 for row in rows(run, "step"))


def test_P7_a_flipped_weight_on_one_of_two_copies_is_found_and_the_repetition_names_the_rank(bench, undisturbed, tmp_path):
    """Two copies have no majority: the steps that are trained again tell which was wrong, and since when."""
    copies = layout(dp_replicate=2)
    run = go(bench, tmp_path / "run", copies, [flip("step.updated", f"param/{UP}", 10, rank=1)])
    first, located = found(run)
    assert (first["by"], first["step"], first["agreed"], first["parameter"]) == (REPLICAS, 12, 8, UP)
    assert (first["rank"], first["ranks"], first["host"], first["evidence"]) == (None, [0, 1], HOST, False)
    assert f"param/{UP}" in first["tensors"]
    assert (located["by"], located["rank"], located["first_step"], located["parameter"]) == ("located", 1, 10, UP)
    assert located["findings"] == 1, "one finding, told twice"
    exit_event = next(event for event in events_of(run) if event["kind"] == "exit")
    assert exit_event["corruption"].items() >= {"kind": "corruption", "rank": None, "host": HOST, "step": 12}.items()
    assert [(s.restored_step, s.parent) for s in read_segments(run)] == [(0, None), (8, 1)]
    assert not any(row["step"] == 12 for row in read_steps(run, 1) if row["kind"] in ("snapshot", "save"))
    assert trace(run) == trace(undisturbed(copies))


@pytest.mark.slow
def test_P7_of_three_copies_the_odd_one_is_named_at_once(bench, undisturbed, tmp_path):
    """A flipped gradient, after the sum: moments and weights of one copy go another way."""
    copies = layout(dp_replicate=3)
    run = go(bench, tmp_path / "run", copies, [flip("step.gradients", QUERY, 6, rank=2)])
    first, located = found(run)
    assert (first["by"], first["step"], first["agreed"], first["rank"], first["host"]) == (REPLICAS, 8, 4, 2, HOST)
    assert first["parameter"] == QUERY
    assert {f"param/{QUERY}", f"m/{QUERY}", f"v/{QUERY}"} <= set(first["tensors"])
    assert (located["rank"], located["first_step"]) == (2, 6)
    exit_event = next(event for event in events_of(run) if event["kind"] == "exit")
    assert exit_event["corruption"].items() >= {"kind": "corruption", "rank": 2, "host": HOST}.items()
    assert trace(run) == trace(undisturbed(copies))


def test_a_flipped_weight_of_a_single_process_is_found_by_repeating_the_step(bench, undisturbed, tmp_path):
    """What was saved since the last step that was repeated alike is suspect, and nothing goes on from it."""
    run = go(bench, tmp_path / "run", ALONE, [flip("step.updated", f"param/{UP}", 16, bit=8 * 40)], repeat=8, every_steps=3)
    [event] = found(run)
    assert (event["by"], event["step"], event["agreed"], event["rank"], event["parameter"]) == (REPEAT, 16, 8, 0, UP)
    assert "a third run agrees with the repetition: the step was wrong" in event["reason"]
    assert [s.restored_step for s in read_segments(run)] == [0, 6], "12 and 15 were saved after step 8"
    refused = [event for event in events_of(run) if event["kind"] == "checkpoint_rejected"]
    assert [e["checkpoint"] for e in refused] == ["g0001-s00000015", "g0001-s00000012", "g0001-s00000009"]
    assert "suspect: segment 1 found silent corruption at step 16" in refused[0]["reason"]
    assert trace(run) == trace(undisturbed(ALONE))


def test_F5_a_stop_that_is_asked_for_in_a_step_that_is_repeated_comes_after_it(bench, tmp_path):
    """The wish travels with what the ranks exchange, and is no other result."""
    asked = {"point": "step.updated", "action": "terminate", "step": 8, "rank": 1}
    checks = {"compare_every": 0, "repeat_every": 8}
    run = bench.run(tmp_path / "run", faults=[asked], overrides=FLOAT32, layouts=layout(dp_shard=2), corruption=checks)
    assert bench.go(run).state == "stopped"
    assert [(row["step"], row["by"]) for row in read_steps(run, 1) if row["kind"] == "check"] == [(8, REPEAT)]
    assert rows(run, "end")[-1]["step"] == 8


WITHOUT_COPIES = {
    "tp, gradient": (layout(tp=2), "step.gradients", QUERY, 1),
    "pp, weight": (layout(pp=2), "step.begin", f"param/{QUERY}", 1),
    "shards, weight": (layout(dp_shard=2), "step.begin", f"param/{UP}", 0),
}
"""Layout, and where a bit is flipped on which rank."""


@pytest.mark.slow
@pytest.mark.parametrize("case", WITHOUT_COPIES)
def test_without_copies_the_repetition_names_rank_and_parameter(bench, undisturbed, tmp_path, case):
    """Others are reached by what that rank sends them, and are not accused."""
    layouts, point, tensor, rank = WITHOUT_COPIES[case]
    faults = [flip(point, tensor, step, rank, bit=8 * 20 + 30) for step in (8, 16)]
    run = go(bench, tmp_path / "run", layouts, faults, compare=0, repeat=8)
    events = found(run)
    assert [(e["by"], e["step"], e["rank"], e["host"]) for e in events] == [(REPEAT, step, rank, HOST) for step in (8, 16)]
    assert [e["parameter"] for e in events] == [tensor.removeprefix("param/")] * 2
    assert [(e["findings"], e["evidence"]) for e in events] == [(1, False), (2, True)], "twice on one machine is evidence"
    assert [s.restored_step for s in read_segments(run)] == [0, 0, 8]
    assert trace(run) == trace(undisturbed(layouts))
