"""Causal attention within documents and windows, forward and backward, in blocks of queries that stay in cache.

    keys ->   0   Q   2Q  3Q           Each block of Q queries meets only the keys from its first query's start (of its
    queries  [#\\ .   .   . ]           document, or of its window) to its own end: at most half of the square is computed,
       |     [# # \\  .   . ]           less with short documents or windows. Masks are added to scores in place: that of
       v     [. \\ # \\  .  ]           documents, or the causal edge of the last Q keys; and a window's edge over the first
             [. . \\ #  \\  ]           ones, the same triangle in every block.

On a CPU this is 1.7 to 4 times as fast as ``scaled_dot_product_attention`` in bfloat16, forward and backward
(bench/training.py prints both): its products are large enough for the GEMM library, and its softmax
is one vectorised kernel. Softmax is computed in float32, but from scores that the GEMM has rounded to the compute dtype: half
a unit in 256 of their size in bfloat16, which QK-norm bounds by sqrt E times the gains. (float32 scores cost three times as
much.) Separate calls per document or per run of whole rows were not faster than the mask.

Under context parallelism queries are those of some chunks of the row (``Visible.columns``), and no block reaches over two runs.

Shapes: B rows, T time, s of it with queries (alone: all), H heads, K kv heads, G = H / K heads per kv head, E width of a query
and key, V of a value, Q queries of a block, S keys it meets. Kernels work on (B K) (T G) E, where a kv head's G heads are
neighbours, so that grouped queries are one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.formulas.activations import BLOCK_QUERIES, BLOCK_SCORES, KEPT_SCORES, KEY_STEP
from headway.model.columns import Columns
from headway.model.context import Visible
from headway.model.shape_only import is_shape_only


def attend(q_BsHE: Tensor, k_BTKE: Tensor, v_BTKV: Tensor, visible: Visible, softcap: float | None = None) -> Tensor:
    """softmax(q k') v of every query over the tokens that it sees -> B s H V.

    ``q`` comes scaled (by 1 / sqrt E, see ``kernels.norm_rotate``). With ``softcap`` c, scores become c tanh(scores / c).
    """
    if q_BsHE.device.type != "cpu" or is_shape_only(q_BsHE):
        return attend_sdpa(q_BsHE, k_BTKE, v_BTKV, visible, softcap)
    return _Attend.apply(q_BsHE, k_BTKE, v_BTKV, visible, softcap)


def attend_sdpa(q_BsHE: Tensor, k_BTKE: Tensor, v_BTKV: Tensor, visible: Visible, softcap: float | None = None) -> Tensor:
    """The same by torch's own kernels, for accelerators. Only those without a mask know grouped queries and flash attention."""
    group = q_BsHE.shape[2] // k_BTKE.shape[2]
    if softcap is None and visible.is_causal:
        q, k, v = (x.transpose(1, 2) for x in (q_BsHE, k_BTKE, v_BTKV))
        if visible.columns.is_all:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=group > 1).transpose(1, 2)
        return _causal_runs(q, k, v, visible.columns).transpose(1, 2)
    sees_B1sT = visible.sees_BsT()[:, None]
    q, k, v = (x.transpose(1, 2) for x in (q_BsHE, k_BTKE.repeat_interleave(group, 2), v_BTKV.repeat_interleave(group, 2)))
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=sees_B1sT, scale=1.0).transpose(1, 2)
    capped_BHsT = _cap(q @ k.mT, softcap).masked_fill(~sees_B1sT, -torch.inf)
    return (capped_BHsT.softmax(-1).to(v.dtype) @ v).transpose(1, 2)


def _causal_runs(q_BHsE: Tensor, k_BKTE: Tensor, v_BKTV: Tensor, columns: Columns) -> Tensor:
    """Each run of queries against the row up to its last one -> B H s V: no mask is made where a kernel knows this edge."""
    outs, grouped = [], q_BHsE.shape[1] > k_BKTE.shape[1]
    for queries, column in columns.pieces():
        end = column + queries.stop - queries.start
        of_run = (q_BHsE[:, :, queries], k_BKTE[:, :, :end], v_BKTV[:, :, :end])
        edge = _edge(end - column, end, q_BHsE)
        outs.append(F.scaled_dot_product_attention(*of_run, attn_mask=edge, scale=1.0, enable_gqa=grouped))
    return torch.cat(outs, 2)


