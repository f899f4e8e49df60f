"""Axes of quality, each for itself: a score from 0 to 1 or unknown, a threshold, a distribution. Nothing adds them up.

A score is a number that the document carries (``field`` over ``scale``), or the axis's own rule where there is an honest one:

    density            bytes that zlib leaves of the text over its own, at most 1: what says a thing twice scores less
    parse_integrity    1 where a file of its extension parses, or its brackets close outside strings and comments; else 0;
                       unknown where parsing might take a thousand times the text: over 256 KiB of Python or TOML, over 4 MiB
                       of JSON, a line of TOML with over 100 dots

Whether code builds or passes its tests is correctness, as a number 1 or 0 that it carries. Scores of what is kept are summed up
per source: mean by bytes, and a histogram of documents in tenths.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tomllib
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.prepare.settle import size_of
from headway.data.prepare.steps import Comparing, Measured, Piece, Verdict

TENTHS = 10
UNKNOWN = math.nan
_DEFLATE_LEVEL = 1
_BRACKETED = (".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".go", ".rs")
_NO_BRACKETS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\(?:.|\Z)|[^"\\])*(?:"|\Z)|`[^`]*(?:`|\Z)|'(?:\\[^\n]{1,10}|[^'\\\n])'|"""
    r"""^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*""",
    re.DOTALL | re.MULTILINE,
)
"""Comments, strings, characters; and lines of the preprocessor, whose branches may open what another closes.

What is not closed ends the scan: looking for an end from every place where one might begin would be quadratic.
"""

_BRACKET = re.compile(r"[()\[\]{}]")
_MOST_CHARACTERS = {".py": 2**18, ".toml": 2**18, ".json": 2**22}
_MOST_DOTS = 100
"""On a line: the parser's time and memory for a dotted key grow with the square of its parts."""
_OPENED_BY = {")": "(", "]": "[", "}": "{"}


# --- rules


def density(piece: Piece) -> float:
    data = piece.text.encode()
    return min(1.0, len(zlib.compress(data, _DEFLATE_LEVEL)) / len(data)) if data else UNKNOWN


def parse_integrity(piece: Piece) -> float:
    name = (piece.facts.get("path") or re.sub(r":\d+$", "", piece.origin)).lower()
    extension = next((extension for extension in _PARSERS if name.endswith(extension)), None)
    if extension is None or len(piece.text) > _MOST_CHARACTERS.get(extension, math.inf):
        return UNKNOWN
    if extension == ".toml" and any(line.count(".") > _MOST_DOTS for line in piece.text.splitlines()):
        return UNKNOWN
    try:
        return float(_PARSERS[extension](piece.text))
    except (RecursionError, MemoryError):  # deeper than the parser goes: nobody knows
        return UNKNOWN
    except (SyntaxError, ValueError):
        return 0.0


def _python_parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)  # read, never run
    return True


def _json_parses(text: str) -> bool:
    json.loads(text)
    return True


def _toml_parses(text: str) -> bool:
    tomllib.loads(text)
    return True


def brackets_close(text: str) -> bool:
    waiting: list[str] = []
    for found in _BRACKET.finditer(_NO_BRACKETS.sub("", text)):
        bracket = found[0]
        if bracket not in _OPENED_BY:
            waiting.append(bracket)
        elif not waiting or waiting.pop() != _OPENED_BY[bracket]:
            return False
    return not waiting


_PARSERS: dict[str, Callable[[str], bool]] = {".py": _python_parses, ".json": _json_parses, ".toml": _toml_parses}
_PARSERS |= dict.fromkeys(_BRACKETED, brackets_close)
RULES: dict[str, Callable[[Piece], float]] = {"density": density, "parse_integrity": parse_integrity}
_VERSION_OF_RULE = {"density": zlib.ZLIB_RUNTIME_VERSION, "parse_integrity": "3, {}.{}".format(*sys.version_info)}


# --- the step


@dataclass
class Spread:
    """Scores of what was kept of one source. ``tenths``: documents by score, the last with 1 itself."""

    tenths: list[int] = field(default_factory=lambda: [0] * TENTHS)
    unknown: int = 0
    bytes: int = 0
    weighted: float = 0.0

    def add(self, score: float, size: int) -> None:
        if math.isnan(score):
            self.unknown += 1
            return
        self.tenths[min(TENTHS - 1, int(score * TENTHS))] += 1
        self.bytes += size
        self.weighted += score * size

    @property
    def mean(self) -> float | None:
        return self.weighted / self.bytes if self.bytes else None


class QualityAxes(Comparing):
    name = "quality_axes"

    def __init__(self, settings, directory: Path | None = None):
        super().__init__(settings, directory)
        self._axes = {name: axis for name, axis in settings.items() if axis is not None}
        self._spreads: dict[str, dict[str, Spread]] = {}  # by source, by axis

    @property
    def fields(self) -> tuple[str, ...]:
        """Numbers of documents that are asked for."""
        return tuple(axis["field"] for axis in self._axes.values() if axis["field"] is not None)

    def measure(self, piece: Piece) -> Measured:
        """float64 per axis, not a number where nothing is known."""
        return (np.array([_score(name, axis, piece) for name, axis in self._axes.items()], np.float64),)

    def check(self, piece: Piece) -> Verdict:
        for (name, axis), score in zip(self._axes.items(), self._scores(piece), strict=True):
            if math.isnan(score):
                if axis["unknown"] == "drop":
                    return Verdict(piece.text, f"no_{name}", "no score")
            elif score < axis["least"]:
                return Verdict(piece.text, f"low_{name}", f"{score:.3f} of {name}")
            elif score > axis["most"]:
                return Verdict(piece.text, f"high_{name}", f"{score:.3f} of {name}")
        return Verdict(piece.text)

    def keep(self, piece: Piece) -> None:
        spreads = self._spreads.setdefault(piece.source, {name: Spread() for name in self._axes})
        for spread, score in zip(spreads.values(), self._scores(piece), strict=True):
            spread.add(score, size_of(piece.text))

    def _scores(self, piece: Piece) -> list[float]:
        (scores,) = self.measured(piece)
        return scores.tolist()

    def means(self, source: str) -> dict[str, float]:
        spreads = self._spreads.get(source, {})
        return {name: round(spread.mean, 6) for name, spread in spreads.items() if spread.mean is not None}

    def silent(self, source: str) -> list[str]:
        """Fields that no kept document of ``source`` had: most likely another name than the documents use."""
        spreads, asked = self._spreads.get(source, {}), {name: axis["field"] for name, axis in self._axes.items()}
        return [field for name, field in asked.items() if field and name in spreads and not any(spreads[name].tenths)]

    def identity(self) -> dict[str, Any]:
        """Rules give other scores with another zlib or Python."""
        versions = {n: _VERSION_OF_RULE[n] for n, axis in self._axes.items() if axis["field"] is None and n in RULES}
        return super().identity() | {"settings": self._axes, "rules": versions}

    def facts(self) -> dict[str, Any]:
        return {
            "sources": {
                source: {
                    name: {"mean": spread.mean, "documents_by_tenth": spread.tenths, "unknown": spread.unknown}
                    for name, spread in spreads.items()
                }
                for source, spreads in sorted(self._spreads.items())
            }
        }


def _score(name: str, axis: dict[str, Any], piece: Piece) -> float:
    if axis["field"] is None:
        return RULES[name](piece) if name in RULES else UNKNOWN
    number = piece.numbers.get(axis["field"])
    return UNKNOWN if number is None else min(1.0, max(0.0, number / axis["scale"]))
