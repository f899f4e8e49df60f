"""What one forward pass keeps until its backward, counted tensor by tensor from ``model/``; tested against the real count.

Per token of a layer, in the products' type (s bytes: 2 in bfloat16, 4 in float32), with QK-norm:

    block input, normed input       2 D      attention norm, q k v          s
    q and k before norm, after      2 (HE + KE), v KE                       s     (without QK-norm: after only)
    attention output                HE       projection o                   s
    input and normed input of ffn   2 D      ffn norm, gate and up          s
    gate, up, hidden                3 F      SwiGLU, down                   s     (without a gate: up, hidden)
    inverse norms                   2 + H + K                               4     (over all heads: 2 + 2)
    softmax weights                 H x keys of the block of queries        s     kept only where they are few (KEPT_SCORES)

The four D are the norms' inputs and what products read: as many as ``roles.NORMS`` says. LayerNorm keeps a mean more. Biases,
multipliers and windows keep nothing of their own, dropout a bool per value and site. Latent attention and experts:

    ranks and their norms           2 Rq + 2 Rkv + Er                       s     queries' and keys' inverse norm: 4 each
    q, k, v after                   H (2 Ek + Ev)                           s
    rows sent, rows come back       2 k D    of k chosen experts            s     k rows of gate, up, hidden: 3 k F
    input of the router             D                                       4     in bfloat16 alone: in float32 it is there
    scores and logits               2 X                                     4     weights 2 k + 1, two sums of scores or logits
    choice, token, place            3 k                                     8     and a mask of 1

How many keys a block of queries meets depends on where documents begin: from its own queries only to the whole row before.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.formulas.flops import attention_layers
from headway.recipe.roles import count_norms, norms_of_block
from headway.recipe.spec import ModelSpec

BLOCK_QUERIES = 128
"""Queries of one attention product."""
KEY_STEP = 32
"""Its keys begin at a multiple of this many: products on odd offsets are slower."""
BLOCK_SCORES = 1 << 20
"""Scores computed at once, over rows and heads."""
KEPT_SCORES = 1 << 25
"""Softmax weights that one layer may keep for its backward (64 MiB in bfloat16); beyond it they are computed again."""
CHUNK_LOGITS = 1 << 22
"""Logits of a chunk of the loss (16 MiB in float32): more only adds cache misses, fewer make the GEMMs small."""

GROUPED_CHUNKS = 2
"""Chunks whose gradients by logits are kept until their products are taken together."""


def loss_chunk_tokens(vocabulary: int) -> int:
    """Tokens whose logits exist at once."""
    return max(64, CHUNK_LOGITS // vocabulary)


def element_bytes(compute: str) -> int:
    return 4 if compute == "float32" else 2


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward and backward pass of a process: ``rows`` windows of ``sequence_length`` tokens."""

    model: ModelSpec
    compute: str
    sequence_length: int
    rows: int

    @property
    def tokens(self) -> int:
        return self.rows * self.sequence_length

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.compute)

    @property
    def keeps_scores(self) -> bool:
        """As attention decides: half of the square, over rows and heads. Under a cap they are always computed again."""
        few = self.rows * self.sequence_length**2 * self.model.heads // 2 <= KEPT_SCORES
        return few and self.model.attention_softcap is None


# --- a block ----------------------------------------------------------------------------------------------------------------


def layer_bytes_per_token(model: ModelSpec, compute: str, *, routed: bool = False) -> int:
    """Saved by one block, softmax weights left out; ``routed``: with experts."""
    size = element_bytes(compute)
    stream = size * sum(norms_of_block(model)) * model.width + count_norms(model) * _norm_bytes(model)
    attention = _latent_bytes(model, size) if model.latent else _attention_bytes(model, size)
    ffn = _expert_bytes(model, size) if routed else size * _inner_tensors(model) * model.ffn_width
    return stream + attention + ffn + 2 * _dropout_bytes(model)


def _norm_bytes(model: ModelSpec) -> int:
    """Of a norm over the model's width, beside its input: inverse, and LayerNorm's mean."""
    return 8 if model.norm == "layernorm" else 4


def _dropout_bytes(model: ModelSpec) -> int:
    """Of one site."""
    return model.width if model.dropout else 0


