"""Which checkpoints may go, and how they go so that no crash in between can mislead anyone.

    keep   newest verified (always), the last ``keep_last`` down from it, permanent steps, everything newer than the newest
           verified one, the current segment's unfinished saves; and evidence
    delete 1 MANIFEST.json -> MANIFEST.deleted   from here on it is no checkpoint
           2 data and receipts                   frees the space first: a full disk must not block its own cure
           3 a line in deleted.jsonl             from here on its absence is explained
           4 tombstone and directory

Evidence is what was committed and is no part of the history: refused as damaged (by a restart, or when it was read back here:
a line in rejected.jsonl), late, or rolled back. No policy deletes it. The healthy part of the chain stays bounded by
``keep_last`` and the permanent steps; evidence grows by one checkpoint per refusal and per late commit, and by what a roll-back
goes back behind (``keep_last`` and the permanent ones of that stretch at most). A run on healthy storage has none. To free the
space, remove such a directory by hand: nothing goes on from it. ``monitor.summary`` lists all that lie there.

Decides by chain and step; modification times and clocks play no part. Whoever put a link into checkpoints/ looks after it:
links are neither counted nor deleted, and nothing is deleted through one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.clocks import SystemClock
from headway.base.errors import ConfigError, HeadwayError, from_os_error
from headway.base.files import fsync_directory
from headway.base.records import RecordWriter
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, current_chain, read_segments
from headway.store.admissible import CheckpointInfo, list_checkpoints, reason_against, recorded_deletions, refusals
from headway.store.names import DELETED, MANIFEST, REJECTED, TOMBSTONE
from headway.store.verify import drop_cached


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


def apply_retention(run: RunDirectory, chain: list[Segment], policy: Retention) -> list[str]:
    """Delete what the policy lets go; returns the names. Nothing goes unless a newer one was read back and verified."""
    if [s.id for s in chain] != [s.id for s in current_chain(read_segments(run))]:
        return []  # the caller was replaced: the checkpoints belong to a newer segment now
    infos = [info for info in list_checkpoints(run, chain) if not info.is_link]
    halfway = [info for info in infos if (run.checkpoints / info.name / TOMBSTONE).exists()]
    rest = [info for info in infos if info not in halfway]
    evidence = {entry["checkpoint"] for entry in refusals(run)}
    anchor = None
    if _surplus(rest, next(reversed(_history(rest)), None), policy, evidence):
        anchor = _newest_verified(run, chain, rest, evidence)
    going = halfway + _surplus(rest, anchor, policy, evidence)
    for info in going:
        _delete(run, info, anchor)
    return [info.name for info in going]


def _history(infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """The generations a run could go on from, oldest first."""
    return [info for info in infos if info.committed and info.admissible]


def _newest_verified(
    run: RunDirectory, chain: list[Segment], infos: list[CheckpointInfo], evidence: set[str]
) -> CheckpointInfo | None:
    """Read back from the storage, not from the page cache that the save has just filled. New damage is noted as evidence."""
    for info in reversed(_history(infos)):
        directory = run.checkpoints / info.name
        with contextlib.suppress(HeadwayError, OSError):
            drop_cached(directory)
        reason = reason_against(run, chain, info.name)
        if not reason:
            return info
        if info.name not in evidence:
            with contextlib.suppress(HeadwayError):  # a full disk must not block its own cure; the next read-back says it again
                _append(run, REJECTED, {"kind": "checkpoint_rejected", "checkpoint": info.name, "reason": reason})
    return None


def _surplus(
    infos: list[CheckpointInfo], anchor: CheckpointInfo | None, policy: Retention, evidence: set[str]
) -> list[CheckpointInfo]:
    """What may go once ``anchor`` is known to be whole; oldest first. Evidence neither goes nor counts as a generation."""
    if anchor is None:
        return []
    history = _history(infos)
    generations = [info for info in history[: history.index(anchor)] if info.name not in evidence] + [anchor]
    old = [info for info in generations[: -policy.keep_last] if not policy.is_permanent(info.step)]
    unfinished = [info for info in infos if not info.committed and info.segment < anchor.segment]
    return old + [info for info in unfinished if info.name not in evidence]


def _delete(run: RunDirectory, info: CheckpointInfo, anchor: CheckpointInfo | None) -> None:
    """In the order of the drawing above; a crash after any line leaves either a whole checkpoint or none."""
    directory, tombstone = run.checkpoints / info.name, run.checkpoints / info.name / TOMBSTONE
    if directory.is_symlink():  # made since it was listed
        return
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
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _record(run: RunDirectory, info: CheckpointInfo, anchor: CheckpointInfo | None) -> None:
    """Once per name: an earlier deletion may have got as far as its line."""
    if info.name in recorded_deletions(run):
        return
    reason = "superseded" if info.committed else "never committed, or its deletion was cut short"
    verified = anchor.name if anchor is not None else None
    _append(run, DELETED, {"kind": "deleted", "checkpoint": info.name, "reason": reason, "verified": verified})


def _append(run: RunDirectory, file: str, record: dict[str, Any]) -> None:
    writer = RecordWriter(run.checkpoints / file, durable=True)
    try:
        writer.append({**record, "stamp": SystemClock().stamp().to_json()})
    finally:
        writer.close()
