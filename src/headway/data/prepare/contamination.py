"""Documents that hold an example of the evaluation registry, by overlap of n-grams.

An example is its text followed by its answer, in words without case and punctuation. A document holds it when at least
``overlap`` of its distinct n-grams stand in the document; an example shorter than an n-gram is looked for as a whole, and one
with fewer than ``shortest`` words not at all: "yes" is in every document. Those are counted, for nothing protects them.
Per document one look-up in a sorted table for each n-gram, per length of short examples one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.prepare.words import ngrams, word_hashes
from headway.data.registry import load_registry, read_examples


@dataclass(frozen=True)
class Index:
    """All n-grams of one length: sorted, each as often as there are examples with it; ``owners`` are their numbers."""

    length: int
    hashes: np.ndarray
    owners: np.ndarray

    def found_in(self, hashes: np.ndarray) -> Counter[int]:
        """Distinct n-grams of each example among those of a document."""
        document = np.unique(ngrams(hashes, self.length))
        first, last = (np.searchsorted(self.hashes, document, side) for side in ("left", "right"))
        hit = np.flatnonzero(last > first)
        return Counter(owner for at in hit for owner in self.owners[first[at] : last[at]].tolist())


class Contamination(Step):
    name = "contamination"

    def __init__(self, settings: Mapping[str, Any]):
        path = Path(settings["registry"])
        super().__init__({key: value for key, value in settings.items() if key != "registry"})
        self.registry = load_registry(path)
        self.removed: Counter[str] = Counter()
        self.too_short: Counter[str] = Counter()
        self._names: list[tuple[str, str]] = []
        self._sizes: list[int] = []
        self._indexes = self._build(path)

    def _build(self, path: Path) -> list[Index]:
        by_length: dict[int, list[tuple[np.ndarray, int]]] = {}
        for evaluation in self.registry.sets:
            for example in read_examples(path, evaluation):
                hashes = word_hashes(f"{example.text}\n{example.answer}")
                if len(hashes) < self.settings["shortest"]:
                    self.too_short[evaluation.name] += 1
                    continue
                length = min(len(hashes), self.settings["words"])
                grams = np.unique(ngrams(hashes, length))
                by_length.setdefault(length, []).append((grams, len(self._names)))
                self._names.append((evaluation.name, example.id))
                self._sizes.append(len(grams))
        return [_index(length, entries) for length, entries in sorted(by_length.items())]

    def check(self, piece: Piece) -> Verdict:
        hashes = word_hashes(piece.text)
        self.operations["n-grams looked up"] += len(hashes) * len(self._indexes)
        for index in self._indexes:
            for example, count in sorted(index.found_in(hashes).items(), key=lambda item: (-item[1], item[0])):
                share = count / self._sizes[example]
                if share >= self.settings["overlap"]:
                    name, identity = self._names[example]
                    return Verdict(piece.text, "contamination", f"{share:.2f} of {name}: {identity}", {name: 1})
        return Verdict(piece.text)

    def left_out(self, verdict: Verdict) -> None:
        self.removed.update(verdict.found)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"registry": self.registry.digest()}

    def facts(self) -> dict[str, Any]:
        sets = [
            {
                "name": s.name,
                "version": s.version,
                "examples": s.examples,
                "too_short": self.too_short[s.name],
                "documents_removed": self.removed[s.name],
            }
            for s in self.registry.sets
        ]
        return {"registry_name": self.registry.name, "registry_version": self.registry.version, "sets": sets}


def _index(length: int, entries: list[tuple[np.ndarray, int]]) -> Index:
    hashes = np.concatenate([grams for grams, _ in entries])
    owners = np.concatenate([np.full(len(grams), example) for grams, example in entries])
    order = np.argsort(hashes, kind="stable")
    return Index(length, hashes[order], owners[order])
