"""Where documents come from: one module per family of sources, one entry per kind in ``KINDS``.

    python-stdlib   source files of the running Python's standard library (a real corpus on every machine)
    pydoc-topics    the prose of Python's help topics
    text-tree       one document per regular file under ``path``
    code-tree       the same for source code: known languages, with repository and licence, without what is vendored or generated
    jsonl           one document per line, text in ``field``; .gz and .zst are read as they are
    parquet         one document per row, text in the column ``field``
    huggingface     the JSONL and Parquet files of a data set of the Hugging Face hub
    patches         one document per patch, or per thread of an issue
    undisclosed     text that nobody has named: it can be planned with, and is refused here

``path`` of text-tree, jsonl and parquet may be a URL that fsspec reads. The order is the same on every machine: by relative
path, then by line or row. A document that cannot be used is yielded with the reason instead of its text, so that nothing is
left out without being counted. Text with lone surrogates is passed on and left out by the spool as undecodable. A source that
cannot be read is one clear error. Nothing that is read is executed or unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError, Problem
from headway.data.sources.code_tree import open_code_tree
from headway.data.sources.document import FACTS, Document, Documents, SourceRecipe
from headway.data.sources.huggingface import open_dataset
from headway.data.sources.jsonl import open_jsonl
from headway.data.sources.parquet import open_parquet
from headway.data.sources.patches import open_patches
from headway.data.sources.places import Opened
from headway.data.sources.python_library import open_library, open_topics
from headway.data.sources.text_tree import open_text_tree

__all__ = [
    "FACTS",
    "KINDS",
    "UNDISCLOSED",
    "Document",
    "Documents",
    "Found",
    "Opened",
    "SourceRecipe",
    "documents",
    "find_sources",
    "open_source",
]

UNDISCLOSED = "undisclosed"


def refuse_undisclosed(sources: Iterable[SourceRecipe]) -> None:
    """ConfigError that names every source of kind undisclosed."""
    names = [source.name for source in sources if source.kind == UNDISCLOSED]
    if names:
        raise ConfigError(
            f"text that nobody has named cannot be read: {', '.join(names)}",
            f"a source of kind {UNDISCLOSED} stands for text that the recipe does not say where to find",
            "it can be planned: headway plan. To build data, give the source another kind and its path",
        )


def _open_undisclosed(source: SourceRecipe) -> Opened:
    refuse_undisclosed([source])
    raise AssertionError(source)


KINDS: dict[str, Callable[[Any], Opened]] = {
    "python-stdlib": open_library,
    "pydoc-topics": open_topics,
    "text-tree": open_text_tree,
    "code-tree": open_code_tree,
    "jsonl": open_jsonl,
    "parquet": open_parquet,
    "huggingface": open_dataset,
    "patches": open_patches,
    UNDISCLOSED: _open_undisclosed,
}


def open_source(source: SourceRecipe) -> Opened:
    """Find ``source``: its files, where they lie, how they are read."""
    if source.kind not in KINDS:
        raise ConfigError(f"source {source.name}: unknown kind {source.kind!r}", f"known: {', '.join(KINDS)}")
    return KINDS[source.kind](source)


def documents(source: SourceRecipe) -> Documents:
    """Every document of ``source`` as found, in order. Empty text and duplicates are the build's business."""
    yield from open_source(source).documents()


@dataclass(frozen=True)
class Found:
    """A source that can be read. ``stamp``: of its files when it was found, before anything of any source was read."""

    opened: Opened
    stamp: str


def find_sources(sources: Sequence[SourceRecipe]) -> dict[str, Found]:
    """By name. To read a source may take hours, so that all can be read is known first: their files are listed, and the first
    document of each is read. One error with all problems: ConfigError where a source is wrong, EnvironmentFault where only the
    machine is."""
    found, errors = dict[str, Found](), list[HeadwayError]()
    for source in sources:
        try:
            opened = open_source(source)
            found[source.name] = Found(opened, opened.stamp())
            opened.read_first()
        except HeadwayError as error:
            errors.append(error)
    if errors:
        kind = ConfigError if any(isinstance(error, ConfigError) for error in errors) else EnvironmentFault
        raise kind(_each_once(errors))
    return found


def _each_once(errors: list[HeadwayError]) -> list[Problem]:
    """Two sources may lack the same library, or lie in the same place."""
    return list(dict.fromkeys(problem for error in errors for problem in error.problems))
