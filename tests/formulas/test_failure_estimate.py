"""The rate of interruptions: worked by hand, against scipy, and whether 80 % means 80 %."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formulas.failure_estimate import CHANGE, MEMORY, FailureRate, learned_rate

HOUR = 3600.0
DAILY = FailureRate(interruptions=1, at_risk_seconds=24 * HOUR)


def test_interruptions_and_time_at_risk_add_to_the_prior():
    """1 in 24 h, then 2 in 8 h + 16 h: 3 in 48 h. Twelve quiet hours: 3 in 60 h."""
    rate = learned_rate(DAILY, [8 * HOUR, 16 * HOUR])
    assert rate == FailureRate(interruptions=3, at_risk_seconds=48 * HOUR)
    assert rate.between_seconds == 16 * HOUR
    assert rate.after_quiet(12 * HOUR).between_seconds == 20 * HOUR
    assert learned_rate(DAILY, []) == DAILY


def test_a_prior_that_the_run_contradicts_is_left_out():
    """One gap of 5 min after a prior of 24 h: 2 ln(43,350) - ln(86,400) - ln(300) = 4.28 < 5, two of them 8.05 > 5."""
    one, two = learned_rate(DAILY, [300.0]), learned_rate(DAILY, [300.0, 300.0])
    assert 2 * math.log(43_350) - math.log(86_400) - math.log(300) == pytest.approx(4.28, abs=0.01)
    assert one.between_seconds == 86_700 / 2
    assert 3 * math.log(29_000) - math.log(86_400) - 2 * math.log(300) == pytest.approx(8.05, abs=0.01)
    assert two == FailureRate(interruptions=2, at_risk_seconds=600.0)


def test_a_silence_that_is_too_long_counts_alone():
    """10 in 10 h: 10 ln(1 + e / 10 h) passes 5 at e = 6.49 h."""
    rate = FailureRate(interruptions=10, at_risk_seconds=10 * HOUR)
    assert 10 * math.log(1 + 6.49 / 10) == pytest.approx(CHANGE, abs=0.01)
    assert rate.after_quiet(6.4 * HOUR).between_seconds == pytest.approx(1.64 * HOUR)
    assert rate.after_quiet(6.6 * HOUR).between_seconds == 6.6 * HOUR


def test_the_memory_is_bounded():
    assert learned_rate(DAILY, [HOUR] * (MEMORY + 8)) == FailureRate(interruptions=MEMORY, at_risk_seconds=MEMORY * HOUR)


def test_several_changes_leave_the_time_after_the_last():
    assert learned_rate(DAILY, [HOUR] * 10 + [HOUR / 60] * 10 + [10 * HOUR] * 5).interruptions == 5


@pytest.mark.parametrize(("shape", "tolerance"), [(1, 0.075), (2, 0.02), (5, 0.01), (32, 0.01)])
def test_the_range_holds_80_per_cent(shape, tolerance):
    stats = pytest.importorskip("scipy.stats")
    rate = FailureRate(interruptions=shape, at_risk_seconds=1.0)
    exact = [1 / stats.gamma.ppf(share, shape) for share in (0.9, 0.1)]
    assert rate.between_range_seconds == pytest.approx(exact, rel=tolerance)


def test_of_a_steady_rate_the_range_holds_the_truth_in_80_of_100_and_changes_are_rarely_seen():
    randomness = random.Random(3)
    gaps = [randomness.expovariate(1 / HOUR) for _ in range(3000)]
    prior = FailureRate(interruptions=1, at_risk_seconds=HOUR)
    rates = [learned_rate(prior, gaps[at - MEMORY : at]) for at in range(MEMORY, len(gaps))]
    held = sum(low <= HOUR <= high for low, high in (rate.between_range_seconds for rate in rates))
    assert held / len(rates) == pytest.approx(0.8, abs=0.03)
    assert sum(rate.interruptions < MEMORY for rate in rates) / len(rates) < 0.05


@given(
    prior=st.floats(1e-3, 1e11),
    gaps=st.lists(st.floats(0, 1e11), max_size=50),
    quiet=st.floats(0, 1e11),
)
def test_any_history_gives_a_rate(prior, gaps, quiet):
    rate = learned_rate(FailureRate(interruptions=1, at_risk_seconds=prior), gaps).after_quiet(quiet)
    low, high = rate.between_range_seconds
    assert 0 < low < rate.between_seconds < high < math.inf
    assert 1 <= rate.interruptions <= MEMORY
