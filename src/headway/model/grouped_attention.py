"""Grouped-query attention: H query heads share K key and value heads.

    x -> q, k, v -> norm of q and k -> RoPE -> softmax(q k' scale) v -> o

Keys and values are those of whole rows, queries those of this rank's tokens (``model/ranks.py``).

Shapes: B batch, T time, s of it in this rank's chunks (alone: all), t of those between layers,
D width, H heads, K kv heads (of this rank), E head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from headway.model.attention import attend
from headway.model.context import Context
from headway.model.kernels import norm_rotate
from headway.model.weight import Norm, Weight
from headway.recipe.mup import multipliers
from headway.recipe.spec import ModelSpec


class GroupedAttention(nn.Module):
    """Layer ``layer`` (from 0) says whether RoPE turns and how far a token sees. q, k and v stay separate: fused they are no
    rectangles when they are sharded."""

    def __init__(self, spec: ModelSpec, layer: int):
        super().__init__()
        self.spec, self.layer = spec, layer
        D, HE, KE = spec.width, spec.heads * spec.head_width, spec.kv_heads * spec.head_width
        biased = spec.bias in ("qkv", "all")
        self.q, self.k, self.v = (Weight(rows, D, biased=biased) for rows in (HE, KE, KE))
        self.o = Weight(D, HE, biased=spec.bias == "all")
        if spec.qk_norm:
            by_head = spec.qk_norm_over == "head"
            self.q_norm = Norm(spec, spec.head_width if by_head else HE, plain=True)
            self.k_norm = Norm(spec, spec.head_width if by_head else KE, plain=True)

    def forward(self, x_BtD: Tensor, context: Context) -> Tensor:
        spec, ranks = self.spec, context.ranks
        scale = multipliers(spec).attention * context.growth(self.layer, spec)
        x_BsD = ranks.all(x_BtD)
        q_BsHE = self._turned(self.q(x_BsD), "q_norm", context, scale)
        k_BTKE = ranks.chunks.whole(self._turned(self.k(x_BsD), "k_norm", context, 1.0))
        v_BTKE = ranks.chunks.whole(self.v(x_BsD).unflatten(-1, (-1, spec.head_width)))
        visible = context.visible(spec.is_windowed(self.layer))
        out_BsF = attend(q_BsHE, k_BTKE, v_BTKE, visible, spec.attention_softcap).flatten(-2)
        return self.o.into_stream(out_BsF, ranks)

    def _turned(self, x_BsF: Tensor, norm: str, context: Context, scale: float) -> Tensor:
        """Norm over each head or over all of them, RoPE, ``scale`` -> B s heads E."""
        spec, gain_E = self.spec, None
        if spec.qk_norm and spec.qk_norm_over == "all":
            x_BsF = getattr(self, norm)(x_BsF)
        elif spec.qk_norm:
            gain_E = getattr(self, norm).gain()
        cos, sin = (context.cos_BsE, context.sin_BsE) if spec.has_positions(self.layer) else (None, None)
        return norm_rotate(x_BsF.unflatten(-1, (-1, spec.head_width)), gain_E, cos, sin, spec.norm_epsilon, scale)
