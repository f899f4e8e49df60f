"""C4: retention never deletes the last verified checkpoint, counts by chain and step, keeps permanent ones."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import add_segment, chain_of, flip_bit, load, make_run, record_evaluation, record_save, same, save, values

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rundir"))

from tiny_run import tiny_spec

from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.base.records import read_records
from headway.rundir.create import RunInfo, create_run
from headway.rundir.segments import Segment, write_segment
from headway.store import deletion, kept, retention
from headway.store.admissible import CheckpointInfo, choose, list_checkpoints, refusals
from headway.store.names import TOMBSTONE
from headway.store.policy import policy_of
from headway.store.retention import Retention, apply_retention, for_roll_backs, plan_retention
from headway.store.stock import Holding, directory_bytes, take_stock
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
    gone = apply_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=2))
    assert gone == ["g0001-s00000010", "g0001-s00000030"]
    assert kept_steps(run) == [20, 40, 50]
    assert apply_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=2)) == []
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
    append = retention.append_stamped

    def full(path, record):
        if path.name == "rejected.jsonl":
            raise EnvironmentFault("cannot append record: No space left on device")
        append(path, record)

    monkeypatch.setattr(retention, "append_stamped", full)
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
    """Not from the page cache that the save filled: it is dropped before."""
    seen = []
    monkeypatch.setattr(
        retention, "verify", lambda directory, **how: (seen.append(("verify", directory.name)), verify(directory, **how))[1]
    )
    monkeypatch.setattr(retention, "drop_cached", lambda directory: seen.append(("drop", directory.name)))
    apply_retention(run, chain_of(run), Retention(keep_last=4))
    assert seen == [("drop", "g0001-s00000050"), ("verify", "g0001-s00000050")]
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
    (run.checkpoints / "g0002-s00000055").mkdir()  # left by a rank whose coordinator had given it up
    save(run, 2, 60)
    (run.checkpoints / "g0002-s00000065").mkdir()  # a save of the current segment, perhaps still being written
    apply_retention(run, chain_of(run), policy)
    left = [info.name for info in list_checkpoints(run, chain_of(run))]
    rolled_back = ["g0001-s00000040", "g0001-s00000050"]
    assert left == ["g0001-s00000030", *rolled_back, late, "g0002-s00000060", "g0002-s00000065"]


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

    true_remove = deletion._remove
    removed = []

    def once(path):
        if removed:
            raise Cut
        removed.append(path)
        true_remove(path)

    with monkeypatch.context() as patch:
        if step == "manifest renamed":
            patch.setattr(deletion, "_remove", cut)
        if step == "half of the files gone":
            patch.setattr(deletion, "_remove", once)
        if step == "recorded":
            patch.setattr(deletion, "_record", cut)
        if step == "directory left":
            patch.setattr(deletion.shutil, "rmtree", cut)
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


POLICIES = st.builds(
    Retention,
    keep_last=st.integers(1, 3),
    permanent_every=st.sampled_from([None, 0, 1, 2, 3]),
    keep_best=st.integers(0, 2),
    budget_bytes=st.sampled_from([None, None, 1, 8_000, 12_000]),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 9)),
        st.tuples(st.just("save"), st.integers(1, 9)),
        st.tuples(st.just("damage"), st.integers(0, 5)),
        st.tuples(st.just("segment"), st.integers(0, 5)),
        st.tuples(st.just("late"), st.integers(1, 30)),
        st.tuples(st.just("killed"), st.integers(1, 9)),
        st.tuples(st.just("keep"), st.integers(0, 5)),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("retain"), POLICIES),
    ),
    max_size=16,
)


class History:
    """Plays one random history; a small tensor's value is its step, so a wrong load would show.

    ``ordinals``: by name, counted here along the chain. ``states_ordinals``: manifests say them, as those of new versions do.
    """

    def __init__(self, root, states_ordinals):
        self.run, self.step, self.whole, self.states_ordinals = make_run(root), 0, set(), states_ordinals
        self.count, self.ordinals, self.losses, self.labels = 0, {}, {}, set()

    def play(self, what, number):
        getattr(self, what)(number)

    def segment_id(self):
        return chain_of(self.run)[-1].id

    def save(self, ahead):
        self.step += ahead
        self.count += 1
        loss = self.step * 7 % 5 / 4
        record_evaluation(self.run, self.segment_id(), self.step, text=loss, code=loss + 1)
        says = {"ordinal": self.count} if self.states_ordinals else {}
        name = save(self.run, self.segment_id(), self.step, says=says)
        record_save(self.run, self.segment_id(), self.step, name)
        self.whole.add(name)
        self.ordinals[name], self.losses[name] = self.count, loss

    def killed(self, ahead):
        (self.run.checkpoints / f"g{self.segment_id():04d}-s{self.step + ahead:08d}").mkdir(parents=True, exist_ok=True)

    def usable(self):
        return [i for i in list_checkpoints(self.run, chain_of(self.run)) if i.admissible and i.name in self.whole]

    def damage(self, which):
        """Damage one, but leave a usable one: 'all damaged' has its own test."""
        usable = self.usable()
        if len(usable) > 1:
            name = usable[which % len(usable)].name
            damage(self.run, name)
            self.whole.discard(name)

    def segment(self, back):
        """Restart, or roll back by some generations."""
        usable = self.usable()
        if usable:
            target = usable[max(0, len(usable) - 1 - back)]
            add_segment(self.run, self.segment_id() + 1, self.segment_id(), target.step, target.name)
            self.step, self.count = target.step, self.ordinals[target.name]

    def late(self, step):
        """A replaced segment commits after the fact."""
        chain = chain_of(self.run)
        if len(chain) > 1:
            self.whole.add(save(self.run, chain[-2].id, chain[-1].restored_step + step))

    def keep(self, which):
        names = [i.name for i in list_checkpoints(self.run, chain_of(self.run)) if i.committed]
        if names:
            kept.keep(self.run, names[which % len(names)], author="test")
            self.labels.add(names[which % len(names)])

    def release(self, which):
        if self.labels:
            name = sorted(self.labels)[which % len(self.labels)]
            kept.release(self.run, name, author="test")
            self.labels.discard(name)

    def retain(self, policy):
        chain = chain_of(self.run)
        before = {i.name: i for i in list_checkpoints(self.run, chain)}
        sizes = {name: directory_bytes(self.run.checkpoints / name) for name in before}
        expected = choose(self.run, chain)
        planned = plan_retention(self.run, chain, policy)
        assert {i.name: i for i in list_checkpoints(self.run, chain)} == before, "a plan changes nothing"
        gone = apply_retention(self.run, chain, policy)
        assert gone == [item.name for item in planned.going]
        evidence = {entry["checkpoint"] for entry in refusals(self.run)}
        assert choose(self.run, chain) == expected, "retention changed what the run would go on from"
        assert set(before) - {i.name for i in list_checkpoints(self.run, chain)} == set(gone)
        assert {item.name for item in planned.kept} == set(before) - set(gone)
        assert all(item.reasons for item in planned.kept)
        self.check(before, gone, expected, policy, evidence, sizes)
        self.whole -= set(gone)

    def check(self, before, gone, expected, policy, evidence, sizes):
        """``newest`` is what is chosen: everything in the history down from it that no rule protects may go."""
        newest = expected.checkpoint
        history = [i.name for i in before.values() if i.admissible and i.committed and i.name not in evidence]
        history = history[: history.index(newest) + 1] if newest else []
        newest_first = history[::-1]
        best = sorted(newest_first, key=lambda name: self.losses[name])[: policy.keep_best]
        permanent = [n for n in history if policy.permanent_every and self.ordinals[n] % policy.permanent_every == 0]
        protected = {newest, *best, *permanent, *self.labels, *evidence}
        remaining = sum(size for name, size in sizes.items() if name not in gone)
        for name in gone:
            info = before[name]
            assert not (info.committed and not info.admissible), "late or rolled back: evidence"
            assert name not in protected
            if name in history[-policy.keep_last :]:
                later = sum(sizes[other] for other in gone if other > name and other in history[-policy.keep_last :])
                assert policy.budget_bytes, "one of the last goes for the budget alone"
                assert remaining + later + sizes[name] > policy.budget_bytes, "no more goes than the budget asks for"
        if set(gone) & set(history):
            assert set(history) - set(history[-policy.keep_last :]) <= protected | set(gone), "all that are superseded go"
        if policy.budget_bytes and remaining > policy.budget_bytes and newest:
            assert set(history) - set(gone) <= protected, "over the budget, only what never goes is left"
        if newest:
            assert newest in self.whole
            assert same(load(self.run.checkpoints / newest)[1], values(expected.step))


@pytest.mark.parametrize("states_ordinals", [True, False], ids=["ordinals stated", "ordinals by rank"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(operations=OPERATIONS)
def test_C4_property_random_histories(tmp_path, monkeypatch, states_ordinals, operations):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    root = tmp_path / f"run{random.getrandbits(64):x}"
    history = History(root, states_ordinals)
    for what, number in [*operations, ("retain", Retention(keep_last=1))]:
        history.play(what, number)
    shutil.rmtree(root)


# --- permanent, best, kept by name


def test_the_ordinal_that_the_manifest_states_decides_not_step_nor_place(tmp_path):
    run = make_run(tmp_path / "run")
    for step, ordinal in ((10, 5), (20, 6), (30, 7), (40, 8), (50, 9)):
        save(run, 1, step, says={"ordinal": ordinal})
    apply_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=4))
    assert kept_steps(run) == [40, 50]


def test_ranks_do_not_shift_when_others_go(run):
    """Older manifests state no ordinal: 20 and 40 are the 2nd and the 4th save, whatever is left of the others."""
    policy = Retention(keep_last=1, permanent_every=2)
    for step in (60, 70, 80):
        apply_retention(run, chain_of(run), policy)
        record_save(run, 1, step, save(run, 1, step))
    apply_retention(run, chain_of(run), policy)
    assert kept_steps(run) == [20, 40, 60, 80]


def test_ranks_do_not_shift_when_a_person_removes_one(run):
    shutil.rmtree(run.checkpoints / "g0001-s00000010")
    apply_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=2))
    assert kept_steps(run) == [20, 40, 50]


@pytest.mark.parametrize("ordinal", [0, -2, True, "4", 4.0, None])
def test_an_ordinal_that_is_none_is_not_believed(tmp_path, ordinal):
    run = make_run(tmp_path / "run")
    for step in (10, 20, 30):
        save(run, 1, step, says={"ordinal": ordinal})
    assert [holding.ordinal for holding in take_stock(run, chain_of(run))] == [1, 2, 3]


def test_the_best_are_kept(run):
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5), (40, 2.9), (50, 2.8)):
        record_evaluation(run, 1, step, text=loss, code=loss + 1)
    apply_retention(run, chain_of(run), Retention(keep_last=1, keep_best=2))
    assert kept_steps(run) == [20, 30, 50]
    record_evaluation(run, 1, 60, text=2.2, code=3.2)
    save(run, 1, 60)
    save(run, 1, 70)
    apply_retention(run, chain_of(run), Retention(keep_last=1, keep_best=2))
    assert kept_steps(run) == [20, 60, 70], "30 is no longer among the best two"


def test_the_mean_over_the_sources_decides_and_none_that_is_not_finite(run):
    record_evaluation(run, 1, 10, text=1.0, code=5.0)
    record_evaluation(run, 1, 20, text=2.9, code=2.9)
    record_evaluation(run, 1, 30, text=float("nan"), code=0.1)
    record_evaluation(run, 1, 40, text=float("-inf"), code=0.1)
    record_evaluation(run, 1, 45, text=0.1)  # no checkpoint of that step
    apply_retention(run, chain_of(run), Retention(keep_last=1, keep_best=1))
    assert kept_steps(run) == [20, 50]


def test_of_equal_losses_the_newest_counts(run):
    for step in (10, 20, 30):
        record_evaluation(run, 1, step, text=1.0)
    apply_retention(run, chain_of(run), Retention(keep_last=1, keep_best=1))
    assert kept_steps(run) == [30, 50]


def test_a_loss_that_was_rolled_back_does_not_count(run):
    """Segment 2 does step 40 again: what segment 1 measured there is another state's."""
    record_evaluation(run, 1, 20, text=2.0)
    record_evaluation(run, 1, 40, text=1.0)
    add_segment(run, 2, parent=1, restored=30, checkpoint="g0001-s00000030")
    record_evaluation(run, 2, 40, text=3.0)
    save(run, 2, 40)
    save(run, 2, 50)
    apply_retention(run, chain_of(run), Retention(keep_last=1, keep_best=1))
    history = [info.name for info in list_checkpoints(run, chain_of(run)) if info.admissible]
    assert history == ["g0001-s00000020", "g0002-s00000050"]


