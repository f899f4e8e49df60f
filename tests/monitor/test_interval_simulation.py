"""What the trainer's choice loses, against the best fixed interval of the same history, found by search in hindsight.

Lost time is saves and replay; restarts cost every policy the same and are left out (``interval_histories.py``). Each run starts
from the prior of once a day, without a measured save.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interval_histories import Told, World, best_fixed, fixed_lost, gaps, policy

from headway.formulas.checkpoint_interval import FLATNESS, daly_interval_seconds
from headway.formulas.failure_estimate import FailureRate
from headway.monitor.interval import NEWEST

pytestmark = pytest.mark.e2e

MINUTES, HOURS = 60.0, 3600.0
COUNT = 400
"""Interruptions of a history: fewer, and the best interval in hindsight is best by luck."""


def world(between: float, save: float, seed: int, count: int = COUNT, **more: float) -> World:
    """Eight steps to the best interval."""
    return World(gaps=gaps(between, count, seed), save=save, step=daly_interval_seconds(save, between) / 8, **more)


def assert_close_to_the_best(seen: World) -> None:
    lost = sum(Told(seen, policy(every_steps=20)).lost)
    steps, least = best_fixed(seen)
    assert lost <= 1.1 * least, f"the best in hindsight: {steps} steps"


@pytest.mark.parametrize(
    ("between", "save"),
    [
        (5 * MINUTES, 0.01),
        (5 * MINUTES, 5 * MINUTES),
        (1 * HOURS, 30.0),
        (24 * HOURS, 30.0),
        (24 * HOURS, 5 * MINUTES),
    ],
)
def test_within_a_tenth_of_the_best_fixed_interval(between, save):
    assert_close_to_the_best(world(between, save, seed=1))


def test_where_nearly_all_time_is_lost_it_keeps_as_much():
    """A save takes as long as passes between interruptions: a sixth of the time is kept at best, so luck of single histories
    is large, and the best interval for all of them counts."""
    histories = [world(5 * MINUTES, 5 * MINUTES, seed) for seed in range(5)]
    total = sum(sum(seen.gaps) for seen in histories)
    kept = total - sum(sum(Told(seen, policy(every_steps=20)).lost) for seen in histories)
    best = total - min(sum(fixed_lost(seen, steps) for seen in histories) for steps in range(1, 40))
    assert best < 0.2 * total
    assert kept >= 0.9 * best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "save", "seed"),
    list(product((5 * MINUTES, HOURS, 6 * HOURS, 24 * HOURS), (0.01, 1.0, 30.0, 5 * MINUTES), range(2, 7))),
)
def test_within_a_tenth_of_the_best_fixed_interval_everywhere(between, save, seed):
    assert_close_to_the_best(world(between, save, seed))


@pytest.mark.parametrize("between", [30 * MINUTES, 12 * HOURS])
def test_far_better_than_an_interval_that_was_chosen_badly(between):
    """Every three hours where half an hour passes between interruptions, every minute where half a day does."""
    seen = World(gaps=gaps(between, COUNT, 1), save=2.0, step=60.0 if between > HOURS else 15.0)
    bad = 1 if between > HOURS else 720
    assert fixed_lost(seen, bad) > 3 * sum(Told(seen, policy()).lost)


def test_a_save_that_takes_long_to_become_durable():
    """Twice that time is the least interval; the search knows no such rule, and its saves may not pile up either."""
    seen = world(2 * HOURS, 1.0, seed=1, flush=30.0)
    told = Told(seen, policy(every_steps=20))
    assert sum(told.lost) <= 1.1 * best_fixed(seen)[1]
    slow = world(2 * HOURS, 1.0, seed=1, flush=300.0)
    told = Told(slow, policy(every_steps=20))
    assert min(told.spacings[NEWEST:]) >= 600.0 - slow.step, "on the boundary nearest to twice the time"
    assert {change["bound"] for change in told.changes[NEWEST:]} == {"flush"}


@pytest.mark.parametrize(
    ("before", "after", "interruptions"),
    [(10 * HOURS, 1 * HOURS, 5), (24 * HOURS, 2.4 * HOURS, 5), (1 * HOURS, 10 * HOURS, 2)],
    ids=["ten times as often", "from once a day", "a tenth"],
)
def test_it_follows_a_rate_that_changes_tenfold(before, after, interruptions):
    """At most so many interruptions after the change the interval is where the losses are flat around the new best, and over
    all it stays within a tenth of the best interval for each half: better than any single one."""
    for seed in range(2):
        seen = World(gaps=gaps((before, after), COUNT, seed), save=10.0, step=60.0)
        told = Told(seen, policy())
        best = daly_interval_seconds(10.0, after)
        near = [1 / FLATNESS <= (interval or 0.0) / best <= FLATNESS for interval in told.intervals[COUNT // 2 :]]
        assert any(near[: interruptions + 1])
        assert sum(near) / len(near) > 0.9
        halves = [replace(seen, gaps=seen.gaps[: COUNT // 2]), replace(seen, gaps=seen.gaps[COUNT // 2 :])]
        assert sum(told.lost) <= 1.1 * sum(best_fixed(half)[1] for half in halves)
        assert sum(told.lost) < best_fixed(seen)[1]


def test_a_stated_rate_saves_the_learning():
    """Of a short history: right from the start, against once a day where an interruption comes every ten minutes."""
    stated = FailureRate(interruptions=3, at_risk_seconds=3 * 10 * MINUTES)
    short = [world(10 * MINUTES, 1.0, seed, count=10) for seed in range(20)]
    ratio = sum(sum(Told(seen, policy(prior=stated)).lost) for seen in short) / sum(
        sum(Told(seen, policy()).lost) for seen in short
    )
    assert ratio < 0.9


def test_the_same_history_gives_the_same_decisions():
    seen = world(HOURS, 30.0, seed=5, count=40)
    assert Told(seen, policy()).changes == Told(seen, policy()).changes


def test_with_equal_bounds_the_choice_is_that_fixed_interval():
    """So both accounts of lost time are the same account."""
    seen = World(gaps=gaps(HOURS, 50, 3), save=10.0, step=50.0)
    assert sum(Told(seen, policy(300.0, 300.0)).lost) == pytest.approx(fixed_lost(seen, 6), rel=1e-9)


@given(
    least=st.floats(1, 500),
    width=st.floats(0, 2000),
    between=st.floats(60, 50_000),
    save=st.floats(0, 300),
    flush=st.sampled_from([0.0, 5.0, 400.0]),
    step=st.floats(0.5, 100),
    every_steps=st.integers(1, 50),
    seed=st.integers(0, 100),
)
def test_bounds_are_respected_in_any_history(least, width, between, save, flush, step, every_steps, seed):
    step = max(step, least / 50)
    lengths = [min(gap, 400 * step) for gap in gaps(between, 4, seed)]
    seen = World(gaps=lengths, save=save, step=step, flush=flush)
    told = Told(seen, policy(least, least + width, every_steps))
    rounding = 1e-8  # of ns
    assert all(least - rounding <= change["seconds"] <= least + width + rounding for change in told.changes)
    assert all(spacing >= least - rounding for spacing in told.spacings)
    if not flush:  # a save that is left out because the one before is not durable comes later
        first_after_least = step * -(-least // step) + step
        assert all(spacing <= max(least + width, first_after_least) + rounding for spacing in told.spacings)
