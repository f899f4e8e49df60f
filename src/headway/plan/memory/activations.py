"""What one block keeps for its backward and what it works with meanwhile: bytes per token of a rank, by kind.

A token here is one of the rank's own (micro-batch x sequence / cp). Kept by a block in 16 bits, nothing computed again:

    norms          input and output of each norm                       4 d each            over tp with sequence parallelism
    attention      q, k, v, output; lse in fp32                        4 HE + 4 KE + 4 H   over tp
    feed_forward   gate, up, their product (or up and its activation)  6 f (or 4 f)        over tp
    scores         softmax, its mask, what the mask leaves             2 to 5 H s          over tp, without flash attention
    masks          of dropout on both outputs                          2 d                 as the norms
    routed         router, dispatched tokens, experts, their outputs

With LayerNorm, GELU of 4 d, dropout and no flash this is 34 d + 5 H s (arXiv 2205.05198, equations 1 to 4); today's decoder
has 8 d + 4 HE + 4 KE + 4 H + 6 f. Recomputation keeps less and works with more:

    light       no outputs of norms and activations, latents in place of heads; in float8 what goes into products in 8 bits
    selective   all but scores      ops   every second product, attention's output, the block's input      full   the input
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.recompute import Recompute
from headway.plan.step.shares import kv_ways
from headway.plan.work import EXPERT_IMBALANCE, Implementation, Loss
from headway.recipe.roles import norms_of_block
from headway.recipe.spec import ModelSpec

LOGIT_BYTES = {Loss.EAGER: (2, 12), Loss.IN_PLACE: (2, 8), Loss.COMPILED: (4, 0)}
"""Per logit: in the products' type (2 bytes), and in fp32. Eager: copy, log-softmax, gradient (torch.nn.functional)."""

EAGER_SPLIT_BYTES = 4
"""One fp32 array more per logit where the vocabulary is split over tp: exp(log-softmax) (torch.distributed loss_parallel)."""

