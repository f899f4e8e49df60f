"""C5, C12 over two places: a restart goes on from the newest whole checkpoint of the chain, wherever it lies."""

from __future__ import annotations

import os
import shutil

import pytest
from mirror_cases import DATA, Faults, FaultyFileSystem, content, save_two
from store_cases import RUN_ID, add_segment, chain_of, flip_bit, make_run, record_save

from headway.base.clocks import FakeClock
from headway.base.errors import EnvironmentFault, RunError
from headway.base.records import read_records
from headway.store.admissible import choose, list_checkpoints, refusals
from headway.store.manifest import load_manifest
from headway.store.mirror.choice import choose_with_mirror
from headway.store.mirror.mirror import Mirror, MirrorFault
from headway.store.names import REJECTED
from headway.store.retention import Retention, apply_retention
from headway.store.verify import verify

OFFLINE = ConnectionError("Connection refused")


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def faults(monkeypatch):
    fresh = Faults()
    monkeypatch.setattr(FaultyFileSystem, "faults", fresh)
    return fresh


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def mirror(tmp_path, faults, clock):
    return Mirror.open(f"faulty://{tmp_path}/mirror", RUN_ID, clock)


def both(mirror, run, *steps: int) -> list[str]:
    """Saved, recorded and mirrored."""
    names = [save_two(run, 1, step) for step in steps]
    for name, step in zip(names, steps):
        record_save(run, 1, step, name, load_manifest(run.checkpoints / name).state_digest)
        mirror.put(run.checkpoints / name)
    return names


def damage(run, name: str) -> None:
    flip_bit(run.checkpoints / name / DATA[0], 1000)


def go_on(run, mirror, explicit: str | None = None):
    return choose_with_mirror(run, chain_of(run), mirror, explicit)


def test_what_is_whole_here_is_not_read_there(mirror, run, faults):
    names = both(mirror, run, 10, 20)
    faults.calls = []
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.step, choice.rejected) == (names[1], 20, [])
    assert (choice.fetched, choice.notes) == (False, ())
    assert faults.calls == [f"list {RUN_ID}"]


def test_a_damaged_one_is_replaced_by_the_copy_before_an_older_one_is_taken(mirror, run):
    names = both(mirror, run, 10, 20)
    good = content(run.checkpoints / names[1])
    damage(run, names[1])
    bad = content(run.checkpoints / names[1])
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.step, choice.fetched) == (names[1], 20, True)
    assert content(run.checkpoints / names[1]) == good
    aside = f"{names[1]}.damaged-1"
    assert content(run.checkpoints / aside) == bad, "evidence is kept as it was"
    (entry,) = choice.rejected
    assert entry["checkpoint"] == aside
    assert "digest differs" in entry["reason"]
    (record,) = read_records(run.checkpoints / REJECTED).records
    assert (record["kind"], record["checkpoint"]) == ("checkpoint_rejected", aside)
    assert "digest differs" in record["reason"]
    assert names[1] in choice.notes[0]
    assert [info.name for info in list_checkpoints(run, chain_of(run))] == names, "evidence is no checkpoint"
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [names[0], names[1], aside, REJECTED]


def test_a_mended_checkpoint_is_a_generation_again_and_its_evidence_stays(mirror, run):
    """Retention never deletes nor counts what is refused by name: the good copy must not be."""
    names = both(mirror, run, 10, 20)
    damage(run, names[1])
    choice = go_on(run, mirror)
    add_segment(run, 2, parent=1, restored=20, checkpoint=names[1])
    assert names[1] not in {entry["checkpoint"] for entry in [*refusals(run), *choice.rejected]}
    newest = save_two(run, 2, 30)
    assert apply_retention(run, chain_of(run), Retention(keep_last=1)) == names
    assert choose(run, chain_of(run)).checkpoint == newest
    assert (run.checkpoints / f"{names[1]}.damaged-1").is_dir()


def test_evidence_is_never_overwritten(mirror, run):
    (name,) = both(mirror, run, 10)
    for number in (1, 2, 3):
        damage(run, name)
        assert go_on(run, mirror).rejected[0]["checkpoint"] == f"{name}.damaged-{number}"
    assert {path.name for path in run.checkpoints.glob("*.damaged-*")} == {f"{name}.damaged-{n}" for n in (1, 2, 3)}


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "old listing"])
def test_what_is_gone_here_is_fetched(mirror, run, faults, listed):
    """Its name is on this run's own record, so a listing that does not show it yet hides nothing."""
    names = both(mirror, run, 10, 20)
    good = content(run.checkpoints / names[1])
    shutil.rmtree(run.checkpoints / names[1])
    faults.hidden = set() if listed else set(names)
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.fetched, choice.rejected) == (names[1], True, [])
    assert content(run.checkpoints / names[1]) == good
    assert "missing" in choice.notes[0]


