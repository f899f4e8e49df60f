import errno
import os
import threading

import pytest

from headway.base import files
from headway.base.errors import EnvironmentFault, RunError
from headway.base.files import fill_with_zeros


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


@pytest.fixture
def synced(monkeypatch):
    """Paths of directories that were synced, in order."""
    seen, true = [], files.fsync_directory

    def sync(path):
        seen.append(path)
        true(path)

    monkeypatch.setattr(files, "fsync_directory", sync)
    return seen


def test_made_directories_outlive_a_power_cut(tmp_path, synced):
    """Each new name is synced in the directory that holds it, outermost first."""
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path / "a" / "b"], "whoever made it may have died before syncing it"


def test_directory_below_one_that_may_not_be_opened(tmp_path, monkeypatch):
    """As /home often is. Root may open everything, so the refusal is played."""

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "fsync_directory", refuse)
    assert files.make_directory(tmp_path / "a").is_dir()


def test_file_in_the_place_of_a_directory(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(EnvironmentFault, match="cannot create run directory"):
        files.make_directory(tmp_path / "a", "run directory")


@pytest.mark.parametrize("supported", [True, False])
def test_a_file_that_is_mapped_has_its_room_on_the_disk(tmp_path, monkeypatch, supported):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if not supported:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    size = 3 * 2**20 + 5
    with open(tmp_path / "table", "w+b") as file:
        fill_with_zeros(file.fileno(), size)
        assert os.fstat(file.fileno()).st_blocks * 512 >= size
    assert (tmp_path / "table").read_bytes() == bytes(size)