def test_what_a_person_keeps_stays_until_it_is_released(run):
    kept.keep(run, "g0001-s00000010", author="me", label="before the spike")
    kept.keep(run, "g0001-s00000020", author="me")
    kept.keep(run, "g0001-s00000020", author="me", label="again")
    assert kept.kept_labels(run) == {"g0001-s00000010": "before the spike", "g0001-s00000020": "again"}
    apply_retention(run, chain_of(run), Retention(keep_last=1, budget_bytes=1))
    assert kept_steps(run) == [10, 20, 50]
    kept.release(run, "g0001-s00000020", author="me")
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [10, 50]


def test_only_what_is_there_is_kept_and_only_what_is_kept_released(run):
    (run.checkpoints / "g0001-s00000060").mkdir()
    for name in ("g0001-s00000060", "g0001-s00000070", "../run", "", "kept.jsonl"):
        with pytest.raises(ConfigError, match="no committed checkpoint"):
            kept.keep(run, name, author="me")
    for label in ("two\nlines", "x" * 61):
        with pytest.raises(ConfigError, match="label"):
            kept.keep(run, "g0001-s00000010", author="me", label=label)
    with pytest.raises(ConfigError, match="not kept by name"):
        kept.release(run, "g0001-s00000010", author="me")
    assert not (run.checkpoints / "kept.jsonl").exists()


