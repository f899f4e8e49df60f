"""Power loss, simulated: what was not fsynced is gone.

os.fsync(file)       its bytes, as they are now, are durable
os.fsync(directory)  its entries, as they are now, are durable
the power is cut     before the n-th call that changes something; every later one fails
survivors            the tree as it is found afterwards: durable entries; files without fsync are empty, or zeros
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

CHANGING = ("write", "pwrite", "fsync", "replace", "rename", "mkdir", "link", "unlink", "rmdir")


class PowerCut(OSError):
    """The call never happened."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is cut")


class PowerLoss:
    """Watches every change under ``root``; ``after`` calls the power is cut (None: never)."""

    def __init__(self, monkeypatch: Any, root: Path, after: int | None = None):
        self.root, self.after, self.calls = root, after, 0
        self._files: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._kinds: dict[int, bool] = {}  # inode -> is a directory
        self._true = {name: getattr(os, name) for name in (*CHANGING, "open")}
        for directory, _, files in os.walk(root):  # what is there already is durable
            self._keep_directory(os.stat(directory).st_ino, directory)
            for name in files:
                self._keep_file(Path(directory) / name)
        for name in CHANGING:
            monkeypatch.setattr(os, name, self._watched(name))
        monkeypatch.setattr(os, "open", self._open)

    def _open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        descriptor = self._true["open"](path, flags, *args, **kwargs)
        if flags & os.O_CREAT:  # inodes are used again: a new file has nothing durable
            inode = os.fstat(descriptor).st_ino
            if not os.fstat(descriptor).st_size:
                self._files.pop(inode, None)
                self._kinds[inode] = False
        return descriptor

    def _watched(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.after is not None and self.calls >= self.after:
                raise PowerCut
            self.calls += 1
            result = self._true[name](*args, **kwargs)
            if name == "fsync":
                self._keep(args[0])
            if name == "mkdir":
                inode = os.stat(args[0]).st_ino
                self._entries[inode], self._kinds[inode] = {}, True
            return result

        return call

    def _keep(self, descriptor: int) -> None:
        path = f"/proc/self/fd/{descriptor}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._keep_directory(os.fstat(descriptor).st_ino, path)
        else:
            self._keep_file(Path(path))

    def _keep_directory(self, inode: int, path: str) -> None:
        self._kinds[inode] = True
        self._entries[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        for entry in os.scandir(path):
            self._kinds.setdefault(entry.inode(), entry.is_dir())

    def _keep_file(self, path: Path) -> None:
        inode = os.stat(path).st_ino
        self._files[inode], self._kinds[inode] = path.read_bytes(), False

    def survivors(self, where: Path) -> Path:
        """The tree as the machine finds it when the power is back."""
        self._rebuild(os.stat(self.root).st_ino, where)
        return where

    def _rebuild(self, inode: int, where: Path) -> None:
        self._true["mkdir"](where)
        for name, child in self._entries.get(inode, {}).items():
            if self._kinds.get(child, False):
                self._rebuild(child, where / name)
            else:
                descriptor = self._true["open"](where / name, os.O_CREAT | os.O_WRONLY, 0o644)
                self._true["write"](descriptor, self._files.get(child, b"\0" * 512))
                os.close(descriptor)
