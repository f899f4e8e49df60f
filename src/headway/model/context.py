"""Where every token stands: its rotary angle and which keys it may see. Built once per batch, serves every layer.

Shapes: B batch rows, T tokens of a row, E head width. A document is a maximal run of equal ids in a row; a token sees the
tokens of its document up to itself.

    document   a a a b b b b c        additive mask (0 seen, . = -inf)    a  0 . . . . . . .
    start      0 0 0 3 3 3 3 7                                            a  0 0 . . . . . .
                                                                          a  0 0 0 . . . . .
    A block of queries needs only the keys from its first                 b  . . . 0 . . . .
    query's start to its own end (attention.py).                          b  . . . 0 0 . . .
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """Built by ``make_context``."""

    cos_BTE: Tensor  # float32, B T 1 E/2: broadcasts over heads
    sin_BTE: Tensor
    start_BT: Tensor  # int64: column at which the token's document begins
    mask_BTT: Tensor | None  # additive, compute dtype; None: one document per row, plainly causal


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
    index_BT, start_BT = position_BT.long(), document_starts(document_BT)
    return Context(
        cos_BTE=cos_TE[index_BT].unsqueeze(2),
        sin_BTE=sin_TE[index_BT].unsqueeze(2),
        start_BT=start_BT,
        mask_BTT=document_mask(start_BT, dtype) if bool(start_BT.any()) else None,
    )


def document_starts(document_BT: Tensor) -> Tensor:
    """For each token the column at which its document begins."""
    column_T = torch.arange(document_BT.shape[1])
    begins_BT = torch.ones_like(document_BT, dtype=torch.bool)
    begins_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    return torch.where(begins_BT, column_T, 0).cummax(1).values


def document_mask(start_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive B T T mask: 0 where a query sees a key, -inf elsewhere."""
    column_T = torch.arange(start_BT.shape[1])
    hidden_BTT = (column_T < start_BT[:, :, None]) | (column_T > column_T[:, None])
    return torch.zeros(hidden_BTT.shape, dtype=dtype).masked_fill_(hidden_BTT, -torch.inf)