def test_a_mark_that_comes_while_it_is_being_deleted_puts_it_back(run, monkeypatch):
    """After the plan, before the manifest goes: the deletion looks for marks when nobody can set one any more."""
    move = deletion._move

    def marked_first(path, to):
        if path.parent.name == "g0001-s00000020" and path.name == "MANIFEST.json":
            kept.keep(run, "g0001-s00000020", author="me")
        move(path, to)

    monkeypatch.setattr(deletion, "_move", marked_first)
    gone = apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert gone == ["g0001-s00000010", "g0001-s00000030", "g0001-s00000040"]
    assert kept_steps(run) == [20, 50]
    assert verify(run.checkpoints / "g0001-s00000020").ok


def test_whoever_keeps_too_late_is_told(run, monkeypatch):
    append = kept._append

    def too_late(run, record):
        append(run, record)
        os.replace(run.checkpoints / "g0001-s00000020" / "MANIFEST.json", run.checkpoints / "g0001-s00000020" / TOMBSTONE)

    monkeypatch.setattr(kept, "_append", too_late)
    with pytest.raises(RunError, match="being deleted"):
        kept.keep(run, "g0001-s00000020", author="me")


# --- the budget


def sizes(run):
    return {info.step: directory_bytes(run.checkpoints / info.name) for info in list_checkpoints(run, chain_of(run))}