def test_a_new_disk_starts_from_the_mirror(mirror, run):
    names = both(mirror, run, 10, 20)
    shutil.rmtree(run.checkpoints)
    assert go_on(run, mirror).checkpoint == names[1]
    assert verify(run.checkpoints / names[1]).ok


def test_a_save_without_a_record_is_found_by_the_listing(mirror, run):
    """Killed between commit and record, then its disk was lost."""
    both(mirror, run, 10)
    unrecorded = save_two(run, 1, 20)
    mirror.put(run.checkpoints / unrecorded)
    shutil.rmtree(run.checkpoints)
    assert go_on(run, mirror).checkpoint == unrecorded


def test_both_copies_damaged_means_the_one_before(mirror, run, tmp_path):
    names = both(mirror, run, 10, 20, 30)
    damage(run, names[2])
    flip_bit(tmp_path / "mirror" / RUN_ID / names[2] / DATA[1], 1000)
    shutil.rmtree(run.checkpoints / names[1])
    (tmp_path / "mirror" / RUN_ID / names[1] / "MANIFEST.json").unlink()
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.fetched) == (names[0], False)
    assert [entry["checkpoint"] for entry in choice.rejected] == [names[2], names[1]]
    assert f"{DATA[0]}: m/w block 0: digest differs; on the mirror: {DATA[1]}:" in choice.rejected[0]["reason"]
    assert choice.rejected[1]["reason"].endswith("; on the mirror: not there")
    assert not list(run.checkpoints.glob("*.damaged-*")), "what is not replaced stays where it is"
    assert not list(run.checkpoints.glob(".*")), "and half a download does not"


def test_a_mirror_out_of_reach_is_a_note_while_something_is_whole_here(mirror, run, faults, clock):
    names = both(mirror, run, 10, 20)
    damage(run, names[1])
    faults.error = OFFLINE
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.fetched) == (names[0], False)
    assert choice.notes == (f"the mirror {mirror.url} is out of reach: cannot list {RUN_ID}: Connection refused",)
    assert choice.rejected[0]["reason"].endswith("on the mirror: out of reach")
    assert len(clock.slept) == 4, "it is asked once, not for every checkpoint"


def test_a_mirror_that_fails_midway_is_a_note_too(mirror, run, faults):
    names = both(mirror, run, 10, 20)
    damage(run, names[1])
    faults.error, faults.error_at = OFFLINE, f"read {DATA[0]}"
    choice = go_on(run, mirror)
    assert choice.checkpoint == names[0]
    assert "out of reach" in choice.notes[0]
    assert (run.checkpoints / names[1]).is_dir(), "nothing was moved aside for a copy that did not come"


@pytest.mark.parametrize("here", ["nothing yet", "gone", "damaged"])
def test_with_nothing_whole_here_a_mirror_out_of_reach_ends_it(mirror, run, faults, here):
    names = both(mirror, run, 10, 20) if here != "nothing yet" else []
    for name in names:
        damage(run, name) if here == "damaged" else shutil.rmtree(run.checkpoints / name)
    faults.error = OFFLINE
    with pytest.raises(EnvironmentFault, match="no checkpoint can be used here") as caught:
        go_on(run, mirror)
    assert "the mirror may hold one, but is out of reach" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert mirror.url in str(caught.value)


def test_all_damaged_everywhere_is_the_end_of_the_run(mirror, run, tmp_path):
    names = both(mirror, run, 10, 20)
    for name in names:
        damage(run, name)
        flip_bit(tmp_path / "mirror" / RUN_ID / name / DATA[0], 300)
    with pytest.raises(RunError, match="no checkpoint of this run can be used") as caught:
        go_on(run, mirror)
    assert all(name in str(caught.value) for name in names)


def test_a_run_that_never_saved_begins(mirror, run):
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.segment, choice.step, choice.rejected) == (None, None, 0, [])


def test_the_chain_counts_there_too(mirror, run):
    """A late commit of a replaced segment reached the mirror: it is no candidate, not even by its name."""
    (first,) = both(mirror, run, 40)
    add_segment(run, 2, parent=1, restored=40, checkpoint=first)
    late = save_two(run, 1, 50)
    mirror.put(run.checkpoints / late)
    shutil.rmtree(run.checkpoints / late)
    assert go_on(run, mirror).checkpoint == first
    with pytest.raises(RunError, match="not on the current chain"):
        go_on(run, mirror, explicit=late)
    assert not (run.checkpoints / late).exists()


def test_without_segments_nothing_is_admissible_and_nothing_begins(mirror, run):
    both(mirror, run, 10)
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(run.segments)
    with pytest.raises(RunError, match="the mirror holds checkpoints of this run, but it has no segments"):
        go_on(run, mirror)


