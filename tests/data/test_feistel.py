"""The shuffle: a bijection at every size, and a real shuffle by five statistics that catch known bad ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.data.feistel import derive_key, permute, unpermute

KEY = derive_key("test", 1)
POWERS = [2**k + d for k in (1, 2, 3, 5, 8, 11, 16) for d in (-1, 0, 1)]


def whole(size: int, key: np.ndarray = KEY) -> np.ndarray:
    return permute(np.arange(size), size, key)


@pytest.mark.parametrize("size", sorted({*range(1, 40), *POWERS, 1_000, 65_537, 99_991}))
def test_is_a_bijection_and_the_inverse_undoes_it(size):
    shuffled = whole(size)
    assert np.array_equal(np.sort(shuffled), np.arange(size))
    assert np.array_equal(unpermute(shuffled, size, KEY), np.arange(size))


@pytest.mark.parametrize("size", [6, 4_097, 65_537, 10**13, 2**61 - 1])
def test_equals_the_prototype(oracle, size):
    index = np.random.default_rng(0).integers(0, size, 3_000)
    assert np.array_equal(permute(index, size, KEY), oracle.feistel(index, size, KEY))


def test_keys_equal_the_prototype(oracle):
    assert np.array_equal(derive_key("chunks", (7, "code"), 3), oracle.key("chunks", (7, "code"), 3))


def test_literal_output():
    """Change knowingly: another output is another data order for every run."""
    assert permute(np.arange(10), 10, derive_key("literal", 1)).tolist() == [4, 0, 9, 5, 7, 6, 8, 1, 2, 3]
    assert permute(np.arange(6), 65_537, derive_key("literal", 1)).tolist() == [35108, 63298, 65318, 25917, 45142, 42851]
    assert permute(np.arange(3), 10**13, derive_key("literal", 1)).tolist() == [1559249682892, 4793763195561, 1958721049516]
    assert int(derive_key((7, "code"), "chunks", 0)[0]) == 0xA59FBFE1767A19C7


def test_a_key_per_element_equals_a_call_per_key():
    keys = [derive_key("many", k) for k in range(5)]
    which = np.random.default_rng(1).integers(0, 5, 400)
    index = np.random.default_rng(2).integers(0, 1_000, 400)
    together = permute(index, 1_000, np.stack(keys, axis=1)[:, which])
    assert np.array_equal(together, [permute(np.array([i]), 1_000, keys[k])[0] for i, k in zip(index, which)])


# --- statistics: each returns how far from a random permutation, in units in which about 1 is usual ---------------------


def lag_one(p: np.ndarray) -> float:
    """Correlation of neighbours, in standard errors."""
    return abs(np.corrcoef(p[:-1], p[1:])[0, 1]) * math.sqrt(p.size)


def parity(p: np.ndarray) -> float:
    """How often index and value agree in their lowest bit, in standard deviations of a fair coin."""
    return abs(((np.arange(p.size) ^ p) & 1).mean() - 0.5) * 2 * math.sqrt(p.size)


def chi_square(p: np.ndarray, bins: int = 16) -> float:
    """16 x 16 table of where indices go, as deviation of chi-square from its mean in its standard deviations."""
    cells = np.bincount(np.arange(p.size) * bins // p.size * bins + p * bins // p.size, minlength=bins * bins)
    expected, freedom = p.size / bins**2, (bins - 1) ** 2
    return abs(((cells - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def neighbour_distance(p: np.ndarray) -> float:
    """Kolmogorov distance of |p[i+1] - p[i]| / n from the law of random pairs, 1 - (1 - x)^2, times sqrt(n)."""
    distance = np.sort(np.abs(np.diff(p))) / p.size
    expected = 1 - (1 - distance) ** 2
    return np.abs(expected - np.arange(1, distance.size + 1) / distance.size).max() * math.sqrt(distance.size)


def close_neighbours(p: np.ndarray) -> float:
    """Share of neighbours that land within 1 % of the range, in units of the expected 1.99 %."""
    return (np.abs(np.diff(p)) < p.size / 100).mean() / (1 - 0.99**2)


STATISTICS = {lag_one: 4.5, parity: 4.5, chi_square: 5.0, neighbour_distance: 2.5}
"""Upper limits; a random permutation passes one with about 1 - 1e-5 (48 are drawn here, all fixed by their keys)."""


@pytest.mark.parametrize("size", [4_096, 10_007, 65_536, 65_537])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: s.__name__)
def test_D10_shuffle_mixes(statistic, size, seed):
    assert statistic(whole(size, derive_key("statistics", seed))) < STATISTICS[statistic]


def test_D10_neighbours_land_far_apart():
    shuffled = whole(65_537)
    assert 0.85 < close_neighbours(shuffled) < 1.15
    assert abs(np.abs(np.diff(shuffled)).mean() / shuffled.size - 1 / 3) < 0.01


def test_different_keys_give_unrelated_orders():
    a, b = whole(10_007, derive_key("a")), whole(10_007, derive_key("b"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert (a == b).sum() < 10


@pytest.mark.parametrize(
    ("bad", "statistic"),
    [
        (np.arange(65_537), lag_one),
        (np.arange(65_537) * 40_503 % 65_537, neighbour_distance),  # linear: one distance only
        (np.arange(65_536) * 40_503 % 65_536, parity),  # linear over a power of two keeps the lowest bit
        (np.concatenate([whole(32_768), 32_768 + whole(32_768)]), chi_square),  # shuffles within halves only
    ],
    ids=["identity", "linear", "linear-parity", "halves"],
)
def test_the_statistics_catch_bad_shuffles(bad, statistic):
    assert statistic(bad) > STATISTICS[statistic]
