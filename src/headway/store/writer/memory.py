"""The memory file of a rank: as long as its data file, every page in place before it is needed."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

SPARED_SHARE = 0.05
"""Of what is available: a machine that is filled to the last page kills somebody."""


class Memory:
    """Created by the writer, mapped by trainers. OSError (ENOMEM) where there is no room."""

    def __init__(self, nbytes: int):
        self.nbytes = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        free = available_bytes()
        if free is not None and self.nbytes > (1 - SPARED_SHARE) * free:
            raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {self.nbytes:,} bytes needed, {free:,} available")
        self.descriptor = os.memfd_create("headway-snapshot", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self.nbytes)
            os.posix_fallocate(self.descriptor, 0, self.nbytes)  # says so where there is no memory; a mapping alone does not
            self.map = mmap.mmap(self.descriptor, self.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError:
            os.close(self.descriptor)
            raise

    def read_only(self) -> int:
        """A new descriptor that cannot write."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # a view still lives: the mapping goes with it
            self.map.close()
        os.close(self.descriptor)


def available_bytes() -> int | None:
    """What this process could still use: of the machine, and of its control group where that has a limit; None: unknown."""
    found = [figure for figure in (_of_machine(), _of_group()) if figure is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_group() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        return max(0, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return None
