"""Where every token stands: its rotary angle, its document, and the pieces into which attention falls.

Shapes: B batch rows, T tokens of a row, E head width. A document is a maximal run of equal ids in a row.

    row 0   | a a a a a a a a |      one document              \\  one piece: rows 0-1 at once, plainly causal
    row 1   | b b b b b b b b |      one document              /
    row 2   | c c c | d d d d d |    two documents                 two pieces, one row each

No token sees another piece, so documents never mix and no piece needs a mask. Nearly all work falls into whole rows
when documents are longer than a row; rows cut into more than ``MAX_PIECES_PER_ROW`` documents share one masked piece
instead, because many small calls cost more than the masked-out half of one large one.

The Context of a batch is built once, on the host, and serves every layer and both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MAX_PIECES_PER_ROW = 8
"""More documents than this in a row: a mask is faster than pieces (bench/training.py shows both)."""


@dataclass(frozen=True)
class Piece:
    """A block of tokens that see only each other: rows [row, row_end), columns [start, end)."""

    row: int
    row_end: int
    start: int
    end: int
    mask_RTT: Tensor | None = None  # additive, where a piece holds several documents per row; None: plainly causal

    @property
    def tokens(self) -> int:
        return (self.row_end - self.row) * (self.end - self.start)


@dataclass(frozen=True, eq=False)
class Context:
    """Built once per batch by ``make_context``."""

    cos_BTE: Tensor  # float32, B T 1 E/2: broadcasts over heads
    sin_BTE: Tensor
    pieces: tuple[Piece, ...]  # in order of the flattened batch; together they cover it exactly


@lru_cache(maxsize=8)
def _angle_table(length: int, rope_base: float, head_width: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position * base^(-2i/E), [length, E/2]. The angle in float64: float32 is off by 0.06 at 1 M."""
    frequency_E = rope_base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle_TE = torch.arange(length, dtype=torch.float64)[:, None] * frequency_E
    return angle_TE.cos().float(), angle_TE.sin().float()


def make_context(position_BT: Tensor, document_BT: Tensor, rope_base: float, head_width: int, dtype: torch.dtype) -> Context:
    """Positions and documents of one batch (any integer dtype) -> Context. ``dtype``: that of the compute (masks)."""
    assert position_BT.shape == document_BT.shape, "one position and one document per token"
    longest = int(position_BT.max()) + 1
    cos_TE, sin_TE = _angle_table(1 << (longest - 1).bit_length(), float(rope_base), head_width)
    index_BT = position_BT.long()
    return Context(
        cos_BTE=cos_TE[index_BT].unsqueeze(2),
        sin_BTE=sin_TE[index_BT].unsqueeze(2),
        pieces=_pieces(document_BT, dtype),
    )


def _pieces(document_BT: Tensor, dtype: torch.dtype) -> tuple[Piece, ...]:
    width = document_BT.shape[1]
    starts = [[0, *cuts] for cuts in _cuts(document_BT)]
    pieces: list[Piece] = []
    row = 0
    while row < len(starts):
        kind, row_end = _kind(starts[row]), row + 1
        if kind != "cut":
            while row_end < len(starts) and _kind(starts[row_end]) == kind:
                row_end += 1
        if kind == "cut":
            pieces += [Piece(row, row_end, a, b) for a, b in zip(starts[row], [*starts[row][1:], width])]
        else:
            mask = document_mask(document_BT[row:row_end], dtype) if kind == "masked" else None
            pieces.append(Piece(row, row_end, 0, width, mask))
        row = row_end
    return tuple(pieces)


def _kind(starts: list[int]) -> str:
    return "whole" if len(starts) == 1 else "cut" if len(starts) <= MAX_PIECES_PER_ROW else "masked"


def _cuts(document_BT: Tensor) -> list[list[int]]:
    """For each row the columns at which another document begins."""
    cuts: list[list[int]] = [[] for _ in range(document_BT.shape[0])]
    for row, column in (document_BT[:, 1:] != document_BT[:, :-1]).nonzero().tolist():
        cuts[row].append(column + 1)
    return cuts


def document_mask(document_RT: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive R T T mask: 0 where a query sees a key (same document, not later), -inf elsewhere."""
    change_RT = torch.zeros_like(document_RT, dtype=torch.long)
    change_RT[:, 1:] = (document_RT[:, 1:] != document_RT[:, :-1]).cumsum(1)
    sees_RTT = (change_RT[:, :, None] == change_RT[:, None, :]).tril()
    return torch.zeros(sees_RTT.shape, dtype=dtype).masked_fill_(~sees_RTT, -torch.inf)
