"""How a checkpoint goes, so that no crash in between can mislead anyone.

    1 MANIFEST.json -> MANIFEST.deleted   from here on it is no checkpoint
      a person's mark?                    back again: marks are looked for when nobody can set one any more (``kept``)
    2 data and receipts                   frees the space first: a full disk must not block its own cure
    3 a line in deleted.jsonl             from here on its absence is explained
    4 tombstone and directory

Nothing is deleted through a link.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from headway.base.errors import from_os_error
from headway.base.files import fsync_directory
from headway.base.records import append_stamped
from headway.rundir.layout import RunDirectory
from headway.store.admissible import recorded_deletions
from headway.store.kept import kept_labels
from headway.store.names import DELETED, MANIFEST, TOMBSTONE


def delete(run: RunDirectory, name: str, *, reason: str, verified: str | None) -> bool:
    """Delete one checkpoint; ``verified``: the newer one that was read back before. False: it is kept, or became a link.

    In the order of the drawing above; a crash after any line leaves either a whole checkpoint or none.
    """
    directory, tombstone = run.checkpoints / name, run.checkpoints / name / TOMBSTONE
    if directory.is_symlink():  # made since it was listed
        return False
    try:
        if (directory / MANIFEST).exists():
            _move(directory / MANIFEST, tombstone)
        if tombstone.exists() and name in kept_labels(run):
            _move(tombstone, directory / MANIFEST)
            return False
        for path in directory.iterdir():
            if path != tombstone:
                _remove(path)
        _record(run, {"kind": "deleted", "checkpoint": name, "reason": reason, "verified": verified})
        shutil.rmtree(directory)
        fsync_directory(run.checkpoints)
    except OSError as error:
        raise from_os_error(error, directory, "cannot delete checkpoint") from error
    return True


def _move(path: Path, to: Path) -> None:
    os.replace(path, to)
    fsync_directory(path.parent)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _record(run: RunDirectory, record: dict[str, Any]) -> None:
    """Once per name: an earlier deletion may have got as far as its line."""
    if record["checkpoint"] not in recorded_deletions(run):
        append_stamped(run.checkpoints / DELETED, record)
