"""Causal attention within documents, forward and backward, in blocks of queries that stay in cache.

    keys ->   0   blk  2blk            Each block of queries meets only the keys up to its own end, so about half of the
    queries  [#\\ .   .  ]              square is never computed; -inf is added on the diagonal block only. Documents are
       |     [# # \\  .  ]              separate pieces (context.py) and never meet.
       v     [# # # # \\ ]

On a CPU this is twice as fast as ``scaled_dot_product_attention`` in bfloat16, forward and backward, at the same distance
from float64 (bench/training.py prints both): its matrix products are large enough for the GEMM library, and its softmax is
one vectorised kernel. Scores are rounded to the compute dtype, softmax itself is computed in float32.

Shapes: R rows of a piece, T time, H heads, K kv heads, G = H / K heads per kv head, E head width, Q queries of a block,
S keys it meets. Kernels work on (R K) (T G) E, where a kv head's G heads are neighbours, so that GQA is one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.context import Context, Piece

BLOCK_QUERIES = 128
BLOCK_SCORES = 1 << 20
"""Scores computed at once (2 MiB in bfloat16)."""
KEPT_SCORES = 1 << 25
"""Softmax weights that one layer may keep for its backward (64 MiB in bfloat16); beyond it they are computed again."""


def attend(q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, context: Context) -> Tensor:
    """softmax(q k') v of every token over the tokens of its document up to itself -> B T H E.

    ``q`` comes scaled (by 1 / sqrt E, see ``kernels.norm_rotate``).
    """
    return _Attend.apply(q_BTHE, k_BTKE, v_BTKE, context.pieces)


def _by_kv_head(x_RTHE: Tensor, kv_heads: int) -> Tensor:
    """R T H E -> (R K) (T G) E, a copy."""
    R, T, H, E = x_RTHE.shape
    return x_RTHE.unflatten(2, (kv_heads, H // kv_heads)).transpose(1, 2).reshape(R * kv_heads, T * (H // kv_heads), E)


def _by_token(x: Tensor, like_RTHE: Tensor, kv_heads: int) -> Tensor:
    """The way back, as a view."""
    R, T, H, E = like_RTHE.shape
    return x.view(R, kv_heads, T, H // kv_heads, E).transpose(1, 2).reshape(R, T, H, E)


def _cut(x_BTHE: Tensor, piece: Piece) -> Tensor:
    return x_BTHE[piece.row : piece.row_end, piece.start : piece.end]


@dataclass(frozen=True)
class _Block:
    """One product: ``rows`` of (R K), ``queries`` of (T G), ``keys`` of T; ``mask`` is added to the last columns."""

    rows: slice
    queries: slice
    keys: slice
    mask: Tensor  # broadcasts over (rows R) K Q G ...


def _blocks(piece: Piece, kv_heads: int, group: int, dtype: torch.dtype) -> Iterator[_Block]:
    height, length = piece.row_end - piece.row, piece.end - piece.start
    triangle_QQ = torch.full((BLOCK_QUERIES, BLOCK_QUERIES), -torch.inf, dtype=dtype).triu_(1)
    for start in range(0, length, BLOCK_QUERIES):
        end = min(length, start + BLOCK_QUERIES)
        step = max(1, BLOCK_SCORES // ((end - start) * group * end * kv_heads))
        for row in range(0, height, step):
            rows = slice(row, min(height, row + step))
            if piece.mask_RTT is None:
                mask = triangle_QQ[None, None, : end - start, None, : end - start]
            else:
                mask = piece.mask_RTT[rows, None, start:end, None, :end]
            yield _Block(
                rows=slice(rows.start * kv_heads, rows.stop * kv_heads),
                queries=slice(start * group, end * group),
                keys=slice(0, end),
                mask=mask,
            )


def _weights(q: Tensor, k: Tensor, block: _Block, kv_heads: int, group: int) -> Tensor:
    """softmax(q k' + mask) of one block, (rows) (Q G) S."""
    scores = torch.bmm(q[block.rows, block.queries], k[block.rows, block.keys].mT)
    columns = block.mask.shape[-1]
    by_head = scores.unflatten(1, (-1, group)).unflatten(0, (-1, kv_heads))
    by_head[..., by_head.shape[-1] - columns :].add_(block.mask)
    return torch.softmax(scores, -1)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, pieces: tuple[Piece, ...]) -> Tensor:
        K, group = k_BTKE.shape[2], q_BTHE.shape[2] // k_BTKE.shape[2]
        scores = sum(p.tokens * (p.end - p.start) for p in pieces) * q_BTHE.shape[2]
        keep = any(ctx.needs_input_grad[:3]) and scores <= KEPT_SCORES
        out_BTHE, kept = torch.empty_like(q_BTHE), []
        for piece in pieces:
            q, k, v = (_by_kv_head(_cut(x, piece), K) for x in (q_BTHE, k_BTKE, v_BTKE))
            out = torch.empty_like(q)
            for block in _blocks(piece, K, group, q.dtype):
                weights = _weights(q, k, block, K, group)
                out[block.rows, block.queries] = torch.bmm(weights, v[block.rows, block.keys])
                if keep:
                    kept.append(weights)
            target = _cut(out_BTHE, piece)
            target.copy_(_by_token(out, target, K))
        ctx.save_for_backward(q_BTHE, k_BTKE, v_BTKE, *kept)
        ctx.pieces = pieces
        return out_BTHE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTHE: Tensor) -> tuple[Tensor | None, ...]:
        q_BTHE, k_BTKE, v_BTKE, *kept = ctx.saved_tensors
        K = k_BTKE.shape[2]
        gradients = torch.empty_like(q_BTHE), torch.empty_like(k_BTKE), torch.empty_like(v_BTKE)
        weights = iter(kept) if kept else None
        for piece in ctx.pieces:
            q, k, v, grad = (_by_kv_head(_cut(x, piece), K) for x in (q_BTHE, k_BTKE, v_BTKE, grad_BTHE))
            for whole, part in zip(gradients, _piece_gradients(q, k, v, grad, piece, K, weights), strict=True):
                target = _cut(whole, piece)
                target.copy_(_by_token(part, target, K))
        return *gradients, None


def _piece_gradients(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, piece: Piece, kv_heads: int, kept: Iterator[Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k, v, in their layout; those by k and v are summed over blocks in float32 or wider.

    P = softmax(q k'), out = P v:   dv = P' g,   dP = g v',   dS = P (dP - sum(P dP)),   dq = dS k,   dk = dS' q
    """
    group = q.shape[1] // k.shape[1]
    wide = torch.promote_types(k.dtype, torch.float32)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    for block in _blocks(piece, kv_heads, group, q.dtype):
        at_q, at_k = (block.rows, block.queries), (block.rows, block.keys)
        weights = _weights(q, k, block, kv_heads, group) if kept is None else next(kept)
        grad_weights = torch.bmm(grad[at_q], v[at_k].mT)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_q[at_q] = torch.bmm(grad_scores, k[at_k])
        grad_k[at_k] += torch.bmm(grad_scores.mT, q[at_q])
        grad_v[at_k] += torch.bmm(weights.mT, grad[at_q])
    return grad_q, grad_k, grad_v
