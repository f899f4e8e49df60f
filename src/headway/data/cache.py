"""Shards of data that lies elsewhere, on this machine while they are read: a directory with a bound, shared by processes.

    CACHE/shards/DIGEST-BYTES.bin    a shard, under the name of its content: runs over the same data share it
                 DIGEST-BYTES.part   one that is being fetched, locked so that it is not swept up
    CACHE/locks/DIGEST-BYTES         held by the process that fetches that shard, which removes it: the others wait for it
    CACHE/lock                       held while room is made, and while a shard gets its name
    CACHE/sets/                      what is no shard (``place.py``): not under the bound, swept when it is unused for long

The unit is a whole shard. The stream reads the windows of one chunk at a time in a random order, so every block of a chunk is
read within its visit, and most of them by its first few batches: ranges of blocks would come in the same number of bytes, by
64 times as many requests, while the step waits. A shard that is there whole can be proven, renamed and evicted at once.

Who reads a shard has it mapped and holds a shared lock (``flock``) on it, which the kernel ends with the process: nothing that
is read is evicted, and a killed process leaves no lock, at most a .part that the next one overwrites and an empty file in locks.
Who waits for a shard waits for that file and never for the .part, which becomes the shard that others read for long. What nobody
reads goes in the order of its last use. No fsync: a file that a power cut left torn does not have its digests, and is fetched
again.

The disk must be local: locks and mappings of a network filesystem are another matter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from headway.base.clocks import Clock, SystemClock
from headway.base.errors import EnvironmentFault, from_os_error
from headway.base.files import make_directory, write_all
from headway.data.manifest import BLOCK_BYTES, ShardEntry
from headway.data.remote import Remote, missing

FETCHES = 2
"""Of a shard whose blocks do not have their digests, before its storage is taken to be damaged and not the way from there."""


GiveUp = Callable[[], bool]


@dataclass
class Traffic:
    """What reading one source took since its reader was opened."""

    hits: int = 0  # shards that were there when they were wanted
    misses: int = 0  # shards that the reader had to wait for
    ahead: int = 0  # shards that came before they were wanted
    fetched_bytes: int = 0
    fetch_ns: int = 0  # boot time of fetches, of both kinds
    evictions: int = 0  # shards that this process took out
    refetches: int = 0  # of files here that were damaged
    over_bound: int = 0  # times that room could not be made, since everything else was being read
    blocks: int = 0  # that were verified on first touch
    wait_ns: int = 0  # boot time that the reader waited for storage: opening, fetching, first touch of blocks

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Held:
    """A shard's bytes, uint8: mapped and locked for as long as ``bytes`` lives, whatever becomes of the file."""

    bytes: np.ndarray
    path: Path
    inode: int


