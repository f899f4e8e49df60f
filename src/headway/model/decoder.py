"""The decoder: embedding, pre-norm blocks, final norm, head. Every parameter is named in ``recipe/roles.py``.

    tokens -> embed -> [ + attention(norm x) -> + ffn(norm x) ] x layers -> norm -> hidden      (head: in the loss)

Shapes: B batch, T time, D width, H heads, K kv heads, E head width, F ffn, V vocabulary.
Names of modules are the names of checkpoints, so they do not change. q, k, v and gate, up stay separate: fused ones are
not rectangles when they are sharded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.model.attention import attend
from headway.model.context import Context
from headway.model.kernels import norm_rotate, rms_norm, swiglu
from headway.recipe.spec import ModelSpec


class Weight(nn.Module):
    """Holds one tensor as ``weight``; memory is left as it comes, ``init.initialise`` fills it."""

    def __init__(self, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))


class Attention(nn.Module):
    """Grouped-query attention; q and k are normalised per head, then rotated."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.spec = spec
        D, HE, KE = spec.width, spec.heads * spec.head_width, spec.kv_heads * spec.head_width
        self.q, self.k, self.v, self.o = Weight(HE, D), Weight(KE, D), Weight(KE, D), Weight(D, HE)
        if spec.qk_norm:
            self.q_norm, self.k_norm = Weight(spec.head_width), Weight(spec.head_width)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        spec = self.spec
        q_BTHE = F.linear(x_BTD, self.q.weight).unflatten(-1, (spec.heads, spec.head_width))
        k_BTKE = F.linear(x_BTD, self.k.weight).unflatten(-1, (spec.kv_heads, spec.head_width))
        v_BTKE = F.linear(x_BTD, self.v.weight).unflatten(-1, (spec.kv_heads, spec.head_width))
        q_gain_E = self.q_norm.weight if spec.qk_norm else None
        k_gain_E = self.k_norm.weight if spec.qk_norm else None
        scale = spec.head_width**-0.5
        q_BTHE = norm_rotate(q_BTHE, q_gain_E, context.cos_BTE, context.sin_BTE, spec.norm_epsilon, scale)
        k_BTKE = norm_rotate(k_BTKE, k_gain_E, context.cos_BTE, context.sin_BTE, spec.norm_epsilon)
        return F.linear(attend(q_BTHE, k_BTKE, v_BTKE, context).flatten(-2), self.o.weight)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        D, F_ = spec.width, spec.ffn_width
        self.gate, self.up, self.down = Weight(F_, D), Weight(F_, D), Weight(D, F_)

    def forward(self, x_BTD: Tensor) -> Tensor:
        hidden_BTF = swiglu(F.linear(x_BTD, self.gate.weight), F.linear(x_BTD, self.up.weight))
        return F.linear(hidden_BTF, self.down.weight)


class Block(nn.Module):
    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.epsilon = spec.norm_epsilon
        self.attention_norm, self.attention = Weight(spec.width), Attention(spec)
        self.ffn_norm, self.ffn = Weight(spec.width), FeedForward(spec)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        x_BTD = x_BTD + self.attention(rms_norm(x_BTD, self.attention_norm.weight, self.epsilon), context)
        return x_BTD + self.ffn(rms_norm(x_BTD, self.ffn_norm.weight, self.epsilon))


class Decoder(nn.Module):
    """Build it under ``torch.device("meta")`` for shapes alone; ``to_empty`` and ``initialise`` for values.

    Blocks compute in the dtype of their weights. The embedding may be wider than that (``precision.ComputeModel``): its
    gradient is a sum over every occurrence of a token and stays in the embedding's own dtype.
    """

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.spec = spec
        self.embed = Weight(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = Weight(spec.width)
        self.head = None if spec.tied_embeddings else Weight(spec.vocabulary, spec.width)

    @property
    def head_weight(self) -> Tensor:
        """V D: the rows that score each token of the vocabulary."""
        return self.embed.weight if self.head is None else self.head.weight

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        """Hidden states after the final norm, B T D; logits are ``hidden @ head_weight.T``."""
        x_BTD = F.embedding(tokens_BT, self.embed.weight).to(self.norm.weight.dtype)
        for block in self.layers:
            x_BTD = block(x_BTD, context)
        return rms_norm(x_BTD, self.norm.weight, self.spec.norm_epsilon)
