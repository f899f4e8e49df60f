"""Reading a checkpoint again from the storage, with the time that it took."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headway.base.clocks import Clock, SystemClock
from headway.base.errors import HeadwayError
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment
from headway.store.admissible import deleted_names, judge
from headway.store.verify import Pages, Verdict, drop_cached, verify


@dataclass(frozen=True, kw_only=True)
class Audited:
    """``reasons`` is empty exactly when the checkpoint is whole, and where a run was named, that run's own."""

    directory: Path
    reasons: tuple[str, ...]
    bytes_read: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.reasons

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_read / self.seconds if self.seconds else 0.0


Progress = Callable[[int], None]
"""Is told the bytes of each block that was read."""


def audit(directory: Path, progress: Progress | None = None, clock: Clock | None = None) -> Audited:
    """Every digest of one checkpoint, wherever it lies; what the page cache remembers of it is forgotten first."""
    clock = clock or SystemClock()
    with contextlib.suppress(HeadwayError, OSError):
        drop_cached(directory)
    began_ns = clock.stamp().boot_ns
    verdict = verify(directory, pages=Pages.DROPPED, progress=progress)
    seconds = (clock.stamp().boot_ns - began_ns) / 1e9
    return Audited(directory=directory, reasons=verdict.reasons, bytes_read=verdict.bytes_read, seconds=seconds)


def audit_own(run: RunDirectory, chain: list[Segment], name: str, progress: Progress | None = None) -> Audited | None:
    """As ``audit``, and whether the checkpoint is this run's own, as far as its records tell. None: retention deleted it."""
    found = audit(run.checkpoints / name, progress)
    if found.ok:
        foreign = judge(run, chain, lambda directory: Verdict(True, (), 0))(name)
        return replace(found, reasons=(foreign,) if foreign else ())
    return None if name in deleted_names(run) else found
