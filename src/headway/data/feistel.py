"""A keyed permutation of [0, size) that is computed, not stored: a Feistel network with cycle walking.

    index -> [ left | right ] -> six rounds -> index'       left, right = right, left xor F(right, key)
                                                 |
                          index' >= size?  walk on: apply the network again until it is below size

A Feistel network is a bijection of 2^(2b) whatever F is, and walking a bijection's cycle back into a subset is a bijection
of the subset. F multiplies and xor-shifts; linear rounds, or a range that is only nearly a power of two, are how two
well-known loaders got this wrong (tests/data/test_feistel.py checks for both).

Keys: blake2b of ``repr`` of a tuple of plain ints, strings and tuples, 32 bytes, read as four little-endian uint64.
(``hash()`` differs per process.) The derivation and the rounds are part of the data order: change them knowingly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from functools import lru_cache

import numpy as np

ROUNDS = 6
_MULTIPLIERS = tuple(np.uint64(0x9E3779B97F4A7C15 + 2 * j) for j in range(ROUNDS))
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT_A, _SHIFT_B = np.uint64(29), np.uint64(32)
Network = Callable[[np.ndarray, np.uint64, np.ndarray], np.ndarray]


@lru_cache(maxsize=4_096)
def derive_key(*parts: Hashable) -> np.ndarray:
    """Four uint64 from ``parts`` (plain Python values: a numpy integer has another ``repr``). Read-only."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=32).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64, copy=False)


def _half_bits(size: int) -> int:
    return max(1, -(-max(1, (size - 1).bit_length()) // 2))


def _mixed(right: np.ndarray, key_part: np.ndarray, multiplier: np.uint64) -> np.ndarray:
    mixed = (right ^ key_part) * multiplier
    mixed ^= mixed >> _SHIFT_A
    mixed *= _MIX
    mixed ^= mixed >> _SHIFT_B
    return mixed


def _forward(x: np.ndarray, half: np.uint64, key: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = x >> half, x & mask
    for j in range(ROUNDS):
        left, right = right, (left ^ _mixed(right, key[j % 4], _MULTIPLIERS[j])) & mask
    return (left << half) | right


def _backward(x: np.ndarray, half: np.uint64, key: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = x >> half, x & mask
    for j in reversed(range(ROUNDS)):
        left, right = (right ^ _mixed(left, key[j % 4], _MULTIPLIERS[j])) & mask, left
    return (left << half) | right


def _walk(index: np.ndarray, size: int, key: np.ndarray, network: Network) -> np.ndarray:
    assert size >= 1, size
    flat = np.array(index, np.uint64, ndmin=1).ravel()
    assert flat.size == 0 or int(flat.max()) < size, (int(flat.max()), size)
    half = np.uint64(_half_bits(size))
    flat = network(flat, half, key)
    pending = np.flatnonzero(flat >= size)
    while pending.size:
        walked = network(flat[pending], half, key[:, pending] if key.ndim == 2 else key)
        flat[pending] = walked
        pending = pending[walked >= size]
    return flat.astype(np.int64).reshape(np.shape(index))


def permute(index: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Where each ``index`` of [0, size) goes, int64. ``key``: (4,), or (4, N) for a key per element of a flat index."""
    return _walk(index, size, key, _forward)


def unpermute(index: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """The inverse: ``unpermute(permute(i)) == i``."""
    return _walk(index, size, key, _backward)
