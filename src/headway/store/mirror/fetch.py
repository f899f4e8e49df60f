"""A checkpoint from the mirror comes back whole or not at all.

    checkpoints/.NAME.fetch/NAME/   data files, each proven while it streams, durable before it has its name
                                    receipts, then MANIFEST.json
    checkpoints/NAME                by one rename

What begins with a dot is no checkpoint to anybody. After a kill the next download proves the files that are there and keeps them.
"""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from threading import Event

from headway.base.errors import EnvironmentFault, from_os_error
from headway.base.files import fsync_directory, make_directory, require_room, write_atomic
from headway.store.durable import DurableWriter
from headway.store.manifest import Receipt
from headway.store.mirror.blocks import flaw, proven, reading, side_by_side
from headway.store.mirror.copy import Copy, described
from headway.store.mirror.faults import MirrorFault

FULL = (errno.ENOSPC, errno.EDQUOT)
DOING = "cannot write a checkpoint from the mirror"


def download(copy: Copy, checkpoints_root: Path) -> Path:
    """A whole and durable copy in a hidden directory. RunError for a damaged copy, EnvironmentFault for this machine's faults."""
    small = copy.small_files()
    receipts = described(copy.name, small).receipts
    hidden = make_directory(checkpoints_root / f".{copy.name}.fetch" / copy.name, "directory for a checkpoint from the mirror")
    try:
        _require_room(hidden, sum(receipt.file_bytes for receipt in receipts if not (hidden / receipt.file).exists()))
        side_by_side([partial(_fetch_file, copy, hidden, receipt) for receipt in receipts])
        for stray in {path.name for path in hidden.iterdir()} - {receipt.file for receipt in receipts}:
            (hidden / stray).unlink()
        for file, data in small.items():
            write_atomic(hidden / file, data)
    except OSError as error:
        raise from_os_error(error, hidden, DOING) from error
    except EnvironmentFault as fault:
        if not isinstance(fault, MirrorFault) and getattr(fault.__cause__, "errno", None) in FULL:
            shutil.rmtree(hidden.parent, ignore_errors=True)  # half a checkpoint must not keep the disk full
        raise
    return hidden


def settle(hidden: Path, checkpoints_root: Path) -> Path:
    """Give a downloaded checkpoint its name, durably."""
    target = checkpoints_root / hidden.name
    try:
        os.rename(hidden, target)
        fsync_directory(checkpoints_root)
    except OSError as error:
        raise from_os_error(error, target, "cannot give a checkpoint from the mirror its name") from error
    shutil.rmtree(hidden.parent, ignore_errors=True)
    return target


def clear_downloads(checkpoints_root: Path) -> None:
    """Remove what interrupted downloads left, once nobody needs it."""
    for path in checkpoints_root.glob(".*.fetch"):
        shutil.rmtree(path, ignore_errors=True)


def _require_room(hidden: Path, needed_bytes: int) -> None:
    try:
        require_room(hidden, needed_bytes)
    except OSError as error:
        raise from_os_error(error, hidden, DOING) from error


def _fetch_file(copy: Copy, hidden: Path, receipt: Receipt, stop: Event) -> None:
    path = hidden / receipt.file
    if path.exists() and not _flaw_here(path, receipt, stop):
        return
    pieces = proven(receipt, copy.reader(receipt.file), copy.where, stop)
    try:
        DurableWriter({}, 0).write(path, pieces, receipt.file_bytes)
    except OSError as error:
        raise from_os_error(error, path, DOING) from error


def _flaw_here(path: Path, receipt: Receipt, stop: Event) -> str:
    with reading(path) as read:
        return flaw(receipt, path.stat().st_size, read, f"path: {path}", stop)
