"""Files of a data directory that lies elsewhere: read through fsspec, tried again where a fault may pass.

    get(name)             a small file, whole
    pieces(name, bytes)   a large one in ranges; a range that fails is read again, not the file

Only protocols that name a storage are taken: chains, archives and references would read files of this machine or run code of
theirs. Credentials come from the environment, as fsspec's packages read them, and appear in no message: a URL that could hold
one, as a user, a password or a query (?sig=...), is refused and not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from headway.base.clocks import Clock, SystemClock
from headway.base.errors import ConfigError, EnvironmentFault
from headway.base.urls import secret_in
from headway.store.mirror.faults import in_words, is_bug, may_pass

PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before the second try, the third, ... of one range."""
PIECE_BYTES = 8 * 2**20
PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "file", "memory")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_PACKAGES |= {"http": "aiohttp", "https": "aiohttp"}

T = TypeVar("T")


class Remote:
    """Files under one URL. Every failure is an error that names the URL and the file."""

    def __init__(self, filesystem: Any, root: str, url: str, clock: Clock | None = None):
        self.url = url.rstrip("/")
        self._fs, self._root, self._clock = filesystem, root.rstrip("/"), clock or SystemClock()

    @staticmethod
    def open(url: str, clock: Clock | None = None) -> Remote:
        """Touches no network: a place that cannot be reached shows when it is read."""
        _check(url)
        protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            rule = "data at a URL is read through fsspec"
            raise EnvironmentFault(f"{url} needs the package fsspec", rule, "pip install 'headway[data]'") from error
        try:
            filesystem, root = fsspec.core.url_to_fs(url, **_options(protocol))
        except ImportError as error:
            package = _PACKAGES.get(protocol, f"fsspec's package for {protocol}://")
            raise EnvironmentFault(f"{url} needs a client of its own: {error}", "", f"pip install {package}") from error
        except Exception as error:
            seen, way_out = f"{url} cannot be opened: {in_words(error)}", "check the URL and the environment"
            raise EnvironmentFault(seen, "", way_out) from error
        return Remote(filesystem, str(root), url, clock)

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def size(self, name: str) -> int:
        """In bytes. FileNotFoundError where there is none."""
        return self._try(lambda: int(self._fs.info(self._path(name))["size"]), name)

    def get(self, name: str) -> bytes:
        """A whole small file. FileNotFoundError where there is none."""
        return self._try(lambda: bytes(self._fs.cat_file(self._path(name))), name)

    def pieces(self, name: str, total_bytes: int) -> Iterator[bytes]:
        """The first ``total_bytes`` of a file, in order; EnvironmentFault where it ends before. FileNotFoundError as above."""
        for at in range(0, total_bytes, PIECE_BYTES):
            end = min(at + PIECE_BYTES, total_bytes)
            piece = self._try(partial(self._range, name, at, end), name)
            if len(piece) != end - at:
                raise EnvironmentFault(
                    f"data file {self.where(name)} is not what the run was frozen with: bytes {at} to {end} gave {len(piece)}",
                    f"it has {total_bytes} bytes by the data manifest, and its storage gives ranges",
                    "restore that file from a copy, or build the data again",
                )
            yield piece

    def range(self, name: str, at: int, end: int) -> bytes:
        """Bytes [at, end) of a file, or fewer where it ends. FileNotFoundError where there is none."""
        return self._try(partial(self._range, name, at, end), name)

    def _range(self, name: str, at: int, end: int) -> bytes:
        return bytes(self._fs.cat_file(self._path(name), start=at, end=end))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, action: Callable[[], T], name: str) -> T:
        for pause_seconds in (*PAUSES_SECONDS, None):
            try:
                return action()
            except FileNotFoundError:
                raise
            except Exception as error:
                if is_bug(error):
                    raise
                if pause_seconds is None or not may_pass(error):
                    raise self._fault(error, name, pause_seconds is None) from error
            self._clock.sleep(pause_seconds)
        raise AssertionError("the last try returns or raises")

    def _fault(self, error: Exception, name: str, tried: bool) -> EnvironmentFault:
        tries = f"tried {len(PAUSES_SECONDS) + 1} times; " if tried else ""
        return EnvironmentFault(
            f"cannot read data file {self.where(name)}: {in_words(error)}",
            f"{tries}what the local cache holds is still used",
            "check network, storage and credentials, then go on with headway resume: no position is lost",
        )


def missing(where: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"data file {where} is not there", "the data manifest names it", "restore that file from a copy, or build the data again"
    )


def _check(url: str) -> None:
    """ConfigError, which does not repeat the URL: it may hold a secret."""
    protocol = url.partition("://")[0]
    if "::" in url or protocol not in PROTOCOLS:
        raise ConfigError(
            f"data at {protocol}://...: {'chains filesystems' if '::' in url else f'{protocol}:// is not read'}",
            f"data is read from {', '.join(p + '://' for p in PROTOCOLS)}: the place itself, nothing in between",
            "name the storage, or copy the data to this machine",
        )
    if problem := secret_in(url, "data"):
        raise ConfigError([problem])


def _options(protocol: str) -> dict[str, Any]:
    """No caches of listings: a file that was restored must be seen. Object storage of others may be read without an account only
    where the environment says so."""
    return {} if protocol == "memory" else {"skip_instance_cache": True, "use_listings_cache": False}
