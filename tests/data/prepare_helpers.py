"""Prepares lists of texts in memory; and a real corpus: files of Python's standard library, on every machine that runs this."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headway.data.prepare.pipeline import make_steps, pass_through
from headway.data.prepare.record import SourceRecord
from headway.data.prepare.steps import Piece, Step
from headway.data.sources import documents
from headway.recipe.preparation import Prepare


@dataclass
class Prepared:
    """``kept`` and ``dropped`` by origin: text, reason."""

    kept: dict[str, str]
    dropped: dict[str, str]
    details: dict[str, str]
    record: SourceRecord
    steps: dict[str, Step]

    def reasons(self) -> Counter[str]:
        return Counter(self.dropped.values())

    def found(self, step: str) -> Counter[str]:
        return next(record.found for record in self.record.steps if record.step == step)


def prepared(texts: dict[str, str], source: str = "s", **sections: Any) -> Prepared:
    """``texts`` (origin -> text, in this order) through the steps of ``sections``."""
    with tempfile.TemporaryDirectory() as directory:
        steps = make_steps(Prepare.model_validate(sections), Path(directory))
        result = Prepared({}, {}, {}, SourceRecord([(step.name, step.version) for step in steps]), {s.name: s for s in steps})
        for origin, text in texts.items():
            result.record.read(len(text.encode()))
            piece, verdict = pass_through(Piece(text, origin, source), steps, result.record)
            if verdict.dropped:
                result.dropped[origin], result.details[origin] = verdict.dropped, verdict.detail
                continue
            for step in steps:
                step.keep(piece)
            result.kept[origin] = piece.text
        for step in steps:
            step.close()
    return result


@cache
def library() -> dict[str, str]:
    """All files of the standard library, about 600."""
    source = SimpleNamespace(name="library", kind="python-stdlib", path=None, include=())
    return {document.origin: document.text for document in documents(source) if document.text and document.text.strip()}


@cache
def some_files(count: int = 120, least: int = 4_000, most: int = 20_000) -> dict[str, str]:
    """Files of middling size from all over it."""
    fitting = {origin: text for origin, text in library().items() if least <= len(text) <= most}
    every = max(1, len(fitting) // count)
    return dict(list(fitting.items())[::every][:count])


def share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
