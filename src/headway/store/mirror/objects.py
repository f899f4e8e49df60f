"""One place that keeps whole objects under keys: a bucket or a shared directory, through fsspec.

    get      a small object, or None: the only word on what is there
    size     of an object, or None
    read     a range of one
    put      a small object at once
    stream   a large one in parts; it appears when all of it is there
    names    what a listing shows: a hint, listings may be old
    delete   it is gone afterwards, also if it was before

Object stores have neither rename nor fsync; what they promise is that one object changes at once. On a shared filesystem the
same is made of what that has: write beside, fsync, rename, fsync of the directory.

What may pass (throttling, time-outs, a server's own errors) is tried again after growing pauses; what will not (access denied,
no such bucket, disk full) is said at once. Both end as a ``MirrorFault`` that names the place and the cause. Credentials come
from the environment, as fsspec's packages read them, and appear in no message.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from headway.base.clocks import Clock
from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError
from headway.base.files import fsync_directory, make_directory
from headway.base.urls import secret_in
from headway.store.durable import DurableWriter
from headway.store.mirror.faults import MirrorFault, fault_of, in_words, is_bug, is_missing_object, may_pass

PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Before the second try, the third, ... Beneath, s3fs and botocore try each request of theirs a few times within seconds."""

TRIES = len(PAUSES_SECONDS) + 1

S3FS_TRIES, BOTOCORE_TRIES = 2, 3
"""Of one request. Theirs multiply with ours: by their own rules, a mirror that is down would hold a restart up for an hour."""

PART_BYTES = 16 << 20
MOST_PARTS = 9_000
"""An S3 object has at most 10,000 parts; larger objects get larger parts."""

S3 = ("s3", "s3a")
INSTALL = "install it: pip install '.[storage]'"

T = TypeVar("T")


