"""Where a source's files lie: a directory or file of this machine, or a URL that fsspec reads (s3://, gs://, https://, memory://).

    path  ->  files(source, default patterns)  ->  SourceFile: relative name, stamp, why it is left out, open()

Files come in the order of their relative names, the same on every machine. A stamp changes when its file does: it tells a
build that goes on after a kill whether what it read is still there. It is no identity; identity is the documents' content.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from headway.base.digests import canonical_json
from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError, from_os_error
from headway.base.urls import is_url, without_credentials
from headway.data.sources.document import Document, Documents, SourceRecipe

NOT_REGULAR = "not_a_regular_file"
EXCLUDED = "excluded"
_EVERY_TIME_ANOTHER = {"atime", "accessed", "last_accessed"}
"""What reading a file changes."""
_BUFFER_BYTES = 2**16


@dataclass(frozen=True)
class SourceFile:
    """``relative`` is its name under the source's path, ``where`` the whole one. ``left_out``: why it is not read, or empty."""

    relative: str
    where: str
    stamp: tuple
    left_out: str
    size: int
    open: Callable[[], BinaryIO]
    is_named: bool = False  # the source's path is this file: it has to match no pattern


def optional(module: str, package: str, need: str) -> Any:
    """A library that not every installation has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EnvironmentFault(
            f"{need} needs {package}, which is not installed",
            "libraries for data formats and places are an extra",
            "pip install 'headway[data]'",
        ) from error


def matches(relative: str, patterns: tuple[str, ...]) -> bool:
    """``*`` crosses directories; a leading ``**/`` also matches at the top."""
    return any(fnmatch.fnmatchcase(relative, p) or fnmatch.fnmatchcase(relative, p.removeprefix("**/")) for p in patterns)


def need_path(source: SourceRecipe) -> str:
    if not source.path:
        raise ConfigError(
            f"source {source.name}: kind {source.kind} needs a path",
            "path is the directory, file, URL or data set that holds the text",
            f'add path = "..." to the source {source.name}',
        )
    return source.path


@dataclass(frozen=True)
class Opened:
    """A source that was found: ``where`` it lies, its files (listed anew whenever they are asked for) and how one is read."""

    where: str
    files: Callable[[], Iterable[SourceFile]]
    read: Callable[[SourceFile], Documents]

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", without_credentials(self.where))  # the manifest names it

    def documents(self) -> Documents:
        """Every document as found, in order."""
        for file in self.files():
            yield from [Document(None, file.relative, file.left_out)] if file.left_out else self.read(file)

    def read_first(self) -> None:
        """The first document of the first file that is not left out: whoever cannot read it is told so."""
        for file in self.files():
            if not file.left_out:
                next(iter(self.read(file)), None)
                return

    def stamp(self) -> str:
        """Changes when a file does, comes or goes."""
        digest = hashlib.sha256()
        for file in self.files():
            digest.update(canonical_json([file.relative, file.left_out, list(file.stamp)]))
        return digest.hexdigest()


def files(source: SourceRecipe, default: tuple[str, ...]) -> Iterator[SourceFile]:
    """The files of a source that its patterns name; a single file is taken as it is, what ``exclude`` names has its reason."""
    found = _url_files(source) if is_url(need_path(source)) else local_files(source)
    patterns, empty = tuple(source.include) or default, True
    for file in found:
        if not file.is_named and not matches(file.relative, patterns):
            continue
        empty = False
        yield replace(file, left_out=EXCLUDED) if matches(file.relative, tuple(source.exclude)) else file
    if empty:
        raise nothing_matches(source, patterns)


def nothing_matches(source: SourceRecipe, patterns: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"source {source.name} is empty: no file under {without_credentials(need_path(source))} matches {', '.join(patterns)}",
        "a source has at least one document",
        "check path and include",
    )


# --- this machine -------------------------------------------------------------------------------------------------------


def local_root(source: SourceRecipe) -> Path:
    """The source's path, which exists."""
    try:
        root = Path(need_path(source)).expanduser()
    except RuntimeError as error:  # ~user of nobody
        rule = "~ is a home directory of this machine"
        raise ConfigError(f"source {source.name}: {error}: {source.path}", rule, "write the whole path") from error
    try:
        root.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"source {source.name}: its path does not exist: {root.absolute()}",
            f"a relative path is relative to the working directory, here {Path.cwd()}",
            f"check the path of the source {source.name}, or start from the directory that it is relative to",
        ) from error
    except OSError as error:
        raise from_os_error(error, root, "cannot read source") from error
    return root


def local_files(source: SourceRecipe) -> Iterator[SourceFile]:
    root = local_root(source)
    if root.is_file():
        yield replace(local_file(root, root.name), is_named=True)
        return
    for relative in walk(root):
        yield local_file(root / relative, relative)


