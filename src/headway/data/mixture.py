"""The mixture: which source sequence n of a stage comes from, and as that source's how-many-th.

A fixed binary tree over the sources; every node deals its items out evenly by one integer line (Bresenham):

                A = 65536                 L(n) = floor((n a + rho) / A)   items of the first n that went left
             a /         \\ A - a         item n goes left iff L(n + 1) > L(n); it is then item L(n) there,
        [code, prose]    [web]            otherwise item n - L(n) on the right
         /        \\
      code       prose                    the index that arrives at a leaf is the source's own count

So any 10,000 sequences hold each source's share to a few hundredths of a percent, counts of a prefix are a closed form,
and neither rho nor the tree knows how long the stage is (CONTRACTS section 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headway.data.feistel import derive_key

LARGEST_INDEX = 2**46
"""n * 65,536 must fit int64."""


@dataclass(frozen=True)
class Assignment:
    """Per sequence: index of its source, and how many sequences of that source came before it in the stage."""

    source: np.ndarray
    count: np.ndarray


@dataclass(frozen=True)
class _Node:
    """Sources [low, high), cut at ``middle``; weights in quanta."""

    low: int
    middle: int
    high: int
    total: int
    left: int
    rho: int


@lru_cache(maxsize=256)
def _tree(quanta: tuple[int, ...], seed: int) -> dict[tuple[int, int], _Node]:
    nodes = {}
    todo = [(0, len(quanta))]
    while todo:
        low, high = todo.pop()
        total = sum(quanta[low:high])
        if high - low < 2 or total == 0:
            continue
        middle = (low + high) // 2
        rho = int(derive_key(seed, "mix", low, high)[0]) % total
        nodes[low, high] = _Node(low, middle, high, total, sum(quanta[low:middle]), rho)
        todo += [(low, middle), (middle, high)]
    return nodes


def assign(n: np.ndarray, quanta: tuple[int, ...], seed: int) -> Assignment:
    """Source and count of the stage's sequences ``n`` (stream index, flat)."""
    n = np.asarray(n, np.int64)
    assert n.size == 0 or (int(n.min()) >= 0 and int(n.max()) < LARGEST_INDEX)
    source, count = np.zeros(n.shape, np.int64), n.copy()
    for low, high, where, index in _leaves(n, _tree(quanta, seed), len(quanta)):
        assert high - low == 1 or where.size == 0, "a mixture needs a positive weight"
        source[where], count[where] = low, index
    return Assignment(source, count)


def _leaves(n: np.ndarray, tree: dict, sources: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    todo = [(0, sources, np.arange(n.size), n)]
    while todo:
        low, high, where, index = todo.pop()
        node = tree.get((low, high))
        if node is None:
            yield low, high, where, index
            continue
        before = (index * node.left + node.rho) // node.total
        goes_left = ((index + 1) * node.left + node.rho) // node.total > before
        right = ~goes_left
        todo.append((low, node.middle, where[goes_left], before[goes_left]))
        todo.append((node.middle, high, where[right], (index - before)[right]))


def counts(m: int, quanta: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """How many of a stage's first ``m`` sequences come from each source: closed form, exact."""
    tree, result = _tree(quanta, seed), [0] * len(quanta)
    todo = [(0, len(quanta), int(m))]
    while todo:
        low, high, items = todo.pop()
        node = tree.get((low, high))
        if node is not None:
            left = (items * node.left + node.rho) // node.total
            todo += [(low, node.middle, left), (node.middle, high, items - left)]
        elif high - low == 1:
            result[low] = items
    return tuple(result)