def _inner_tensors(model: ModelSpec) -> int:
    """Of a feed-forward's inner width: what the activation reads, and what it makes."""
    return 3 if model.gated else 2


def _attention_bytes(model: ModelSpec, size: int) -> int:
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    if not model.qk_norm:
        return size * 2 * (queries + keys)
    inverses = 2 if model.qk_norm_over == "all" else model.heads + model.kv_heads
    return size * 3 * (queries + keys) + 4 * inverses


def _latent_bytes(model: ModelSpec, size: int) -> int:
    """Ranks before and after their norms, queries and keys of all heads, values and attention's output."""
    latent = model.latent
    assert latent is not None
    ranks = 2 * (latent.query_rank or 0) + 2 * latent.kv_rank + latent.rope_width
    heads = model.heads * (2 * latent.key_width + 2 * latent.value_width)
    return size * (ranks + heads) + 4 * (1 if latent.query_rank is None else 2)


def _expert_bytes(model: ModelSpec, size: int) -> int:
    """No row is dropped, so a token has ``top_k`` of them, whatever the loads."""
    experts, D = model.experts, model.width
    assert experts is not None
    inner = _inner_tensors(model) * (experts.top_k + experts.shared) * experts.width
    rows = size * (2 * experts.top_k * D + inner)
    if model.bias == "all":  # each projection adds its biases as a product with the choice of every row
        rows += size * _inner_tensors(model) * experts.top_k * experts.experts
    return rows + _router_bytes(model, size)


def _router_bytes(model: ModelSpec, size: int) -> int:
    """fp32, whatever the model computes in; and what the tally of a micro-batch keeps.

    In bfloat16 the router keeps a wide copy of its input, and nothing may be left that keeps the input itself: the experts
    have copies of its rows.
    """
    experts = model.experts
    assert experts is not None
    k, X = experts.top_k, experts.experts
    is_read = size == 4 or experts.shared or model.block == "parallel"
    wide_input = (4 * model.width if size < 4 else 0) - (0 if is_read else size * model.width)
    weights = 4 * k + (4 * k + 4 if experts.normalise else 0)
    indices, tally = 3 * 8 * k, 4 * X + 4 + 4 + 1
    return wide_input + 4 * X + weights + indices + tally


# --- the model --------------------------------------------------------------------------------------------------------------


def saved_bytes_per_token(model: ModelSpec, compute: str) -> int:
    """All blocks, the final norm's input, the gradient that the loss keeps for the hidden state, ids and rotary angles."""
    routed = sum(model.has_experts(layer) for layer in range(model.layers))
    blocks = (model.layers - routed) * layer_bytes_per_token(model, compute)
    if routed:
        blocks += routed * layer_bytes_per_token(model, compute, routed=True)
    ends = _exit_bytes(model, compute) + _entry_bytes(model, compute)
    return blocks + ends + model.mtp_layers * _further_bytes(model, compute) + 4 * model.turned_width


def _entry_bytes(model: ModelSpec, compute: str) -> int:
    """Ids, of learned positions too; the norm of the embedding; what is dropped of it."""
    ids = 16 if model.position == "learned" else 8
    norm = element_bytes(compute) * model.width + _norm_bytes(model) if model.embedding_norm else 0
    return ids + norm + _dropout_bytes(model)


def _exit_bytes(model: ModelSpec, compute: str) -> int:
    """The final norm and the loss's gradient, of each head."""
    return 2 * element_bytes(compute) * model.width + _norm_bytes(model)


def _further_bytes(model: ModelSpec, compute: str) -> int:
    """A head for one more token: ids; hidden state and embedding, then both normed; a block like the last; its way out.

    Its router counts only tokens that go on, and keeps their scores beside those of all tokens.
    """
    routed = model.has_experts(model.layers - 1)
    block = layer_bytes_per_token(model, compute, routed=routed)
    if model.experts is not None and routed:
        block += 4 * model.experts.experts
    return 8 + 4 * element_bytes(compute) * model.width + 2 * _norm_bytes(model) + block + _exit_bytes(model, compute)


