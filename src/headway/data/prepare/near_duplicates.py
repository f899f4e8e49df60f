"""Near-duplicates by MinHash, and an exact comparison of what it proposes.

    document -> set of shingles (n words in a row) -> signature: the least of each of K keyed hashes over the set
             -> B bands of R hashes each -> kept documents that share a whole band -> Jaccard of the two sets of shingles

Two sets of similarity s agree in one hash with probability s, so they share a band with 1 - (1 - s^R)^B. R is the largest with
which a pair at the threshold itself is proposed with 99 %; pairs above it with more. What is proposed is compared exactly
(up to 64-bit hashes of shingles): nothing below the threshold is left out.

Greedy: a document is compared with those that were kept before it, never with one that was left out itself. So no chain of
similar documents removes a document that is unlike all that is kept, and preparing the result again changes nothing.

Time is linear: per document K hashes a shingle, B look-ups and at most ``MOST_CANDIDATES`` comparisons. What is remembered lies
in temporary files: per kept document B entries of 40 to 72 bytes, about 1 KiB in all with 128 hashes (a million documents:
1 GiB), bounded by the table's limit, and its set of shingles, 8 bytes each.

Own code and not a library: datasketch, the usual one, holds its bands in Python's dicts and sets, several times this memory, and
compares signatures where this compares documents. What is needed is a page of numpy that gives the same bits everywhere.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.data.feistel import derive_key
from headway.data.prepare.keys import KeyTable, Names, Numbers
from headway.data.prepare.steps import Comparing, Measured, Piece, Verdict
from headway.data.prepare.words import shingles, unit_hashes

RECALL_AT_THRESHOLD = 0.99
MOST_CANDIDATES = 64
"""Kept documents that one is compared with, those with most shared bands first: bounds the time where many share a template."""

_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_BLOCK_SHINGLES = 1024  # times the hashes: what a core's cache holds
_NONE = -1


def banding(permutations: int, threshold: float) -> tuple[int, int]:
    """(bands, rows of a band) of at most ``permutations`` hashes; one row where even that misses more than it may."""
    for rows in range(permutations, 1, -1):
        bands = permutations // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL_AT_THRESHOLD:
            return bands, rows
    return permutations, 1


@dataclass(frozen=True)
class Permutations:
    """x -> factor x + offset modulo 2^32, one per hash; ``factor_K`` is odd. What goes in is random already."""

    factor_K: np.ndarray
    offset_K: np.ndarray

    def __len__(self) -> int:
        return len(self.factor_K)


def permutations_of(seed: int, count: int) -> Permutations:
    keys = np.array([derive_key("minhash", seed, number)[0] for number in range(count)], np.uint64)
    return Permutations(keys.astype(np.uint32) | np.uint32(1), (keys >> np.uint64(32)).astype(np.uint32))


def signature(shingle_set: np.ndarray, permutations: Permutations) -> np.ndarray:
    """uint32 per permutation: the least value of the set under it. Memory: a block of shingles times the permutations."""
    values = (shingle_set >> np.uint64(32)).astype(np.uint32)
    least = np.full(len(permutations), np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(values), _BLOCK_SHINGLES):
        permuted = permutations.factor_K[:, None] * values[start : start + _BLOCK_SHINGLES]
        permuted += permutations.offset_K[:, None]
        np.minimum(least, permuted.min(axis=1), out=least)
    return least


def band_keys(signature_K: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """uint64 per band: its number and its hashes, mixed."""
    key = np.arange(bands, dtype=np.uint64)
    for row in signature_K[: bands * rows].astype(np.uint64).reshape(bands, rows).T:
        key = (key ^ row) * _MIX_A
        key ^= key >> np.uint64(32)
    return key


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Of two sorted sets."""
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


class NearDuplicates(Comparing):
    name, version = "near_duplicates", 2

    def __init__(self, settings, directory: Path | None = None):
        super().__init__(settings)
        self.bands, self.rows = banding(settings["permutations"], settings["threshold"])
        self._permutations = permutations_of(settings["seed"], self.bands * self.rows)
        self._newest = KeyTable("bands of kept documents", directory)  # band key -> entry; entry = document * bands + band
        self._older = Numbers(directory)  # entry -> the entry before it with the same key
        self._names = Names(directory)
        self._ends = Numbers(directory)
        self._found = np.zeros(0, np.int64)
        self._shingles = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()

    def measure(self, piece: Piece) -> Measured:
        """The set of shingles, and the keys of its bands."""
        shingle_set = shingles(unit_hashes(piece.text), self.settings["words"])
        self.operations["hashes"] += len(shingle_set) * len(self._permutations)
        if not len(shingle_set):
            return shingle_set, shingle_set
        return shingle_set, band_keys(signature(shingle_set, self._permutations), self.bands, self.rows)

    def check(self, piece: Piece) -> Verdict:
        shingle_set, keys = self.measured(piece)
        self._found = self._newest.get(keys)  # keep asks for the same, and nothing is kept in between
        for document in self._candidates(self._found):
            similarity = self._compare(document, shingle_set)
            if similarity >= self.settings["threshold"]:
                source, origin = self._names[document]
                reason = "near_duplicate" if source == piece.source else "near_duplicate_elsewhere"
                return Verdict(piece.text, reason, f"{similarity:.3f} of {source}: {origin}")
        return Verdict(piece.text)

    def keep(self, piece: Piece) -> None:
        shingle_set, keys = self.measured(piece)
        if not len(shingle_set):
            return
        first = len(self._names) * self.bands
        self._older.extend(self._found)
        self._newest.put(keys, np.arange(first, first + self.bands))
        self._names.append(piece.source, piece.origin)
        self._shingles.write(shingle_set.astype("<u8", copy=False).tobytes())
        self._ends.extend(np.array([self._start(len(self._ends)) + len(shingle_set)]))

    def _start(self, document: int) -> int:
        """Of its shingles, in shingles."""
        return self._ends[document - 1] if document else 0

    def _candidates(self, newest: np.ndarray) -> list[int]:
        """Kept documents that share a band, by the number of shared bands; of equal ones the older first.

        ``newest``: the last entry of each of its bands.
        """
        shared: Counter[int] = Counter()
        for found in newest.tolist():
            entry, steps = found, 0
            while entry != _NONE and steps < MOST_CANDIDATES:
                shared[entry // self.bands] += 1
                entry, steps = self._older[entry], steps + 1
            self.operations["look-ups"] += 1 + steps
        return sorted(shared, key=lambda document: (-shared[document], document))[:MOST_CANDIDATES]

    def _compare(self, document: int, shingle_set: np.ndarray) -> float:
        start, end = self._start(document), self._ends[document]
        small, large = sorted((end - start, len(shingle_set)))
        if small < self.settings["threshold"] * large:  # even one set inside the other would not be similar enough
            return 0.0
        self.operations["comparisons"] += 1
        self._shingles.flush()
        kept = np.frombuffer(os.pread(self._shingles.fileno(), 8 * (end - start), 8 * start), "<u8")
        return jaccard(kept, shingle_set)

    def facts(self):
        return {"bands": self.bands, "rows": self.rows}

    def close(self) -> None:
        self._shingles.close()
        self._names.close()
