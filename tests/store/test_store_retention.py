"""C4: retention never deletes the last verified checkpoint, counts by chain and step, keeps permanent ones."""

from __future__ import annotations

import os
import random
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import add_segment, chain_of, flip_bit, load, make_run, record_save, same, save, values

from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.base.records import read_records
from headway.rundir.segments import Segment, write_segment
from headway.store import admissible, retention
from headway.store.admissible import choose, list_checkpoints, refusals
from headway.store.retention import Retention, apply_retention
from headway.store.verify import verify

DATA = "rank00000.safetensors"


def damage(run, name):
    path = run.checkpoints / name / DATA
    flip_bit(path, path.stat().st_size - 1)


def kept_steps(run):
    return [info.step for info in list_checkpoints(run, chain_of(run)) if info.committed]


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    for step in (10, 20, 30, 40, 50):
        record_save(run, 1, step, save(run, 1, step))
    return run


def test_C4_keeps_the_last_and_the_permanent(run):
    gone = apply_retention(run, chain_of(run), Retention(keep_last=2, permanent_every=20))
    assert gone == ["g0001-s00000010", "g0001-s00000030"]
    assert kept_steps(run) == [20, 40, 50]
    assert apply_retention(run, chain_of(run), Retention(keep_last=2, permanent_every=20)) == []
    assert [r["checkpoint"] for r in read_records(run.checkpoints / "deleted.jsonl").records] == gone


def test_C4_nothing_goes_before_a_newer_one_is_verified(run):
    for step in (10, 20, 30, 40, 50):
        damage(run, f"g0001-s{step:08d}")
    assert apply_retention(run, chain_of(run), Retention(keep_last=1)) == []
    assert kept_steps(run) == [10, 20, 30, 40, 50]


def test_C4_a_damaged_newest_does_not_count(run):
    damage(run, "g0001-s00000050")
    damage(run, "g0001-s00000040")
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [30, 40, 50]
    assert choose(run, chain_of(run)).step == 30


def refused(run):
    return [(record["checkpoint"], record["reason"]) for record in read_records(run.checkpoints / "rejected.jsonl").records]


def test_what_the_read_back_found_damaged_stays_as_evidence_and_is_no_generation(run):
    damage(run, "g0001-s00000050")
    apply_retention(run, chain_of(run), Retention(keep_last=2))
    apply_retention(run, chain_of(run), Retention(keep_last=2))
    assert kept_steps(run) == [30, 40, 50], "40 and 30 are the two generations"
    ((name, reason),) = refused(run)
    assert name == "g0001-s00000050"
    assert "digest differs" in reason
    save(run, 1, 60)
    save(run, 1, 70)
    apply_retention(run, chain_of(run), Retention(keep_last=2))
    assert kept_steps(run) == [50, 60, 70]


def test_evidence_is_kept_although_the_disk_is_too_full_to_note_it(run, monkeypatch):
    damage(run, "g0001-s00000050")
    append = retention._append

    def full(run, file, record):
        if file == "rejected.jsonl":
            raise EnvironmentFault("cannot append record: No space left on device")
        append(run, file, record)

    monkeypatch.setattr(retention, "_append", full)
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [40, 50], "space was freed all the same"


def test_what_a_restart_refused_stays(run):
    """A second save of the same step is refused for the first: it lies within the restored step, so it is still admissible."""
    again = save(run, 1, 50)
    damage(run, again)
    refusal = {"checkpoint": again, "reason": "flipped bit"}
    write_segment(run, Segment(2, 1, 50, "g0001-s00000050", "", "automatic", 2, {}, rejected=(refusal,)))
    for step in (60, 70):
        save(run, 2, step)
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert [info.name for info in list_checkpoints(run, chain_of(run))] == [again, "g0002-s00000070"]


def test_what_lost_its_manifest_and_was_refused_for_it_is_no_leftover(run):
    lost = run.checkpoints / "g0001-s00000050"
    (lost / "MANIFEST.json").unlink()
    write_segment(
        run, Segment(2, 1, 40, "g0001-s00000040", "", "automatic", 2, {}, rejected=tuple(choose(run, chain_of(run)).rejected))
    )
    save(run, 2, 60)
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert (lost / DATA).exists()


def test_C4_neither_mtime_nor_clock_decides(run):
    for step in (10, 20, 30, 40, 50):
        os.utime(run.checkpoints / f"g0001-s{step:08d}", (2e9 - step, 2e9 - step))
        os.utime(run.checkpoints / f"g0001-s{step:08d}" / "MANIFEST.json", (2e9 - step, 2e9 - step))
    apply_retention(run, chain_of(run), Retention(keep_last=2))
    assert kept_steps(run) == [40, 50]


