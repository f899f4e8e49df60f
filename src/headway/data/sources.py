"""Where documents come from: one function per kind of source, in ``KINDS``.

    python-stdlib   source files of the running Python's standard library (a real corpus on every machine)
    pydoc-topics    the prose of Python's help topics
    text-tree       one document per regular file under ``path``
    jsonl           one document per line, text in ``field``; .gz read as it is
    undisclosed     text that nobody has named: it can be planned with, and is refused here

The order is the same on every machine: by relative path, then by line. A document that cannot be used is yielded with the
reason instead of its text, so that nothing is left out without being counted: undecodable text, and what is
no regular file (a pipe, socket or device, which may never end). Text with lone surrogates is passed on and left out by the
spool as undecodable. A source that cannot be read is one clear error.
"""

from __future__ import annotations

import fnmatch
import gzip
import importlib
import io
import json
import os
import pkgutil
import stat
import sysconfig
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.base.errors import ConfigError, EnvironmentFault, from_os_error
from headway.recipe.plain_values import printable

_NO_LIBRARY_TEXT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "__phello__"}
_NO_LIBRARY_TEXT |= {"pydoc_data", "encodings"}
"""Tests, installed packages, the help topics (a source of their own), and the codecs (tables of characters, hardly code)."""


UNDISCLOSED = "undisclosed"


class SourceRecipe(Protocol):
    """What is read of a recipe's [[data.sources]]."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Any: ...
    @property
    def path(self) -> str | None: ...
    @property
    def include(self) -> tuple[str, ...]: ...
    @property
    def field(self) -> str: ...


@dataclass(frozen=True)
class Document:
    """``text`` None: left out, for the reason in ``dropped``. ``origin`` is for people and errors."""

    text: str | None
    origin: str
    dropped: str = ""


# --- files --------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, "cannot read source file") from error


def _left_out(path: Path) -> str:
    """Why ``path`` is not read; empty: it is a regular file, or a link to one."""
    try:
        return "" if stat.S_ISREG(path.stat().st_mode) else "not_a_regular_file"
    except OSError as error:
        raise from_os_error(error, path, "cannot read source file") from error


def _walk(root: Path, skip: Callable[[str], bool] = lambda name: False) -> Iterator[str]:
    """Relative POSIX paths of all files under ``root``, sorted; an unreadable directory is an error, not a gap."""

    def refuse(error: OSError) -> None:
        raise from_os_error(error, error.filename or root, "cannot read source directory") from error

    found = []
    for directory, names, files in os.walk(root, onerror=refuse):
        names[:] = [name for name in names if not skip(name)]
        found += [os.path.relpath(os.path.join(directory, file), root).replace(os.sep, "/") for file in files]
    yield from sorted(found)


def _matches(relative: str, patterns: tuple[str, ...]) -> bool:
    """``*`` crosses directories; a leading ``**/`` also matches at the top."""
    return any(fnmatch.fnmatchcase(relative, p) or fnmatch.fnmatchcase(relative, p.removeprefix("**/")) for p in patterns)


def _need_path(source: SourceRecipe) -> Path:
    if not source.path:
        raise ConfigError(
            f"source {source.name}: kind {source.kind} needs a path",
            "path is the directory or file that holds the text",
            f'add path = "..." to the source {source.name}',
        )
    try:
        return Path(source.path).expanduser()
    except RuntimeError as error:  # ~user of nobody
        rule = "~ is a home directory of this machine"
        raise ConfigError(f"source {source.name}: {error}: {source.path}", rule, "write the whole path") from error


def _files(source: SourceRecipe, default: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """(path, relative name) of the files of a source; a single file is taken as it is."""
    root = _need_path(source)
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
    if root.is_file():
        yield root, root.name
        return
    patterns = tuple(source.include) or default
    matched = [relative for relative in _walk(root) if _matches(relative, patterns)]
    if not matched:
        raise ConfigError(
            f"source {source.name} is empty: no file under {root} matches {', '.join(patterns)}",
            "a source has at least one document",
            "check path and include",
        )
    for relative in matched:
        yield root / relative, relative


# --- kinds --------------------------------------------------------------------------------------------------------------


def _python_source(data: bytes) -> str | None:
    """Decoded as Python itself would (PEP 263), None when it is not text."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, ValueError, LookupError):  # declared encodings raise each of them
        return None


