"""C1: killed at any instant of a save, the newest loadable checkpoint is the newest committed one, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_cases import chain_of, load, make_run, same, save, values

from headway.base.failpoints import SAVE_POINTS, arm, disarm
from headway.store.admissible import choose, list_checkpoints
from headway.store.names import MANIFEST

COMMITTED_POINTS = ("save.manifest_renamed", "save.committed")
CHILD = Path(__file__).with_name("store_kill_child.py")


def killed_run(tmp_path: Path, point: str):
    run = make_run(tmp_path / "run", [{"point": point, "action": "kill", "step": 2}])
    save(run, 1, 1)
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parent)}
    result = subprocess.run([sys.executable, str(CHILD), str(run.root)], env=environment, capture_output=True, timeout=60)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    return run


@pytest.mark.parametrize("point", SAVE_POINTS)
def test_C1_killed_at_every_save_point(tmp_path, point):
    run = killed_run(tmp_path, point)
    expected = 2 if point in COMMITTED_POINTS else 1
    choice = choose(run, chain_of(run))
    assert (choice.step, choice.rejected) == (expected, [])
    manifest, arrays = load(run.checkpoints / choice.checkpoint)
    assert manifest.state == {"u": expected}
    assert same(arrays, values(expected))

    before = {p: p.read_bytes() for p in run.checkpoints.rglob("*") if p.is_file()}
    other = {name: array + 1 for name, array in values(2).items()}
    again = save(run, 1, 2, other)  # the same step again, with other values
    assert again == "g0001-s00000002-a1", "the killed save's directory must not be reused"
    assert all(path.read_bytes() == data for path, data in before.items())
    assert choose(run, chain_of(run)).checkpoint == again
    assert same(load(run.checkpoints / again)[1], other)


def test_C1_half_of_the_data_is_on_disk_at_data_partial(tmp_path):
    run = killed_run(tmp_path, "save.data_partial")
    (left,) = (run.checkpoints / "g0001-s00000002").iterdir()
    whole = (run.checkpoints / "g0001-s00000001" / "rank00000.safetensors").stat().st_size
    assert left.name.endswith(".tmp")
    assert left.stat().st_size == whole // 2


def test_C1_half_of_the_manifest_is_on_disk_at_manifest_partial(tmp_path):
    run = killed_run(tmp_path, "save.manifest_partial")
    names = {path.name for path in (run.checkpoints / "g0001-s00000002").iterdir()}
    assert MANIFEST not in names
    (torn,) = (path for path in (run.checkpoints / "g0001-s00000002").iterdir() if path.name.endswith(".tmp"))
    whole = (run.checkpoints / "g0001-s00000001" / MANIFEST).stat().st_size
    assert abs(torn.stat().st_size - whole // 2) < 16
    assert [info.committed for info in list_checkpoints(run, chain_of(run))] == [True, False]


def test_every_save_point_is_passed_in_order(tmp_path, monkeypatch):
    passed = []
    monkeypatch.setattr("headway.base.failpoints.hit", lambda point, step: passed.append((point, step)))
    save(make_run(tmp_path / "run"), 1, 7)
    assert passed == [(point, 7) for point in SAVE_POINTS]


def test_production_run_refuses_faults(tmp_path):
    from headway.base.errors import ConfigError

    run = make_run(tmp_path / "run")
    assert arm(run.root) == []
    (run.root / "drill.json").write_text('{"faults": [{"point": "save.begin", "action": "kill"}]}')
    with pytest.raises(ConfigError, match="not a drill"):
        arm(run.root)
    disarm()
    save(run, 1, 1)  # and nothing fires without arming