def score_elements(sequence_length: int, window: int | None = None) -> tuple[int, int]:
    """Softmax weights of one head over one row: fewest (documents begin with every block of queries), most (one document)."""
    ends = [*range(BLOCK_QUERIES, sequence_length, BLOCK_QUERIES), sequence_length]
    starts = [0, *ends[:-1]]
    firsts = [0 if window is None else max(0, start - window + 1) // KEY_STEP * KEY_STEP for start in starts]
    blocks = list(zip(starts, ends, firsts, strict=True))
    return sum((end - start) ** 2 for start, end, _ in blocks), sum((end - start) * (end - first) for start, end, first in blocks)


def kept_scores(one: Pass) -> tuple[int, int]:
    """Softmax weights that all layers keep, fewest and most."""
    if not one.keeps_scores:
        return 0, 0
    full, windowed = attention_layers(one.model)
    wide, narrow = score_elements(one.sequence_length), score_elements(one.sequence_length, one.model.window)
    fewest, most = (full * of_full + windowed * of_windowed for of_full, of_windowed in zip(wide, narrow, strict=True))
    return one.rows * one.model.heads * fewest, one.rows * one.model.heads * most


def kept_bytes(one: Pass) -> tuple[int, int]:
    """Everything that is alive when the backward pass begins, fewest and most: by documents, nothing else is open.

    The hidden state itself (of the last head) and, where a row holds several documents, the additive mask stay beside what
    was saved.
    """
    model, size = one.model, one.element_bytes
    certain = one.tokens * (saved_bytes_per_token(model, one.compute) + size * model.width)
    fewest, most = kept_scores(one)
    mask = size * one.tokens * one.sequence_length
    return certain + size * fewest, certain + size * most + mask


# --- beyond what is kept ----------------------------------------------------------------------------------------------------


def logit_bytes(one: Pass) -> int:
    """Most that the loss holds: the head's gradient in fp32 (4 V D), and the larger of a group's buffers and what backward makes.

    A group keeps its gradients by logits, s G V, beside a chunk's fp32 logits and softmax, 8 C V, or a product of s V D. A cap
    takes one copy more of a chunk, and so do masks of heads for further tokens, which each have a gradient until backward.
    """
    V, D, size = one.model.vocabulary, one.model.width, one.element_bytes
    chunk, group = (min(n * loss_chunk_tokens(V), one.tokens) for n in (1, GROUPED_CHUNKS))
    per_logit = 8 + 4 * (one.model.logit_softcap is not None) + 4 * (one.model.mtp_layers > 0)
    buffers = size * group * V + max(per_logit * chunk * V, size * V * D)
    return 4 * V * D * (1 + one.model.mtp_layers) + max(buffers, size * V * D)


def block_backward_bytes(one: Pass) -> int:
    """What the last block's backward takes beyond what it has released: the largest of norm, attention and SwiGLU.

    The norms work in fp32 on three copies of their input; SwiGLU holds three gradients of the feed-forward width, and so do
    experts of their rows. Coming back from experts, rows stand in fp32 two or three times.
    Measured at six shapes of dense models with SwiGLU: 0.74 to 1.02 of this; ``memory.block_spread`` has the others.
    """
    model = one.model
    attention = one.tokens * 12 * model.heads * model.head_width + _score_buffers(one)
    return max(one.tokens * max(12 * model.width, _inner_backward_bytes(model, one.element_bytes)), attention)


def _inner_backward_bytes(model: ModelSpec, size: int) -> int:
    """Of the feed-forward or the experts of the last block, per token."""
    experts = model.experts
    if experts is None or not model.has_experts(model.layers - 1):
        return 3 * size * model.ffn_width
    wide_rows = 12 if size == 2 else 8
    rows = experts.top_k * max(3 * size * experts.width, wide_rows * model.width)
    return max(rows, 3 * size * experts.shared * experts.width)


def _score_buffers(one: Pass) -> int:
    """Scores of one product, where they show: under a cap with its slope in fp32; in parallel blocks, whose feed-forward has
    not released anything yet, with their gradient. Else the feed-forward has released more."""
    model, queries = one.model, min(one.sequence_length, BLOCK_QUERIES)
    scores = min(BLOCK_SCORES, one.rows * model.heads * queries * one.sequence_length)
    if model.attention_softcap is not None:
        return 16 * scores
    return 2 * one.element_bytes * scores if model.block.startswith("parallel") else 0
