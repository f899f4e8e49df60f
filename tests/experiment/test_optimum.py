"""Optima of synthetic curves whose minimum and noise are known."""

from __future__ import annotations

import numpy as np
import pytest

from headway.base.errors import ConfigError
from headway.experiment.optimum import (
    BRACKETED,
    Noise,
    Optimum,
    Point,
    best_value,
    levels,
    loss_at,
    optima,
    optimum,
    pooled_noise,
)

RATES = 2.0 ** np.arange(-13.0, -6.0)
BEND = 0.04
"""Nats per octave squared: what small models show."""
LEAST_COVERAGE = 0.90
"""Of intervals that should hold the truth 95 times in 100: three standard errors of 400 curves are 0.033."""


def curve(best: float, *, noise: float = 0.0, seeds: int = 1, rng=None, rates=RATES, bend=BEND) -> list[Point]:
    """A parabola with its minimum at ``best`` (log2); every seed has a level of its own, far above the noise."""
    rng = rng or np.random.default_rng(0)
    levels = rng.normal(0, 0.05, seeds)
    return [
        Point(float(rate), float(3 + bend * (np.log2(rate) - best) ** 2 + levels[seed] + rng.normal(0, noise)), seed)
        for seed in range(seeds)
        for rate in rates
    ]


def gone(points: list[Point], above: float) -> list[Point]:
    return [Point(p.value, None if p.value > above else p.loss, p.seed) for p in points]


@pytest.mark.parametrize("best", [-11.0, -10.4, -9.5, -9.01])
def test_the_minimum_of_an_exact_parabola_is_found(best):
    found = optimum(curve(best), Noise(1e-6, 50))
    assert found.state == BRACKETED
    assert np.log2(found.value) == pytest.approx(best, abs=1e-3)
    assert found.loss == pytest.approx(3 + curve(best)[0].loss - (3 + BEND * (-13 - best) ** 2), abs=1e-6)
    assert found.curvature == pytest.approx(BEND)


@pytest.mark.parametrize(("seeds", "noise"), [(1, 0.003), (1, 0.01), (3, 0.01), (3, 0.03)])
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds, noise):
    """Noise pooled over four widths, as in a sweep; and the interval is no wider than it has to be."""
    rng, hits, octaves = np.random.default_rng(1), [], []
    for _ in range(100):
        truth = {width: rng.uniform(-11, -9) for width in range(4)}
        found = optima({w: curve(best, noise=noise, seeds=seeds, rng=rng) for w, best in truth.items()})
        for width, one in found.items():
            if one.bracketed:
                hits.append(one.low <= 2 ** truth[width] <= one.high)
                octaves.append(np.log2(one.high / one.low))
    assert len(hits) > 350
    assert np.mean(hits) >= LEAST_COVERAGE
    expected = 2 * 1.96 * noise / (2 * BEND * np.sqrt(10 * seeds))  # of five values an octave apart: sum of squares 10
    assert np.median(octaves) == pytest.approx(expected, rel=0.35)


def test_pooled_noise_is_the_noise():
    rng = np.random.default_rng(2)
    found = pooled_noise([curve(-10, noise=0.01, seeds=3, rng=rng) for _ in range(30)])
    assert found.sigma == pytest.approx(0.01, rel=0.1)
    assert found.dof == 30 * (15 - 5)  # five values near the lowest, three seeds: two coefficients and three levels are fitted


def test_seeds_on_other_levels_move_nothing():
    """A seed that was run near the optimum only, and lies a whole nat higher, must not bend the curve."""
    first = curve(-10.0)
    more = [Point(p.value, p.loss + 1.0, 7) for p in first[2:5]]
    found = optimum(first + more, Noise(1e-6, 50))
    assert np.log2(found.value) == pytest.approx(-10, abs=1e-3)
    assert best_value(first + more) == 2.0**-10
    far = 2.0**-7.5
    assert loss_at(first + more, found, far) == pytest.approx(loss_at(first, optimum(first, Noise(1e-6, 50)), far), abs=1e-4)
    assert levels(first + more)[2.0**-11] - levels(first + more)[2.0**-10] == pytest.approx(BEND)


def test_a_seed_with_one_point_says_nothing_of_the_place():
    alone = optimum([*curve(-10.3), Point(2.0**-10, 1.0, 5)], Noise(0.01, 20))
    without = optimum(curve(-10.3), Noise(0.01, 20))
    assert alone.value == pytest.approx(without.value)
    assert alone.low == pytest.approx(without.low)


@pytest.mark.parametrize(("best", "state"), [(-16.0, "at the lower end"), (-5.0, "at the upper end")])
def test_a_minimum_at_an_end_is_not_bracketed(best, state):
    found = optimum(curve(best), Noise(0.001, 20))
    assert found.state == state
    assert not found.bracketed
    assert (found.low is None) is (best < -13)
    assert (found.high is None) is (best > -7)
    assert "sweep" in found.reason
    assert found.draws is None


