"""The steps in their order, and a source's documents on their way through them.

A document passes all steps; where one changed it, it passes again those up to the last that did, and all of them where one of
these changed it once more, until none changes it. Then it is kept, and every step is told so. Documents without text, and empty
ones, are the spool's business and go by untouched.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headway.base.digests import sealed
from headway.base.files import write_json
from headway.data.manifest import REPORT_FILE, PreparationStep
from headway.data.prepare.code import Code, joined
from headway.data.prepare.contamination import Contamination
from headway.data.prepare.duplicates import Duplicates, Lines
from headway.data.prepare.near_duplicates import NearDuplicates
from headway.data.prepare.normalisation import Normalisation
from headway.data.prepare.quality import Quality, Repeats
from headway.data.prepare.record import SourceRecord
from headway.data.prepare.selection import Extensions, Languages
from headway.data.prepare.sensitive import Personal, Secrets
from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.sources import Document

if TYPE_CHECKING:
    from headway.recipe.preparation import Prepare
    from headway.recipe.schema import Data, Source

MOST_PASSES = 12
"""Of one document: every change takes something away, so two or three are usual. One that needs more is left out."""

REPOSITORIES = ("repositories", 2)
_ORDER: tuple[tuple[str, type[Step]], ...] = (
    ("text", Normalisation),
    ("extensions", Extensions),
    ("code", Code),
    ("languages", Languages),
    ("secrets", Secrets),
    ("personal", Personal),
    ("quality", Quality),
    ("repeats", Repeats),
    ("contamination", Contamination),
    ("duplicates", Duplicates),
    ("near_duplicates", NearDuplicates),
    ("lines", Lines),
)
"""Cheap before dear, what looks at one document before what compares. Lines last: they are counted over what is really kept."""


def make_steps(settings: Prepare, directory: Path) -> list[Step]:
    """The steps that ``settings`` asks for, in their order; temporary files lie in ``directory``."""
    steps = []
    for name, step in _ORDER:
        section = getattr(settings, name)
        if section is not None:
            plain = section.model_dump(mode="json")
            steps.append(NearDuplicates(plain, directory) if step is NearDuplicates else step(plain))
    return steps


class Preparation:
    """All sources of one build. Where the recipe has no [data.prepare], documents pass as they are and nothing is recorded."""

    def __init__(
        self, data: Data, directory: Path, read: Callable[[Source], Iterable[Document]], tell: Callable[[str, dict], None]
    ):
        """``read``: the documents of a source as they are found."""
        self._data, self._directory, self._read, self._tell = data, directory, read, tell
        self._settings = data.prepare
        self._steps = make_steps(data.prepare, directory) if data.prepare else []
        self._waiting = sorted(data.sources, key=lambda source: source.name)
        self._records: dict[str, SourceRecord] = {}
        self._stored: dict[str, TextIO] = {}

    def documents(self, source: Source) -> Iterator[Document]:
        """Those of ``source``, prepared. Sources are prepared in the order of their names; those before it wait in a file."""
        if self._settings is None:
            yield from self._read(source)
            return
        while source.name not in self._records:
            following = self._waiting.pop(0)
            if following.name == source.name:
                yield from self._prepared(following)
                return
            self._stored[following.name] = _store(self._prepared(following), self._directory)
        with self._stored.pop(source.name) as file:
            yield from _restored(file)

    @property
    def compares(self) -> bool:
        """Whether what is kept of a source depends on what was read before: then all sources are read again after a kill."""
        return self._settings is not None

    def identity(self) -> dict[str, Any]:
        """What decides the result, for the build's inputs digest: empty where nothing is prepared."""
        if self._settings is None:
            return {}
        repositories = self._settings.repositories.model_dump(mode="json") if self._settings.repositories else None
        without = {source.name: sorted(source.without) for source in self._data.sources if source.without}
        steps = [step.identity() for step in self._steps]
        return {"prepare": {"steps": steps, "repositories": [REPOSITORIES, repositories], "without": without}}

    def inventory(self, name: str) -> tuple[PreparationStep, ...]:
        """Documents and bytes of a source before and after each step: none where nothing is prepared."""
        return self._records[name].inventory() if self._settings is not None else ()

    def save_report(self, directory: Path) -> None:
        """``REPORT_FILE`` beside the manifest: settings, counts and examples, no text of documents and no time."""
        if self._settings is None:
            return
        sources = {name: _source_report(record) for name, record in sorted(self._records.items())}
        steps = [step.identity() | {"facts": step.facts()} for step in self._steps]
        write_json(
            directory / REPORT_FILE, sealed({"kind": "preparation", "schema_version": 1, "steps": steps, "sources": sources})
        )

    def close(self) -> None:
        for step in self._steps:
            step.close()
        for file in self._stored.values():
            file.close()

    def _prepared(self, source: Source) -> Iterator[Document]:
        assert self._settings is not None
        steps = [step for step in self._steps if step.name not in source.without]
        repositories = None if "repositories" in source.without else self._settings.repositories
        names = [(step.name, step.version) for step in steps] + ([REPOSITORIES] if repositories else [])
        record = self._records[source.name] = SourceRecord(names)
        left_out: list[Document] = []
        kept = self._kept(source, steps, record, left_out)
        if repositories:
            kept = _joined(kept, record, repositories.depth, repositories.most)
        for piece in kept:
            yield Document(piece.text, piece.origin, facts=piece.facts)
            yield from left_out
            left_out.clear()
        yield from left_out
        self._tell("prepared", {"source": source.name} | record.summary())

    def _kept(self, source: Source, steps: Sequence[Step], record: SourceRecord, left_out: list[Document]) -> Iterator[Piece]:
        """What goes on; what does not is put into ``left_out`` with its reason."""
        for document in self._read(source):
            if not _has_text(document):
                left_out.append(document)
                continue
            assert document.text is not None
            record.read(_bytes(document.text))
            piece, verdict = pass_through(Piece(document.text, document.origin, source.name, document.facts), steps, record)
            if verdict.dropped:
                left_out.append(Document(None, document.origin, verdict.dropped, document.facts))
            else:
                for step in steps:
                    step.keep(piece)
                yield piece


