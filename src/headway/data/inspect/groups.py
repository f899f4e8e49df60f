"""Training text by what is known of its documents: language and licence, over all documents.

Bytes are those that the tokens stand for, counted per document; what a document does not state is an empty name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headway.data.ends import Ends
from headway.data.facts import Table


@dataclass(frozen=True)
class Group:
    """Documents alike in both; ``tokens`` without document tokens."""

    language: str
    licence: str
    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens if self.tokens else 0.0


class GroupSums:
    """Of one source, whose tokens are given block after block. Memory follows languages and licences, not documents."""

    def __init__(self, table: Table, ends: Ends, token_bytes: np.ndarray):
        """``ends``: of its documents; ``token_bytes``: by id, 0 for a document token."""
        self._table, self._ends, self._token_bytes = table, ends, token_bytes
        self._position = 0
        self._sums: dict[tuple[str, str], np.ndarray] = {}
        self._names: Callable[[int], tuple[str, str]] = lru_cache(maxsize=2**16)(self._named)

    def _named(self, place: int) -> tuple[str, str]:
        facts = self._table.shared(place)
        return facts.get("language", ""), facts.get("licence", "")

    def add(self, tokens: np.ndarray) -> None:
        """The next tokens of the source."""
        start, stop = self._position, self._position + tokens.size
        first, last = int(self._ends.searchsorted(start, "right")), int(self._ends.searchsorted(stop, "left"))
        ends = np.minimum(np.asarray(self._ends[first : last + 1]), stop)  # of the pieces of documents in here
        begins = np.concatenate([[start], ends[:-1]]) - start
        known = np.minimum(tokens, len(self._token_bytes) - 1)
        sizes = np.where(tokens < len(self._token_bytes), self._token_bytes[known], 0)
        complete = np.asarray(self._ends[first : last + 1]) <= stop
        sums = np.stack([complete, np.diff(begins, append=tokens.size) - complete, np.add.reduceat(sizes, begins)], axis=1)
        places, group = np.unique(self._table.index(first, first + len(ends))[:, 1], return_inverse=True)
        of_place = np.zeros((len(places), 3), np.int64)
        np.add.at(of_place, group, sums)
        for place, row in zip(places.tolist(), of_place):
            name = self._names(place)
            self._sums[name] = self._sums.get(name, 0) + row
        self._position = stop

    def groups(self) -> tuple[Group, ...]:
        """Most text first."""
        found = [Group(*name, *row.tolist()) for name, row in self._sums.items()]
        return tuple(sorted(found, key=lambda group: (-group.bytes, group.language, group.licence)))


def by(groups: tuple[Group, ...], fact: str) -> tuple[Group, ...]:
    """Summed up over the other fact; ``fact``: language or licence."""
    sums: dict[str, list[int]] = {}
    for group in groups:
        row = sums.setdefault(getattr(group, fact), [0, 0, 0])
        for at, count in enumerate((group.documents, group.tokens, group.bytes)):
            row[at] += count
    rows = [Group(*((name, "") if fact == "language" else ("", name)), *row) for name, row in sums.items()]
    return tuple(sorted(rows, key=lambda group: -group.bytes))