def _edge(queries: int, keys: int, like: Tensor) -> Tensor:
    """The last query sees the last key: what stands in for a mask, but for shapes alone, which torch cannot make of it."""
    if is_shape_only(like):
        return like.new_ones((queries, keys), dtype=torch.bool).tril(keys - queries)
    from torch.nn.attention.bias import causal_lower_right  # not at start: it imports torch's compiler, as long as torch itself

    return cast(Tensor, causal_lower_right(queries, keys))


def _cap(scores: Tensor, softcap: float) -> Tensor:
    """c tanh(scores / c), in float32 or wider: near the cap, bfloat16 would lose the slope 1 - tanh^2."""
    return (scores.to(torch.promote_types(scores.dtype, torch.float32)) / softcap).tanh() * softcap


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One product: ``rows`` of (B K), ``queries`` of (s G), ``keys`` of T."""

    rows: slice
    queries: slice
    keys: slice
    masks: list[tuple[slice, Tensor]]  # of which of its keys; additive, broadcasts over rows, K, Q, G, these keys


def _blocks(visible: Visible, kv_heads: int, group: int, dtype: torch.dtype) -> Iterator[_Block]:
    """The blocks in a fixed order: forward and backward walk it alike."""
    masks, pieces = _Masks(visible, dtype), list(visible.columns.pieces(BLOCK_QUERIES))
    first_key = visible.start_Bs[:, [queries.start for queries, _ in pieces]].tolist()
    rows = len(first_key)
    for index, (queries, column) in enumerate(pieces):
        count = queries.stop - queries.start
        end = column + count
        widest = end if visible.window is None else min(end, count + visible.window)
        step = max(1, BLOCK_SCORES // (count * group * widest * kv_heads))
        for row in range(0, rows, step):
            row_end = min(rows, row + step)
            first = min(first_key[r][index] for r in range(row, row_end)) // KEY_STEP * KEY_STEP
            covering = masks(slice(row, row_end), queries, slice(first, end))
            yield _Block(
                rows=slice(row * kv_heads, row_end * kv_heads),
                queries=slice(queries.start * group, queries.stop * group),
                keys=slice(first, end),
                masks=[(keys, mask[:, None, :, None]) for keys, mask in covering],
            )


class _Masks:
    """Masks of blocks, cut from three tensors: of documents (rows, Q, keys), of the causal edge and the window's (Q, keys).

    The window's edge hides key ``first + j`` from the query in column ``c + i`` where j < i + shift,
    shift = c - window + 1 - first, which is below KEY_STEP because blocks begin at the first key that is seen or less than a
    step before it.
    """

    def __init__(self, visible: Visible, dtype: torch.dtype):
        self.documents_BsT, self.window = visible.mask_BsT, visible.window
        hidden = visible.start_Bs.new_full((BLOCK_QUERIES, KEY_STEP + BLOCK_QUERIES), -torch.inf, dtype=dtype)
        self.causal_QQ = hidden[:, KEY_STEP:].triu(1)
        self.edge_QS = hidden.tril_(KEY_STEP - 1)  # column KEY_STEP + j of row i is hidden where j < i

    def __call__(self, rows: slice, queries: slice, keys: slice) -> Iterator[tuple[slice, Tensor]]:
        """Of the block's ``keys``, the last of which is the last query's own, which ones each mask covers; and the mask."""
        count, met = queries.stop - queries.start, keys.stop - keys.start
        if self.documents_BsT is None:
            yield slice(met - count, met), self.causal_QQ[None, :count, :count]
        else:
            yield slice(0, met), self.documents_BsT[rows, queries, keys]
        if self.window is None:
            return
        shift = met - count - self.window + 1
        covered = min(met, count - 1 + shift)  # what the last query does not see
        if covered > 0:
            yield slice(0, covered), self.edge_QS[None, :count, KEY_STEP - shift : KEY_STEP - shift + covered]


def _scores(q: Tensor, k: Tensor, block: _Block, softcap: float | None) -> Tensor:
    """q k' of one block before masks, (rows K) (Q G) S."""
    scores = torch.bmm(q[block.rows, block.queries], k[block.rows, block.keys].mT)
    return scores if softcap is None else _cap(scores, softcap)