LOSS_CHUNK_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Per token: kept until backward, by kind; and most that forward and backward hold beyond that."""

    attention: float
    feed_forward: float
    norms: float
    scores: float
    masks: float
    routed: float
    forward: float = 0.0
    backward: float = 0.0

    @property
    def kept(self) -> float:
        return self.attention + self.feed_forward + self.norms + self.scores + self.masks + self.routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What decides over a block's bytes, beside the model. ``keys``: tokens that a row of scores has, 0 with flash."""

    tp: int
    cp: int
    sequence_parallel: bool
    recompute: Recompute
    implementation: Implementation
    keys: int
    size: int  # bytes of an element of activations
    product_size: int = 2  # of what a product keeps as its input, where it is kept for that alone

    @property
    def makes_full(self) -> bool:
        """Whether inputs and results of the group's products stand whole in memory: a fused collective works in pieces."""
        return self.tp > 1 and not self.implementation.overlap_tp

    @property
    def stream_ways(self) -> int:
        return self.tp if self.sequence_parallel else 1


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements per token on one rank."""

    full: float  # d
    stream: float  # d of the residual stream, as it is split
    query: float
    key: float
    value: float
    output: float  # of attention, before its projection
    ranks: float  # of latent attention, before and after their norms
    heads: float
    inner: float  # of a feed-forward, or of all experts that a token passes
    dispatched: float  # d of tokens sent to experts; 0 in dense blocks


@lru_cache(maxsize=4096)
def block_bytes(model: ModelSpec, routed: bool, cut: Cut) -> BlockBytes:
    """Of one block of ``model``; ``routed``: with experts."""
    widths = _widths(model, routed, cut)
    everything = _everything(model, routed, widths, cut)
    kept = _kept(model, routed, widths, everything, cut)
    forward = max(_forward_feed_forward(model, widths, cut), _forward_attention(widths, cut))
    return BlockBytes(
        attention=kept.attention,
        feed_forward=kept.feed_forward,
        norms=kept.norms,
        scores=kept.scores,
        masks=kept.masks,
        routed=kept.routed,
        forward=forward,
        backward=_backward(model, widths, everything.kept - kept.kept, cut),
    )


def logit_bytes_per_token(model: ModelSpec, cut: Cut) -> tuple[float, float]:
    """(per token whose logits exist at once, per token of a micro-batch): the loss; final norm and what the head reads."""
    halves, fp32 = LOGIT_BYTES[cut.implementation.loss]
    if cut.implementation.loss is Loss.EAGER and cut.tp > 1:
        fp32 += EAGER_SPLIT_BYTES
    per_logit = cut.size * halves / 2 + (fp32 if cut.size == 2 else fp32 / 2)
    hidden = cut.size * (2 * model.width / cut.stream_ways + (model.width if cut.sequence_parallel and cut.makes_full else 0))
    return per_logit * model.vocabulary / cut.tp * (1 + model.mtp_layers), hidden


# --- widths ---------------------------------------------------------------------------------------------------------------


def _widths(model: ModelSpec, routed: bool, cut: Cut) -> Widths:
    heads, kv, latent = model.heads / cut.tp, model.kv_heads / kv_ways(model, cut.tp), model.latent
    if latent is not None:
        kv = heads
    ranks = 2 * ((latent.query_rank or 0) + latent.kv_rank) + latent.rope_width if latent else 0
    passed = _experts_passed(model) if routed else 0.0
    return Widths(
        full=model.width,
        stream=model.width / cut.stream_ways,
        query=heads * model.head_width,
        key=kv * model.head_width,
        value=kv * model.value_width,
        output=heads * model.value_width,
        ranks=ranks / cut.stream_ways,
        heads=heads,
        inner=_inner(model, routed) / cut.tp,
        dispatched=passed * model.width / cut.stream_ways,
    )


def _experts_passed(model: ModelSpec) -> float:
    assert model.experts is not None
    return model.experts.top_k * EXPERT_IMBALANCE


def _inner(model: ModelSpec, routed: bool) -> float:
    if not routed:
        return model.ffn_width
    assert model.experts is not None
    return (_experts_passed(model) + model.experts.shared) * model.experts.width


def _inner_tensors(model: ModelSpec, cut: Cut) -> int:
    """Of the inner width that a feed-forward makes: unfused, the activated gate is one more."""
    return (3 if cut.implementation.fused else 4) if model.gated else 2


# --- kept -----------------------------------------------------------------------------------------------------------------


def _everything(model: ModelSpec, routed: bool, widths: Widths, cut: Cut) -> BlockBytes:
    """Nothing computed again."""
    size, flash = cut.size, cut.implementation.flash
    before_norm = widths.query + widths.key if model.qk_norm else 0
    attention = size * (widths.query + widths.key + widths.value + widths.output + widths.ranks + before_norm)
    inner = size * _inner_tensors(model, cut) * widths.inner
    return BlockBytes(
        attention=attention + (4 * widths.heads if flash else 0),
        feed_forward=0 if routed else inner,
        norms=_norm_bytes(model, widths, cut),
        scores=0 if flash else _score_bytes(cut) * widths.heads * cut.keys,
        masks=2 * widths.stream if cut.implementation.dropout else 0,
        routed=inner + _routing_bytes(model, widths, cut) if routed else 0,
    )


def _norm_bytes(model: ModelSpec, widths: Widths, cut: Cut) -> float:
    """Norms of 16-bit values in separate passes keep an fp32 copy and the normed value in fp32; LayerNorm was always fused."""
    inputs, outputs = norms_of_block(model)
    unfused = model.norm == "rmsnorm" and not cut.implementation.fused and cut.size == 2
    return widths.stream * (cut.size * (inputs + outputs) + (8 * outputs if unfused else 0))


def _score_bytes(cut: Cut) -> int:
    """Per score: softmax, and with dropout a mask and what it leaves."""
    return 2 * cut.size + 1 if cut.implementation.dropout else cut.size


def _routing_bytes(model: ModelSpec, widths: Widths, cut: Cut) -> float:
    """Logits and probabilities of the router in fp32; tokens as they go to experts and as they come back."""
    assert model.experts is not None
    return 8 * model.experts.experts / cut.stream_ways + 2 * cut.size * widths.dispatched


def _kept(model: ModelSpec, routed: bool, widths: Widths, everything: BlockBytes, cut: Cut) -> BlockBytes:
    block_input = cut.size * widths.stream
    if cut.recompute is Recompute.FULL:
        return BlockBytes(0, 0, block_input, 0, 0, 0)
    if cut.recompute is Recompute.OPS:
        return _kept_ops(model, routed, widths, cut)
    if cut.recompute is Recompute.LIGHT:
        return _kept_light(model, routed, widths, everything, cut)
    scores = 0 if cut.recompute is Recompute.SELECTIVE else everything.scores
    return BlockBytes(
        everything.attention, everything.feed_forward, everything.norms, scores, everything.masks, everything.routed
    )


def _kept_light(model: ModelSpec, routed: bool, widths: Widths, everything: BlockBytes, cut: Cut) -> BlockBytes:
    """Inputs of norms, latents (or q, k, v), attention's output, gate and up, tokens as they go to experts."""
    made = 0.0 if model.latent else widths.query + widths.key + widths.value
    lse = 4 * widths.heads if cut.implementation.flash else 0
    inner = cut.product_size * (2 if model.gated else 1) * widths.inner
    inputs, _ = norms_of_block(model)
    routing = cut.product_size * widths.dispatched if routed else 0.0
    return BlockBytes(
        attention=cut.size * (made + widths.ranks + widths.output) + lse,
        feed_forward=0 if routed else inner,
        norms=cut.size * inputs * widths.stream,
        scores=everything.scores,
        masks=everything.masks,
        routed=inner + routing if routed else 0,
    )


