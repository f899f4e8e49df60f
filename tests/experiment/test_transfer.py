"""Drift over widths, its verdict, and the width that no fit saw; against synthetic optima and a published data set."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from headway.base.errors import ConfigError
from headway.experiment.optimum import DRAWS, Noise, Optimum, Point, listed, optima, optimum
from headway.experiment.transfer import REFUSED, TRANSFERS, UNDECIDED, carried, compare, drift_of, overall

WIDTHS = (64, 128, 256, 512)
RATES = 2.0 ** np.arange(-14.0, -5.0)


def known_to(log2: float, sd: float, seed: int = 0) -> Optimum:
    """An optimum with a normal uncertainty in octaves."""
    draws = log2 + sd * np.random.default_rng(seed).standard_normal(DRAWS)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Optimum(state="bracketed", value=float(2.0**log2), low=float(2.0**low), high=float(2.0**high), draws=draws)


def at_end(state: str, low: float | None, high: float | None, value: float = 1e-3) -> Optimum:
    return Optimum(state=state, value=value, low=low, high=high)


def parabola(best: float, noise: float = 0.0, seed: int = 0) -> list[Point]:
    rng = np.random.default_rng(seed)
    return [Point(float(r), float(3 + 0.04 * (np.log2(r) - best) ** 2 + rng.normal(0, noise))) for r in RATES]


# --- the published data set


def column(reference, name: str) -> dict[int, float]:
    path = reference / "scaling" / "mup_transfer" / "megatron_pr3058_opt_lr.csv"
    if not path.is_file():
        pytest.skip(f"no published optima at {path}")
    return {int(row["width"]): float(row[name]) for row in csv.DictReader(path.open())}


def test_published_standard_rates_are_refused(reference):
    drift = drift_of({width: listed(rate) for width, rate in column(reference, "sp_opt_lr").items()})
    assert drift.verdict == REFUSED
    assert drift.moved == pytest.approx(16, rel=0.01)
    assert drift.slope == pytest.approx(-1, abs=0.01)
    assert drift.slope_high < -0.9


def test_published_mup_rates_transfer_within_a_factor_of_two_and_no_less(reference):
    rates = {width: listed(rate) for width, rate in column(reference, "mup_opt_lr").items()}
    drift = drift_of(rates)
    assert drift.verdict == TRANSFERS
    assert drift.moved == pytest.approx(1.996, abs=0.001)
    assert drift.slope_low < 0 < drift.slope_high, "one width of five moved by a grid step: no drift to speak of"
    refused = drift_of(rates, 1.5)
    assert refused.verdict == REFUSED
    assert "1.5 is allowed" in refused.reason


def test_published_rates_at_a_width_that_the_fit_never_saw(reference):
    standard, mup = (column(reference, name) for name in ("sp_opt_lr", "mup_opt_lr"))
    seen = {width: listed(rate) for width, rate in standard.items() if width < 2048}
    there = compare(2048, carried(seen).value, listed(standard[2048]), parabola(-14))
    assert there.verdict == REFUSED
    assert there.ratio == pytest.approx(2**2.5, rel=0.01)  # the mean of -10 ... -13 against -14 octaves
    assert drift_of(seen).on_line(2048) == pytest.approx(standard[2048], rel=0.01)
    seen = {width: listed(rate) for width, rate in mup.items() if width < 2048}
    there = compare(2048, carried(seen).value, listed(mup[2048]), parabola(-9))
    assert (there.verdict, there.ratio) == (TRANSFERS, pytest.approx(0.5, rel=0.01))


# --- drift


def test_no_drift_and_small_intervals_transfer():
    drift = drift_of({width: known_to(-10 + 0.1 * (i % 2), 0.1, i) for i, width in enumerate(WIDTHS)})
    assert drift.verdict == TRANSFERS
    assert drift.moved_low <= drift.moved <= drift.moved_high <= 2
    assert drift.slope_low < 0 < drift.slope_high


def test_the_same_optima_known_less_well_leave_it_undecided():
    drift = drift_of({width: known_to(-10 + 0.1 * (i % 2), 0.6, i) for i, width in enumerate(WIDTHS)})
    assert drift.verdict == UNDECIDED
    assert "may move by any factor" in drift.reason


@pytest.mark.parametrize("slope", [-1.0, -0.5, 0.5])
def test_a_drift_is_refused(slope):
    drift = drift_of({width: known_to(-10 + slope * i, 0.1, i) for i, width in enumerate(WIDTHS)})
    assert drift.verdict == REFUSED
    assert drift.slope_low < slope < drift.slope_high
    assert drift.moved_low > 2


def test_a_drift_within_a_generous_factor():
    optima_ = {width: known_to(-10 - 0.5 * i, 0.05, i) for i, width in enumerate(WIDTHS)}
    assert drift_of(optima_, 4.0).verdict == TRANSFERS
    assert drift_of(optima_, 2.0).verdict == REFUSED


@pytest.mark.parametrize("slope", [0.0, 1 / 3])
def test_noise_seldom_decides(slope):
    """No drift, and a true factor of 2 exactly: neither may be refused, nor the second one passed, more often than 95 % allow."""
    verdicts = []
    for trial in range(100):
        curves = {w: parabola(-10 - slope * i, noise=0.03, seed=1000 * trial + i) for i, w in enumerate(WIDTHS)}
        verdicts.append(drift_of(optima(curves)).verdict)
    assert verdicts.count(REFUSED) <= 5
    assert verdicts.count(TRANSFERS) <= (5 if slope else 100)


def test_one_width_says_nothing():
    drift = drift_of({64: known_to(-10, 0.1)})
    assert (drift.verdict, drift.reason, drift.slope) == (UNDECIDED, "one width says nothing about drift", None)


def test_an_optimum_that_is_not_bracketed_leaves_it_undecided():
    drift = drift_of({64: known_to(-10, 0.1), 128: at_end("at the lower end", None, 2.0**-9), 256: known_to(-10, 0.1)})
    assert drift.verdict == UNDECIDED
    assert "128 (at the lower end)" in drift.reason
    assert drift.slope is None
    assert drift.moved_high is None


def test_one_end_of_an_interval_can_be_enough_to_refuse():
    """Somewhere below 2^-13 is more than a factor of two below 2^-10, wherever it is."""
    drift = drift_of({64: known_to(-10, 0.1), 128: at_end("at the lower end", None, 2.0**-13, 2.0**-14)})
    assert drift.verdict == REFUSED
    assert drift.moved_low == pytest.approx(8, rel=0.2)


def test_all_diverged_at_one_width_is_undecided_and_named():
    drift = drift_of({64: known_to(-10, 0.1), 128: Optimum(state="all diverged", value=None, low=None, high=None)})
    assert drift.verdict == UNDECIDED
    assert "128 (all diverged)" in drift.reason
    assert drift.moved is None


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan"), float("inf")])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(ConfigError, match="above 1"):
        drift_of({64: listed(1e-3), 128: listed(1e-3)}, factor)


# --- what is carried, and the held-out width


def test_the_carried_value_weighs_by_certainty():
    value = carried({64: known_to(-10.0, 0.02, 1), 128: known_to(-10.4, 0.4, 2), 256: known_to(-10.0, 0.02, 3)})
    assert np.log2(value.value) == pytest.approx(-10, abs=0.05)
    assert value.low < value.value < value.high
    assert carried({64: known_to(-10, 0.1), 128: at_end("flat within noise", None, None)}) is None


def test_scatter_beyond_the_intervals_widens_the_carried_one():
    close = carried({w: known_to(-10.0, 0.01, w) for w in WIDTHS})
    apart = carried({w: known_to(-10.0 + 0.4 * (i % 2), 0.01, w) for i, w in enumerate(WIDTHS)})
    assert apart.high / apart.low > 1.2 > close.high / close.low


def test_what_a_transfer_would_have_lost():
    points = parabola(-10)
    found = optimum(points, Noise(0.0005, 20))
    near = compare(512, 2.0**-10.5, found, points)
    assert near.verdict == TRANSFERS
    assert near.ratio == pytest.approx(2**-0.5, rel=0.01)
    assert near.lost == pytest.approx(0.01, rel=0.05)
    far = compare(512, 2.0**-8, found, points)
    assert far.verdict == REFUSED
    assert far.lost == pytest.approx(0.16, rel=0.05)


def test_the_held_out_width_has_a_say():
    drift = drift_of({w: known_to(-10, 0.05, w) for w in WIDTHS})
    points = parabola(-10)
    found = optimum(points, Noise(0.0005, 20))
    good, bad = compare(1024, 2.0**-10.2, found, points), compare(1024, 2.0**-8, found, points)
    open_ = compare(1024, 2.0**-10, at_end("at the lower end", None, 2.0**-10), points)
    vague = compare(1024, 2.0**-10, known_to(-10.5, 0.5), points)
    assert overall(drift, None)[0] == TRANSFERS
    assert overall(drift, good)[0] == TRANSFERS
    assert overall(drift, bad)[0] == REFUSED
    assert "never saw" in overall(drift, bad)[1]
    assert overall(drift, open_)[0] == UNDECIDED
    assert overall(drift, vague)[0] == UNDECIDED
    refused = drift_of({w: known_to(-10 - i, 0.05, w) for i, w in enumerate(WIDTHS)})
    assert overall(refused, good)[0] == REFUSED