class ShardCache:
    """``hold`` gives a shard's bytes."""

    def __init__(self, directory: Path, bound_bytes: int, clock: Clock | None = None):
        self.directory, self.bound_bytes = Path(directory), bound_bytes
        self._shards = make_directory(self.directory / "shards", "cache for data")
        self._locks = make_directory(self.directory / "locks", "cache for data")
        self._clock = clock or SystemClock()
        self._closed = threading.Event()

    def hold(self, remote: Remote, entry: ShardEntry, size: int, traffic: Traffic, give_up: GiveUp | None = None) -> Held:
        """Waits for the storage where the shard is not here, or for the process that fetches it. ``give_up``: lets go of one
        shard that the caller holds, where room cannot be made otherwise; False: there is none."""
        path = self._path(entry, size)
        with _clear(path):
            found = self._map(path, size)
            if found is not None:
                traffic.hits += 1
                return found
            traffic.misses += 1
            while found is None:
                self._fetch_if_absent(remote, entry, size, traffic, give_up or (lambda: False))
                found = self._map(path, size)  # None: taken out in between, by a process that needed room
            return found

    def fetch_ahead(self, remote: Remote, entry: ShardEntry, size: int, traffic: Traffic) -> bool:
        """Bring a shard here if it is not, and if room can be made without going over the bound; whether it is here."""
        with _clear(self._path(entry, size)):
            return self._fetch_if_absent(remote, entry, size, traffic, None)

    def again(self, remote: Remote, entry: ShardEntry, damaged: Held, traffic: Traffic) -> Held:
        """What stands in for a mapped file that is damaged: what another process put in its place meanwhile, or a new copy."""
        path, size = damaged.path, damaged.bytes.size
        with _clear(path):
            with self._part(path) as part:
                other = self._map(path, size)
                if other is not None and other.inode != damaged.inode:
                    return other
                traffic.refetches += 1
                self._fetch(part, remote, entry, size, traffic, lambda: False)
            return self.hold(remote, entry, size, Traffic())

    def release(self, entry: ShardEntry, size: int) -> None:
        """The shard was used until now; its lock ends with its array."""
        with contextlib.suppress(OSError):
            os.utime(self._path(entry, size))

    def close(self) -> None:
        """No fetch ahead goes on."""
        self._closed.set()

    def _path(self, entry: ShardEntry, size: int) -> Path:
        if not re.fullmatch("[0-9a-f]{32}", entry.xxh3_128):
            raise EnvironmentFault(f"the data manifest gives shard {entry.file} the digest {entry.xxh3_128!r}", "32 hex digits")
        return self._shards / f"{entry.xxh3_128}-{size}.bin"

    def _map(self, path: Path, size: int) -> Held | None:
        """Locked shared, for as long as the mapping lives (it keeps a duplicate of the descriptor). None: not here, or torn."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            status = os.fstat(descriptor)
            if status.st_nlink == 0:
                return None
            if status.st_size != size:
                path.unlink(missing_ok=True)
                return None
            os.utime(descriptor)
            mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
            return Held(np.frombuffer(mapped, np.uint8), path, status.st_ino)
        finally:
            os.close(descriptor)

    # --- fetching ---------------------------------------------------------------------------------------------------------

    def _fetch_if_absent(self, remote: Remote, entry: ShardEntry, size: int, traffic: Traffic, give_up: GiveUp | None) -> bool:
        """``give_up`` None: only if it fits."""
        path = self._path(entry, size)
        if give_up is None and path.exists():
            return True
        with self._part(path) as part:
            return path.exists() or self._fetch(part, remote, entry, size, traffic, give_up)

    @contextmanager
    def _part(self, path: Path) -> Iterator[int]:
        """The descriptor of the shard's .part, locked: one process fetches it, the others wait here."""
        with _own(self._locks / path.stem), _own(path.with_suffix(".part")) as descriptor:
            yield descriptor

    def _fetch(self, part: int, remote: Remote, entry: ShardEntry, size: int, traffic: Traffic, give_up: GiveUp | None) -> bool:
        """Into the locked .part, proven, then under its name. False: no room, and it need not be."""
        path, must = self._path(entry, size), give_up is not None
        if not self._reserve(part, size, traffic, give_up):
            return False
        began_ns = self._clock.stamp().boot_ns
        for _ in range(FETCHES):
            if not self._download(part, remote, entry, size, must):
                return False
            traffic.fetched_bytes += size
            if not _damaged_blocks(part, entry, size):
                break
        with self._locked():  # who adds up sizes meets it once, under one name
            os.replace(path.with_suffix(".part"), path)  # damaged still: so its storage has it, and the reader names the block
        traffic.fetch_ns += self._clock.stamp().boot_ns - began_ns
        traffic.ahead += not must
        return True

    def _download(self, part: int, remote: Remote, entry: ShardEntry, size: int, must: bool) -> bool:
        os.lseek(part, 0, os.SEEK_SET)
        try:
            for piece in remote.pieces(entry.file, size):
                if self._closed.is_set() and not must:
                    return False
                write_all(part, piece)
        except FileNotFoundError as error:
            raise missing(remote.where(entry.file)) from error
        return True

    # --- room -------------------------------------------------------------------------------------------------------------

    def _reserve(self, part: int, size: int, traffic: Traffic, give_up: GiveUp | None) -> bool:
        """Make room for ``size`` bytes and count them as taken: a .part has its whole length from the beginning."""
        with self._locked():
            os.ftruncate(part, 0)
            while not (fits := self._make_room(size, traffic)) and give_up is not None and give_up():
                pass
            if not fits and give_up is None:
                return False
            os.ftruncate(part, size)
            traffic.over_bound += not fits
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, size: int, traffic: Traffic) -> bool:
        with os.scandir(self._shards) as entries:
            files = [(entry.path, status) for entry in entries if (status := _status(entry)) is not None]
        total = sum(status.st_size for _, status in files)
        files.sort(key=lambda file: (file[0].endswith(".bin"), file[1].st_mtime_ns))  # what killed processes left, then by use
        for path, status in files:
            if total + size <= self.bound_bytes:
                break
            if _evict(path):
                total -= status.st_size
                traffic.evictions += path.endswith(".bin")
        return total + size <= self.bound_bytes


@contextmanager
def _own(path: Path) -> Iterator[int]:
    """The descriptor of the file of that name, made where there is none, locked; removed at the end if it has its name still."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_named(descriptor, path):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another removed it while this process waited
    try:
        yield descriptor
    finally:
        if is_named(descriptor, path):
            path.unlink()
        os.close(descriptor)


def is_named(descriptor: int, path: Path) -> bool:
    """Whether it is the file that has that name: not one that was removed or renamed."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _status(entry: os.DirEntry) -> os.stat_result | None:
    try:
        return entry.stat()
    except FileNotFoundError:
        return None


def _evict(path: str) -> bool:
    """Remove a file that nobody reads or fetches; whether it was."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _damaged_blocks(part: int, entry: ShardEntry, size: int) -> bool:
    """Whether a block does not have its digest. Read back: what counts is what the disk of this machine holds."""
    with open(part, "rb", closefd=False) as file:
        file.seek(0)
        return any(xxhash.xxh3_64_hexdigest(file.read(BLOCK_BYTES)) != digest for digest in entry.blocks)


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fault = from_os_error(error, path, "cannot keep a shard in the cache")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            way_out = "free space there, or give another directory or a smaller bound: cache.directory, cache.size"
            fault = EnvironmentFault(fault.problems[0].seen, f"path: {path}", way_out)
        raise fault from error
