"""Exact duplicates: whole documents, and lines of many documents.

Documents. Two texts are equal when their blake2b digests of 128 bits are; "folded" compares them without case and white space.

Lines. A line that stands in ``copies`` kept documents is removed from those that follow. What is repeated by convention stays
(``keep_conventions``): short lines, the comment at the head of a file with its licence, imports, includes, package and
namespace declarations, and every line that speaks of copyright or licence. Repetition inside one document is left alone: it is
the business of the rules of quality. A line is known by xxh3_64: two of 10 M different lines share a digest with a chance of
3 in a million.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import xxhash

from headway.data.prepare.keys import KeyTable, Names
from headway.data.prepare.steps import Comparing, Measured, Piece, Verdict
from headway.data.seen import DigestTable


class Duplicates(Comparing):
    """Remembers 22 bytes per kept document in a hash table, 37 to 73 with its free slots, and the document's name: in files."""

    name = "duplicates"

    def __init__(self, settings, directory: Path | None = None):
        super().__init__(settings)
        self._kept = DigestTable(directory and directory / "kept-digests")
        self._names = Names(directory)

    def measure(self, piece: Piece) -> Measured:
        return (np.frombuffer(text_digest(piece.text, self.settings["compare"]), np.uint8),)

    def check(self, piece: Piece) -> Verdict:
        holder = self._kept.get(self._digest(piece))
        if holder is None:
            return Verdict(piece.text)
        source, origin = self._names[holder]
        return Verdict(piece.text, "duplicate" if source == piece.source else "duplicate_elsewhere", f"{source}: {origin}")

    def keep(self, piece: Piece) -> None:
        self._kept.put(self._digest(piece), len(self._names))
        self._names.append(piece.source, piece.origin)

    def _digest(self, piece: Piece) -> bytes:
        (digest,) = self.measured(piece)
        return digest.tobytes()

    def close(self) -> None:
        self._kept.close()
        self._names.close()


def text_digest(text: str, compare: str) -> bytes:
    folded = " ".join(text.casefold().split()) if compare == "folded" else text
    return hashlib.blake2b(folded.encode(), digest_size=16).digest()


# --- lines

_CONVENTION = re.compile(
    r"\s*(?:import\b|from\s+\S+\s+import\b|#\s*include\b|#\s*define\b|#\s*pragma\b|using\b|use\s|package\b|namespace\b|require\b"
    r"|export\b|#!)|.*(?:copyright|\(c\)|©|licen[cs]e|spdx-|all rights reserved|warrant(?:y|ies)|permission (?:is|to)\b)",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"\s*(?:#|//|/\*|\*|--|;|%|<!--|\"\"\"|'''|$)")


class Lines(Comparing):
    """The table holds the number of kept documents per line: 32 to 64 bytes per different line, in a file."""

    name = "lines"

    def __init__(self, settings, directory: Path | None = None):
        super().__init__(settings)
        self._documents = KeyTable("lines of kept documents", directory)

    def measure(self, piece: Piece) -> Measured:
        lines = piece.text.split("\n")
        counted = long_lines(lines, self.settings["shortest"])
        keys = line_keys(lines, counted)
        return np.array(counted, np.int64), keys, np.unique(keys)  # documents are counted, not lines

    def check(self, piece: Piece) -> Verdict:
        counted, keys, _ = self.measured(piece)
        full = self._documents.get(keys) >= self.settings["copies"]
        self.operations["lines looked up"] += len(counted)
        if not full.any():
            return Verdict(piece.text)
        lines, removed = piece.text.split("\n"), set(counted[full].tolist())
        if self.settings["keep_conventions"]:
            removed -= conventional(lines, removed)
        if not removed:
            return Verdict(piece.text)
        text = "\n".join(line for number, line in enumerate(lines) if number not in removed)
        if not text.strip():
            return Verdict(piece.text, "repeated_lines_only", f"{len(removed):,} lines")
        return Verdict(text, found={"lines removed": len(removed)})

    def keep(self, piece: Piece) -> None:
        self._documents.count(self.measured(piece)[2])


def long_lines(lines: list[str], shortest: int) -> list[int]:
    """Their numbers."""
    return [number for number, line in enumerate(lines) if len(line) >= shortest and len(line.strip()) >= shortest]


def conventional(lines: list[str], among: set[int]) -> set[int]:
    """Numbers of the lines that are repeated by convention."""
    head = next((number for number, line in enumerate(lines) if not _COMMENT.match(line)), len(lines))
    return {number for number in among if number < head or _CONVENTION.match(lines[number])}


def line_keys(lines: list[str], numbers: list[int]) -> np.ndarray:
    return np.array([xxhash.xxh3_64_intdigest(lines[number].strip().encode()) for number in numbers], np.uint64)
