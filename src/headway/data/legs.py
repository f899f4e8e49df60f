"""A stage whose mixture changes on the way: legs, each under its own weights; a source's count goes on from leg to leg.

n       0 ............ first 1 ............ first 2 .........
leg     recipe's        transition 1         transition 2         count = taken before + count within the leg
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.data.mixture import Assignment, assign, counts


@dataclass(frozen=True)
class _Leg:
    """From stream index ``first`` on; ``taken`` sequences of each source come before."""

    first: int
    quanta: tuple[int, ...]
    taken: tuple[int, ...]


class Legs:
    """Of one stage: ``quanta`` to begin with, then ``changes`` (first stream index, quanta); of those at one index the last."""

    def __init__(self, quanta: tuple[int, ...], changes: Sequence[tuple[int, tuple[int, ...]]], seed: int):
        self._seed = seed
        self._legs = [_Leg(0, quanta, (0,) * len(quanta))]
        for first, changed in sorted(changes, key=lambda change: change[0]):
            self._legs.append(_Leg(first, changed, self._counted(self._legs[-1], first)))

    @property
    def mixtures(self) -> list[tuple[int, tuple[int, ...]]]:
        """(first stream index, quanta), in order."""
        return [(leg.first, leg.quanta) for leg in self._legs]

    def _counted(self, leg: _Leg, n: int) -> tuple[int, ...]:
        return tuple(map(sum, zip(leg.taken, counts(n - leg.first, leg.quanta, self._seed))))

    def counts(self, n: int) -> tuple[int, ...]:
        """How many of the first ``n`` stream indices come from each source: closed form, exact."""
        return self._counted(self._legs[bisect_right([leg.first for leg in self._legs], n) - 1], n)

    def assign(self, n: np.ndarray) -> Assignment:
        """Source and count of the stream indices ``n`` (flat)."""
        if len(self._legs) == 1:
            return assign(n, self._legs[0].quanta, self._seed)
        source, count = np.empty_like(n), np.empty_like(n)
        which = np.searchsorted([leg.first for leg in self._legs], n, "right") - 1
        for number in np.unique(which).tolist():
            at, leg = np.flatnonzero(which == number), self._legs[number]
            part = assign(n[at] - leg.first, leg.quanta, self._seed)
            source[at], count[at] = part.source, part.count + np.array(leg.taken)[part.source]
        return Assignment(source, count)
