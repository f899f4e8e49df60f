"""Words and their hashes: what duplicates, contamination and repeats are told by. Linear in the text.

Hashes are xxh3_64 of the words, the same in every process (Python's ``hash`` is not), and n-grams of them by a polynomial
modulo 2^64 that is mixed at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import xxhash

_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Scripts that write no spaces between words (Thai, Lao, Burmese, Khmer, kana, Han): a character counts as a word."""

_WORD = re.compile(f"[{_NO_SPACES}]|[^\\W_{_NO_SPACES}]+")
_UNIT = re.compile(f"[{_NO_SPACES}]|[^\\W{_NO_SPACES}]+|([^\\w\\s])\\1*")
_CACHED_WORDS = 2**18
_BASE, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


def words(text: str) -> list[str]:
    """Without case, punctuation and white space."""
    return _WORD.findall(text.lower())


def units(text: str) -> list[str]:
    """Words as written, and runs of one sign; without white space."""
    return [match[0] for match in _UNIT.finditer(text)]


_known: dict[str, int] = {}


def hashes_of(items: Iterable[str]) -> np.ndarray:
    """uint64 per item. Frequent words are hashed once; the memory for that is bounded."""
    if len(_known) > _CACHED_WORDS:
        _known.clear()
    found = []
    for item in items:
        value = _known.get(item)
        if value is None:
            value = _known[item] = xxhash.xxh3_64_intdigest(item.encode("utf-8", "surrogatepass"))
        found.append(value)
    return np.array(found, np.uint64)


@lru_cache(maxsize=2)
def unit_hashes(text: str) -> np.ndarray:
    """Of the units of ``text``; remembered, since several steps ask for those of one document. Read-only."""
    hashes = hashes_of(units(text))
    hashes.flags.writeable = False
    return hashes


def ngrams(hashes: np.ndarray, length: int) -> np.ndarray:
    """uint64 per n-gram of ``length`` hashes, in order; none where there are fewer."""
    count = len(hashes) - length + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    value = np.zeros(count, np.uint64)
    for offset in range(length):
        value = value * _BASE + hashes[offset : offset + count]
    value ^= value >> _SHIFT
    value *= _MIX
    return value ^ (value >> _SHIFT)


def shingles(hashes: np.ndarray, length: int) -> np.ndarray:
    """The set of n-grams, sorted; of a shorter text, the one that is all of it."""
    return np.unique(ngrams(hashes, min(length, len(hashes)))) if len(hashes) else np.zeros(0, np.uint64)
