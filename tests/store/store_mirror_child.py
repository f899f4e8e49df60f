"""Copies or fetches a checkpoint in processes that are killed one call later each time; run by test_store_mirror_kill.

python store_mirror_child.py put BASE      BASE/1, BASE/2, ... are made from BASE/template, each killed at its number
python store_mirror_child.py fetch BASE    until one comes through; prints how many were killed
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from mirror_cases import FaultyFileSystem, die
from store_cases import RUN_ID

from headway.rundir.layout import RunDirectory
from headway.store.mirror import blocks as mirror_blocks
from headway.store.mirror.mirror import Mirror

NAME = "g0001-s00000002"
LOCAL_CALLS = ("replace", "rename", "fsync")


def act(verb: str, root: Path, kill_at: int) -> None:
    """Dies at the ``kill_at``-th call of the storage, or of this disk while it fetches."""
    faults = FaultyFileSystem.faults
    faults.kill_at = kill_at
    run = RunDirectory.open(root / "run")
    if verb == "fetch":
        for name in LOCAL_CALLS:
            setattr(os, name, dying_before(name, getattr(os, name)))
    mirror_blocks.GROUP_BYTES = 512  # several reads and writes for each file
    mirror = Mirror.open(f"faulty://{root}/mirror", RUN_ID)
    if verb == "put":
        mirror.put(run.checkpoints / NAME)
    else:
        mirror.fetch(NAME, run.checkpoints)


def dying_before(name, function):
    def call(*arguments, **keywords):
        FaultyFileSystem.faults.pass_(name, str(arguments[0]))
        return function(*arguments, **keywords)

    return call


def main(verb: str, base: Path) -> int:
    number = 0
    while True:
        number += 1
        root = base / str(number)
        shutil.copytree(base / "template", root)
        child = os.fork()  # of a process with one thread
        if child == 0:
            try:
                act(verb, root, number)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return number - 1
        if os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"call {number}: status {status}")


if __name__ == "__main__":
    if sys.argv[1] == "s3":  # dies in the middle of its second file
        url, directory, pieces = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
        whole = mirror_blocks.proven
        seen = 0

        def dying(*arguments):
            global seen
            for piece in whole(*arguments):
                seen += 1
                if seen > pieces:
                    die()
                yield piece

        from headway.store.mirror import copy as mirror_copy

        mirror_copy.proven, mirror_blocks.GROUP_BYTES, mirror_blocks.FILES_AT_ONCE = dying, 1 << 20, 1
        Mirror.open(url, RUN_ID).put(directory)
    else:
        print(main(sys.argv[1], Path(sys.argv[2])))
