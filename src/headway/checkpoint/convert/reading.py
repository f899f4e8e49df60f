"""Bytes of files that are no checkpoints of ours: read by place, with a clear error where they are not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.errors import RunError, from_os_error

COPY = "take another copy of the source"
MOST_WORDS = 200


def brief(value: object) -> str:
    """Of something that a damaged file may have made endless."""
    text = str(value)
    return text if len(text) <= MOST_WORDS else text[:MOST_WORDS] + "..."


def damaged(path: Path, why: str, way_out: str = COPY) -> RunError:
    return RunError(f"{path.name} cannot be read: {why}", f"path: {path}", way_out)


def read_at(path: Path, at: int, count: int) -> np.ndarray:
    """``count`` bytes from byte ``at``, in fresh memory."""
    out = np.empty(count, np.uint8)
    view = out.data
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            while len(view):
                got = file.readinto(view)
                if not got:
                    raise damaged(path, f"it ends at byte {at + count - len(view):,}, {at + count:,} were expected")
                view = view[got:]
    except OSError as error:
        raise from_os_error(error, path, "cannot read") from error
    return out


def read_through(path: Path, at: int, count: int, most_bytes: int) -> Iterator[np.ndarray]:
    """The same bytes in order, in pieces: for checksums over what is too large to hold."""
    for begin in range(at, at + count, most_bytes):
        yield read_at(path, begin, min(most_bytes, at + count - begin))


def file_size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise from_os_error(error, path, "cannot read") from error


def is_counts(value: Any) -> bool:
    """A list or tuple of whole numbers from 0: a shape, or offsets."""
    return isinstance(value, list | tuple) and all(type(item) is int and item >= 0 for item in value)
