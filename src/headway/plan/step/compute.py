"""Seconds of computation on one chip: the products, attention and memory-bound passes of a block, the head, the update.

    product      2 m k n / rate  +  2 (m k + k n + m n) / bandwidth     operands stream in beside the arithmetic, never for free
    attention    flash: the share of the peak that the kernel reaches on this chip; else products, and passes over the scores
    passes       bytes that elementwise operations read and write / bandwidth

A block of one micro-batch is counted on one rank: its share of tokens (cp), of heads and columns (tp), of experts (ep).
Symbols: n tokens, D width, HE and KE query and key width on this rank, F inner width on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.chips import Chip, dense_peak
from headway.plan.step.fitted import FITTED, Constants
from headway.plan.work import EXPERT_IMBALANCE, Implementation, Layout, Recompute, Work
from headway.recipe.roles import count_norms
from headway.recipe.spec import ModelSpec

ACHIEVABLE_SHARE = 0.8
"""Of the dense peak, for chips whose best product nobody has measured: the measured ones reach 0.73 to 0.93."""
FLASH_SHARE = 0.6
"""Of what products achieve, for chips whose attention nobody has measured."""
ROUTED_LAUNCH_SECONDS = 2.5e-3
"""Of the host per block with experts and pass: permutations, many small products, sizes that the host must know. Assumed."""
FLASH_BACKWARD = {1: 2.5, 2: 3.0}
"""Seconds over the forward pass's: five products instead of two, from the second generation on at 0.83 of its rate (arXiv
2307.08691: 63 % against 73 %); the first generation's constant was fitted over both."""
CONTEXT_PARALLEL_ATTENTION = 1.1
"""Attention in pieces, whose results are joined: assumed."""


@dataclass(frozen=True, slots=True)
class BlockSeconds:
    """One block, one micro-batch. ``again`` is what the backward pass computes a second time before its own work."""

    forward: float
    backward: float
    again: float


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank computes with: rates and local sizes."""

    chip: Chip
    tokens: float
    rate: float
    wide_rate: float
    bandwidth: float
    constants: Constants

    def product(self, m: float, k: float, n: float, count: float = 1.0, wide: bool = False) -> float:
        """``count`` products of (m x k) and (k x n). ``wide``: in sixteen bits whatever the precision."""
        arithmetic = 2 * m * k * n / ((self.wide_rate if wide else self.rate) * self.constants.gemm)
        read = 2 if wide or self.rate == self.wide_rate else 1  # bytes of an operand; results have two
        return count * (arithmetic + (read * (m * k + k * n) + 2 * m * n) / (self.bandwidth * self.constants.operand))

    def passes(self, bytes_: float) -> float:
        return bytes_ / (self.bandwidth * self.constants.memory)


def achievable(chip: Chip, precision: str) -> float:
    """FLOP/s that a product without end reaches. ConfigError where the chip has no such rate."""
    known = chip.achievable.get(precision)
    if known is not None:
        return known
    return ACHIEVABLE_SHARE * dense_peak(chip, precision)


@lru_cache(maxsize=8192)
def block_seconds(work: Work, layout: Layout, chip: Chip, routed: bool, constants: Constants = FITTED) -> BlockSeconds:
    """One block of ``work`` on one rank of ``layout``; ``routed``: with experts."""
    rank = _rank(work, layout, chip, constants)
    products = _attention_products(work.model, layout, rank.tokens)
    products += _expert_products(work, layout, rank.tokens) if routed else _ffn_products(work.model, layout.tp, rank.tokens)
    forward = sum(rank.product(m, k, n, count) for m, k, n, count in products)
    backward = sum(rank.product(m, n, k, count) + rank.product(k, m, n, count) for m, k, n, count in products)
    attention, attention_back = _attention(work, layout, rank)
    passes, passes_back = _passes(work, layout, rank, routed)
    if work.precision == "float8":
        casts = rank.passes(3 * sum(count * (m * k + k * n / 4) for m, k, n, count in products))
        forward, backward = forward + casts, backward + 2 * casts
    total = forward + attention + passes
    again = {Recompute.FULL: total, Recompute.OPS: passes + forward / 2}.get(layout.recompute, 0.0)
    if layout.recompute is Recompute.LIGHT:
        again = passes + sum(rank.product(*product) for product in _from_latents(work.model, layout, rank.tokens))
    if layout.recompute is Recompute.SELECTIVE and not work.implementation.flash:
        again = attention
    floor = ROUTED_LAUNCH_SECONDS if routed else constants.launch_seconds
    return BlockSeconds(
        max(total, floor), max(backward + attention_back + passes_back, 2 * floor), max(again, floor) if again else 0.0
    )


@lru_cache(maxsize=8192)
def head_seconds(work: Work, layout: Layout, chip: Chip, constants: Constants = FITTED) -> tuple[float, float]:
    """Head and loss of one micro-batch, forward and backward: logits in sixteen bits, softmax in thirty-two."""
    rank = _rank(work, layout, chip, constants)
    D, V = work.model.width, work.model.vocabulary / layout.tp
    heads = 1 + work.model.mtp_layers
    forward = heads * (rank.product(rank.tokens, D, V, wide=True) + rank.passes(10 * rank.tokens * V))
    products = rank.product(rank.tokens, V, D, wide=True) + rank.product(D, rank.tokens, V, wide=True)
    return forward, heads * (products + rank.passes(8 * rank.tokens * V))


HOST_BYTES_PER_SECOND = 25e9
"""Of one device's link to host memory, each way: assumed (PCIe 4 x16 reaches about that)."""