class Objects:
    """The objects under one URL. Errors as in the module's docstring; errors of whoever feeds ``stream`` pass through."""

    def __init__(self, filesystem: Any, root: str, url: str, clock: Clock):
        self.url = url
        self._fs, self._root, self._clock = filesystem, root.rstrip("/"), clock
        protocol = filesystem.protocol
        self._posix = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    @staticmethod
    def open(url: str, clock: Clock) -> Objects:
        """Touches no network: a place that cannot be reached shows when it is used."""
        _check_url(url)
        scheme = url.partition("://")[0] if "://" in url else "file"
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(f"the mirror {url} needs the package fsspec", f"it is not installed ({error})", INSTALL) from error
        try:
            filesystem, root = fsspec.core.url_to_fs(url, **_options(fsspec, scheme))
        except ImportError as error:
            way_out = INSTALL if scheme in S3 else f"install fsspec's package for {scheme}://"
            raise ConfigError(f"the mirror {url} needs a package that is not installed", str(error), way_out) from error
        except ValueError as error:
            rule = f"{scheme}:// is not known ({in_words(error)})"
            raise ConfigError(f"the mirror {url} cannot be opened", rule, "use file://, s3:// or a path") from error
        if scheme in S3:
            filesystem.retries = S3FS_TRIES
            if not root.strip("/"):
                raise ConfigError(f"the mirror {url} names no bucket", "", "write s3://BUCKET/PREFIX")
        return Objects(filesystem, root, url, clock)

    def get(self, key: str) -> bytes | None:
        return self._or_none(lambda: bytes(self._fs.cat_file(self._path(key))), f"cannot read {key}")

    def size(self, key: str) -> int | None:
        def ask() -> int | None:
            info = self._fs.info(self._path(key))
            return int(info["size"]) if info["type"] == "file" else None

        return self._or_none(ask, f"cannot read the size of {key}")

    def read(self, key: str, start_bytes: int, stop_bytes: int) -> bytes | None:
        """Bytes [start, stop), fewer where the object ends before; None where there is none."""
        return self._or_none(
            lambda: bytes(self._fs.cat_file(self._path(key), start=start_bytes, end=stop_bytes)), f"cannot read {key}"
        )

    def names(self, key: str) -> set[str]:
        """What lies directly under ``key``, as a fresh listing has it."""

        def ask() -> set[str]:
            self._fs.invalidate_cache()
            paths = {path.rstrip("/") for path in self._fs.ls(self._path(key), detail=False)}
            return {path.rpartition("/")[2] for path in paths - {self._path(key)}}  # some list a marker of the place itself

        return self._or_none(ask, f"cannot list {key}") or set()

    def put(self, key: str, data: bytes) -> None:
        if self._posix:
            self.stream(key, len(data), lambda: iter([data]))
        else:
            self._write(lambda: self._fs.pipe_file(self._path(key), data), key)

    def stream(self, key: str, total_bytes: int, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Write what ``pieces()`` yields, anew for every try. When that raises, no object appears and an old one stays."""
        write = self._write_file if self._posix else self._write_parts
        self._write(lambda: write(key, total_bytes, pieces()), key)

    def delete(self, key: str) -> None:
        """Durable, so that what is deleted later is never gone while this one is back."""

        def remove() -> None:
            self._fs.rm_file(self._path(key))
            if self._posix:
                fsync_directory(Path(self._path(key)).parent)

        self._or_none(remove, f"cannot delete {key}")

    def drop_empty(self, key: str) -> None:
        """A directory of a shared filesystem outlives its files."""
        if self._posix:
            with contextlib.suppress(OSError):
                os.rmdir(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _write_file(self, key: str, total_bytes: int, pieces: Iterator[bytes]) -> None:
        path = Path(self._path(key))
        try:
            make_directory(path.parent, "directory of the mirror")
        except EnvironmentFault as error:
            raise MirrorFault(error.problems) from error
        DurableWriter({}, 0).write(path, pieces, total_bytes)

    def _write_parts(self, key: str, total_bytes: int, pieces: Iterator[bytes]) -> None:
        """Closing must not complete an object that was cut short, as it does by default: committing does, and only at the end."""
        part_bytes = max(PART_BYTES, -(-total_bytes // MOST_PARTS))
        file = self._fs.open(self._path(key), "wb", block_size=part_bytes, autocommit=False)
        try:
            for piece in pieces:
                file.write(piece)
            file.close()
            file.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                file.closed = True  # else its destructor would send the rest
            raise

    def _write(self, action: Callable[[], object], key: str) -> None:
        try:
            self._try(action, f"cannot write {key}")
        except FileNotFoundError as error:  # of the place: what is written need not be there
            raise fault_of(error, f"cannot write {key}", self.url, TRIES) from error

    def _or_none(self, action: Callable[[], T], doing: str) -> T | None:
        try:
            return self._try(action, doing)
        except FileNotFoundError:
            return None

    def _try(self, action: Callable[[], T], doing: str) -> T:
        for pause_seconds in (*PAUSES_SECONDS, None):
            self._require_root(doing)
            try:
                return action()
            except HeadwayError:
                raise
            except Exception as error:
                if is_bug(error) or is_missing_object(error):
                    raise
                if pause_seconds is None or not may_pass(error):
                    raise fault_of(error, doing, self.url, TRIES) from error
            self._clock.sleep(pause_seconds)
        raise AssertionError("the last try returns or raises")

    def _require_root(self, doing: str) -> None:
        """Never made here: where a share is not mounted, copies would land on this machine's own disk, unnoticed."""
        if self._posix and not os.path.isdir(self._root):
            raise MirrorFault(
                f"{doing}: the directory {self._root} does not exist",
                f"mirror: {self.url}; its directory is there before the run, which proves that the share is mounted",
                "mount the share, or make that directory",
            )


def _check_url(url: str) -> None:
    if problem := secret_in(url, "mirror"):
        raise ConfigError([problem])
    if "::" in url:
        raise ConfigError(f"the mirror {url} is a chain", "a cache in between would answer for the storage", "name the storage")


def _options(fsspec: Any, scheme: str) -> dict[str, Any]:
    """No caches of listings. For S3, parts of equal size (some stores insist) and one request at a time for each file."""
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if scheme in S3:
        stated = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        retries = {"mode": "standard", "total_max_attempts": BOTOCORE_TRIES}
        options |= {"fixed_upload_size": True, "max_concurrency": 1, "config_kwargs": {"retries": retries, **stated}}
    return options