def test_C4_the_newest_is_read_back_from_storage(run, monkeypatch):
    seen = []
    monkeypatch.setattr(admissible, "verify", lambda directory: (seen.append(directory.name), verify(directory))[1])
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, advice: dropped.append(advice))
    apply_retention(run, chain_of(run), Retention(keep_last=4))
    assert seen == ["g0001-s00000050"]
    assert os.POSIX_FADV_DONTNEED in dropped
    seen.clear()
    apply_retention(run, chain_of(run), Retention(keep_last=4))
    assert seen == [], "nothing to delete: nothing to read"


def test_C5_only_what_was_never_committed_is_a_leftover_once_a_newer_segment_has_saved(run):
    """Late commits stay visible, and so do permanent and other committed ones that a roll-back went back behind."""
    (run.checkpoints / "g0001-s00000060").mkdir()  # killed in a save
    add_segment(run, 2, parent=1, restored=30, checkpoint="g0001-s00000030")
    late = save(run, 1, 70)
    policy = Retention(keep_last=2)
    apply_retention(run, chain_of(run), policy)
    assert {"g0001-s00000060", late} <= {path.name for path in run.checkpoints.iterdir()}
    (run.checkpoints / "g0002-s00000055").mkdir()  # a save of the current segment, perhaps still being written
    save(run, 2, 60)
    apply_retention(run, chain_of(run), policy)
    left = [info.name for info in list_checkpoints(run, chain_of(run))]
    rolled_back = ["g0001-s00000040", "g0001-s00000050"]
    assert left == ["g0001-s00000030", *rolled_back, late, "g0002-s00000055", "g0002-s00000060"]


def test_a_replaced_trainer_deletes_nothing(run):
    stale = chain_of(run)
    add_segment(run, 2, parent=1, restored=20, checkpoint="g0001-s00000020")
    assert apply_retention(run, stale, Retention(keep_last=1)) == []
    assert kept_steps(run) == [10, 20, 30, 40, 50]
    assert choose(run, chain_of(run)).step == 20


def test_deletion_is_told_from_loss(run):
    apply_retention(run, chain_of(run), Retention(keep_last=2))
    damage(run, "g0001-s00000050")
    shutil.rmtree(run.checkpoints / "g0001-s00000040")
    with pytest.raises(RunError) as caught:
        choose(run, chain_of(run))
    assert "g0001-s00000040: missing" in str(caught.value)
    assert "s00000030" not in str(caught.value)


@pytest.mark.parametrize("step", ["manifest renamed", "half of the files gone", "recorded", "directory left"])
def test_C4_cut_short_anywhere_misleads_nobody(run, monkeypatch, step):
    apply_retention(run, chain_of(run), Retention(keep_last=4))  # a whole deletion before it: step 10

    class Cut(BaseException):
        pass

    def cut(*_, **__):
        raise Cut

    true_remove = retention._remove
    removed = []

    def once(path):
        if removed:
            raise Cut
        removed.append(path)
        true_remove(path)

    with monkeypatch.context() as patch:
        if step == "manifest renamed":
            patch.setattr(retention, "_remove", cut)
        if step == "half of the files gone":
            patch.setattr(retention, "_remove", once)
        if step == "recorded":
            patch.setattr(retention, "_record", cut)
        if step == "directory left":
            patch.setattr(retention.shutil, "rmtree", cut)
        with pytest.raises(Cut):
            apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [30, 40, 50]
    assert choose(run, chain_of(run)).step == 50
    for newer in (30, 40, 50):
        damage(run, f"g0001-s{newer:08d}")
    with pytest.raises(RunError) as caught:  # what was half deleted is deleted: neither used nor called missing
        choose(run, chain_of(run))
    assert "s00000030" in str(caught.value)
    assert "s00000020" not in str(caught.value)
    assert apply_retention(run, chain_of(run), Retention(keep_last=1)) == ["g0001-s00000020"]
    assert "g0001-s00000020" not in {path.name for path in run.checkpoints.iterdir()}


def test_the_name_of_a_deleted_checkpoint_is_not_used_again(run):
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert save(run, 1, 10) == "g0001-s00000010-a1"


def test_keep_last_must_be_one_or_more():
    with pytest.raises(ConfigError, match="keep_last"):
        Retention(keep_last=0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 9)),
        st.tuples(st.just("save"), st.integers(1, 9)),
        st.tuples(st.just("damage"), st.integers(0, 5)),
        st.tuples(st.just("segment"), st.integers(0, 5)),
        st.tuples(st.just("late"), st.integers(1, 30)),
        st.tuples(st.just("killed"), st.integers(1, 9)),
        st.tuples(st.just("retain"), st.integers(1, 3)),
    ),
    max_size=16,
)


