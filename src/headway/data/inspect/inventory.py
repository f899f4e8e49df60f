"""What became of a source: from what was read of it to the passes that a run makes over what is different in it.

    read -> after each step -> left out as equal or empty -> held out | training tokens -> different ones -> passes over them

Three things are kept apart. The raw inventory is what was there. Unique tokens are what a model can learn from: tokens of
documents that are there once, and, as an estimate, tokens whose surroundings are there once. Passes are what the stages make of
them: many passes over few unique tokens are not many tokens.

Exact: a document counts where no document before it, in any source, has the same tokens. Estimated: of all n-grams of
``GRAM_TOKENS`` tokens of a source, the share of different ones. Of both, a sample by hash stands for the whole where there is
much, so that memory stays bounded. It holds all copies of what it holds, or none: of documents it is one sample over all sources,
since copies lie in different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from headway.data.ends import Ends
from headway.data.manifest import DataManifest, PreparationStep, SourceEntry
from headway.data.place import DataPlace
from headway.data.prepare.words import ngrams
from headway.data.reader import TokenReader
from headway.data.stream import Coverage

GRAM_TOKENS = 13
MOST_GRAMS = 2**22
MOST_DOCUMENTS = 2**22
"""Looked at, at most: n-grams of each source (32 MiB), documents of all sources together (some 300 MB)."""
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Unique:
    """``document_tokens``: of documents not seen before; ``gram_share``: different n-grams over all, 0 to 1. Both stand on a
    sample, which is the share that was looked at: 1.0 is all."""

    document_tokens: int
    gram_share: float
    documents_sampled: float
    grams_sampled: float

    def tokens(self, of: int) -> int:
        """Estimate of what is different in ``of`` training tokens."""
        return round(of * self.gram_share)


@dataclass(frozen=True)
class SourceInventory:
    """``raw_bytes`` None: built before they were counted. ``passes`` None: no recipe was given."""

    entry: SourceEntry
    raw_documents: int
    raw_bytes: int | None
    unique: Unique
    passes: Coverage | None

    @property
    def steps(self) -> tuple[PreparationStep, ...]:
        return self.entry.preparation

    @property
    def held_out_tokens(self) -> int:
        return self.entry.held_out.tokens if self.entry.held_out else 0

    @property
    def kept_documents(self) -> int:
        """Training and held-out ones."""
        return self.entry.documents + (self.entry.held_out.documents if self.entry.held_out else 0)

    @property
    def unaccounted(self) -> int:
        """Documents that were read, are not there, and have no reason: 0."""
        joined = sum(step.joined for step in self.steps)
        return self.raw_documents - self.kept_documents - sum(self.entry.dropped.values()) - joined

    @property
    def passes_over_unique(self) -> float | None:
        """Target tokens of the run over the estimate of unique tokens."""
        unique = self.unique.tokens(self.entry.tokens)
        return self.passes.target_tokens / unique if self.passes and unique else None


def inventory(
    place: DataPlace | Path, coverage: list[Coverage] | None = None, progress: Progress | None = None
) -> list[SourceInventory]:
    """Of every source; all training tokens are read, verified. ``coverage``: of a run or of a recipe's stages over it."""
    place = DataPlace.of(place)
    manifest = DataManifest.load(place.directory)
    reader = TokenReader(place, manifest)
    passes = {entry.source: entry for entry in coverage or ()}
    counted = _DocumentCounter(sum(entry.documents for entry in manifest.sources))
    return [
        SourceInventory(
            entry=entry,
            raw_documents=entry.registered.found if entry.registered else _found(entry),
            raw_bytes=entry.registered.bytes if entry.registered else None,
            unique=_unique(reader, number, counted, progress or (lambda tokens: None)),
            passes=passes.get(entry.name),
        )
        for number, entry in enumerate(manifest.sources)
    ]


def _found(entry: SourceEntry) -> int:
    """Where no registration says it."""
    held_out = entry.held_out.documents if entry.held_out else 0
    return entry.documents + held_out + sum(entry.dropped.values()) + sum(step.joined for step in entry.preparation)


def _unique(reader: TokenReader, number: int, counted: _DocumentCounter, tell: Progress) -> Unique:
    """``counted``: documents of the sources before, to which those of this one are added."""
    entry = reader.manifest.sources[number]
    grams, documents = _Grams(entry.tokens), counted.of(reader.document_ends(number))
    for block in reader.training_blocks(number):
        grams.add(block)
        documents.add(block)
        tell(len(block))
    return Unique(round(entry.tokens * documents.new_share), grams.different_share, 1 / counted.every, 1 / grams.every)


class _Grams:
    """Counts n-grams and different ones, of those whose hash is a multiple of ``every``."""

    def __init__(self, tokens: int):
        self.every = 1 << (tokens // MOST_GRAMS).bit_length()
        self._total, self._different = 0, np.zeros(0, np.uint64)
        self._new: list[np.ndarray] = []  # since the different ones were last put together
        self._tail = np.zeros(0, np.uint64)

    def add(self, block: np.ndarray) -> None:
        tokens = np.concatenate([self._tail, block.astype(np.uint64)])
        self._tail = tokens[max(0, len(tokens) - GRAM_TOKENS + 1) :]
        grams = ngrams(tokens, GRAM_TOKENS)
        taken = grams[grams & np.uint64(self.every - 1) == 0]
        self._total += len(taken)
        self._new.append(taken)
        if sum(map(len, self._new)) > MOST_GRAMS:
            self._put_together()

    def _put_together(self) -> None:
        self._different = np.unique(np.concatenate([self._different, *self._new]))
        self._new.clear()

    @property
    def different_share(self) -> float:
        self._put_together()
        return len(self._different) / self._total if self._total else 1.0


class _DocumentCounter:
    """Digests of the documents of all sources, of those whose digest is a multiple of ``every``."""

    def __init__(self, documents: int):
        self.every = 1 << (documents // MOST_DOCUMENTS).bit_length()
        self._seen: set[int] = set()

    def of(self, ends: Ends) -> _Documents:
        """The next source."""
        return _Documents(ends, self._seen, self.every)


class _Documents:
    """Of one source: sums the tokens of the documents in the sample, and of those that were not seen before."""

    def __init__(self, ends: Ends, seen: set[int], every: int):
        self._ends, self._seen, self._every = ends.each(), seen, every
        self._next = next(self._ends, None)
        self._at = self._tokens = self._new = 0
        self._digest, self._length = xxhash.xxh3_64(), 0

    def add(self, block: np.ndarray) -> None:
        begin = 0
        while self._next is not None and self._next <= self._at + len(block):
            end = self._next - self._at
            self._part(block[begin:end])
            self._end()
            begin, self._next = end, next(self._ends, None)
        self._part(block[begin:])
        self._at += len(block)

    def _part(self, tokens: np.ndarray) -> None:
        self._digest.update(tokens.tobytes())
        self._length += len(tokens)

    def _end(self) -> None:
        key = self._digest.intdigest()
        if key % self._every == 0:
            self._tokens += self._length
            self._new += 0 if key in self._seen else self._length
            self._seen.add(key)
        self._digest, self._length = xxhash.xxh3_64(), 0

    @property
    def new_share(self) -> float:
        return self._new / self._tokens if self._tokens else 1.0
