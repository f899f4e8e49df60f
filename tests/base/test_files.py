import os
import threading

import pytest

from headway.base import files
from headway.base.errors import EnvironmentFault, RunError


def test_write_atomic_replaces_and_leaves_nothing_beside(tmp_path):
    files.write_json(tmp_path / "a.json", {"x": 1})
    files.write_json(tmp_path / "a.json", {"x": 2})
    assert files.read_json(tmp_path / "a.json") == {"x": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_crash_before_the_rename_keeps_the_old_file(tmp_path, monkeypatch):
    files.write_json(tmp_path / "a.json", {"x": 1})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EnvironmentFault, match="No space left") as caught:
        files.write_json(tmp_path / "a.json", {"x": 2})
    assert str(tmp_path / "a.json") in str(caught.value)
    assert files.read_json(tmp_path / "a.json") == {"x": 1}


def test_missing_and_torn_files_are_told_apart(tmp_path):
    with pytest.raises(EnvironmentFault, match="No such file"):
        files.read_json(tmp_path / "absent.json", "spec")
    (tmp_path / "torn.json").write_text('{"x": ')
    with pytest.raises(RunError, match="spec is damaged"):
        files.read_json(tmp_path / "torn.json", "spec")


def test_create_exclusive_has_one_winner(tmp_path):
    wins, barrier = [], threading.Barrier(8)

    def contend(number):
        barrier.wait()
        if files.create_exclusive(tmp_path / str(number % 1), b"%d" % number):
            wins.append(number)

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(wins) == 1
    assert (tmp_path / "0").read_bytes() == b"%d" % wins[0]
