"""What a flush costs the steps beside it, and that the interval takes it into account."""

from __future__ import annotations

from pathlib import Path

from tiny_run import tiny_run

from headway.base.clocks import FakeClock
from headway.monitor.interval import Interval, IntervalPolicy
from headway.monitor.slowdown import LEAST_USUAL, Slowdown
from headway.recipe.deployment import Deployment
from headway.rundir.metrics import StepLog, read_steps
from headway.rundir.segments import Segment, write_segment
from headway.train.cadence import Cadence

MS = 10**6


def told(*steps: int, during: tuple[int, ...]) -> int:
    slow = Slowdown()
    for ns in steps:
        slow.step(ns)
    slow.begins()
    for ns in during:
        slow.step(ns)
    return slow.ends()


def test_steps_of_a_flush_against_the_others():
    assert told(100, 101, 100, 99, 100, during=(130, 131, 130)) == 90


def test_a_flush_speeds_nothing_up():
    assert told(100, 101, 100, 99, during=(50,)) == 0


def test_an_evaluation_among_them_is_no_slowdown():
    assert told(100, 101, 100, 99, during=(100, 9_000, 100)) == 0


def test_too_few_steps_tell_nothing():
    assert told(*[100] * (LEAST_USUAL - 1), during=(900,)) == 0
    assert told(*[100] * LEAST_USUAL, during=()) == 0


def test_steps_of_one_flush_are_not_those_of_the_next():
    slow = Slowdown()
    for ns in (100,) * 5:
        slow.step(ns)
    slow.begins()
    slow.step(200)
    assert slow.ends() == 100
    slow.step(100)
    slow.begins()
    assert slow.ends() == 0


def test_the_trainer_charges_it_to_the_save_and_learns_it_after_a_restart(tmp_path: Path):
    """Steps of 100 ms, of 150 ms while a save is written; an evaluation between steps is part of none of them."""
    run, clock = tiny_run(tmp_path / "run"), FakeClock()
    write_segment(run, Segment(1, None, 0, None, "start", "automatic", 1, {}))
    log = StepLog(run, 1, clock)
    bounds = {"least": 0.001, "most": 1e6}
    deployment = Deployment().resolved()
    deployment = deployment | {"checkpoints": deployment["checkpoints"] | {"every_steps": 5, "adaptive": bounds}}
    cadence = Cadence(run, deployment, clock, log)
    log.write("start", pid=1)
    log.write("restored", step=0)
    cadence.begin(0)
    for step in range(1, 9):
        clock.advance(0.150 if step > 5 else 0.100)
        log.write("step", step=step, tokens=step * 64, targets=64, loss=1.0, grad_norm=1.0)
        cadence.step_done()
        clock.advance(7.0)
        due = cadence.is_due(step)
        if step == 5:
            assert due
            clock.advance(0.010)
            cadence.snapshot_taken(5, 10 * MS)
    slowed_ns = cadence.slowed_ns()
    assert slowed_ns == 150 * MS
    log.write("save", step=5, checkpoint="c", blocking_ns=10 * MS, flush_ns=450 * MS, slowed_ns=slowed_ns)
    cadence.committed(5, 450 * MS, slowed_ns)
    changes = [row for row in read_steps(run, 1) if row["kind"] == "interval"]
    assert changes[-1]["save_seconds"] == 0.160
    again = Interval.start(_policy(deployment), events=[], steps={1: read_steps(run, 1)}, now_ns=0)
    assert again.decision is not None
    assert again.decision.save_seconds == 0.160


def _policy(deployment: dict):
    policy = IntervalPolicy.of(Deployment.of_resolved(deployment))
    assert policy is not None
    return policy
