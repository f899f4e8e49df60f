"""Where a build works, and how its result appears: whole, by one rename, or not at all.

DATA                  absent until the end
.DATA.building/       finished work of a build that did not end: the next one goes on from it, whatever stopped the last
    spool-0/ ...      documents of a source
    made/             tokenizer, parts of sources as tokens
    data/             the growing directory, made anew by every build
.DATA.lock            held by the one builder; the kernel lets go of it when that process ends, however it ends
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.base.errors import EnvironmentFault
from headway.base.files import fsync_directory, make_directory


@contextmanager
def workspace(directory: Path) -> Iterator[Path]:
    """The directory beside the final one, held by one builder at a time; removed when a build has succeeded."""
    work = directory.with_name(f".{directory.name}.building")
    lock = os.open(directory.with_name(f".{directory.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(
                f"another build of {directory} is running", "one builder at a time", "wait for it to end"
            ) from None
        make_directory(work, "directory to build in")
        yield work
        shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)


def publish(built: Path, directory: Path) -> None:
    """Make ``built`` appear as ``directory``, durably."""
    for path in sorted(p for p in built.rglob("*") if p.is_dir()):
        fsync_directory(path)
    fsync_directory(built)
    os.rename(built, directory)
    fsync_directory(directory.parent)
