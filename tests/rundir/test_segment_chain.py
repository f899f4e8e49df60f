"""Which checkpoint belongs to the history of the current chain."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from headway.base import files
from headway.base.errors import RunError
from headway.base.files import read_json, write_json
from headway.rundir.segments import Segment, current_chain, is_admissible, newest_id, read_segments, write_segment


def segment(number: int, parent: int | None, restored: int, epoch: int = 1) -> Segment:
    return Segment(number, parent, restored, None, "test", "automatic", epoch, {})


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


def test_what_an_owner_writes_after_the_next_ones_first_segment_is_none(run):
    """It stood still while it wrote, and lost its lease: what the new owner saves stays the run's history."""
    for member in [segment(1, None, 0), segment(2, 1, 40, epoch=2), segment(3, 1, 40, epoch=1)]:
        write_segment(run, member)
    chain = current_chain(read_segments(run))
    assert [member.id for member in chain] == [1, 2]
    assert is_admissible(chain, 2, 80)
    assert newest_id(run) == 3, "whose id nobody takes again"
    write_segment(run, segment(4, 2, 80, epoch=2))
    assert [member.id for member in current_chain(read_segments(run))] == [1, 2, 4]


def test_segment_is_never_overwritten(run):
    write_segment(run, CHAIN[0])
    with pytest.raises(RunError, match="exists already"):
        write_segment(run, segment(1, None, 7))
    assert read_segments(run) == [CHAIN[0]]


def test_hole_in_a_chain_is_named():
    with pytest.raises(RunError, match="names parent 1"):
        current_chain([segment(2, 1, 40)])


def test_segment_outlives_a_power_cut(run, monkeypatch):
    """Its checkpoints are durable, so the segment must be: its name in segments/, and its record in its own directory."""
    synced = []
    monkeypatch.setattr(files, "fsync_directory", synced.append)
    write_segment(run, CHAIN[0])
    assert {run.segments, run.segment(1)} <= set(synced)


def test_altered_segment_is_refused_and_not_taken_for_another_step(run):
    write_segment(run, CHAIN[1])
    record = run.segment(2) / "segment.json"
    write_json(record, {**read_json(record), "restored_step": "40"})
    with pytest.raises(RunError, match="restored_step: '40' is of another type"):
        read_segments(run)


@pytest.mark.parametrize("parent", [2, 3])
def test_a_parent_that_is_not_older_is_refused_instead_of_followed_for_ever(parent):
    with pytest.raises(RunError, match=f"names parent {parent}"):
        current_chain([segment(1, None, 0), segment(2, parent, 40), segment(3, 2, 80)])


def test_a_segment_in_the_directory_of_another_is_refused_and_a_copy_is_none(run):
    for member in CHAIN:
        write_segment(run, member)
    shutil.copytree(run.segment(3), run.segments / "0003-copy")
    assert read_segments(run) == CHAIN
    shutil.copytree(run.segment(3), run.segment(4))
    with pytest.raises(RunError, match="speaks of segment 3"):
        read_segments(run)


ODD_LAYOUTS = [{"world": 0}, {"world": "2"}, {"world": True}, {"per_node": -1}, {"axes": []}, {"axes": {"tp": []}}]
ODD_LAYOUTS += [{"axes": {"dp_shard": 0}}, {"axes": {"pipeline": {}}}, {"hosts": "ab"}, {"hosts": [1]}]


@pytest.mark.parametrize("layout", ODD_LAYOUTS, ids=str)
def test_odd_layout_is_named_once_where_it_is_read(run, layout):
    write_segment(run, dataclasses.replace(CHAIN[0], layout=layout))
    with pytest.raises(RunError, match=rf"segment.json: layout\..*{next(iter(layout))}"):
        read_segments(run)


def test_layout_of_any_axes_is_read(run):
    layout = {
        "world": 2,
        "per_node": 1,
        "hosts": ["a", "b"],
        "axes": {"dp_shard": 2, "cp": None, "pipeline": "1f1b", "offload": False},
    }
    write_segment(run, dataclasses.replace(CHAIN[0], layout=layout))
    assert read_segments(run)[0].layout == layout