def update_seconds(parameters: float, work: Work, layout: Layout, chip: Chip, constants: Constants = FITTED) -> float:
    """The optimizer over ``parameters`` of this rank: gradients read, master weights and moments read and written, weights
    written. Muon's own products, a fraction of a per cent of a step with large batches, are left out.

    Moments in host memory come over the host's link before it, portion by portion, and go back behind it.
    """
    touched = work.gradient_bytes + work.weight_bytes + 2 * (work.master_bytes + work.moment_bytes)
    moved = 2 * work.moment_bytes if layout.offload.moments else 0.0
    return parameters * (touched / (chip.memory_bandwidth * constants.memory) + moved / HOST_BYTES_PER_SECOND)


def _rank(work: Work, layout: Layout, chip: Chip, constants: Constants) -> _Rank:
    wide = "float16" if work.precision == "float16" else "bfloat16"
    wide_rate = achievable(chip, wide)
    rate = achievable(chip, work.precision) if work.precision == "float8" else wide_rate
    tokens = work.rank_tokens(layout)
    return _Rank(chip, tokens, rate, wide_rate, chip.memory_bandwidth, constants)


# --- products -----------------------------------------------------------------------------------------------------------

Product = tuple[float, float, float, float]
"""m, k, n, count."""


def _attention_products(model: ModelSpec, layout: Layout, n: float) -> list[Product]:
    D, t = model.width, layout.tp
    if model.latent is not None:
        latent, H = model.latent, model.heads / t
        query = H * (latent.nope_width + latent.rope_width)
        rank = latent.query_rank
        queries = [(n, D, rank, 1.0), (n, rank, query, 1.0)] if rank else [(n, D, query, 1.0)]
        down, up = latent.kv_rank + latent.rope_width, H * (latent.nope_width + latent.value_width)
        return [*queries, (n, D, down, 1.0), (n, latent.kv_rank, up, 1.0), (n, H * latent.value_width, D, 1.0)]
    HE = model.heads * model.head_width / t
    KE = model.kv_heads * model.head_width / min(t, model.kv_heads)
    return [(n, D, HE + 2 * KE, 1.0), (n, HE, D, 1.0)]


def _from_latents(model: ModelSpec, layout: Layout, n: float) -> list[Product]:
    """The products that make heads from latents."""
    latent, H = model.latent, model.heads / layout.tp
    if latent is None:
        return []
    query = H * (latent.nope_width + latent.rope_width)
    up = (n, latent.kv_rank, H * (latent.nope_width + latent.value_width), 1.0)
    return [(n, latent.query_rank, query, 1.0), up] if latent.query_rank else [up]


def _ffn_products(model: ModelSpec, tp: int, n: float, width: float | None = None) -> list[Product]:
    F = (model.ffn_width if width is None else width) / tp
    return [(n, model.width, (2 if model.gated else 1) * F, 1.0), (n, F, model.width, 1.0)]