def test_the_bound_at_an_end_is_beyond_the_noise():
    """Between the end and the first value that is surely worse, nothing is known."""
    points = curve(-13.0, bend=0.002)  # excess .002, .008, .018 at one, two, three octaves
    assert optimum(points, Noise(0.0001, 20)).high == 2.0**-12
    assert optimum(points, Noise(0.003, 20)).high == 2.0**-10  # 3 sqrt(2) x .003 = .0127
    assert optimum(points, Noise(1.0, 20)).high is None


def test_a_flat_curve_is_not_bracketed():
    rng = np.random.default_rng(3)
    curves = {width: curve(-10, noise=0.01, bend=1e-5, rng=rng) for width in range(60)}
    found = optima(curves).values()
    claimed = [one for one in found if one.bracketed]
    assert len(claimed) <= 6, "of flat curves one in forty may look bent by chance"
    assert {one.state for one in found} >= {"flat within noise", "at the lower end", "at the upper end"}


def test_a_curve_that_bends_down_around_its_lowest_point():
    losses = [3.2, 2.0, 3.11, 1.9, 3.11, 2.0, 3.2]  # the parabola through five of them bends down
    found = optimum([Point(float(r), l) for r, l in zip(RATES, losses, strict=True)], Noise(0.001, 20))
    assert found.state == "not convex"
    assert found.low is None
    assert found.high is None


def test_an_interval_that_reaches_an_end_is_open_there():
    points = curve(-12.4, rates=2.0 ** np.arange(-13.0, -9.0))
    found = optimum(points, Noise(0.02, 50))
    assert found.state in ("reaches an end", "flat within noise")
    assert found.low is None
    assert not found.bracketed


def test_trials_that_diverged_bound_the_optimum_and_are_counted():
    points = gone(curve(-9.6, noise=0.0), above=2.0**-9)
    found = optimum(points, Noise(0.002, 20))
    assert found.bracketed
    assert found.diverged == 2
    assert np.log2(found.value) == pytest.approx(-9.6, abs=0.05)
    assert found.high <= 2.0**-8
    assert "diverge" in found.reason


def test_a_value_that_diverged_is_never_the_optimum():
    """The losses fall up to the cliff: the best is the last that trained, and anything up to the cliff is possible."""
    points = gone(curve(-7.0), above=2.0**-9)
    found = optimum(points, Noise(0.002, 20))
    assert found.bracketed
    assert found.value == 2.0**-9
    assert 2.0**-8.1 < found.high <= 2.0**-8
    without = optimum([p for p in points if p.loss is not None], Noise(0.002, 20))
    assert without.state == "at the upper end", "dropping them would have lost the bound"


def test_one_seed_in_three_that_diverged_makes_the_value_bad():
    points = curve(-9.0, seeds=3)
    points = [Point(p.value, None if p.value == 2.0**-9 and p.seed == 1 else p.loss, p.seed) for p in points]
    assert best_value(points) == 2.0**-10
    assert optimum(points, Noise(0.002, 20)).value < 2.0**-9


def test_all_diverged():
    found = optimum([Point(float(r), None) for r in RATES])
    assert (found.state, found.value, found.diverged) == ("all diverged", None, 7)
    assert best_value([Point(1e-3, None)]) is None


def test_two_values_and_no_noise():
    assert optimum([Point(1e-3, 3.0), Point(2e-3, 2.9)]).state == "too few values"
    found = optimum(curve(-10.2)[2:5])
    assert found.bracketed
    assert (found.low, found.high) == (2.0**-11, 2.0**-9)
    assert "noise is not known" in found.reason


def test_what_has_no_logarithm_is_refused():
    with pytest.raises(ConfigError, match="no logarithm"):
        optimum([Point(0.0, 3.0), Point(1.0, 2.0)])
    with pytest.raises(ConfigError, match="no trials"):
        optimum([])


def test_the_same_points_give_the_same_interval():
    points = curve(-10.1, noise=0.01, seeds=2)
    assert optimum(points) == optimum(points)
    assert optimum(points).to_json()["low"] == optimum(points).low
    assert "draws" not in optimum(points).to_json()


def test_what_another_value_loses():
    points = curve(-10.0)
    found = optimum(points, Noise(1e-6, 50))
    assert loss_at(points, found, 2.0**-10.5) == pytest.approx(BEND * 0.25, rel=0.01)
    assert loss_at(points, found, 2.0**-7.5) == pytest.approx(BEND * (9 + 4) / 2, rel=0.01)  # on the line between neighbours
    assert loss_at(points, found, 2.0**-5) is None, "not swept"
    assert loss_at(gone(points, 2.0**-9), found, 2.0**-7.5) is None, "diverged there"
    assert loss_at(points, Optimum(state="all diverged", value=None, low=None, high=None), 1e-3) is None
