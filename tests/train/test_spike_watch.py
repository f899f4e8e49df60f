"""Spikes in the loop: what each policy makes of a step, and when statistics start anew."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rundir"))

from tiny_run import tiny_spec

from headway.data.stream import Stream, Transition
from headway.monitor.spikes import LEAST_STEPS
from headway.recipe.schedules import Schedule
from headway.rundir.segments import ACCEPTED, Segment
from headway.train.crew import ALONE
from headway.train.spikes import LASTING_STEPS, SpikeWatch
from headway.train.step import StepResult

QUIET = LEAST_STEPS + 20
"""Steps after which it judges."""


def watch(policy: str, transitions=(), spikes=(), stages: int = 1) -> SpikeWatch:
    spec = tiny_spec(400)
    spec = dataclasses.replace(spec, stages=spec.stages * stages, interventions={"spikes": {"policy": policy}})
    segment = Segment(1, None, 0, None, "", "", 1, {}, spikes=spikes)
    return SpikeWatch(segment, Stream(spec, transitions=transitions), Schedule(spec), ALONE)


def step(spikes: SpikeWatch, number: int, loss: float = 2.0, norm: float = 1.0, applied: bool = True):
    """As the loop does it: the veto before the update, the look after it."""
    wobble = math.exp(random.Random(number).gauss(0, 0.005))
    veto = spikes.veto
    applied = applied and not (veto is not None and veto(number, loss * wobble, norm * wobble))
    found = spikes.look(number, StepResult(loss * wobble, 0.0, norm * wobble, False, applied))
    return applied, found, spikes.ends


def quiet(spikes: SpikeWatch, until: int = QUIET, **values) -> None:
    for number in range(1, until + 1):
        assert step(spikes, number, **values) == (True, None, False)


@pytest.mark.parametrize(
    ("policy", "applied", "ends"),
    [("off", True, False), ("skip_update", False, False), ("roll_back", True, True), ("stop", True, True)],
)
def test_R54_what_each_policy_makes_of_a_loss_that_stands_out(policy, applied, ends):
    spikes = watch(policy)
    quiet(spikes)
    was_applied, found, ended = step(spikes, QUIET + 1, loss=4.0)
    assert (was_applied, ended) == (applied, ends)
    assert found["step"] == QUIET + 1
    assert found["batch"] == {"stage": 0, "first": 4 * QUIET, "sequences": 4}
    assert found["stream"] == [4 * QUIET, 4 * QUIET + 4]
    assert found["reading"]["loss"] > 10 > found["reading"]["grad_norm"]
    assert step(spikes, QUIET + 2)[1:] == (None, False)


@pytest.mark.parametrize("policy", ["roll_back", "stop"])
def test_a_gradient_norm_alone_must_last(policy):
    spikes = watch(policy)
    quiet(spikes)
    ended = [step(spikes, QUIET + 1 + more, norm=9.0)[2] for more in range(LASTING_STEPS)]
    assert ended == [*[False] * (LASTING_STEPS - 1), True]
    spikes = watch(policy)
    quiet(spikes)
    for more in range(0, 20, 2):
        assert not step(spikes, QUIET + 1 + more, norm=9.0)[2]
        assert step(spikes, QUIET + 2 + more)[1:] == (None, False)


def test_the_count_of_gradient_norms_survives_a_restart():
    spikes, again = watch("stop"), watch("stop")
    quiet(spikes)
    for more in range(1, LASTING_STEPS):
        step(spikes, QUIET + more, norm=9.0)
    again.restore(spikes.state())
    assert step(again, QUIET + LASTING_STEPS, norm=9.0)[2]


def test_L9_a_step_that_is_not_finite_is_no_spike_and_leaves_no_trace():
    for policy in ("off", "skip_update", "roll_back"):
        spikes = watch(policy)
        quiet(spikes)
        before = spikes.state()
        for loss, norm in ((math.nan, 1.0), (2.0, math.inf), (math.inf, math.nan)):
            assert step(spikes, QUIET + 1, loss=loss, norm=norm, applied=False)[1:] == (None, False)
        assert spikes.state() == before


def test_L10_an_update_that_the_guard_left_out_is_not_learned():
    spikes = watch("off")
    quiet(spikes)
    before = spikes.state()
    step(spikes, QUIET + 1, norm=2.0, applied=False)
    assert spikes.state() == before


def test_a_stage_a_mixture_and_an_accepted_spike_begin_anew():
    """The loss doubles where each begins: what it was before is no measure."""
    change = Transition(stage=0, first=4 * QUIET, quanta=(65_536,))
    accepted = {"step": QUIET + 1, "action": ACCEPTED}
    for spikes in (watch("stop", transitions=(change,)), watch("stop", spikes=(accepted,))):
        quiet(spikes)
        assert step(spikes, QUIET + 1, loss=4.0)[1:] == (None, False)
    spikes = watch("stop", stages=2)
    quiet(spikes, until=400)
    assert step(spikes, 401, loss=4.0)[1:] == (None, False)
