"""A file that appears under its name only when it is whole and on the disk.

    .name.PID.tmp  write ... half ... all   fsync   rename   fsync of the directory
                             PARTIAL  WRITTEN       RENAMED

The stages are where drills inject faults (``base.failpoints``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from headway.base import failpoints
from headway.base.files import fsync_directory, write_all


class Stage(Enum):
    PARTIAL = "half of the bytes are written"
    WRITTEN = "all bytes are written, nothing is durable"
    RENAMED = "under its name, the directory not yet durable"


class DurableWriter:
    """Passes the failpoint of each stage for the file at hand; ``points`` may leave stages out."""

    def __init__(self, points: Mapping[Stage, str], step: int):
        self.points, self.step = points, step

    def write(self, path: Path, pieces: Iterable[memoryview | bytes], total_bytes: int) -> None:
        """Write ``pieces`` (``total_bytes`` together) to ``path``. OSError as it comes; the temporary file is removed then."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                self._stream(descriptor, pieces, total_bytes)
                self._pass(Stage.WRITTEN)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            remove_quietly(temporary)
            raise
        self._pass(Stage.RENAMED)
        fsync_directory(path.parent)

    def _stream(self, descriptor: int, pieces: Iterable[memoryview | bytes], total_bytes: int) -> None:
        half, written = total_bytes // 2, 0
        for piece in pieces:
            view = memoryview(piece)
            if written <= half < written + len(view):
                write_all(descriptor, view[: half - written])
                self._pass(Stage.PARTIAL)
                written, view = half, view[half - written :]
            write_all(descriptor, view)
            written += len(view)
        assert written == total_bytes, (written, total_bytes)

    def _pass(self, stage: Stage) -> None:
        if stage in self.points:
            failpoints.hit(self.points[stage], self.step)


def remove_quietly(*paths: Path) -> None:
    """Remove files if that works: what cannot be removed is uncommitted anyway."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
