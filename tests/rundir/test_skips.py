"""Arithmetic on gaps, against following each index through the records (CONTRACTS section 1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.rundir.skips import gaps_of, skip_gaps, trained_before, trained_in

MOST = 200
records = st.lists(
    st.builds(lambda first, count: {"stage": 0, "first": first, "count": count}, st.integers(0, 80), st.integers(0, 20)),
    max_size=4,
)


def stream_index(skips: list[dict], u: int) -> int:
    n = u
    for skip in sorted(skips, key=lambda one: (one["first"], one["count"])):
        if n >= skip["first"]:
            n += skip["count"]
    return n


@given(skips=records, n=st.integers(0, MOST))
def test_trained_before(skips, n):
    below = sum(stream_index(skips, u) < n for u in range(n))
    assert trained_before(gaps_of(skips, 0), n) == below


@given(own=records, newest=records, low=st.integers(0, 60), length=st.integers(0, 30))
def test_trained_in(own, newest, low, length):
    images = {stream_index(newest, u) for u in range(MOST)}
    expected = sum(stream_index(own, u) not in images for u in range(low, low + length))
    assert trained_in((low, low + length), gaps_of(own, 0), gaps_of(newest, 0)) == expected


def test_skip_gaps_that_meet_are_one():
    assert skip_gaps([(3, 2), (4, 1), (7, 1)]) == [(3, 6), (7, 8)]


def test_gaps_of_another_stage_do_not_count():
    assert gaps_of([{"stage": 1, "first": 0, "count": 5}], 0) == []