def test_over_the_budget_the_oldest_of_the_last_go_first(run):
    each = max(sizes(run).values())
    assert apply_retention(run, chain_of(run), Retention(keep_last=4, budget_bytes=2 * each)) == [
        "g0001-s00000010",
        "g0001-s00000020",
        "g0001-s00000030",
    ]
    assert kept_steps(run) == [40, 50]


def test_a_budget_that_cannot_be_kept_is_said_and_nothing_that_never_goes_goes(run):
    kept.keep(run, "g0001-s00000010", author="me")
    record_evaluation(run, 1, 30, text=1.0)
    policy = Retention(keep_last=3, permanent_every=2, keep_best=1, budget_bytes=1)
    plan = plan_retention(run, chain_of(run), policy)
    assert "of a budget of 1 B" in plan.note
    assert apply_retention(run, chain_of(run), policy) == [] == list(plan.going)
    save(run, 1, 60, says={"ordinal": 7})
    save(run, 1, 70, says={"ordinal": 7})
    assert apply_retention(run, chain_of(run), policy) == ["g0001-s00000050", "g0001-s00000060"]
    assert kept_steps(run) == [10, 20, 30, 40, 70]
    assert "nothing more goes by itself" in plan_retention(run, chain_of(run), policy).note
    assert plan_retention(run, chain_of(run), Retention(keep_last=3, budget_bytes=10**9)).note == ""


