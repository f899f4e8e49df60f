"""A destination that is there whole, or not at all.

    .NAME.3f9a....tmp   written, every file and directory synced ---rename---> NAME   directory synced

A conversion that is killed leaves the hidden one, which may be deleted; one that fails removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.base.errors import ConfigError, from_os_error
from headway.base.files import fsync_directory, make_directory, require_room, unique_sibling


def refuse_existing(destination: Path) -> None:
    if os.path.lexists(destination):
        raise ConfigError(f"{destination} exists", "a conversion replaces nothing", "choose another name, or remove it")


@contextmanager
def staged(destination: Path, needed_bytes: int) -> Iterator[Path]:
    """A path to write to, file or directory; after the block it stands as ``destination``."""
    refuse_existing(destination)
    make_directory(destination.parent, "directory of the destination")
    staging = unique_sibling(destination)
    try:
        require_room(destination.parent, needed_bytes)
        yield staging
        _sync(staging)
        _place(staging, destination)
    except OSError as error:
        _remove(staging)
        raise from_os_error(error, destination, "cannot write the conversion") from error
    except BaseException:
        _remove(staging)
        raise


def _sync(path: Path) -> None:
    """Files were synced by their writers; this is for those of others."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if path.is_dir():
        fsync_directory(path)


def _place(staging: Path, destination: Path) -> None:
    """Under the final name, unless someone was faster."""
    if staging.is_file():
        try:
            os.link(staging, destination)  # a rename would replace
        except FileExistsError:
            refuse_existing(destination)
        staging.unlink()
    else:
        refuse_existing(destination)
        os.rename(staging, destination)
    fsync_directory(destination.parent)


def _remove(staging: Path) -> None:
    if staging.is_dir():
        shutil.rmtree(staging, ignore_errors=True)
    else:
        staging.unlink(missing_ok=True)
