"""Multi-head latent attention (arXiv 2405.04434, section 2.1): keys and values come from one narrow latent.

    x -> q_down -> norm -> q         per head: En values without position, Er that RoPE turns      (or x -> q at once)
    x -> kv_down -> [latent Rkv, key Er]   latent -> norm -> kv: per head En of a key, Ev of a value;  the key with RoPE is
                                           one for all heads

Keys and values are those of whole rows, queries those of this rank's tokens (``model/ranks.py``).

Shapes: B batch, T time, s of it in this rank's chunks (alone: all), t of those between layers, D width, H heads (of this rank),
En, Er widths of a query and key without and with RoPE, Ev of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.model.attention import attend
from headway.model.context import Context
from headway.model.kernels import norm_rotate
from headway.model.ranks import Ranks
from headway.model.weight import Norm, Weight
from headway.recipe.mup import multipliers
from headway.recipe.spec import ModelSpec


class LatentAttention(nn.Module):
    def __init__(self, spec: ModelSpec, layer: int):
        super().__init__()
        assert spec.latent is not None
        self.spec, self.latent, self.layer = spec, spec.latent, layer
        D, H, latent = spec.width, spec.heads, spec.latent
        if latent.query_rank is not None:
            self.q_down, self.q_down_norm = Weight(latent.query_rank, D), Norm(spec, latent.query_rank, plain=True)
        self.q = Weight(H * latent.key_width, latent.query_rank or D)
        self.kv_down = Weight(latent.kv_rank + latent.rope_width, D)
        self.kv_down_norm = Norm(spec, latent.kv_rank, plain=True)
        self.kv = Weight(H * (latent.nope_width + latent.value_width), latent.kv_rank)
        self.o = Weight(D, H * latent.value_width)

    def forward(self, x_BtD: Tensor, context: Context) -> Tensor:
        spec, latent = self.spec, self.latent
        scale = multipliers(spec).attention * context.growth(self.layer, spec)
        ranks, heads_width = context.ranks, latent.nope_width + latent.value_width
        key_BtR, rope_BtE = self.kv_down(x_BtD).split([latent.kv_rank, latent.rope_width], -1)
        kv_BsHE = self.kv(ranks.all(self.kv_down_norm(key_BtR))).unflatten(-1, (-1, heads_width))
        k_BTHE, v_BTHE = ranks.chunks.whole(kv_BsHE).split([latent.nope_width, latent.value_width], -1)
        q_BsHE = self._turned(self._queries(x_BtD, ranks), context, scale)
        if latent.rope_width:
            turned_BT1E = ranks.chunks.whole(self._rotate(ranks.all(rope_BtE).unsqueeze(2), context, 1.0))
            k_BTHE = torch.cat((k_BTHE, turned_BT1E.expand(-1, -1, k_BTHE.shape[2], -1)), -1)
        visible = context.visible(spec.is_windowed(self.layer))
        out_BsF = attend(q_BsHE, k_BTHE, v_BTHE, visible, spec.attention_softcap).flatten(-2)
        return self.o.into_stream(out_BsF, ranks)

    def _queries(self, x_BtD: Tensor, ranks: Ranks) -> Tensor:
        """The way down is narrow, and runs on each rank's own tokens."""
        if self.latent.query_rank is not None:
            x_BtD = self.q_down_norm(self.q_down(x_BtD))
        return self.q(ranks.all(x_BtD)).unflatten(-1, (-1, self.latent.key_width))

    def _turned(self, q_BsHE: Tensor, context: Context, scale: float) -> Tensor:
        """Queries scaled, their last Er values turned."""
        nope_BsHE, rope_BsHE = q_BsHE.split([self.latent.nope_width, self.latent.rope_width], -1)
        if not self.latent.rope_width:
            return nope_BsHE * scale
        return torch.cat((nope_BsHE * scale, self._rotate(rope_BsHE, context, scale)), -1)

    def _rotate(self, x_BsHE: Tensor, context: Context, scale: float) -> Tensor:
        cos, sin = (context.cos_BsE, context.sin_BsE) if self.spec.has_positions(self.layer) else (None, None)
        return norm_rotate(x_BsHE, None, cos, sin, self.spec.norm_epsilon, scale)
