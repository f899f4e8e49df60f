"""What one forward pass keeps until its backward, counted tensor by tensor from ``model/``; tested against the real count.

Per token of a layer, in the products' type (s bytes: 2 in bfloat16, 4 in float32), with QK-norm:

    block input, normed input       2 D      attention norm, q k v          s
    q and k before norm, after      2 (HE + KE), v KE                       s     (without QK-norm: after only)
    attention output                HE       projection o                   s
    input and normed input of ffn   2 D      ffn norm, gate and up          s
    gate, up, hidden                3 F      SwiGLU, down                   s
    inverse norms                   2 + H + K                               4
    softmax weights                 H x keys of the block of queries        s     kept only where they are few (KEPT_SCORES)

How many keys a block of queries meets depends on where documents begin: from its own queries only to the whole row before.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.recipe.spec import ModelSpec

BLOCK_QUERIES = 128
"""Queries of one attention product."""
KEPT_SCORES = 1 << 25
"""Softmax weights that one layer may keep for its backward (64 MiB in bfloat16); beyond it they are computed again."""
CHUNK_LOGITS = 1 << 22
"""Logits of a chunk of the loss (16 MiB in float32): more only adds cache misses, fewer make the GEMMs small."""


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
        """As attention decides: half of the square, over rows and heads."""
        return self.rows * self.sequence_length**2 * self.model.heads // 2 <= KEPT_SCORES


def layer_bytes_per_token(model: ModelSpec, compute: str) -> int:
    """Saved by one block, softmax weights left out."""
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    attention = (3 if model.qk_norm else 2) * (queries + keys)
    norms = 2 + (model.heads + model.kv_heads if model.qk_norm else 0)
    return element_bytes(compute) * (4 * model.width + attention + 3 * model.ffn_width) + 4 * norms


def saved_bytes_per_token(model: ModelSpec, compute: str) -> int:
    """All blocks, the final norm's input, the gradient that the loss keeps for the hidden state, ids and rotary angles."""
    ends = 2 * element_bytes(compute) * model.width + 4
    return model.layers * layer_bytes_per_token(model, compute) + ends + 8 + 4 * model.head_width


def score_elements(sequence_length: int) -> tuple[int, int]:
    """Softmax weights of one head over one row: fewest (documents begin with every block of queries), most (one document)."""
    ends = [*range(BLOCK_QUERIES, sequence_length, BLOCK_QUERIES), sequence_length]
    sizes = [end - start for start, end in zip([0, *ends], ends)]
    return sum(size * size for size in sizes), sum(size * end for size, end in zip(sizes, ends, strict=True))


def kept_bytes(one: Pass) -> tuple[int, int]:
    """Everything that is alive when the backward pass begins, fewest and most: by documents, nothing else is open.

    The hidden state itself and, where a row holds several documents, the additive mask stay beside what was saved.
    """
    model, size = one.model, one.element_bytes
    certain = one.tokens * (saved_bytes_per_token(model, one.compute) + size * model.width)
    fewest, most = score_elements(one.sequence_length) if one.keeps_scores else (0, 0)
    per_element = size * model.layers * model.heads * one.rows
    mask = size * one.tokens * one.sequence_length
    return certain + per_element * fewest, certain + per_element * most + mask


def logit_bytes(one: Pass) -> int:
    """Most that the loss holds: the head's gradient in fp32 (4 V D), and the larger of a chunk's buffers and its products.

    A chunk of C tokens: fp32 logits and softmax, 8 C V. From the second on the one before still stands: its softmax, and its
    gradient where that has another type (2 C V in bfloat16).
    """
    V, D, size = one.model.vocabulary, one.model.width, one.element_bytes
    chunk = min(loss_chunk_tokens(V), one.tokens)
    gradient = 6 if size == 2 else 4
    buffers = (8 + (gradient if one.tokens > chunk else 0)) * chunk * V
    return 4 * V * D + max(buffers, gradient * chunk * V + size * V * D, (4 + size) * V * D)


def block_backward_bytes(one: Pass) -> int:
    """What the last block's backward takes beyond what it has released: the largest of norm, attention and SwiGLU.

    The norms work in fp32 on three copies of their input; SwiGLU holds three gradients of the feed-forward width.
    Measured at six shapes: 0.74 to 1.02 of this.
    """
    model = one.model
    return one.tokens * max(12 * model.width, 12 * model.heads * model.head_width, 3 * one.element_bytes * model.ffn_width)
