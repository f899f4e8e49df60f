"""A block: attention and feed-forward (or experts) on the residual stream, with norms where the model has them.

    pre                  x + attention(norm x)              then x + ffn(norm x)
    post                 x + norm(attention x)              then x + norm(ffn x)              (OLMo 2)
    post-add             norm(x + attention x)              then norm(x + ffn x)              (Vaswani et al. 2017)
    sandwich             x + norm(attention(norm x))        then x + norm(ffn(norm x))        (Gemma 2)
    parallel             x + attention(h) + ffn(h),         h = norm x                        (PaLM)
    parallel-two-norms   x + attention(norm x) + ffn(norm' x)                                 (GPT-NeoX)

What is added is multiplied by the table's residual multiplier (``recipe/mup.py``) and dropped out where the recipe says so.
Shapes: B batch, T time, D width.
"""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor, nn

from headway.model.away import Away
from headway.model.context import Context
from headway.model.dropout import drop
from headway.model.experts import Experts, mixture
from headway.model.feed_forward import FeedForward
from headway.model.grouped_attention import GroupedAttention
from headway.model.latent_attention import LatentAttention
from headway.model.recompute import again
from headway.model.routing import Router
from headway.model.weight import Norm
from headway.recipe.mup import multipliers
from headway.recipe.spec import ModelSpec


class Block(nn.Module):
    """``layer`` from 0 decides on experts, window and positions; ``name`` is its place among the parameters, such as layers.3.

    ``recompute``: a key of ``recompute.RECOMPUTED``; ``away``: where what it keeps lies meanwhile, None: where it is. Models for
    training set both.
    """

    recompute = "none"
    away: Away | None = None

    def __init__(self, spec: ModelSpec, layer: int, name: str):
        super().__init__()
        self._build(spec, layer, name)

    def _build(self, spec: ModelSpec, layer: int, name: str) -> None:
        self.spec, self.name, self.residual = spec, name, multipliers(spec).residual
        self.attention_norm = Norm(spec, spec.width)
        self.attention = LatentAttention(spec, layer) if spec.latent else GroupedAttention(spec, layer)
        if spec.block != "parallel":
            self.ffn_norm = Norm(spec, spec.width)
        self.experts = None
        if spec.experts is not None and spec.has_experts(layer):
            self.router, self.experts = Router(spec), Experts(spec)
            self.shared = FeedForward(spec, spec.experts.shared * spec.experts.width) if spec.experts.shared else None
        else:
            self.ffn = FeedForward(spec, spec.ffn_width)
        if spec.block == "sandwich":
            self.attention_out_norm, self.ffn_out_norm = Norm(spec, spec.width), Norm(spec, spec.width)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        with self.away.keeping(self, context) if self.away is not None else nullcontext():
            return again(self._compute, "full" if self.recompute == "full" else "none", x_BTD, context)

    def _compute(self, x_BTD: Tensor, context: Context) -> Tensor:
        kind = self.spec.block
        if kind.startswith("parallel"):
            h_BTD = self.attention_norm(x_BTD)
            ffn_BTD = self._ffn(h_BTD if kind == "parallel" else self.ffn_norm(x_BTD), context)
            return self._add(self._add(x_BTD, self._attend(h_BTD, context), "attention", context), ffn_BTD, "ffn", context)
        if kind == "post":
            x_BTD = self._add(x_BTD, self.attention_norm(self._attend(x_BTD, context)), "attention", context)
            return self._add(x_BTD, self.ffn_norm(self._ffn(x_BTD, context)), "ffn", context)
        if kind == "post-add":
            x_BTD = self.attention_norm(self._add(x_BTD, self._attend(x_BTD, context), "attention", context))
            return self.ffn_norm(self._add(x_BTD, self._ffn(x_BTD, context), "ffn", context))
        added_BTD = self._attend(self.attention_norm(x_BTD), context)
        if kind == "sandwich":
            added_BTD = self.attention_out_norm(added_BTD)
        x_BTD = self._add(x_BTD, added_BTD, "attention", context)
        added_BTD = self._ffn(self.ffn_norm(x_BTD), context)
        return self._add(x_BTD, self.ffn_out_norm(added_BTD) if kind == "sandwich" else added_BTD, "ffn", context)

    @property
    def _parts(self) -> str:
        """Of attention and feed-forwards, each by itself: torch counts operations, and experts gather their states between."""
        return "selective" if self.recompute == "selective" else "none"

    def _attend(self, x_BTD: Tensor, context: Context) -> Tensor:
        return again(self.attention, self._parts, x_BTD, context, away=self.away)

    def _ffn(self, x_BTD: Tensor, context: Context) -> Tensor:
        if self.experts is None:
            return again(self.ffn, self._parts, x_BTD, context.ranks, away=self.away)
        tally, ranks = context.tally_of(self.name), context.ranks
        routed_BTD = mixture(x_BTD, self.router, self.experts, tally, context.scored_BT, ranks)
        return routed_BTD if self.shared is None else routed_BTD + self.shared(x_BTD, ranks)

    def _add(self, x_BTD: Tensor, added_BTD: Tensor, site: str, context: Context) -> Tensor:
        added_BTD = drop(added_BTD, context.dropout, f"{self.name}.{site}")
        return x_BTD + added_BTD if self.residual == 1.0 else x_BTD.add(added_BTD, alpha=self.residual)
