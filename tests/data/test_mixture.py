"""The mixture tree: exact counts, shares of any 10,000 sequences, no dependence on length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.mixture import LARGEST_INDEX, assign, counts

QUANTA = 65_536


def quanta_of(weights: list[float]) -> tuple[int, ...]:
    parts = [max(1, int(w / sum(weights) * QUANTA)) if w else 0 for w in weights]
    parts[parts.index(max(parts))] += QUANTA - sum(parts)
    return tuple(parts)


MIXTURES = {
    "50/30/20": quanta_of([50, 30, 20]),
    "90/9.9/.1": quanta_of([90, 9.9, 0.1]),
    "16 sources": quanta_of(list(np.random.default_rng(0).dirichlet(np.ones(16)))),
    "one": (QUANTA,),
    "with zeros": quanta_of([0, 1, 0, 0, 3]),
}


@pytest.mark.parametrize("quanta", MIXTURES.values(), ids=MIXTURES)
def test_D14_share_of_any_ten_thousand_sequences(quanta):
    source = assign(np.arange(150_000), quanta, 3).source
    for k, share in enumerate(quanta):
        running = np.concatenate([[0], np.cumsum(source == k)])
        error = np.abs((running[10_000:] - running[:-10_000]) / 10_000 - share / QUANTA).max()
        assert error <= 0.001, (k, error)


@pytest.mark.parametrize("quanta", MIXTURES.values(), ids=MIXTURES)
def test_counts_are_the_counts(quanta):
    assigned = assign(np.arange(20_000), quanta, 5)
    for k in range(len(quanta)):
        own = assigned.count[assigned.source == k]
        assert np.array_equal(own, np.arange(own.size))
    for m in (0, 1, 2, 999, 20_000):
        assert counts(m, quanta, 5) == tuple(np.bincount(assigned.source[:m], minlength=len(quanta)).tolist())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any), st.integers(0, 99), st.integers(0, 10**12))
@settings(max_examples=40, deadline=None)
def test_equals_the_prototype(oracle, weights, seed, start):
    quanta, n = quanta_of([float(w) for w in weights]), start + np.arange(50)
    assigned, (source, count) = assign(n, quanta, seed), oracle.mix(n, quanta, seed)
    assert np.array_equal(assigned.source, source)
    assert np.array_equal(assigned.count, count)
    assert counts(start, quanta, seed) == tuple(oracle.counts(start, quanta, seed))


def test_seeds_differ():
    one, other = (assign(np.arange(1_000), MIXTURES["50/30/20"], seed).source for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_no_overflow_at_the_largest_index():
    n = np.array([LARGEST_INDEX - 1])
    quanta = (1, QUANTA - 1)
    assigned = assign(n, quanta, 0)
    before, after = counts(LARGEST_INDEX - 1, quanta, 0), counts(LARGEST_INDEX, quanta, 0)
    assert after[assigned.source[0]] - before[assigned.source[0]] == 1
    assert assigned.count[0] == before[assigned.source[0]]


def test_literal_output():
    """Change knowingly: another output is another data order for every run."""
    assert assign(np.arange(12), (32_768, 19_661, 13_107), 7).source.tolist() == [0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 2]
