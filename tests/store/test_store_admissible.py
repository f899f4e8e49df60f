"""C5 and the order of the chain: what counts as latest, and what a replaced attempt can no longer do."""

from __future__ import annotations

import os

import pytest
from store_cases import add_segment, chain_of, make_run, record_save, save

from headway.base.errors import RunError
from headway.store.admissible import choose, list_checkpoints
from headway.store.names import CheckpointName, parse_name


def test_C5_late_commit_of_a_replaced_segment_is_visible_and_inadmissible(tmp_path):
    run = make_run(tmp_path / "run")
    first = save(run, 1, 40)
    add_segment(run, 2, parent=1, restored=40, checkpoint=first)
    late = save(run, 1, 50)  # the writer of segment 1 was still at it
    assert choose(run, chain_of(run)).checkpoint == first
    assert {info.name: (info.committed, info.admissible) for info in list_checkpoints(run)} == {
        first: (True, True),
        late: (True, False),
    }
    with pytest.raises(RunError, match="not on the current chain"):
        choose(run, chain_of(run), explicit=late)  # C12: not even when it is named
    assert choose(run, chain_of(run), explicit=first).step == 40
    second = save(run, 2, 45)
    assert choose(run, chain_of(run)).checkpoint == second


def test_latest_is_the_last_on_the_chain_not_the_highest_step(tmp_path):
    run = make_run(tmp_path / "run")
    for step in (40, 80, 120):
        save(run, 1, step)
    add_segment(run, 2, parent=1, restored=40, checkpoint="g0001-s00000040")  # rolled back
    assert choose(run, chain_of(run)).step == 40
    save(run, 2, 60)
    choice = choose(run, chain_of(run))
    assert (choice.segment, choice.step) == (2, 60)


def test_mtime_plays_no_part(tmp_path):
    run = make_run(tmp_path / "run")
    names = [save(run, 1, step) for step in (10, 20, 30)]
    for age, name in enumerate(names):
        for path in [run.checkpoints / name, *(run.checkpoints / name).iterdir()]:
            os.utime(path, (1e9 - age * 1e6, 1e9 - age * 1e6))
    assert choose(run, chain_of(run)).step == 30


def test_a_candidate_of_the_current_segment_counts_for_its_child(tmp_path):
    run = make_run(tmp_path / "run")
    add_segment(run, 2, parent=1, restored=0)
    save(run, 2, 5)
    assert choose(run, chain_of(run)).checkpoint == "g0002-s00000005"


def test_a_replaced_save_from_initial_weights_is_no_loss(tmp_path):
    """Segment 2 began from initial weights; the late commit of segment 1 neither counts nor blocks."""
    run = make_run(tmp_path / "run")
    add_segment(run, 2, parent=1, restored=0)
    record_save(run, 1, 10, save(run, 1, 10))
    assert choose(run, chain_of(run)).checkpoint is None


def test_a_save_whose_record_was_lost_is_still_missed(tmp_path):
    """Killed between commit and record, then restored from: the segment remembers the checkpoint."""
    run = make_run(tmp_path / "run")
    save(run, 1, 10)
    add_segment(run, 2, parent=1, restored=20, checkpoint="g0001-s00000020")
    choice = choose(run, chain_of(run))
    assert choice.step == 10
    assert choice.rejected[0]["checkpoint"] == "g0001-s00000020"


def test_strangers_in_the_directory_are_ignored(tmp_path):
    run = make_run(tmp_path / "run")
    name = save(run, 1, 10)
    for stranger in ("latest", "g0001-s00000011.bak", "g1-s12", "g0001-s00000013-a0", "g0001-s000000014"):
        (run.checkpoints / stranger).mkdir()
    (run.checkpoints / "g0001-s00000099").write_text("a file")
    assert [info.name for info in list_checkpoints(run)] == [name]


def test_names():
    assert str(CheckpointName(1, 40)) == "g0001-s00000040"
    assert parse_name("g0012-s00000040-a3") == CheckpointName(12, 40, 3)
    assert parse_name(str(CheckpointName(12345, 10**9, 11))) == CheckpointName(12345, 10**9, 11)
    assert sorted([CheckpointName(2, 10), CheckpointName(1, 90), CheckpointName(1, 20, 1), CheckpointName(1, 20)])[
        0
    ] == CheckpointName(1, 20)
