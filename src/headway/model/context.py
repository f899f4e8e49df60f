"""Where every token stands: its rotary angle and which keys it may see. Built once per batch, serves every layer.

Shapes: B batch rows, T tokens of a row, s of them in this rank's chunks (alone: all), E half of the rotated width of a head. A
document is a maximal run of equal ids in a row; a token sees the tokens of its document up to itself, in layers with a window
of w only the last w of these.

    document   a a a b b b b c        additive mask (0 seen, . = -inf)    a  0 . . . . . . .
    start      0 0 0 3 3 3 3 7                                            a  0 0 . . . . . .
    in a window of 2                                                      a  0 0 0 . . . . .
    start      0 0 1 3 3 4 5 7                                            b  . . . 0 . . . .
                                                                          b  . . . 0 0 . . .
    A block of queries needs only the keys from its first query's start to its own end (attention.py). A window has no
    mask of its own: its edge is the same in every block.

Under context parallelism queries are those of this rank's chunks, s of T; keys are those of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.model.columns import Columns
from headway.model.dropout import DropoutKey
from headway.model.ranks import ALONE, Ranks
from headway.model.rope import angle_table, attention_growth
from headway.recipe.spec import ModelSpec, RopeSpec

if TYPE_CHECKING:
    from headway.model.tally import LayerTally, Tally


@dataclass(frozen=True, eq=False, kw_only=True)
class Visible:
    """Which keys the queries of a layer see: those from ``start_Bs`` to the query itself."""

    start_Bs: Tensor  # int64: column of the first key that the query sees; it never falls along a row
    columns: Columns  # of the queries; keys are all of the row
    packed: bool  # some row holds several documents
    mask_BsT: Tensor | None  # additive, compute dtype, of documents alone; None: not packed, or not on a CPU
    window: int | None = None  # tokens that a token sees at most, itself included; None: all of its document before it

    @property
    def is_causal(self) -> bool:
        """Whether every query simply sees the whole row before it."""
        return not self.packed and self.window is None

    def sees_BsT(self) -> Tensor:
        """bool, B s T: whether the query (second axis) sees the key (last axis)."""
        return ~_hidden(self.start_Bs, self.columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """Built by ``make_context``."""

    cos_BsE: Tensor | None  # float32, B s 1 E: broadcasts over heads; None: no RoPE
    sin_BsE: Tensor | None
    attention_growth: float  # by which YaRN multiplies scores
    full: Visible
    windowed: Visible | None  # None: the model has no window
    position_BT: Tensor  # int64, of whole rows
    document_BT: Tensor  # int64, of whole rows
    tally: Tally | None = None  # of routers, in training
    dropout: DropoutKey | None = None
    scored_BT: Tensor | None = None  # bool, whole rows: tokens that a loss depends on, so that routers may count them; None: all
    ranks: Ranks = ALONE  # that share the work

    def tensors(self) -> list[Tensor]:
        """What all layers read."""
        seen = [self.full, *([] if self.windowed is None else [self.windowed])]
        found = [self.cos_BsE, self.sin_BsE, self.scored_BT, self.position_BT, self.document_BT]
        found += [x for visible in seen for x in (visible.start_Bs, visible.mask_BsT)]
        return [x for x in found if x is not None]

    def tally_of(self, layer: str) -> LayerTally | None:
        return None if self.tally is None else self.tally.of(layer)

    def scored_further(self, depth: int) -> Tensor:
        """bool, B T: tokens whose loss of the token ``depth`` further counts."""
        keep_BT = goes_on(self.document_BT, depth)
        return keep_BT if self.scored_BT is None else keep_BT & self.scored_BT

    def growth(self, layer: int, model: ModelSpec) -> float:
        """Of scores in layer ``layer``: YaRN grows those that it turns."""
        return self.attention_growth if model.has_positions(layer) else 1.0

    def visible(self, windowed: bool) -> Visible:
        """Of layers with a window, or of those without."""
        if not windowed:
            return self.full
        assert self.windowed is not None, "the model has no window"
        return self.windowed


def make_context(
    position_BT: Tensor, document_BT: Tensor, model: ModelSpec, rope: RopeSpec, dtype: torch.dtype, ranks: Ranks = ALONE
) -> Context:
    """Positions and documents of one batch of whole rows (any integer dtype, any device) -> Context for ``ranks``.

    ``dtype``: that of the compute (masks).
    """
    assert position_BT.shape == document_BT.shape, "one position and one document per token"
    position_BT, document_BT = position_BT.long(), document_BT.long()
    cos_BsE, sin_BsE = _angles(ranks.chunks.mine(position_BT), model, rope) if model.turned_width else (None, None)
    full = _full(document_starts(document_BT), dtype, ranks)
    return Context(
        cos_BsE=cos_BsE,
        sin_BsE=sin_BsE,
        attention_growth=attention_growth(rope),
        full=full,
        windowed=None if model.window is None else _windowed(full, model.window),
        position_BT=position_BT,
        document_BT=document_BT,
        ranks=ranks,
    )


def _angles(position_Bs: Tensor, model: ModelSpec, rope: RopeSpec) -> tuple[Tensor, Tensor]:
    """cos and sin of every token, B s 1 E. Tables of a power of two tokens, so that few are made."""
    longest = int(position_Bs.max()) + 1
    cos_TE, sin_TE = angle_table(1 << (longest - 1).bit_length(), model, rope)
    cos_BsE, sin_BsE = (table_TE.to(position_Bs.device)[position_Bs] for table_TE in (cos_TE, sin_TE))
    return cos_BsE.unsqueeze(2), sin_BsE.unsqueeze(2)


def _full(start_BT: Tensor, dtype: torch.dtype, ranks: Ranks) -> Visible:
    packed, start_Bs, columns = bool(start_BT.any()), ranks.chunks.mine(start_BT), ranks.chunks.columns(start_BT.shape[1])
    mask_BsT = document_mask(start_Bs, dtype, columns) if packed and start_BT.device.type == "cpu" else None
    return Visible(start_Bs=start_Bs, columns=columns, packed=packed, mask_BsT=mask_BsT)


def _windowed(full: Visible, window: int) -> Visible:
    """``full`` itself where the window holds whole rows."""
    if window >= full.columns.length:
        return full
    oldest_s = full.columns.tensor(full.start_Bs.device) - (window - 1)
    return replace(full, start_Bs=full.start_Bs.maximum(oldest_s), window=window)


def goes_on(document_BT: Tensor, depth: int) -> Tensor:
    """Whether the token ``depth`` further stands in the same row and document, B T."""
    keep_BT = document_BT.roll(-depth, 1) == document_BT
    keep_BT[:, -depth:] = False
    return keep_BT


def document_starts(document_BT: Tensor) -> Tensor:
    """For each token the column at which its document begins."""
    column_T = torch.arange(document_BT.shape[1], device=document_BT.device)
    begins_BT = torch.ones_like(document_BT, dtype=torch.bool)
    begins_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    return torch.where(begins_BT, column_T, 0).cummax(1).values


def document_mask(start_Bs: Tensor, dtype: torch.dtype, columns: Columns | None = None) -> Tensor:
    """Additive B s T mask: 0 where a query sees a key, -inf elsewhere. ``columns``: of the queries (None: all)."""
    hidden_BsT = _hidden(start_Bs, columns or Columns.whole(start_Bs.shape[1]))
    return torch.zeros(hidden_BsT.shape, dtype=dtype, device=start_Bs.device).masked_fill_(hidden_BsT, -torch.inf)


def _hidden(start_Bs: Tensor, columns: Columns) -> Tensor:
    """bool, B s T: whether the query does not see the key."""
    key_T, query_s = torch.arange(columns.length, device=start_Bs.device), columns.tensor(start_Bs.device)
    return (key_T < start_Bs[:, :, None]) | (key_T > query_s[:, None])
