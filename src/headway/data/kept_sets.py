"""Directories of what is no shard of data that lies elsewhere: CACHE/sets/DIGEST, by the digest of the manifest in it.

Who uses one holds a shared lock on its file ``used``, which the kernel ends with the process. One that nobody has used for 30
days is taken out: it gets another name first, under the exclusive lock, so that who opens it finds all of it, or makes it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import weakref
from pathlib import Path

from headway.base.clocks import Clock, SystemClock
from headway.base.errors import from_os_error
from headway.base.files import make_directory, unique_sibling
from headway.data.cache import is_named

UNUSED_NS = 30 * 24 * 3600 * 10**9
USED_FILE = "used"
"""Its time is that of the last use."""


class KeptSet:
    """The directory ``path``, which is there, counts as used now, and is not taken out while this lives."""

    def __init__(self, path: Path):
        self.path = path
        self._end = weakref.finalize(self, os.close, _locked(path))


def _locked(path: Path) -> int:
    """A descriptor of the directory's ``used``, locked shared; both are made where they are not."""
    while True:
        make_directory(path, "cache for data")
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            continue  # taken out in between
        except OSError as error:
            raise from_os_error(error, path, "cannot use the cache for data") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(descriptor)
            if is_named(descriptor, path / USED_FILE):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise from_os_error(error, path, "cannot use the cache for data") from error
        os.close(descriptor)  # taken out while this process waited


def _open(path: Path) -> int:
    return os.open(path / USED_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def sweep(sets: Path, clock: Clock | None = None) -> None:
    """Take out what nobody uses or used for long, and what a killed process did not finish taking out."""
    now_ns = (clock or SystemClock()).stamp().real_ns
    for path in [entry for entry in sets.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        with contextlib.suppress(OSError):  # another user's, or taken out by another process
            if path.name.startswith("."):
                shutil.rmtree(path)
            else:
                _take_out(path, now_ns)


def _take_out(path: Path, now_ns: int) -> None:
    """If it is unused for long."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if now_ns - os.fstat(descriptor).st_mtime_ns <= UNUSED_NS:
            return
        aside = unique_sibling(path)
        os.rename(path, aside)
    finally:
        os.close(descriptor)
    shutil.rmtree(aside)
