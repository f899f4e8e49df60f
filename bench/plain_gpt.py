"""A plain decoder in the style of nanoGPT: short, and every operation is PyTorch's own. The benchmarks' plain side.

    tokens -> wte -> [ + attention(norm x) -> + ffn(norm x) ] x layers -> norm -> lm_head -> cross_entropy of all logits

One product makes q, k and v; attention is ``scaled_dot_product_attention``, causal, without document masks; AdamW is torch's
fused one under autocast. Norms, rotary angles and feed-forwards are those of Headway's decoder, so that both have the same
parameters. Experts run one after the other over the tokens that chose them.

Shapes: B batch, T time, N = B T tokens, D width, H heads, K kv heads, E head width, F ffn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.recipe.spec import ModelSpec


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    first, second = x_BHTE.chunk(2, -1)
    return x_BHTE * cos_TE + torch.cat((-second, first), -1) * sin_TE


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = spec.heads, spec.kv_heads, spec.head_width
        self.qkv = nn.Linear(spec.width, (spec.heads + 2 * spec.kv_heads) * spec.head_width, bias=False)
        self.out = nn.Linear(spec.heads * spec.head_width, spec.width, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(spec.head_width, spec.norm_epsilon) if spec.qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        heads = self.qkv(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(self.q_norm(q), cos_TE, sin_TE), rotate(self.k_norm(k), cos_TE, sin_TE)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        return self.out(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Softmax over the chosen experts' scores weighs their outputs."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        assert spec.experts is not None
        self.top_k = spec.experts.top_k
        self.router = nn.Linear(spec.width, spec.experts.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(spec.width, spec.experts.width) for _ in range(spec.experts.experts))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, -2)
        scores, chosen = self.router(x_ND).float().topk(self.top_k)
        weights, out_ND = scores.softmax(-1).to(x_ND.dtype), torch.zeros_like(x_ND)
        for index, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == index)
            out_ND.index_add_(0, token, (expert(x_ND[token]) * weights[token, slot, None]).to(out_ND.dtype))
        return out_ND.view_as(x_BTD)


class Block(nn.Module):
    def __init__(self, spec: ModelSpec, layer: int):
        super().__init__()
        self.norm_1, self.norm_2 = (nn.RMSNorm(spec.width, spec.norm_epsilon) for _ in range(2))
        self.attention = Attention(spec)
        self.ffn = Experts(spec) if spec.has_experts(layer) else FeedForward(spec.width, spec.ffn_width)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm_1(x_BTD), cos_TE, sin_TE)
        return x_BTD + self.ffn(self.norm_2(x_BTD))


class PlainGpt(nn.Module):
    """``forward`` gives the mean loss, nats per token."""

    def __init__(self, spec: ModelSpec, sequence_length: int, rope_base: float = 1e4):
        super().__init__()
        self.wte = nn.Embedding(spec.vocabulary, spec.width)
        self.blocks = nn.ModuleList(Block(spec, layer) for layer in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width, spec.norm_epsilon)
        self.lm_head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied_embeddings:
            self.lm_head.weight = self.wte.weight
        frequency_E = rope_base ** (-torch.arange(0, spec.head_width, 2) / spec.head_width)
        angle_TE = torch.outer(torch.arange(sequence_length), frequency_E).repeat(1, 2)
        self.register_buffer("cos_TE", angle_TE.cos(), persistent=False)
        self.register_buffer("sin_TE", angle_TE.sin(), persistent=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=spec.init_std)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        x_BTD = self.wte(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, self.cos_TE, self.sin_TE)
        return F.cross_entropy(self.lm_head(self.norm(x_BTD)).flatten(0, 1).float(), targets_BT.flatten())


def plain_update(
    model: nn.Module, loss: Callable[[], Tensor], rate: float, *, fused: bool = True, clip_norm: float = 1.0
) -> Callable[[], float]:
    """One update of a plain loop: autocast, backward, clip, AdamW with decay on matrices."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, rate, betas=(0.9, 0.95), fused=fused)
    device = next(model.parameters()).device.type

    def step() -> float:
        with torch.autocast(device, torch.bfloat16):
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step