class History:
    """Plays one random history; a small tensor's value is its step, so a wrong load would show."""

    def __init__(self, root):
        self.run, self.step, self.whole = make_run(root), 0, set()

    def play(self, what, number):
        getattr(self, what)(number)

    def segment_id(self):
        return chain_of(self.run)[-1].id

    def save(self, ahead):
        self.step += ahead
        name = save(self.run, self.segment_id(), self.step)
        record_save(self.run, self.segment_id(), self.step, name)
        self.whole.add(name)

    def killed(self, ahead):
        (self.run.checkpoints / f"g{self.segment_id():04d}-s{self.step + ahead:08d}").mkdir(parents=True, exist_ok=True)

    def damage(self, which):
        """Damage one, but leave a usable one: 'all damaged' has its own test."""
        usable = [i.name for i in list_checkpoints(self.run, chain_of(self.run)) if i.admissible and i.name in self.whole]
        if len(usable) > 1:
            name = usable[which % len(usable)]
            damage(self.run, name)
            self.whole.discard(name)

    def segment(self, back):
        """Restart, or roll back by some generations."""
        usable = [i for i in list_checkpoints(self.run, chain_of(self.run)) if i.admissible and i.name in self.whole]
        if usable:
            target = usable[max(0, len(usable) - 1 - back)]
            add_segment(self.run, self.segment_id() + 1, self.segment_id(), target.step, target.name)
            self.step = target.step

    def late(self, step):
        """A replaced segment commits after the fact."""
        chain = chain_of(self.run)
        if len(chain) > 1:
            self.whole.add(save(self.run, chain[-2].id, chain[-1].restored_step + step))

    def retain(self, keep_last):
        chain, policy = chain_of(self.run), Retention(keep_last=keep_last, permanent_every=7)
        before = {i.name: i for i in list_checkpoints(self.run, chain_of(self.run))}
        expected = choose(self.run, chain)
        evidence = {entry["checkpoint"] for entry in refusals(self.run)}
        gone = apply_retention(self.run, chain, policy)
        evidence |= {entry["checkpoint"] for entry in refusals(self.run)}
        assert choose(self.run, chain) == expected, "retention changed what the run would go on from"
        assert set(before) - {i.name for i in list_checkpoints(self.run, chain_of(self.run))} == set(gone)
        self.check(before, gone, expected, policy, evidence)
        self.whole -= set(gone)

    def check(self, before, gone, expected, policy, evidence):
        history = [i.name for i in before.values() if i.admissible and i.committed]
        for name in gone:
            info = before[name]
            assert not (info.committed and not info.admissible), "late or rolled back: evidence"
            assert name not in evidence, "refused before: evidence"
            assert not (info.admissible and info.committed and policy.is_permanent(info.step))
            if name in history:
                newer = history[history.index(name) + 1 :]
                assert sum(n <= expected.checkpoint for n in newer) >= policy.keep_last
        if expected.checkpoint:
            assert expected.checkpoint in self.whole
            assert same(load(self.run.checkpoints / expected.checkpoint)[1], values(expected.step))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(operations=OPERATIONS)
def test_C4_property_random_histories(tmp_path, monkeypatch, operations):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    root = tmp_path / f"run{random.getrandbits(64):x}"
    history = History(root)
    for what, number in [*operations, ("retain", 1)]:
        history.play(what, number)
    shutil.rmtree(root)


def test_a_link_is_never_deleted_nor_followed(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (run.checkpoints / "g0001-s00000010").rename(elsewhere)
    (run.checkpoints / "g0001-s00000010").symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    assert apply_retention(run, chain_of(run), Retention(keep_last=2)) == ["g0001-s00000020", "g0001-s00000030"]
    assert sorted(path.name for path in elsewhere.iterdir()) == before
    assert (run.checkpoints / "g0001-s00000010").is_symlink()
    assert apply_retention(run, chain_of(run), Retention(keep_last=2)) == []


def test_a_link_inside_a_checkpoint_goes_without_what_it_points_to(run, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (run.checkpoints / "g0001-s00000010" / "link").symlink_to(tmp_path / "kept")
    assert "g0001-s00000010" in apply_retention(run, chain_of(run), Retention(keep_last=2))
    assert (tmp_path / "kept" / "file").exists()
    assert not (run.checkpoints / "g0001-s00000010").exists()


def test_a_deletion_that_is_cut_again_and_again_is_recorded_once(run, monkeypatch):
    def cut(path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", cut)
        for _ in range(3):
            with pytest.raises(EnvironmentFault):
                apply_retention(run, chain_of(run), Retention(keep_last=4))
    assert apply_retention(run, chain_of(run), Retention(keep_last=4)) == ["g0001-s00000010"]
    assert [r["checkpoint"] for r in read_records(run.checkpoints / "deleted.jsonl").records] == ["g0001-s00000010"]


def test_a_checkpoint_of_another_run_is_no_reason_to_delete_ones_own(run):
    save(run, 1, 60, says={"run_id": "another"})
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [50, 60]
