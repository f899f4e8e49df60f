"""The power goes at any instant of a save: committed means readable, and the older checkpoint stands. Mutants must fail."""

from __future__ import annotations

import itertools

import pytest
from power_loss import PowerCut, PowerLoss
from store_cases import chain_of, load, make_run, same, save, values

from headway.base import files
from headway.base.errors import HeadwayError
from headway.rundir.layout import RunDirectory
from headway.store import durable, retention
from headway.store.admissible import choose
from headway.store.manifest import load_manifest
from headway.store.retention import Retention, apply_retention


def cut_everywhere(tmp_path, work, check):
    """Run ``work`` on a fresh run with the power cut after 0, 1, 2, ... changing calls; ``check`` what is left each time."""
    for after in itertools.count():
        root = tmp_path / f"cut{after}"
        run = make_run(root / "run")
        save(run, 1, 1)
        with pytest.MonkeyPatch.context() as patch:
            power = PowerLoss(patch, root, after)
            try:
                work(run)
                told = True
            except (HeadwayError, PowerCut):
                told = False
            left = power.survivors(tmp_path / f"left{after}")
        check(RunDirectory.open(left / "run"), told)
        if told:
            return after
    raise AssertionError


def whole(run, told):
    """The newest that can be loaded is whole; it is the new one as soon as anybody was told so."""
    choice = choose(run, chain_of(run))
    assert choice.rejected == [], choice
    assert choice.step == 2 if told else choice.step in (1, 2)
    assert same(load(run.checkpoints / choice.checkpoint)[1], values(choice.step))


def test_C1_power_loss_at_every_instant_of_a_save(tmp_path):
    assert cut_everywhere(tmp_path, lambda run: save(run, 1, 2), whole) > 15, "a save changes something so many times"


def test_C4_power_loss_at_every_instant_of_a_deletion(tmp_path):
    def work(run):
        save(run, 1, 2)
        apply_retention(run, chain_of(run), Retention(keep_last=1))

    cut_everywhere(tmp_path, work, whole)


def fails(tmp_path, work=lambda run: save(run, 1, 2)):
    with pytest.raises((AssertionError, HeadwayError)):
        cut_everywhere(tmp_path, work, whole)


def test_mutant_without_fsync_of_data(tmp_path, monkeypatch):
    """The data file's bytes: the manifest speaks of what the disk never had."""
    true = durable.os.fsync
    monkeypatch.setattr(durable, "os", _Without(durable.os, "fsync", lambda descriptor: None))
    assert durable.os.fsync is not true
    fails(tmp_path)


def test_mutant_without_fsync_of_small_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "os", _Without(files.os, "fsync", lambda descriptor: None))
    fails(tmp_path)


def test_mutant_without_fsync_of_the_directory_after_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "fsync_directory", lambda path: None)
    fails(tmp_path)


def test_mutant_without_fsync_of_the_new_directorys_entry(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.store.save.fsync_directory", lambda path: None)
    fails(tmp_path)


class _Without:
    """A module with one function replaced."""

    def __init__(self, module, name, replacement):
        self._module, self._name, self._replacement = module, name, replacement

    def __getattr__(self, name):
        return self._replacement if name == self._name else getattr(self._module, name)


def test_mutant_that_commits_without_looking_at_the_set(tmp_path, monkeypatch):
    """A receipt of another save in the directory must keep it from being committed."""
    import shutil

    from store_cases import rectangle

    from headway.store.names import receipt_file
    from headway.store.save import ManifestFields, begin_save, commit, write_rank

    def commit_with_a_stranger(root):
        run = make_run(root)
        first = begin_save(run.checkpoints, 1, 1)
        second = begin_save(run.checkpoints, 1, 2)
        for step, directory in ((1, first), (2, second)):
            state = [rectangle(name, array) for name, array in values(step).items()]
            write_rank(directory, state, 1, step, 0, 1)
        shutil.copy(first / receipt_file(0), second / receipt_file(0))
        return commit(second, ManifestFields(segment=1, step=2, world=1, state={}))

    with pytest.raises(HeadwayError, match="belongs to another save"):
        commit_with_a_stranger(tmp_path / "honest")
    from headway.store import save as module
    from headway.store.manifest import load_receipt

    monkeypatch.setattr(module, "_collect", lambda directory, fields: [load_receipt(directory, r) for r in range(fields.world)])
    commit_with_a_stranger(tmp_path / "mutant")  # the set check is what refuses it


def test_mutant_that_deletes_without_reading_back(tmp_path, monkeypatch):
    """With the newest damaged, keep_last = 1 must not delete the older one."""

    def older_survives(root):
        run = make_run(root)
        save(run, 1, 1)
        save(run, 1, 2)
        path = run.checkpoints / "g0001-s00000002" / "rank00000.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        apply_retention(run, chain_of(run), Retention(keep_last=1))
        return (run.checkpoints / "g0001-s00000001").exists() and bool(load_manifest(run.checkpoints / "g0001-s00000001"))

    assert older_survives(tmp_path / "honest")
    trusting(monkeypatch)
    assert not older_survives(tmp_path / "mutant")


def trusting(monkeypatch):
    """Retention that believes every checkpoint to be whole."""
    assert hasattr(retention, "judge"), "retention reads back through store.admissible.judge"
    monkeypatch.setattr(retention, "judge", lambda run, chain, look=None: lambda name: "")


def test_mutant_without_the_fence(tmp_path, monkeypatch):
    """C5: a late commit of a replaced segment is visible and not chosen; admission by the highest step would choose it."""
    from store_cases import add_segment

    from headway.store import admissible

    run = make_run(tmp_path / "run")
    save(run, 1, 1)
    add_segment(run, 2, parent=1, restored=1, checkpoint="g0001-s00000001")
    save(run, 2, 2)
    save(run, 1, 9)  # segment 1 was replaced; its writer comes late
    assert choose(run, chain_of(run)).checkpoint == "g0002-s00000002"
    monkeypatch.setattr(admissible, "is_admissible", lambda chain, segment, step: True)
    assert {info.name for info in admissible.list_checkpoints(run, chain_of(run)) if info.admissible} > {"g0001-s00000009"}