def test_evidence_and_unfinished_saves_count_for_the_budget(run):
    """The space is taken, whoever takes it."""
    total = sum(sizes(run).values())
    add_segment(run, 2, parent=1, restored=30, checkpoint="g0001-s00000030")  # 40 and 50 are rolled back
    (run.checkpoints / "g0002-s00000040").mkdir()
    (run.checkpoints / "g0002-s00000040" / DATA).write_bytes(b"x" * 100)
    assert plan_retention(run, chain_of(run), Retention(keep_last=3, budget_bytes=total + 100)).going == ()
    plan = plan_retention(run, chain_of(run), Retention(keep_last=3, budget_bytes=total + 99))
    assert [(item.name, item.reason) for item in plan.going] == [("g0001-s00000010", retention.OVER_BUDGET)]


# --- plans and damage


def test_a_manifest_that_cannot_be_read_is_evidence_and_not_permanent(run):
    flip_bit(run.checkpoints / "g0001-s00000020" / "MANIFEST.json", 40)
    apply_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=3))
    assert kept_steps(run) == [20, 30, 50]
    plan = plan_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=2))
    assert {item.name: item.reasons[0][:8] for item in plan.kept}["g0001-s00000020"] == "evidence"


def test_a_plan_says_why(run):
    kept.keep(run, "g0001-s00000020", author="me", label="mine")
    record_evaluation(run, 1, 40, text=2.5)
    (run.checkpoints / "g0001-s00000060").mkdir()
    before = sorted(run.root.rglob("*"))
    plan = plan_retention(run, chain_of(run), Retention(keep_last=1, permanent_every=4, keep_best=1))
    assert sorted(run.root.rglob("*")) == before
    assert [(item.name, item.reason) for item in plan.going] == [(f"g0001-s000000{step}", "superseded") for step in (10, 30)]
    assert {item.name: item.reasons for item in plan.kept} == {
        "g0001-s00000020": ("kept by name: mine",),
        "g0001-s00000040": ("permanent: save 4, one in 4 is kept for good", "held-out loss 2.5000, among the best 1"),
        "g0001-s00000050": ("the newest verified one", "among the last 1"),
        "g0001-s00000060": ("unfinished: its segment may still be writing it",),
    }
    assert plan.anchor == "g0001-s00000050"


def test_a_plan_takes_another_way_to_verify(run):
    plan = plan_retention(run, chain_of(run), Retention(keep_last=1), verify=lambda name: "" if "40" in name else "no")
    assert plan.anchor == "g0001-s00000040"
    assert plan.refused == (("g0001-s00000050", "no"),)
    assert [item.name for item in plan.going] == [f"g0001-s000000{step}" for step in (10, 20, 30)]


def test_whoever_was_replaced_plans_nothing(run):
    stale = chain_of(run)
    add_segment(run, 2, parent=1, restored=20, checkpoint="g0001-s00000020")
    plan = plan_retention(run, stale, Retention(keep_last=1))
    assert (plan.going, plan.kept) == ((), ())
    assert "newer segment" in plan.note


def described(run, deployment):
    description = json.loads(run.run_file.read_text())
    run.run_file.write_text(json.dumps(description | {"deployment": deployment}))
    return run


