"""C5 and the order of the chain: what counts as latest, and what a replaced attempt can no longer do."""

from __future__ import annotations

import os

import pytest
from store_cases import RUN_ID, SPEC_DIGEST, add_segment, chain_of, make_run, record_save, save

from headway.base.errors import RunError
from headway.base.records import RecordWriter
from headway.rundir.segments import Segment, write_segment
from headway.store.admissible import choose, list_checkpoints, refusals, saving_segments
from headway.store.manifest import load_manifest
from headway.store.names import CheckpointName, parse_name


def test_C5_late_commit_of_a_replaced_segment_is_visible_and_inadmissible(tmp_path):
    run = make_run(tmp_path / "run")
    first = save(run, 1, 40)
    add_segment(run, 2, parent=1, restored=40, checkpoint=first)
    late = save(run, 1, 50)  # the writer of segment 1 was still at it
    assert choose(run, chain_of(run)).checkpoint == first
    assert {info.name: (info.committed, info.admissible) for info in list_checkpoints(run, chain_of(run))} == {
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
    assert [info.name for info in list_checkpoints(run, chain_of(run))] == [name]


def test_names():
    assert str(CheckpointName(1, 40)) == "g0001-s00000040"
    assert parse_name("g0012-s00000040-a3") == CheckpointName(12, 40, 3)
    assert parse_name(str(CheckpointName(12345, 10**9, 11))) == CheckpointName(12345, 10**9, 11)
    assert sorted([CheckpointName(2, 10), CheckpointName(1, 90), CheckpointName(1, 20, 1), CheckpointName(1, 20)])[
        0
    ] == CheckpointName(1, 20)


def test_C5_segments_that_ever_saved_are_known_by_their_checkpoints(run_with_history):
    """Also when the segment's own record is lost, the save was never committed, or retention deleted it."""
    run = run_with_history
    assert saving_segments(run) == {1, 7, 9, 12}


def test_every_refusal_is_found_again(tmp_path):
    run = make_run(tmp_path / "run")
    entry = {"checkpoint": "g0001-s00000005", "reason": "flipped bit"}
    write_segment(run, Segment(2, 1, 0, None, "", "automatic", 2, {}, rejected=(entry,)))
    writer = RecordWriter(save_root(run) / "rejected.jsonl")
    writer.append({"kind": "checkpoint_rejected", "checkpoint": "g0002-s00000009", "reason": "cut short"})
    writer.close()
    assert [(r["checkpoint"], r["reason"]) for r in refusals(run)] == [
        ("g0001-s00000005", "flipped bit"),
        ("g0002-s00000009", "cut short"),
    ]


@pytest.fixture
def run_with_history(tmp_path):
    run = make_run(tmp_path / "run")
    save(run, 1, 5)
    save(run, 7, 5)
    (run.checkpoints / "g0009-s00000005").mkdir()
    (run.checkpoints / "notes").mkdir()
    writer = RecordWriter(run.checkpoints / "deleted.jsonl")
    writer.append({"kind": "deleted", "checkpoint": "g0012-s00000005"})
    writer.close()
    return run


def save_root(run):
    run.checkpoints.mkdir(exist_ok=True)
    return run.checkpoints


OWN = {"run_id": RUN_ID, "spec_digest": SPEC_DIGEST}


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({**OWN, "run_id": "another"}, "belongs to run another"),
        ({**OWN, "spec_digest": "sha256:cc"}, "belongs to a run of another spec"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, says, reason):
    run = make_run(tmp_path / "run")
    own = save(run, 1, 10, says=OWN)
    other = save(run, 1, 20, says=says)
    choice = choose(run, chain_of(run))
    assert choice.checkpoint == own
    ((entry),) = choice.rejected
    assert entry["checkpoint"] == other
    assert reason in entry["reason"]
    with pytest.raises(RunError, match=reason):
        choose(run, chain_of(run), explicit=other)


def test_a_checkpoint_with_other_content_than_the_run_recorded_is_refused(tmp_path):
    """Copied from a run of the same spec that was copied itself: every digest inside it is right."""
    run = make_run(tmp_path / "run")
    for step in (10, 20):
        name = save(run, 1, step, says=OWN)
        digest = load_manifest(run.checkpoints / name).state_digest
        record_save(run, 1, step, name, digest if step == 10 else "xxh3_128:0123")
    choice = choose(run, chain_of(run))
    assert choice.step == 10
    assert "not what this run saved under that name" in choice.rejected[0]["reason"]
