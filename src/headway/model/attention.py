"""Causal attention within documents, forward and backward, in blocks of queries that stay in cache.

    keys ->   0   Q   2Q  3Q           Each block of Q queries meets only the keys from its first query's document to its
    queries  [#\\ .   .   . ]           own end: at most half of the square is computed, less with short documents. The
       |     [# # \\  .   . ]           mask is added to scores in place.
       v     [. . # # \\  . ]
                 ^ a document begins

On a CPU this is 1.7 to 4 times as fast as ``scaled_dot_product_attention`` in bfloat16, forward and backward
(bench/training.py prints both): its products are large enough for the GEMM library, and its softmax
is one vectorised kernel. Softmax is computed in float32, but from scores that the GEMM has rounded to the compute dtype: half
a unit in 256 of their size in bfloat16, which QK-norm bounds by sqrt E times the gains. (float32 scores cost three times as
much.) Separate calls per document or per run of whole rows were not faster than the mask.

Shapes: B rows, T time, H heads, K kv heads, G = H / K heads per kv head, E head width, Q queries of a block, S keys it meets.
Kernels work on (B K) (T G) E, where a kv head's G heads are neighbours, so that grouped queries are one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.formulas.activations import BLOCK_QUERIES, KEPT_SCORES
from headway.model.context import Context

BLOCK_SCORES = 1 << 20
"""Scores computed at once (2 MiB in bfloat16)."""
KEY_STEP = 32
"""Blocks begin at multiples of this many keys: products on odd offsets are slower."""


def attend(q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, context: Context) -> Tensor:
    """softmax(q k') v of every token over the tokens of its document up to itself -> B T H E.

    ``q`` comes scaled (by 1 / sqrt E, see ``kernels.norm_rotate``).
    """
    return _Attend.apply(q_BTHE, k_BTKE, v_BTKE, context)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One product: ``rows`` of (B K), ``queries`` of (T G), ``keys`` of T; ``mask`` covers the last of these keys."""

    rows: slice
    queries: slice
    keys: slice
    mask: Tensor  # additive; broadcasts over rows, K, Q, G, its columns


def _blocks(context: Context, kv_heads: int, group: int, dtype: torch.dtype) -> Iterator[_Block]:
    """The blocks in a fixed order: forward and backward walk it alike."""
    rows, length = context.start_BT.shape
    triangle_QQ = torch.full((BLOCK_QUERIES, BLOCK_QUERIES), -torch.inf, dtype=dtype).triu_(1)
    first_key = context.start_BT[:, ::BLOCK_QUERIES].tolist()
    for index, start in enumerate(range(0, length, BLOCK_QUERIES)):
        end = min(length, start + BLOCK_QUERIES)
        step = max(1, BLOCK_SCORES // ((end - start) * group * end * kv_heads))
        for row in range(0, rows, step):
            row_end = min(rows, row + step)
            first = min(first_key[r][index] for r in range(row, row_end)) // KEY_STEP * KEY_STEP
            mask = triangle_QQ[None, : end - start, : end - start]
            if context.mask_BTT is not None:
                mask = context.mask_BTT[row:row_end, start:end, first:end]
            yield _Block(
                rows=slice(row * kv_heads, row_end * kv_heads),
                queries=slice(start * group, end * group),
                keys=slice(first, end),
                mask=mask[:, None, :, None],
            )


def _weights(q: Tensor, k: Tensor, block: _Block, kv_heads: int, group: int) -> Tensor:
    """softmax(q k' + mask) of one block, (rows K) (Q G) S."""
    scores = torch.bmm(q[block.rows, block.queries], k[block.rows, block.keys].mT)
    by_head = scores.unflatten(1, (-1, group)).unflatten(0, (-1, kv_heads))
    by_head[..., by_head.shape[-1] - block.mask.shape[-1] :].add_(block.mask)
    return torch.softmax(scores, -1)


def _by_kv_head(x_BTHE: Tensor, kv_heads: int) -> Tensor:
    """B T H E -> (B K) (T G) E, a copy."""
    B, T, H, E = x_BTHE.shape
    return x_BTHE.unflatten(2, (kv_heads, H // kv_heads)).transpose(1, 2).reshape(B * kv_heads, T * (H // kv_heads), E)


def _by_token(x: Tensor, like_BTHE: Tensor, kv_heads: int) -> Tensor:
    """The way back, in the dtype of ``like``."""
    B, T, H, E = like_BTHE.shape
    by_row = x.view(B, kv_heads, T, H // kv_heads, E).transpose(1, 2)
    return by_row.reshape(B, T, H, E).to(like_BTHE.dtype)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, context: Context) -> Tensor:
        B, T, H, _ = q_BTHE.shape
        K, group = k_BTKE.shape[2], H // k_BTKE.shape[2]
        keep = any(ctx.needs_input_grad[:3]) and B * T * T * H // 2 <= KEPT_SCORES
        q, k, v = (_by_kv_head(x, K) for x in (q_BTHE, k_BTKE, v_BTKE))
        out, kept = torch.empty_like(q), []
        for block in _blocks(context, K, group, q.dtype):
            weights = _weights(q, k, block, K, group)
            out[block.rows, block.queries] = torch.bmm(weights, v[block.rows, block.keys])
            if keep:
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.context, ctx.kv_heads, ctx.group = context, K, group
        return _by_token(out, q_BTHE, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTHE: Tensor) -> tuple[Tensor | None, ...]:
        """P = softmax(q k'), out = P v:  dv = P' g,  dP = g v',  dS = P (dP - sum(P dP)),  dq = dS k,  dk = dS' q.

        Gradients by k and v are summed over blocks in float32 or wider.
        """
        q, k, v, *kept = ctx.saved_tensors
        K, group, grad = ctx.kv_heads, ctx.group, _by_kv_head(grad_BTHE, ctx.kv_heads)
        wide = torch.promote_types(k.dtype, torch.float32)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        for index, block in enumerate(_blocks(ctx.context, K, group, q.dtype)):
            at_q, at_k = (block.rows, block.queries), (block.rows, block.keys)
            weights = kept[index] if kept else _weights(q, k, block, K, group)
            grad_weights = torch.bmm(grad[at_q], v[at_k].mT)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_q[at_q] = torch.bmm(grad_scores, k[at_k])
            grad_k[at_k] += torch.bmm(grad_scores.mT, q[at_q])
            grad_v[at_k] += torch.bmm(weights.mT, grad[at_q])
        like_kv = grad_BTHE[:, :, :K]
        return _by_token(grad_q, grad_BTHE, K), _by_token(grad_k, like_kv, K), _by_token(grad_v, like_kv, K), None
