"""Atomic, durable small files: write beside, fsync, rename, fsync the directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from headway.base.errors import RunError, from_os_error

_ZEROS = 2**20


def fsync_directory(path: Path) -> None:
    """A rename is durable only after its directory is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """``os.write`` until everything is written (it may write less, above 2 GiB or on a full disk)."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[os.write(descriptor, view) :]


def fill_with_zeros(descriptor: int, size: int) -> None:
    """Of a new file, so that it may be mapped: a hole would end the process by SIGBUS where the disk is full when it is written.

    OSError where there is no room.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        zeros = memoryview(bytes(min(size, _ZEROS)))
        for start in range(0, size, _ZEROS):
            write_all(descriptor, zeros[: min(_ZEROS, size - start)])


def require_room(directory: Path, needed_bytes: int) -> None:
    """OSError at once where so much cannot fit. Others write too, so a full disk is handled all the same while writing."""
    free = os.statvfs(directory)
    free_bytes = free.f_bavail * free.f_frsize
    if free.f_blocks and free_bytes < needed_bytes:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed_bytes:,} bytes needed, {free_bytes:,} free")


def unique_sibling(path: Path) -> Path:
    """A hidden name beside ``path`` that no other thread, process or host picks."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: a reader sees the old file or the new one, whole, also after a power cut."""
    temporary = unique_sibling(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        fsync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise from_os_error(error, path, "cannot write") from error


def indented_json(value: Any) -> bytes:
    """As ``write_json`` writes it; a lone surrogate is its escape."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Atomic JSON, indented for people."""
    write_atomic(path, indented_json(value))


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create ``path`` with ``data`` if it does not exist (O_EXCL); False when someone was first. Never half-written."""
    temporary = unique_sibling(path)
    try:
        write_atomic(temporary, data)
        try:
            os.link(temporary, path)  # link, not open(O_EXCL): the winner's content is whole at once
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(path.parent)
        return True
    except OSError as error:
        raise from_os_error(error, path, "cannot create") from error


def read_json(path: Path, what: str = "file") -> Any:
    """JSON of ``path``; one clear error when it is missing, unreadable or torn."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, f"cannot read {what}") from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{what} is damaged: {error}", f"path: {path}", "restore the file or start from an older one") from error


def make_directory(path: Path, what: str = "directory") -> Path:
    """``mkdir -p`` with a clear error, durable: what is synced inside a directory is lost with the directory's own entry."""
    try:
        new = [level for level in path.parents if not level.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for level in (*reversed(new), path):  # ``path`` also when it was there: its maker may have died before syncing it
            with contextlib.suppress(PermissionError):  # a parent that may be entered but not opened (0711), as /home often is
                fsync_directory(level.parent)
    except OSError as error:
        raise from_os_error(error, path, f"cannot create {what}") from error
    return path
