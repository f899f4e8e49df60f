"""Words and their hashes: what duplicates, contamination and repeats are told by. Linear in the text.

A word's hash is a polynomial over its code points modulo 2^64, mixed at its end: the same in every process (Python's ``hash``
is not), and computed for all words of a text at once. n-grams of words are hashed the same way.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from headway.data.prepare.characters import ALONE, SPACE, UNDERSCORE, WORD, code_points, traits

_BASE, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_BLOCK_CHARACTERS = 2**16


@lru_cache(maxsize=2)
def unit_hashes(text: str) -> np.ndarray:
    """uint64 per unit: words as written (letters, digits, "_"), runs of one sign, single characters of scripts without spaces.

    Remembered, since several steps ask for those of one document. Read-only.
    """
    codes, flags = code_points(text), traits(text)
    kept = np.flatnonzero((flags & SPACE) == 0)
    codes, flags = codes[kept], flags[kept]
    kinds = flags & (ALONE | WORD)  # 0: a sign
    begins = np.empty(len(kept), bool)
    begins[:1] = True
    begins[1:] = (kept[1:] != kept[:-1] + 1) | (kinds[1:] != kinds[:-1]) | (kinds[1:] == ALONE)
    begins[1:] |= (kinds[1:] == 0) & (codes[1:] != codes[:-1])
    hashes = _hashes(codes, np.flatnonzero(begins))
    hashes.flags.writeable = False
    return hashes


def word_hashes(text: str) -> np.ndarray:
    """uint64 per word, without case, punctuation and white space."""
    lowered = text.lower()
    codes, flags = code_points(lowered), traits(lowered)
    kept = np.flatnonzero(((flags & (ALONE | WORD)) != 0) & ((flags & UNDERSCORE) == 0))
    codes, kinds = codes[kept], flags[kept] & (ALONE | WORD)
    begins = np.empty(len(kept), bool)
    begins[:1] = True
    begins[1:] = (kept[1:] != kept[:-1] + 1) | (kinds[1:] != kinds[:-1]) | (kinds[1:] == ALONE)
    return _hashes(codes, np.flatnonzero(begins))


def _hashes(codes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Of the runs of ``codes`` that begin at ``starts``, the first of which is 0. Memory: some blocks of characters."""
    hashes = np.empty(len(starts), np.uint64)
    ends = np.append(starts[1:], len(codes))
    first = 0
    while first < len(starts):
        stop = max(first + 1, int(np.searchsorted(ends, starts[first] + _BLOCK_CHARACTERS, "right")))
        begin, end = int(starts[first]), int(ends[stop - 1])
        places = starts[first:stop] - begin
        sums = np.add.reduceat(_code_table()[codes[begin:end]] * _powers(_BASE, end - begin), places)
        hashes[first:stop] = sums * _powers(_INVERSE, end - begin)[places]  # as if every word began at 0
        first = stop
    return _mixed(hashes)


@cache
def _code_table() -> np.ndarray:
    """uint64 per code point, random-looking: sums of them are what words are told by."""
    return _mixed((np.arange(0x110000, dtype=np.uint64) + np.uint64(1)) * _BASE)


def _powers(base: np.uint64, count: int) -> np.ndarray:
    """The first ``count`` powers of ``base``; a word that is longer than a block is rare."""
    return _power_table(base, _BLOCK_CHARACTERS)[:count] if count <= _BLOCK_CHARACTERS else _power_table.__wrapped__(base, count)


@cache
def _power_table(base: np.uint64, count: int) -> np.ndarray:
    powers = np.full(count, base)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mixed(value: np.ndarray) -> np.ndarray:
    value = value ^ (value >> _SHIFT)
    value *= _MIX
    return value ^ (value >> _SHIFT)


def ngrams(hashes: np.ndarray, length: int) -> np.ndarray:
    """uint64 per n-gram of ``length`` hashes, in order; none where there are fewer."""
    count = len(hashes) - length + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    value = np.zeros(count, np.uint64)
    for offset in range(length):
        value *= _BASE
        value += hashes[offset : offset + count]
    return _mixed(value)


def shingles(hashes: np.ndarray, length: int) -> np.ndarray:
    """The set of n-grams, sorted; of a shorter text, the one that is all of it."""
    return np.unique(ngrams(hashes, min(length, len(hashes)))) if len(hashes) else np.zeros(0, np.uint64)