def _softmax(scores: Tensor, block: _Block, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """softmax(scores + masks). ``scores`` are overwritten."""
    by_head = scores.unflatten(1, (block.masks[0][1].shape[2], -1)).unflatten(0, (-1, kv_heads))
    for keys, mask in block.masks:
        by_head[..., keys].add_(mask)
    return torch.softmax(scores, -1).to(dtype)


def _weights_and_slope(q: Tensor, k: Tensor, block: _Block, kv_heads: int, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """A block's softmax, computed again, and the derivative of the cap, 1 - tanh^2."""
    scores = _scores(q, k, block, softcap)
    slope = None if softcap is None else 1 - (scores / softcap).square_()
    return _softmax(scores, block, kv_heads, q.dtype), slope


def _by_kv_head(x_BTHE: Tensor, kv_heads: int) -> Tensor:
    """B T H E -> (B K) (T G) E, a copy."""
    B, T, H, E = x_BTHE.shape
    return x_BTHE.unflatten(2, (kv_heads, H // kv_heads)).transpose(1, 2).reshape(B * kv_heads, T * (H // kv_heads), E)


def _by_token(x: Tensor, kv_heads: int, group: int, dtype: torch.dtype) -> Tensor:
    """The way back, in ``dtype``."""
    return x.unflatten(0, (-1, kv_heads)).unflatten(2, (-1, group)).transpose(1, 2).flatten(2, 3).to(dtype)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q_BsHE: Tensor, k_BTKE: Tensor, v_BTKV: Tensor, visible: Visible, softcap: float | None) -> Tensor:
        B, s, H, _ = q_BsHE.shape
        K, group = k_BTKE.shape[2], H // k_BTKE.shape[2]
        keep = any(ctx.needs_input_grad[:3]) and softcap is None and B * s * k_BTKE.shape[1] * H // 2 <= KEPT_SCORES
        q, k, v = (_by_kv_head(x, K) for x in (q_BsHE, k_BTKE, v_BTKV))
        out, kept = q.new_empty(*q.shape[:2], v.shape[-1]), []
        for block in _blocks(visible, K, group, q.dtype):
            weights = _softmax(_scores(q, k, block, softcap), block, K, q.dtype)
            out[block.rows, block.queries] = torch.bmm(weights, v[block.rows, block.keys])
            if keep:
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.visible, ctx.softcap, ctx.kv_heads, ctx.group = visible, softcap, K, group
        return _by_token(out, K, group, q_BsHE.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BsHV: Tensor) -> tuple[Tensor | None, ...]:
        """P = softmax(q k'), out = P v:  dv = P' g,  dP = g v',  dS = P (dP - sum(P dP)),  dq = dS k,  dk = dS' q.

        Under a cap c, S = c tanh(q k' / c) gives dS a factor 1 - (S / c)^2. Gradients by k and v are summed over blocks in
        float32 or wider.
        """
        q, k, v, *kept = ctx.saved_tensors
        K, group, softcap, grad = ctx.kv_heads, ctx.group, ctx.softcap, _by_kv_head(grad_BsHV, ctx.kv_heads)
        wide = torch.promote_types(k.dtype, torch.float32)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        for index, block in enumerate(_blocks(ctx.visible, K, group, q.dtype)):
            at_q, at_k = (block.rows, block.queries), (block.rows, block.keys)
            weights, slope = (kept[index], None) if kept else _weights_and_slope(q, k, block, K, softcap)
            grad_scores = torch._softmax_backward_data(torch.bmm(grad[at_q], v[at_k].mT), weights, -1, weights.dtype)
            if slope is not None:
                grad_scores.mul_(slope)
            grad_q[at_q] = torch.bmm(grad_scores, k[at_k])
            grad_k[at_k] += torch.bmm(grad_scores.mT, q[at_q])
            grad_v[at_k] += torch.bmm(weights.mT, grad[at_q])
        by_token = (_by_token(grad_q, K, group, q.dtype), _by_token(grad_k, K, 1, k.dtype), _by_token(grad_v, K, 1, v.dtype))
        return *by_token, None, None