def test_the_policy_of_a_run_is_that_of_its_deployment(run):
    whole = {"keep_last": 3, "permanent_every": 8, "keep_best": 2, "budget": 10**9, "every_steps": 7, "of a later version": {}}
    assert policy_of(described(run, {"checkpoints": whole})) == Retention(
        keep_last=3, permanent_every=8, keep_best=2, budget_bytes=10**9
    )


@pytest.mark.parametrize("deployment", [{}, {"checkpoints": {}}, {"checkpoints": {"keep_last": 2, "permanent_every": 0}}])
def test_an_older_run_has_the_defaults_for_what_its_version_did_not_know(run, deployment):
    assert policy_of(described(run, deployment)) == Retention(keep_last=2, permanent_every=0)


@pytest.mark.parametrize("checkpoints", [{"keep_last": 0}, {"keep_last": "2"}, {"keep_best": -1}, {"budget": 0}, [1], "x"])
def test_a_policy_that_is_none_is_an_error(run, checkpoints):
    with pytest.raises(RunError, match=r"deployment\.checkpoints"):
        policy_of(described(run, {"checkpoints": checkpoints}))


@pytest.mark.parametrize("wrong", [{"permanent_every": -1}, {"keep_best": -1}, {"budget_bytes": -1}])
def test_rules_are_no_less_than_none(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Retention(keep_last=1, **wrong)


# --- links


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
        patch.setattr(deletion.shutil, "rmtree", cut)
        for _ in range(3):
            with pytest.raises(EnvironmentFault):
                apply_retention(run, chain_of(run), Retention(keep_last=4))
    assert apply_retention(run, chain_of(run), Retention(keep_last=4)) == ["g0001-s00000010"]
    assert [r["checkpoint"] for r in read_records(run.checkpoints / "deleted.jsonl").records] == ["g0001-s00000010"]


def test_a_checkpoint_of_another_run_is_no_reason_to_delete_ones_own(run):
    save(run, 1, 60, says={"run_id": "another"})
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    assert kept_steps(run) == [50, 60]


# --- what roll-backs need


@settings(deadline=None)
@given(back=st.integers(1, 200), every=st.lists(st.integers(1, 150), min_size=5, max_size=60))
def test_R54_there_is_always_one_that_is_old_enough_for_a_roll_back(back, every):
    """Saves at any cadence, only the newest kept besides: a roll-back finds one, not much older than it has to be."""
    stock: list[Holding] = []
    step, longest = 0, max(every)
    for interval in every:
        step += interval
        info = CheckpointInfo(name=f"g0001-s{step:08d}", segment=1, step=step, committed=True, admissible=True)
        stock.append(Holding(info=info, nbytes=1))
        kept_now = {item.info.step for item in for_roll_backs(stock, back)} | {step}
        stock = [item for item in stock if item.info.step in kept_now]
        old = [item.info.step for item in stock if item.info.step <= step - back]
        assert max(old, default=0) >= step - 3 * back - longest, "from initial weights, as long as nothing older was saved"
        assert len(stock) <= 5


def test_R54_the_policy_keeps_what_a_roll_back_needs(run):
    plan = plan_retention(run, chain_of(run), Retention(keep_last=1, back_steps=25))
    assert {item.name[-2:]: item.reasons for item in plan.kept} == {
        "20": ("for roll-backs of 25 steps",),
        "30": ("for roll-backs of 25 steps",),
        "50": ("the newest verified one", "for roll-backs of 25 steps", "among the last 1"),
    }
    assert {item.name[-2:] for item in plan.going} == {"10", "40"}


@pytest.mark.parametrize(("policy", "steps"), [("roll_back", 25), ("stop", 0)])
def test_R54_a_recipe_that_rolls_back_keeps_them(tmp_path, policy, steps):
    interventions = {"spikes": {"policy": policy, "rewind_steps": 25}}
    spec = dataclasses.replace(tiny_spec(), interventions=interventions)
    run = create_run(tmp_path / "run", spec=spec, recipe_text="", info=RunInfo(data="", deployment={}, author="test"))
    assert policy_of(run).back_steps == steps