def _expert_products(work: Work, layout: Layout, n: float) -> list[Product]:
    """Every rank's tokens are spread over all experts and as many come back to it, so its own experts see n top_k tokens; the
    fullest rank, for which all wait, sees more."""
    model, experts = work.model, work.model.experts
    assert experts is not None
    local = experts.experts / layout.ep
    load = EXPERT_IMBALANCE if layout.ep > 1 else 1.0
    each, F = load * n * experts.top_k / local, experts.width / layout.tp
    routed: list[Product] = [(each, model.width, (2 if model.gated else 1) * F, local), (each, F, model.width, local)]
    shared = _ffn_products(model, layout.tp, n, experts.shared * experts.width) if experts.shared else []
    return [(n, model.width, float(experts.experts), 1.0), *routed, *shared]


# --- attention and passes -----------------------------------------------------------------------------------------------


def seen_tokens(work: Work) -> float:
    """Twice the keys that the average token meets, over all layers: the sequence, less where layers have windows."""
    model, full = work.model, work.context
    if model.window is None or model.window >= full:
        return full
    windowed = sum(model.is_windowed(layer) for layer in range(model.layers)) / model.layers
    inside = 2 * model.window - model.window**2 / full
    return windowed * inside + (1 - windowed) * full


def _attention(work: Work, layout: Layout, rank: _Rank) -> tuple[float, float]:
    """Scores and values under a causal mask, forward and backward."""
    model, n, context = work.model, rank.tokens, seen_tokens(work)
    if model.latent is not None:
        widths = model.latent.nope_width + model.latent.rope_width + model.latent.value_width
    else:
        widths = 2 * model.head_width
    H = model.heads / layout.tp
    if work.implementation.flash:
        rate = min(rank.wide_rate, flash_rate(work.implementation, rank))
        pieces = CONTEXT_PARALLEL_ATTENTION if layout.cp > 1 else 1.0
        seconds = pieces * n * context * H * widths / rate  # half of 2 n context H widths
        return seconds, FLASH_BACKWARD[1 if work.implementation.flash_generation == 1 else 2] * seconds
    # The whole square is computed, in two batched products that are bound by the scores they write and read: see the passes.
    products = 2 * n * context * H * widths / (rank.wide_rate * rank.constants.gemm)
    return products, 2 * products


def flash_rate(implementation: Implementation, rank: _Rank) -> float:
    """FLOP/s of the forward pass. The first generation was bound by vector units and on-chip traffic, which have grown with
    memory bandwidth and not with matrix peaks; later ones were written for a chip and reach a share of its products."""
    if implementation.flash_generation == 1:
        return rank.constants.flash * rank.bandwidth
    known = rank.chip.attention
    asked = implementation.flash_generation or 3
    newest = max((generation for generation in known if generation <= asked), default=min(known, default=None))
    share = FLASH_SHARE if newest is None else known[newest]
    return share * rank.wide_rate


def _passes(work: Work, layout: Layout, rank: _Rank, routed: bool) -> tuple[float, float]:
    """Elementwise reads and writes of a block in sixteen bits, forward and backward."""
    model, how, n = work.model, work.implementation, rank.tokens
    D = n * model.width / (layout.tp if layout.sequence_parallel else 1)
    heads = n * (model.heads + model.kv_heads) * model.head_width / layout.tp if model.position == "rope" else 0.0
    inner = n * _inner_width(model, routed) / layout.tp
    norms = count_norms(model)
    stream = norms * 2 + 2 * (2 if how.fused else 3)  # norms read and write; residual sums
    activation = (3 if how.fused else 5) if model.gated else 2
    rotary = 2 if how.fused else 4
    forward = stream * D + activation * inner + rotary * heads
    backward = (norms * 3 + 2 * (1 if how.fused else 3)) * D + (5 if model.gated else 3) * inner + rotary * heads
    if how.dropout:
        forward, backward = forward + 3 * D, backward + 3 * D  # a mask of one byte, and the values where not fused
    if not how.flash:
        scores = n * seen_tokens(work) * model.heads / layout.tp
        forward += scores * (4 + (2.5 if how.dropout else 0))  # written, softmax, read; dropout with its mask
        backward += scores * (7 + (2.5 if how.dropout else 0))  # four products touch them
    if routed and model.experts is not None:
        moved = 4 * n * model.experts.top_k * model.width / (layout.tp if layout.sequence_parallel else 1)
        forward, backward = forward + moved, backward + moved  # into the order of experts and back
    return rank.passes(2 * forward), rank.passes(2 * backward)


def _inner_width(model: ModelSpec, routed: bool) -> float:
    experts = model.experts
    return experts.width * (experts.top_k + experts.shared) if routed and experts is not None else model.ffn_width
