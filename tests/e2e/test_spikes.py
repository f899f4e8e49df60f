"""R54: a poisoned batch is met by the policy of the recipe, with the numbers of a run that never saw what was skipped."""

from __future__ import annotations

import pytest
from conftest_e2e import events_of, trace
from spike_bench import BACK, BEFORE, SKIPPED, STEPS, built, kept_steps, poisoned, policy, trained

from headway.rundir.metrics import read_steps
from headway.rundir.segments import Segment, current_chain, layout_of, read_segments, write_segment
from headway.store.admissible import choose

pytestmark = pytest.mark.e2e

SPIKE, SECOND = 105, 121
BATCH = 8
"""Sequences of each."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return built(tmp_path_factory.mktemp("spikes") / "bench")


@pytest.fixture(scope="module")
def once(clean, tmp_path_factory):
    """Data in which the batch of one step is poisoned."""
    return poisoned(clean, tmp_path_factory.mktemp("once") / "bench", (SPIKE,))


@pytest.fixture(scope="module")
def rolled_back(once, tmp_path_factory):
    run = once.run(tmp_path_factory.mktemp("rolled") / "run", every_steps=10, overrides=policy("roll_back"))
    outcome = once.go(run)
    assert outcome.state == "complete", outcome
    return run


def test_R54_roll_back(rolled_back):
    run = rolled_back
    for segment in read_segments(run): print(segment)
    for e in events_of(run): print(e["kind"], {k: v for k, v in e.items() if k not in ("stamp",)})
    print([(r["step"], round(r["loss"], 2)) for r in read_steps(run, 1) if r["kind"] == "step"][60:])
    assert 0
