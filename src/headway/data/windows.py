"""Windows as arrays: tokens, targets, documents and positions, from token sets.

Shapes: B windows, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headway.data.ragged import places_within
from headway.data.stream import Positions
from headway.data.token_sets import Tokens


@dataclass(frozen=True)
class WindowBatch:
    """Integers. ``document_BT`` counts documents within the window, ``position_BT`` restarts at each document token (one that
    began before the window starts at 0 too). Padding is a document of its own."""

    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray
    source_B: np.ndarray
    scored_BT: np.ndarray | None = None  # bool: which targets count; None: all


@dataclass(frozen=True, kw_only=True)
class HeldOutBatch(WindowBatch):
    """``in_document_BT``: where each target stands in its document, 0: the document token. The last window is filled up behind
    the last held-out token that is scored."""

    in_document_BT: np.ndarray | None = None


@dataclass(frozen=True)
class Spans:
    """Of each part of a document in some windows, in their order: row and column it begins at, source, first token and tokens."""

    row: np.ndarray
    column: np.ndarray
    source: np.ndarray
    start: np.ndarray
    tokens: np.ndarray

    def each(self) -> Iterator[tuple[int, int, int, int, int]]:
        return zip(*(part.tolist() for part in (self.row, self.column, self.source, self.start, self.tokens)), strict=True)


def parts_of(document_BT: np.ndarray, positions: Positions) -> Spans:
    """Of windows that were cut: a new document begins where the number changes."""
    (B, T), opens = document_BT.shape, np.ones(document_BT.shape, bool)
    np.not_equal(document_BT[:, 1:], document_BT[:, :-1], out=opens[:, 1:])
    row, column = np.nonzero(opens)
    tokens = np.diff(row * T + column, append=B * T)
    return Spans(row, column, positions.source[row], positions.token[row] + column, tokens)


def cut_batch(sets: list[Tokens], source_B: np.ndarray, start_B: np.ndarray, T: int) -> WindowBatch:
    B = len(source_B)
    tokens_BT1 = np.empty((B, T + 1), np.int64)
    opens = np.zeros(B, np.int64)  # flat index at which each segment (document within a window) begins
    rows, columns = [np.arange(B)], [opens]
    for k in np.unique(source_B):
        at = np.flatnonzero(source_B == k)
        sets[k].gather(start_B[at], tokens_BT1, at)
        row, column = sets[k].borders(start_B[at], T)
        rows.append(at[row])
        columns.append(column)
    document_BT, position_BT = document_numbers(np.concatenate(rows), np.concatenate(columns), B, T)
    return WindowBatch(tokens_BT1[:, :-1], tokens_BT1[:, 1:], document_BT, position_BT, source_B)


def held_out_batch(held_out: Tokens, number: int, start_B: np.ndarray, T: int, targets: int) -> HeldOutBatch:
    """Windows at ``start_B``, of which the last may end early: at target ``targets`` of the set."""
    parts = []
    for rows, length in ((start_B[start_B + T <= targets], T), (start_B[start_B + T > targets], int(targets - start_B[-1]))):
        if rows.size:
            batch = cut_batch([held_out], np.zeros_like(rows), rows, length)
            wide = ((0, 0), (0, T - length))
            parts.append(
                (
                    np.pad(batch.tokens_BT, wide),
                    np.pad(batch.targets_BT, wide),
                    np.pad(batch.document_BT, wide, mode="edge"),
                    np.pad(batch.position_BT, wide),
                    np.pad(np.ones(batch.tokens_BT.shape, bool), wide),
                )
            )
    tokens_BT, targets_BT, document_BT, position_BT, scored_BT = map(np.concatenate, zip(*parts, strict=True))
    at_BT = start_B[:, None] + np.arange(1, T + 1)
    document = held_out.ends.searchsorted(at_BT, "right")
    begins_BT = np.where(document > 0, held_out.ends[np.maximum(document, 1) - 1], 0)
    source_B, in_document_BT = np.full_like(start_B, number), at_BT - begins_BT
    return HeldOutBatch(tokens_BT, targets_BT, document_BT, position_BT, source_B, scored_BT, in_document_BT=in_document_BT)


@lru_cache(maxsize=4)
def _flat_index(size: int) -> np.ndarray:
    index = np.arange(size)
    index.flags.writeable = False
    return index


def document_numbers(row: np.ndarray, column: np.ndarray, B: int, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Document number and position, from the (row, column) at which segments open; every row opens one at column 0."""
    opens = np.sort(row * T + column)
    lengths = np.diff(opens, append=B * T)
    number = places_within(np.bincount(row, minlength=B))
    document = np.repeat(number.astype(np.int32), lengths)
    position = np.repeat(opens, lengths)
    np.subtract(_flat_index(B * T), position, out=position)  # in place: fresh memory costs more than the arithmetic
    return document.reshape(B, T), position.reshape(B, T)
