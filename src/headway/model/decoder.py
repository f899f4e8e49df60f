"""The decoder: embedding, blocks, final norm, head. Every parameter is named in ``recipe/roles.py``.

    tokens -> embed (+ positions) -> blocks x layers -> norm -> hidden      (head: in the loss, or ``logits``)
                                                  |
    heads for further tokens:   [norm hidden, norm embed(next token)] -> project -> block -> norm -> hidden -> ...

A ``Piece`` of it runs alone in a pipeline: what goes in is the stream that the piece before gave.

    embed, layers.0, layers.1  |  layers.2, layers.3  |  layers.4, norm, head, mtp (and embed, where these read it)

Shapes: B batch, T time, D width, V vocabulary. Names of modules are the names of checkpoints, so they do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.model.away import Away
from headway.model.block import Block
from headway.model.context import Context
from headway.model.dropout import drop
from headway.model.loss import OutputRule
from headway.model.ranks import Ranks
from headway.model.weight import Norm, Weight
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, eq=False)
class Hidden:
    """After the final norm of the decoder, and of each head for further tokens: entry d speaks of the token d + 2 further."""

    next_BTD: Tensor
    further_BTD: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Piece:
    """What of a decoder stands together: consecutive layers, and perhaps the way in (embedding) or out (norm, head, mtp)."""

    layers: range
    is_first: bool = True
    is_last: bool = True

    @staticmethod
    def whole(spec: ModelSpec) -> Piece:
        return Piece(range(spec.layers))

    def embeds(self, spec: ModelSpec) -> bool:
        """Whether it reads the embedding: to begin with, as the head, or in heads for further tokens."""
        return self.is_first or (self.is_last and (spec.tied_embeddings or spec.mtp_layers > 0))


class Further(Block):
    """A head for one more token (DeepSeek-V3, arXiv 2412.19437, section 2.2). It shares embedding and output matrix."""

    def __init__(self, spec: ModelSpec, depth: int):
        nn.Module.__init__(self)
        self.hidden_norm, self.embed_norm = Norm(spec, spec.width), Norm(spec, spec.width)
        self.project = Weight(spec.width, 2 * spec.width)
        self._build(spec, spec.layers - 1, f"mtp.{depth}")  # between, so that parameters stand in the order of their roles
        self.norm = Norm(spec, spec.width)

    def forward(self, hidden_BTD: Tensor, embedded_BTD: Tensor, context: Context) -> Tensor:  # type: ignore[override]
        """The hidden state before it, and the embedding of the token that this spoke of -> the next hidden state."""
        both_BTD = torch.cat((self.hidden_norm(hidden_BTD), self.embed_norm(embedded_BTD)), -1)
        return self.norm(super().forward(self.project(both_BTD), context))


class Decoder(nn.Module):
    """Its parameters hold nothing yet: ``initialise`` fills them. Under ``torch.device("meta")`` they have shapes alone.

    Products run in the dtype of their weights, what passes between them in ``stream_dtype``. The embedding may be wider than
    that (``precision.ComputeModel``): its gradient is a sum over every occurrence of a token and stays in its own dtype.
    """

    def __init__(self, spec: ModelSpec, piece: Piece | None = None):
        super().__init__()
        self.spec, self.piece = spec, piece or Piece.whole(spec)
        is_first, is_last = self.piece.is_first, self.piece.is_last
        self.stream_dtype: torch.dtype | None = None  # None: that of the embedding
        self.embed = Weight(spec.vocabulary, spec.width) if self.piece.embeds(spec) else None
        self.positions = Weight(spec.positions, spec.width) if is_first and spec.position == "learned" else None
        self.embed_norm = Norm(spec, spec.width) if is_first and spec.embedding_norm else None
        self.layers = nn.ModuleList()
        for layer in self.piece.layers:  # by their numbers in the whole
            self.layers.add_module(str(layer), Block(spec, layer, f"layers.{layer}"))
        self.norm = Norm(spec, spec.width) if is_last else None
        self.head = Weight(spec.vocabulary, spec.width) if is_last and not spec.tied_embeddings else None
        self.mtp = nn.ModuleList(Further(spec, depth) for depth in range(spec.mtp_layers if is_last else 0))

    def recompute(self, kind: str) -> None:
        """In all blocks, those of heads for further tokens too."""
        for block in self._blocks():
            block.recompute = kind

    def put_away(self, away: Away) -> None:
        """Likewise: what they keep for their backward pass lies there."""
        for block in self._blocks():
            block.away = away

    def _blocks(self) -> Iterator[Block]:
        return (module for module in self.modules() if isinstance(module, Block))

    @property
    def head_weight(self) -> Tensor:
        """V D: the rows that score each token of the vocabulary (this rank's). Of the last piece."""
        rows = self.embed if self.head is None else self.head
        assert rows is not None
        return rows.matrix()

    def forward(self, tokens_BT: Tensor, context: Context, stream_BTD: Tensor | None = None) -> Tensor:
        """Hidden states of this rank's tokens after the final norm, B t D; ``logits`` makes logits of them. Of a piece
        that is not the last: the stream after its last block. ``stream_BTD``: of the piece before; None: of the embedding."""
        x_BTD = self._enter(tokens_BT, context) if stream_BTD is None else stream_BTD
        for block in self.layers:
            x_BTD = block(x_BTD, context)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def hidden(self, tokens_BT: Tensor, context: Context, stream_BTD: Tensor | None = None) -> Hidden:
        """What training needs: also the hidden states of the heads for further tokens. The last tokens of a row have no
        token to go on from; what stands there is to be masked (``objective``)."""
        hidden = [self(tokens_BT, context, stream_BTD)]
        for depth, head in enumerate(cast("Iterable[Further]", self.mtp), start=1):
            context = replace(context, scored_BT=context.scored_further(depth))
            hidden.append(head(hidden[-1], self._embed(tokens_BT.roll(-depth, 1), context.ranks), context))
        return Hidden(hidden[0], tuple(hidden[1:]))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """N V, in float32 or wider, as in the loss."""
        weight_VD = self.head_weight
        product_NV = F.linear(hidden_ND.to(weight_VD.dtype), weight_VD)
        return OutputRule.of(self.spec).logits(product_NV.to(torch.promote_types(product_NV.dtype, torch.float32)))

    def _enter(self, tokens_BT: Tensor, context: Context) -> Tensor:
        """The residual stream before the first block."""
        ranks = context.ranks
        x_BTD = self._embed(tokens_BT, ranks)
        if self.positions is not None:
            x_BTD = x_BTD + F.embedding(ranks.own(context.position_BT), self.positions.matrix()).to(x_BTD.dtype)
        if self.embed_norm is not None:
            x_BTD = self.embed_norm(x_BTD)
        return drop(x_BTD, context.dropout, "embed")

    def _embed(self, tokens_BT: Tensor, ranks: Ranks) -> Tensor:
        """Of whole rows of tokens -> B t D. A rank looks up what its rows of the vocabulary hold; the others' rows give zeros."""
        assert self.embed is not None, "this piece does not embed"
        tokens_Bs = ranks.chunks.mine(tokens_BT)
        weight_VD = self.embed.matrix()
        dtype = self.stream_dtype or weight_VD.dtype
        if not ranks.divide_tokens:
            return F.embedding(tokens_Bs, weight_VD).to(dtype)
        row_Bs = tokens_Bs - ranks.first_row(self.spec.vocabulary)
        here_Bs = (row_Bs >= 0) & (row_Bs < len(weight_VD))
        found_BsD = F.embedding(torch.where(here_Bs, row_Bs, 0), weight_VD)
        return ranks.own_sum(torch.where(here_Bs[..., None], found_BsD, 0).to(dtype))