def walk(root: Path, skip: Callable[[str], bool] = lambda name: False) -> Iterator[str]:
    """Relative POSIX paths of all files under ``root``, sorted; an unreadable directory is an error, not a gap.

    One directory's names are held at a time: sorted with "/" behind the names of directories, they and all that lies below them
    come in the order of the whole paths. Links to directories are not followed.
    """
    waiting = [_names(root, "", skip)]
    while waiting:
        if (name := next(waiting[-1], None)) is None:
            waiting.pop()
        elif name.endswith("/"):
            waiting.append(_names(root, name, skip))
        else:
            yield name


def _names(root: Path, below: str, skip: Callable[[str], bool]) -> Iterator[str]:
    directory = root / below
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_dir()) for entry in entries]
    except OSError as error:
        raise from_os_error(error, error.filename or directory, "cannot read source directory") from error
    links = {name for name, is_directory, leads_to_one in found if leads_to_one and not is_directory}
    names = [f"{name}/" if is_directory else name for name, is_directory, _ in found]
    yield from (below + name for name in sorted(names) if name not in links and not (name.endswith("/") and skip(name[:-1])))


def local_file(path: Path, relative: str) -> SourceFile:
    try:
        status = path.stat()
    except OSError as error:
        raise from_os_error(error, path, "cannot read source file") from error
    left_out = "" if stat.S_ISREG(status.st_mode) else NOT_REGULAR
    stamp = (relative, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return SourceFile(relative, str(path), stamp, left_out, status.st_size, lambda: _open_local(path))


def _open_local(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise from_os_error(error, path, "cannot read source file") from error


def buffered(opened: BinaryIO) -> Any:
    """Reads lines of at most a given size, which files of object storage do not by themselves."""
    return opened if isinstance(opened, io.BufferedIOBase) else io.BufferedReader(opened, _BUFFER_BYTES)  # type: ignore[type-var]


def read(file: SourceFile) -> bytes:
    with reading(file.where), file.open() as opened:
        return opened.read()


# --- elsewhere ----------------------------------------------------------------------------------------------------------


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Whatever a filesystem raises becomes one clear error that names the file; errors that are clear pass."""
    try:
        yield
    except HeadwayError:
        raise
    except OSError as error:
        raise from_os_error(error, where, "cannot read source file") from error
    except Exception as error:  # clients of object storage raise what they like
        raise unreachable(where, error) from error


def unreachable(where: str, error: BaseException) -> EnvironmentFault:
    said = without_credentials(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return EnvironmentFault(
        f"cannot read {without_credentials(where)}: {said}", "a source is read while it is built", "check access and network"
    )


def _url_files(source: SourceRecipe) -> Iterator[SourceFile]:
    url = need_path(source)
    shown = without_credentials(url)
    if "::" in url:
        raise ConfigError(
            f"source {source.name}: {shown} chains filesystems",
            "a URL names one filesystem: caches and archives between keep files of their own, and some of them run code",
            "name the files where they lie; .gz and .zst are read as they are",
        )
    filesystem, root = _filesystem(source, url)
    try:
        listed = filesystem.find(root, detail=True)
    except Exception as error:
        raise unreachable(url, error) from error
    if not listed:
        raise ConfigError(
            f"source {source.name}: there is no file at {shown}", "a URL names a file or a directory", "check the path"
        )
    for name in sorted(listed):
        file = _remote_file(filesystem, name, name.removeprefix(root.rstrip("/") + "/"), listed[name])
        yield replace(file, relative=name.rpartition("/")[2], is_named=True) if name == root else file


def _filesystem(source: SourceRecipe, url: str) -> tuple[Any, str]:
    fsspec = optional("fsspec", "fsspec", f"reading {without_credentials(url)}")
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        protocol = url.partition("://")[0]
        raise EnvironmentFault(
            f"source {source.name}: {error}", f"{protocol}:// needs a client of its own", "install what is named"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"source {source.name}: {error}", "a URL begins with a protocol of fsspec, such as s3://", "check it"
        ) from error
    except Exception as error:
        raise unreachable(url, error) from error
    return filesystem, str(root)


def _remote_file(filesystem: Any, name: str, relative: str, info: dict) -> SourceFile:
    known = tuple(sorted((key, str(value)) for key, value in info.items() if key not in _EVERY_TIME_ANOTHER))
    left_out = "" if info.get("type", "file") == "file" else NOT_REGULAR
    where = without_credentials(filesystem.unstrip_protocol(name))
    return SourceFile(relative, where, known, left_out, info.get("size") or 0, lambda: filesystem.open(name, "rb"))
