"""Which checkpoints may go, and how they go so that no crash in between can mislead anyone.

    keep   newest verified (always), the last ``keep_last`` down from it, permanent steps, protected names,
           everything newer than the newest verified one (damaged: evidence), the current segment's unfinished saves
    delete 1 MANIFEST.json -> MANIFEST.deleted   from here on it is no checkpoint
           2 data and receipts                   frees the space first: a full disk must not block its own cure
           3 a line in deleted.jsonl             from here on its absence is explained
           4 tombstone and directory

Decides by chain and step; modification times and clocks play no part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from headway.base.clocks import SystemClock
from headway.base.errors import ConfigError, HeadwayError, from_os_error
from headway.base.files import fsync_directory
from headway.base.records import RecordWriter
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, current_chain, read_segments
from headway.store.admissible import CheckpointInfo, scan
from headway.store.names import DELETED, MANIFEST, TOMBSTONE
from headway.store.verify import drop_cached, verify


@dataclass(frozen=True, kw_only=True)
class Retention:
    """``permanent_every``: checkpoints at multiples of this many steps are kept for ever (None or 0: none are)."""

    keep_last: int
    permanent_every: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ConfigError(f"keep_last = {self.keep_last}", "at least one checkpoint is kept", "set keep_last to 1 or more")

    def is_permanent(self, step: int) -> bool:
        return bool(self.permanent_every) and step % (self.permanent_every or 1) == 0


def apply_retention(
    run: RunDirectory, chain: list[Segment], policy: Retention, protected: Collection[str] = frozenset()
) -> list[str]:
    """Delete what the policy lets go; returns the names. Nothing goes unless a newer one was read back and verified."""
    if [s.id for s in chain] != [s.id for s in current_chain(read_segments(run))]:
        return []  # the caller was replaced: the checkpoints belong to a newer segment now
    infos = scan(run, chain)
    halfway = [info for info in infos if (run.checkpoints / info.name / TOMBSTONE).exists()]
    rest = [info for info in infos if info not in halfway]
    anchor = _newest_verified(run, rest) if _surplus(rest, _newest(rest), policy, protected) else None
    going = halfway + _surplus(rest, anchor, policy, protected)
    for info in going:
        _delete(run, info, anchor)
    return [info.name for info in going]


def _history(infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """The generations a run could go on from, oldest first."""
    return [info for info in infos if info.committed and info.admissible]


def _newest(infos: list[CheckpointInfo]) -> CheckpointInfo | None:
    return next(reversed(_history(infos)), None)


def _newest_verified(run: RunDirectory, infos: list[CheckpointInfo]) -> CheckpointInfo | None:
    """Read back from the storage, not from the page cache that the save has just filled."""
    for info in reversed(_history(infos)):
        directory = run.checkpoints / info.name
        with contextlib.suppress(HeadwayError, OSError):
            drop_cached(directory)
        if verify(directory).ok:
            return info
    return None


def _surplus(
    infos: list[CheckpointInfo], anchor: CheckpointInfo | None, policy: Retention, protected: Collection[str]
) -> list[CheckpointInfo]:
    """What may go once ``anchor`` is known to be whole; oldest first."""
    if anchor is None:
        return []
    history = _history(infos)
    generations = history[: history.index(anchor) + 1]
    old = [info for info in generations[: -policy.keep_last] if not policy.is_permanent(info.step)]
    leftovers = [info for info in infos if info not in history and info.segment < anchor.segment]
    return [info for info in old + leftovers if info.name not in protected]


def _delete(run: RunDirectory, info: CheckpointInfo, anchor: CheckpointInfo | None) -> None:
    """In the order of the drawing above; a crash after any line leaves either a whole checkpoint or none."""
    directory, tombstone = run.checkpoints / info.name, run.checkpoints / info.name / TOMBSTONE
    try:
        if (directory / MANIFEST).exists():
            os.replace(directory / MANIFEST, tombstone)
            fsync_directory(directory)
        for path in directory.iterdir():
            if path != tombstone:
                _remove(path)
        _record(run, info, anchor)
        shutil.rmtree(directory)
        fsync_directory(run.checkpoints)
    except OSError as error:
        raise from_os_error(error, directory, "cannot delete checkpoint") from error


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _record(run: RunDirectory, info: CheckpointInfo, anchor: CheckpointInfo | None) -> None:
    writer = RecordWriter(run.checkpoints / DELETED, durable=True)
    try:
        reason = "superseded" if info.admissible else "not on the chain"
        writer.append(
            {
                "kind": "deleted",
                "checkpoint": info.name,
                "reason": reason if info.committed else "never committed, or its deletion was cut short",
                "verified": anchor.name if anchor is not None else None,
                "stamp": SystemClock().stamp().to_json(),
            }
        )
    finally:
        writer.close()