def _skips_library(name: str) -> bool:
    return name in _NO_LIBRARY_TEXT or name.startswith("config-")


def _python_stdlib(source: SourceRecipe) -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    for relative in _walk(root, _skips_library):
        generated = relative.startswith("_sysconfigdata")  # paths of this machine's build, not text
        if relative.endswith(".py") and not generated:
            reason = _left_out(root / relative)
            text = None if reason else _python_source(_read(root / relative))
            yield Document(text, f"stdlib/{relative}", reason or ("" if text is not None else "undecodable"))


def _topics() -> dict[str, str]:
    """The help topics, wherever this version of Python keeps them."""
    try:
        package = importlib.import_module("pydoc_data")
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        for name in sorted(names, key=lambda name: name != "topics"):
            topics = getattr(importlib.import_module(f"pydoc_data.{name}"), "topics", None)
            if isinstance(topics, dict) and topics:
                return topics
    except ImportError:
        pass
    raise EnvironmentFault(
        "this Python has no help topics (pydoc_data)",
        "the source kind pydoc-topics reads pydoc_data.topics of the standard library",
        "install the full standard library, or use another source",
    )


def _pydoc_topics(source: SourceRecipe) -> Iterator[Document]:
    for name, text in sorted(_topics().items()):
        yield Document(text, f"pydoc/{name}")


def _text_tree(source: SourceRecipe) -> Iterator[Document]:
    for path, relative in _files(source, ("*",)):
        reason = _left_out(path)
        try:
            yield Document(None, relative, reason) if reason else Document(_read(path).decode("utf-8-sig"), relative)
        except UnicodeDecodeError:
            yield Document(None, relative, "undecodable")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise EnvironmentFault(f"compressed file is damaged: {error}", f"path: {path}", "fetch the file again") from error
    except OSError as error:
        raise from_os_error(error, path, "cannot read source file") from error


def _field_of(line: bytes, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        seen = "nested too deep" if isinstance(error, RecursionError) else f"not JSON: {error}"
        raise ConfigError(seen, "a .jsonl file holds one JSON object a line", "mend or remove that line", where) from None
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        known = printable(", ".join(sorted(value)), 300) if isinstance(value, dict) else type(value).__name__
        raise ConfigError(
            f"no text in field {field!r}", f"the line holds: {known}", "set field of that source to the key of the text", where
        )
    return text


def _jsonl(source: SourceRecipe) -> Iterator[Document]:
    for path, relative in _files(source, ("*.jsonl", "*.jsonl.gz")):
        reason = _left_out(path)
        if reason:
            yield Document(None, relative, reason)
            continue
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                yield Document(_field_of(line, source.field, f"{path}:{number}"), f"{relative}:{number}")


def refuse_undisclosed(sources: Iterable[SourceRecipe]) -> None:
    """ConfigError that names every source of kind undisclosed."""
    names = [source.name for source in sources if source.kind == UNDISCLOSED]
    if names:
        raise ConfigError(
            f"text that nobody has named cannot be read: {', '.join(names)}",
            f"a source of kind {UNDISCLOSED} stands for text that the recipe does not say where to find",
            "it can be planned: headway plan. To build data, give the source another kind and its path",
        )


def _undisclosed(source: SourceRecipe) -> Iterator[Document]:
    refuse_undisclosed([source])
    yield from ()


KINDS: dict[str, Callable[[Any], Iterator[Document]]] = {
    "python-stdlib": _python_stdlib,
    "pydoc-topics": _pydoc_topics,
    "text-tree": _text_tree,
    "jsonl": _jsonl,
    UNDISCLOSED: _undisclosed,
}


def documents(source: SourceRecipe) -> Iterator[Document]:
    """Every document of ``source`` as found, in order. Empty text and duplicates are the build's business."""
    if source.kind not in KINDS:
        raise ConfigError(f"source {source.name}: unknown kind {source.kind!r}", f"known: {', '.join(KINDS)}")
    yield from KINDS[source.kind](source)
