"""C3 and C7: full disk and I/O errors leave the older checkpoint intact, name path and cause, and the next save works."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
from store_cases import chain_of, load, make_run, same, save, values

from headway.base.errors import EnvironmentFault
from headway.base.failpoints import SAVE_POINTS, arm, disarm
from headway.store.admissible import choose

CAUSES = {"disk_full": "No space left on device", "quota": "Disk quota exceeded", "io_error": "Input/output error"}


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    disarm()


@pytest.mark.parametrize("action", CAUSES)
@pytest.mark.parametrize("point", SAVE_POINTS)
def test_C7_fault_at_every_save_point(tmp_path, point, action):
    run = make_run(tmp_path / "run", [{"point": point, "action": action, "step": 2}])
    save(run, 1, 1)
    arm(run.root)
    with pytest.raises(EnvironmentFault) as caught:
        save(run, 1, 2)
    assert CAUSES[action] in str(caught.value)
    assert f"path: {run.checkpoints}/g0001-s00000002" in str(caught.value)

    committed = point == "save.committed"  # the fault came after the commit: the checkpoint stands
    assert [path.name for path in sorted(run.checkpoints.iterdir())] == ["g0001-s00000001"] + ["g0001-s00000002"] * committed
    assert choose(run, chain_of(run)).step == 1 + committed
    assert same(load(run.checkpoints / "g0001-s00000001")[1], values(1))

    save(run, 1, 3)  # C3: the next save works
    assert choose(run, chain_of(run)).step == 3


def test_a_fault_that_is_no_error_of_the_machine_stays_what_it_is(tmp_path):
    run = make_run(tmp_path / "run", [{"point": "save.data_written", "action": "raise"}])
    arm(run.root)
    with pytest.raises(RuntimeError, match="drill"):
        save(run, 1, 1)
    assert list(run.checkpoints.iterdir()) == []


def test_C7_what_cannot_fit_is_refused_with_both_numbers(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    save(run, 1, 1)
    true = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*true[:4], 0, *true[5:])))
    with pytest.raises(EnvironmentFault, match=r"bytes needed, 0 free"):
        save(run, 1, 2)
    assert choose(run, chain_of(run)).step == 1


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 256 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {result.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("look_first", [True, False], ids=["preflight", "while writing"])
def test_C7_a_real_full_disk(small_disk, monkeypatch, look_first):
    if not look_first:
        monkeypatch.setattr("headway.store.save.require_room", lambda directory, needed_bytes: None)
    run = make_run(small_disk / "run")
    save(run, 1, 1)
    large = {"x": np.zeros(1 << 18, np.float32)}
    with pytest.raises(EnvironmentFault) as caught:
        save(run, 1, 2, large)
    assert "No space left on device" in str(caught.value)
    assert f"path: {run.checkpoints}/g0001-s00000002/rank00000.safetensors" in str(caught.value)
    assert "free space on that filesystem" in str(caught.value)
    assert [path.name for path in run.checkpoints.iterdir()] == ["g0001-s00000001"]
    assert same(load(run.checkpoints / "g0001-s00000001")[1], values(1))
    save(run, 1, 2)
    assert choose(run, chain_of(run)).step == 2


def test_C7_a_disk_that_is_full_for_the_small_files_too(small_disk):
    """No block left at all: receipt or manifest fail, whichever comes first."""
    run = make_run(small_disk / "run")
    save(run, 1, 1)
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass
    failed = []
    for left_pages in range(6):
        os.truncate(filler, filler.stat().st_size - 4096 * bool(left_pages))
        try:
            save(run, 1, 2 + left_pages)
        except EnvironmentFault as error:
            failed.append(str(error))
    assert failed
    assert all("No space left on device" in text for text in failed)
    filler.unlink()
    name = save(run, 1, 9)
    assert choose(run, chain_of(run)).checkpoint == name
    assert same(load(run.checkpoints / "g0001-s00000001")[1], values(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    run.checkpoints.mkdir(mode=0o500)
    with pytest.raises(EnvironmentFault, match="permission"):
        save(run, 1, 1)


def test_a_file_in_the_way_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    run.checkpoints.write_text("not a directory")
    with pytest.raises(EnvironmentFault, match="checkpoints"):
        save(run, 1, 1)
