"""A text as an array of code points, and what each of them is: whole documents are measured by a few operations of numpy.

    "a--  自由 b"   ->  code points uint32  ->  traits uint8  WORD SIGN SIGN SPACE SPACE ALONE ALONE SPACE WORD

The traits are those of Python's own ``re`` and ``str``, asked once per process for all code points.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

import numpy as np

NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Scripts that write no spaces between words (Thai, Lao, Burmese, Khmer, kana, Han): a character counts as a word."""

SPACE, ALONE, WORD, UNDERSCORE, LETTER, DIGIT, FOREIGN_DECIMAL = (np.uint8(1 << bit) for bit in range(7))
"""White space; of NO_SPACES; ``\\w`` otherwise; "_" (also a WORD); isalpha; isdigit; ``\\d`` beyond 0-9."""

_CODE_POINTS = 0x110000
_OF_TRAIT = {
    SPACE: r"\s+",
    ALONE: f"[{NO_SPACES}]+",
    WORD: rf"[^\W{NO_SPACES}]+",
    UNDERSCORE: "_",
    FOREIGN_DECIMAL: r"[^\D0-9]+",
}


@cache
def _table() -> np.ndarray:
    """uint8 per code point: its traits. Takes some hundredths of a second."""
    every = "".join(map(chr, range(_CODE_POINTS)))
    traits = np.zeros(_CODE_POINTS, np.uint8)
    for trait, pattern in _OF_TRAIT.items():
        for match in re.finditer(pattern, every):
            traits[match.start() : match.end()] |= trait
    alphanumeric = np.flatnonzero(traits & (ALONE | WORD))
    for trait, is_one in ((LETTER, str.isalpha), (DIGIT, str.isdigit)):
        traits[alphanumeric] |= np.fromiter((is_one(every[code]) for code in alphanumeric), bool, len(alphanumeric)) * trait
    return traits


@lru_cache(maxsize=1)
def code_points(text: str) -> np.ndarray:
    """uint32, read-only. Lone surrogates are code points like others."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


@lru_cache(maxsize=1)
def traits(text: str) -> np.ndarray:
    """uint8 per character. Remembered, since several steps ask for those of one document."""
    found = _table()[code_points(text)]
    found.flags.writeable = False
    return found


def count(flags: np.ndarray, trait: np.uint8) -> int:
    return int(np.count_nonzero(flags & trait))
