"""Which checkpoint belongs to the history of the current chain."""

from __future__ import annotations

import pytest

from headway.base.errors import RunError
from headway.rundir.segments import Segment, current_chain, is_admissible, read_segments, write_segment


def segment(number: int, parent: int | None, restored: int) -> Segment:
    return Segment(number, parent, restored, None, "test", "automatic", 1, {})


CHAIN = [segment(1, None, 0), segment(2, 1, 40), segment(3, 2, 80)]


@pytest.mark.parametrize(
    ("number", "step", "expected"),
    [
        (1, 40, True),
        (1, 41, False),
        (1, 0, False),
        (2, 40, False),
        (2, 41, True),
        (2, 80, True),
        (2, 90, False),
        (3, 81, True),
        (3, 10**9, True),
    ],
)
def test_C5_late_commits_of_a_replaced_segment_are_inadmissible(number, step, expected):
    assert is_admissible(CHAIN, number, step) is expected


def test_chain_follows_parents_from_the_newest(run):
    for member in [*CHAIN, segment(4, 2, 60)]:
        write_segment(run, member)
    assert [member.id for member in current_chain(read_segments(run))] == [1, 2, 4]


def test_segment_is_never_overwritten(run):
    write_segment(run, CHAIN[0])
    with pytest.raises(RunError, match="exists already"):
        write_segment(run, segment(1, None, 7))
    assert read_segments(run) == [CHAIN[0]]


def test_hole_in_a_chain_is_named():
    with pytest.raises(RunError, match="names parent 1"):
        current_chain([segment(2, 1, 40)])