def test_an_explicit_one_that_only_the_mirror_has_is_fetched(mirror, run):
    names = both(mirror, run, 10, 20)
    shutil.rmtree(run.checkpoints / names[0])
    choice = go_on(run, mirror, explicit=names[0])
    assert (choice.checkpoint, choice.step, choice.fetched) == (names[0], 10, True)
    assert verify(run.checkpoints / names[0]).ok
    assert go_on(run, mirror, explicit=names[1]).fetched is False


def test_an_explicit_one_that_is_damaged_here_is_replaced(mirror, run):
    names = both(mirror, run, 10, 20)
    damage(run, names[0])
    assert go_on(run, mirror, explicit=names[0]).rejected[0]["checkpoint"] == f"{names[0]}.damaged-1"


@pytest.mark.parametrize(
    ("name", "words"),
    [("g0001-s00000077", "does not exist"), ("nonsense", "does not exist"), ("g0001-s00000010", "is damaged")],
)
def test_an_explicit_one_that_nobody_has_whole_is_refused(mirror, run, name, words):
    first = save_two(run, 1, 10)
    both(mirror, run, 20)
    damage(run, first)
    with pytest.raises(RunError, match=words) as caught:
        go_on(run, mirror, explicit=name)
    assert "g0001-s00000020" in str(caught.value), "what could be used is listed"


def test_an_explicit_one_behind_a_mirror_out_of_reach(mirror, run, faults):
    names = both(mirror, run, 10, 20)
    shutil.rmtree(run.checkpoints / names[0])
    faults.error = OFFLINE
    with pytest.raises(EnvironmentFault, match=f"checkpoint {names[0]} cannot be used here"):
        go_on(run, mirror, explicit=names[0])


def test_what_retention_deleted_here_is_missed_by_nobody_but_helps(mirror, run, tmp_path):
    names = both(mirror, run, 10, 20, 30)
    assert apply_retention(run, chain_of(run), Retention(keep_last=1)) == names[:2]
    damage(run, names[2])
    flip_bit(tmp_path / "mirror" / RUN_ID / names[2] / DATA[0], 300)
    mirror_of_20 = tmp_path / "mirror" / RUN_ID / names[1]
    shutil.rmtree(mirror_of_20)
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.fetched) == (names[0], True)
    assert [entry["checkpoint"] for entry in choice.rejected] == [names[2]]


def test_a_copy_of_another_run_is_refused(mirror, run, tmp_path):
    """By hand somebody put one there; it is whole, but not this run's."""
    names = both(mirror, run, 10)
    other = make_run(tmp_path / "other")
    save_two(other, 1, 20, says={"run_id": "77ff"})
    shutil.copytree(other.checkpoints / "g0001-s00000020", tmp_path / "mirror" / RUN_ID / "g0001-s00000020")
    choice = go_on(run, mirror)
    assert choice.checkpoint == names[0]
    assert "belongs to run 77ff" in choice.rejected[0]["reason"]


def test_other_content_under_a_recorded_name_is_refused(mirror, run, tmp_path):
    names = both(mirror, run, 10, 20)
    other = make_run(tmp_path / "other")
    save_two(other, 1, 20, rows=16)
    there = tmp_path / "mirror" / RUN_ID / names[1]
    shutil.rmtree(there)
    shutil.copytree(other.checkpoints / names[1], there)
    shutil.rmtree(run.checkpoints / names[1])
    choice = go_on(run, mirror)
    assert choice.checkpoint == names[0]
    assert "not what this run saved under that name" in choice.rejected[0]["reason"]


def test_a_full_disk_is_said_and_no_older_one_is_taken_in_silence(mirror, run, monkeypatch):
    names = both(mirror, run, 10, 20)
    damage(run, names[1])
    true = os.statvfs(run.root)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*true[:4], 0, *true[5:])))
    with pytest.raises(EnvironmentFault, match=r"bytes needed, 0 free") as caught:
        go_on(run, mirror)
    assert not isinstance(caught.value, MirrorFault)
    assert not list(run.checkpoints.glob("*.damaged-*"))


def test_a_restart_that_was_cut_short_after_moving_aside_goes_on(mirror, run, monkeypatch):
    names = both(mirror, run, 10, 20)
    damage(run, names[1])

    def die(hidden, root):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headway.store.mirror.choice.settle", die)
        with pytest.raises(KeyboardInterrupt):
            go_on(run, mirror)
    assert not (run.checkpoints / names[1]).exists()
    choice = go_on(run, mirror)
    assert (choice.checkpoint, choice.fetched) == (names[1], True)
    assert verify(run.checkpoints / names[1]).ok


def test_a_rejection_that_cannot_be_recorded_does_not_stop_the_restart(mirror, run):
    names = both(mirror, run, 10)
    damage(run, names[0])
    (run.checkpoints / REJECTED).mkdir()
    assert go_on(run, mirror).checkpoint == names[0]