def _kept_ops(model: ModelSpec, routed: bool, widths: Widths, cut: Cut) -> BlockBytes:
    """Every second product in the order of the block, beginning with the first; attention's output; the block's input."""
    before, inside = _attention_products(model, widths, cut), _feed_forward_products(model, widths, cut)
    kept = [width if at % 2 == 0 else 0.0 for at, width in enumerate([*before, *inside])]
    lse = 4 * widths.heads if cut.implementation.flash else 0
    attention = cut.size * (sum(kept[: len(before)]) + widths.output) + lse
    inner = cut.size * sum(kept[len(before) :])
    dispatched = cut.size * widths.dispatched
    return BlockBytes(attention, 0 if routed else inner, cut.size * widths.stream, 0, 0, inner + dispatched if routed else 0)


def _attention_products(model: ModelSpec, widths: Widths, cut: Cut) -> list[float]:
    latent = model.latent
    if latent is None:
        return [widths.query, widths.key, widths.value, widths.stream]
    ways = cut.stream_ways
    query = [latent.query_rank / ways, widths.query] if latent.query_rank else [widths.query]
    up = widths.heads * (latent.nope_width + latent.value_width)
    return [*query, (latent.kv_rank + latent.rope_width) / ways, up, widths.stream]


def _feed_forward_products(model: ModelSpec, widths: Widths, cut: Cut) -> list[float]:
    """The last product's result is kept by a policy that counts calls; a compiler drops it where backward never reads it."""
    is_read = model.block in ("post", "sandwich") or not cut.implementation.fused
    inner = [widths.inner, widths.inner] if model.gated else [widths.inner]
    return [*inner, (widths.dispatched or widths.stream) if is_read else 0.0]


# --- worked with ----------------------------------------------------------------------------------------------------------


def _forward_feed_forward(model: ModelSpec, widths: Widths, cut: Cut) -> float:
    """Input, inner tensors and output, less what stays; with tensor parallelism input and output have all tokens of the group."""
    inner = _inner_tensors(model, cut)
    stays = {Recompute.FULL: 0, Recompute.OPS: 1}.get(cut.recompute, inner)
    ends = 2 * widths.full if cut.makes_full else widths.stream * (2 if stays < inner else 1)
    in_norm = 12 * widths.stream if not cut.implementation.fused and model.norm == "rmsnorm" else 0
    return max(cut.size * (ends + (inner - stays) * widths.inner), in_norm)


def _forward_attention(widths: Widths, cut: Cut) -> float:
    """Input, q, k, v and output of attention; context parallelism gathers keys and values of the whole sequence."""
    stays = cut.recompute not in (Recompute.FULL, Recompute.OPS)
    made = 0 if stays else widths.query + widths.key + widths.value + widths.output
    gathered = (cut.cp - 1) * (widths.key + widths.value)
    ends = 2 * widths.full if cut.makes_full else widths.stream * (1 if stays else 2)
    return cut.size * (ends + made + gathered)


def _backward(model: ModelSpec, widths: Widths, recomputed: float, cut: Cut) -> float:
    """The block computed again, gradients of the feed-forward, of its ends, and of gathered keys and values."""
    inner = 3 if model.gated else 2
    ends = 2 * widths.stream + (2 * widths.full if cut.makes_full else 0) + 2 * widths.dispatched
    gathered = 2 * (cut.cp - 1) * (widths.key + widths.value)
    scores = 0 if cut.implementation.flash else 2 * cut.size * widths.heads * cut.keys
    return recomputed + max(cut.size * (ends + inner * widths.inner), cut.size * (ends + gathered), scores)
