"""A source's documents on their way through the steps.

    documents -> [steps that look at one document alone, until none changes it any more]   any process
              -> [steps that compare it with what was kept]                                this one, in order
              -> kept: every step is told so, and the next document is compared with it too

Where a step that compares changed a document, it passes all steps again. Documents without text, and empty ones, are the spool's
business and go by untouched. The result is the same to the bit whatever the number of processes.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headway.base.digests import sealed
from headway.base.files import make_directory, write_json
from headway.data.manifest import REPORT_FILE, PreparationStep
from headway.data.pool import Pool, usable_cores
from headway.data.prepare.axes import QualityAxes
from headway.data.prepare.batches import Batch, read_settled, write_pieces
from headway.data.prepare.code import joined
from headway.data.prepare.order import settings_of, steps_of
from headway.data.prepare.record import SourceRecord
from headway.data.prepare.sensitive import Pattern, Scan, redacted
from headway.data.prepare.settle import MOST_PASSES, Event, Settled, checked, parted, settled, size_of, unstable
from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.sources import Document
from headway.data.spool import remove

if TYPE_CHECKING:
    from headway.recipe.preparation import Prepare
    from headway.recipe.schema import Data, Source

REPOSITORIES = ("repositories", 2)
LITTLE_TEXT_BYTES = 24 * 2**20
"""Starting processes takes a second: so much text is prepared here before there are any."""
_BATCH_BYTES, _BATCH_DOCUMENTS = 2**20, 512
_TELL_EVERY_BYTES = 4 * 2**20


def make_steps(settings: Prepare, directory: Path) -> list[Step]:
    """The steps that ``settings`` asks for, in their order; temporary files lie in ``directory``."""
    return steps_of(settings_of(settings), directory)


class Preparation:
    """All sources of one build. Where the recipe has no [data.prepare], documents pass as they are and nothing is recorded."""

    def __init__(
        self,
        data: Data,
        directory: Path,
        read: Callable[[Source], Iterable[Document]],
        tell: Callable[[str, dict], None],
        workers: int | None = None,
    ):
        """``read``: the documents of a source as they are found. ``workers``: processes, 1: this one, None: by the text."""
        self._data, self._directory, self._read, self._tell = data, directory, read, tell
        self._settings = data.prepare
        self._steps = make_steps(data.prepare, directory) if data.prepare else []
        self._axes = next((step for step in self._steps if isinstance(step, QualityAxes)), None)
        self._fields = self._axes.fields if self._axes else ()
        self._waiting = sorted(data.sources, key=lambda source: source.name)
        self._records: dict[str, SourceRecord] = {}
        self._stored: dict[str, TextIO] = {}
        self._elsewhere = _Elsewhere(data.prepare, directory / "batches", workers) if data.prepare else None

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

    def left_out(self, name: str) -> Counter[str]:
        """Documents of a source that the steps left out, by reason."""
        return sum((Counter(step.dropped) for step in self.inventory(name)), Counter())

    def quality(self, name: str) -> dict[str, float]:
        """Axis -> mean score of a source over what the steps kept, by bytes; an axis that nothing is known of is not there."""
        return self._axes.means(name) if self._axes else {}

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
        if self._elsewhere is not None:
            self._elsewhere.close()

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
        if self._elsewhere is not None and len(self._records) == len(self._data.sources):
            self._elsewhere.close()  # their memory and cores are wanted by those that tokenise
        silent = self._axes.silent(source.name) if self._axes else []
        self._tell("prepared", {"source": source.name, "silent": silent} | record.summary())

    def _kept(self, source: Source, steps: Sequence[Step], record: SourceRecord, left_out: list[Document]) -> Iterator[Piece]:
        """What goes on; what does not is put into ``left_out`` with its reason."""
        told = kept = 0
        for document, found in self._settled(source):
            if found is None:
                left_out.append(document)
                continue
            assert document.text is not None
            record.read(size_of(document.text))
            piece, verdict = pass_through(self._piece(document, source), steps, record, found)
            if verdict.dropped:
                left_out.append(Document(None, document.origin, verdict.dropped, document.facts))
            else:
                for step in steps:
                    step.keep(piece)
                kept += 1
                yield piece
            if record.bytes >= told + _TELL_EVERY_BYTES:
                told = record.bytes
                self._tell(
                    "preparing", {"source": source.name, "documents": record.documents, "bytes": record.bytes, "kept": kept}
                )

    def _piece(self, document: Document, source: Source) -> Piece:
        numbers = {name: document.numbers[name] for name in self._fields if name in document.numbers}
        patterns = self._patterns(source)
        facts = {name: redacted(value, patterns)[0] for name, value in document.facts.items()}
        return Piece(document.text or "", redacted(document.origin, patterns)[0], source.name, facts, numbers)

    def _patterns(self, source: Source) -> list[Pattern]:
        """Of the steps secrets and personal: what they look for in texts is no fact of documents either."""
        scans = (step for step in self._steps if isinstance(step, Scan) and step.name not in source.without)
        return [pattern for step in scans for pattern in step.patterns]

    def _settled(self, source: Source) -> Iterator[tuple[Document, Settled | None]]:
        """Every document of ``source`` in order, with what the steps that look at it alone made of it; None: it has no text."""
        assert self._elsewhere is not None
        batch: deque[tuple[Document, Piece | None]] = deque()

        def pieces() -> Iterator[Piece]:
            for document in self._read(source):
                has_text = _has_text(document)
                piece = self._piece(document, source) if has_text else None
                batch.append((document, piece))
                if piece is not None:
                    yield piece

        looking, _ = parted([step for step in self._steps if step.name not in source.without])
        for found in self._elsewhere.settled(pieces(), looking, tuple(source.without)):
            while batch[0][1] is None:
                yield batch.popleft()[0], None
            yield batch.popleft()[0], found
        while batch:
            yield batch.popleft()[0], None


class _Elsewhere:
    """Pieces through the first steps, in order: in this process while the text is little, then in several."""

    def __init__(self, prepare: Prepare, directory: Path, workers: int | None):
        self._prepare, self._directory = prepare, directory
        self._workers = workers or usable_cores()
        self._little = 0 if workers else LITTLE_TEXT_BYTES
        self._pool: Pool | None = None
        self._batches = 0

    def settled(self, pieces: Iterator[Piece], looking: Sequence[Step], without: tuple[str, ...]) -> Iterator[Settled]:
        while self._workers == 1 or self._little > 0:
            piece = next(pieces, None)
            if piece is None:
                return
            self._little -= len(piece.text)
            yield settled(piece, looking)
        yield from self._by_others(pieces, without)

    def _by_others(self, pieces: Iterator[Piece], without: tuple[str, ...]) -> Iterator[Settled]:
        sent: deque[list[Piece]] = deque()

        def tasks() -> Iterator[Batch]:
            for batch in _batches(pieces):
                stem = self._directory / f"{self._batches:08d}"
                write_pieces(stem, batch)
                self._batches += 1
                sent.append(batch)
                yield Batch(str(stem), without)

        for done in self._processes().run(tasks(), most=4 * self._workers):
            yield from read_settled(Path(done.stem), sent.popleft())

    def _processes(self) -> Pool:
        if self._pool is None:
            remove(self._directory)
            make_directory(self._directory, "directory for documents on their way")
            setup = {"steps": settings_of(self._prepare)}
            self._pool = Pool("headway.data.prepare.worker", setup, self._workers, "prepares")
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            remove(self._directory)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def pass_through(
    piece: Piece, steps: Sequence[Step], record: SourceRecord, found: Settled | None = None
) -> tuple[Piece, Verdict]:
    """``piece`` as the steps leave it, and the last verdict. ``record`` is of these steps.

    ``found``: what the first of them made of it elsewhere.
    """
    looking, comparing = parted(steps)
    passes = 0
    while True:
        found = found or settled(piece, looking, MOST_PASSES - passes)
        for event in found.events:
            _note(event, steps, record, piece)
        piece, passes = found.piece, passes + found.passes
        if found.dropped:
            return piece, dataclasses.replace(found.events[-1].verdict, text=piece.text)
        for step, measured in zip(comparing, found.measured):
            step.take(piece, measured)
        settled_text, last_change = piece.text, 0
        for number, step in enumerate(comparing, len(looking)):
            verdict = checked(step, piece)
            if verdict.dropped or verdict.text != piece.text:
                _note(Event(number, verdict, size_of(piece.text), size_of(verdict.text)), steps, record, piece)
            if verdict.dropped:
                return piece, verdict
            if verdict.text != piece.text:
                piece, last_change = dataclasses.replace(piece, text=verdict.text), number
        if piece.text == settled_text:
            return piece, Verdict(piece.text)
        found = None
        if passes >= MOST_PASSES:
            _note(Event(last_change, unstable(piece), size_of(piece.text), 0), steps, record, piece)
            return piece, unstable(piece)


def _note(event: Event, steps: Sequence[Step], record: SourceRecord, piece: Piece) -> None:
    if event.verdict.dropped:
        record.steps[event.step].drop(event.verdict, piece.origin, event.before)
        steps[event.step].left_out(event.verdict)
    else:
        record.steps[event.step].change(event.verdict, event.before, event.after)


def _joined(kept: Iterator[Piece], record: SourceRecord, depth: int, most: int) -> Iterator[Piece]:
    own = record.steps[-1]

    def measured() -> Iterator[Piece]:
        for piece in kept:
            own.changed_bytes -= size_of(piece.text)
            yield piece

    for piece, files in joined(measured(), depth=depth, most=most):
        own.changed_bytes += size_of(piece.text)
        own.joined += files - 1
        yield piece


def _source_report(record: SourceRecord) -> dict[str, Any]:
    return {
        "read": {"documents": record.documents, "bytes": record.bytes},
        "steps": [dataclasses.asdict(row) for row in record.inventory()],
        "examples": record.examples(),
    }


# --- documents


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