def pass_through(piece: Piece, steps: Sequence[Step], record: SourceRecord) -> tuple[Piece, Verdict]:
    """``piece`` as the steps leave it, and the last verdict; ``record`` is of these steps."""
    end, verdict = len(steps), Verdict(piece.text)
    for _ in range(MOST_PASSES):
        last_change = 0
        for number in range(end):
            verdict = steps[number].check(piece)
            if not verdict.text.strip() and not verdict.dropped:
                verdict = Verdict(piece.text, "empty", "of what the step left")
            if verdict.dropped:
                record.steps[number].drop(verdict, piece.origin, _bytes(piece.text))
                return piece, verdict
            if verdict.text != piece.text:
                record.steps[number].change(verdict, _bytes(piece.text), _bytes(verdict.text))
                piece, last_change = dataclasses.replace(piece, text=verdict.text), number + 1
        if not last_change:
            return piece, verdict
        end = last_change if end == len(steps) else len(steps)  # those behind have not seen what a shorter pass changed
    verdict = Verdict(piece.text, "unstable", f"still changing after {MOST_PASSES} passes")
    record.steps[end - 1].drop(verdict, piece.origin, _bytes(piece.text))
    return piece, verdict


def _joined(kept: Iterator[Piece], record: SourceRecord, depth: int, most: int) -> Iterator[Piece]:
    own = record.steps[-1]

    def measured() -> Iterator[Piece]:
        for piece in kept:
            own.changed_bytes -= _bytes(piece.text)
            yield piece

    for piece, files in joined(measured(), depth=depth, most=most):
        own.changed_bytes += _bytes(piece.text)
        own.joined += files - 1
        yield piece


def _source_report(record: SourceRecord) -> dict[str, Any]:
    return {
        "read": {"documents": record.documents, "bytes": record.bytes},
        "steps": [dataclasses.asdict(row) for row in record.inventory()],
        "examples": record.examples(),
    }


# --- documents


def _bytes(text: str) -> int:
    return len(text.encode())


def _has_text(document: Document) -> bool:
    """What the spool would not leave out as undecodable or empty."""
    if document.dropped or document.text is None or not document.text.removeprefix("\ufeff").strip():
        return False
    try:
        document.text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _store(found: Iterator[Document], directory: Path) -> TextIO:
    """A temporary file of ``found``, at its beginning. JSON holds lone surrogates too."""
    file = tempfile.TemporaryFile("w+", dir=directory, encoding="ascii")  # noqa: SIM115 - closed by who reads it
    for document in found:
        file.write(json.dumps([document.text, document.origin, document.dropped, dict(document.facts)]) + "\n")
    file.seek(0)
    return file


def _restored(file: TextIO) -> Iterator[Document]:
    for line in file:
        yield Document(*json.loads(line))
