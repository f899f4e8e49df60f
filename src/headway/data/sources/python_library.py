"""Text that is part of Python: the standard library's source files, and the help topics.

A real corpus on every machine; it drifts with Python's patch version, so its digest is recorded.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import platform
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from headway.base.digests import digest_json
from headway.base.errors import EnvironmentFault
from headway.data.sources.document import Document, Documents, SourceRecipe
from headway.data.sources.places import Opened, SourceFile, local_file, read, walk

_NO_LIBRARY_TEXT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "__phello__"}
_NO_LIBRARY_TEXT |= {"pydoc_data", "encodings"}
"""Tests, installed packages, the help topics (a source of their own), and the codecs (tables of characters, hardly code)."""


def python_source(data: bytes) -> str | None:
    """Decoded as Python itself would (PEP 263), None when it is not text."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, ValueError, LookupError):  # declared encodings raise each of them
        return None


def _skips_library(name: str) -> bool:
    return name in _NO_LIBRARY_TEXT or name.startswith("config-")


def _library_files() -> Iterator[SourceFile]:
    root = Path(sysconfig.get_path("stdlib"))
    for relative in walk(root, _skips_library):
        generated = relative.startswith("_sysconfigdata")  # paths of this machine's build, not text
        if relative.endswith(".py") and not generated:
            yield local_file(root / relative, relative)


def _read_library(file: SourceFile) -> Documents:
    text = python_source(read(file))
    reason = "" if text is not None else "undecodable"
    yield Document(text, f"stdlib/{file.relative}", reason, {"path": file.relative, "language": "Python"})


def open_library(source: SourceRecipe) -> Opened:
    return Opened(f"the standard library of Python {platform.python_version()}", _library_files, _read_library)


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


def open_topics(source: SourceRecipe) -> Opened:
    topics = _topics()
    whole = SourceFile("pydoc", "pydoc_data", (digest_json(topics),), "", 0, io.BytesIO)

    def read_all(file: SourceFile) -> Documents:
        for name, text in sorted(topics.items()):
            yield Document(text, f"{file.relative}/{name}", facts={"path": name, "language": "en"})

    return Opened(f"the help topics of Python {platform.python_version()}", lambda: [whole], read_all)
