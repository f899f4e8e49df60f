"""Bytes on one rank at the peak of a step, by component; fast enough for a search over ten thousand layouts.

    state      weights, master copies, moments, gradients              what training must hold, as ZeRO shards it
    gathered   weights that are whole for a while, gradients before they are reduced
    kept       activations of all micro-batches in flight, by kind
    passing    loss, a block's own working memory, buffers of communication, eight-bit copies
    beside     what the allocator holds without use; context and communicators (not in what frameworks report as reserved)

The peak is taken where the loss stands beside everything that forward kept. A caching allocator gives the blocks that forward
worked in to nobody else, so that they are added; backward works in what the loss left, and only its surplus counts.
Sources: ZeRO (arXiv 1910.02054), activations (2205.05198), pipelines (2104.04473), FSDP2 and torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.quantity import Spread
from headway.plan.memory.activations import LOSS_CHUNK_TOKENS, BlockBytes, Cut, block_bytes, logit_bytes_per_token
from headway.plan.memory.stages import Stage, chunks_alive, distinct_stages, stages
from headway.plan.work import EXPERT_IMBALANCE, EXPERT_IMBALANCE_RANGE, Cluster, Layout, Work
from headway.recipe.offload import HELD_BLOCKS, portion_bytes
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ModelSpec

GIB = 2**30
ALLOCATOR_SHARE = 0.05
"""Of everything that comes and goes, held by the caching allocator without use. Assumed: fitted to published peaks of single
model families it comes out anywhere from 0 to 0.14 (``bench/plan_memory.py``), and so does its range below."""

CONTEXT_BYTES = 1.0 * GIB
"""CUDA context, its kernels, libraries' workspaces."""
COMMUNICATOR_BYTES = 0.5 * GIB
"""NCCL's buffers per mesh axis. With the context: 1 to 5 GiB in reports."""

SPREADS: Mapping[str, Spread] = {
    "attention": (0.9, 1.1),
    "feed_forward": (0.9, 1.1),
    "norms": (0.9, 1.1),
    "scores": (0.9, 1.1),
    "routed": (EXPERT_IMBALANCE_RANGE[0] / EXPERT_IMBALANCE, EXPERT_IMBALANCE_RANGE[1] / EXPERT_IMBALANCE),
    "logits": (0.8, 1.1),
    "working": (0.5, 1.5),
    "reduced": (0.75, 1.1),
    "communication": (0.5, 2.0),
    "fp8": (0.0, 1.5),
    "allocator": (0.0, 3.0),
    "context": (0.5, 2.0),
}
"""How far a component may lie off, as factors; what is not listed is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank of pipeline stage ``stage``."""

    stage: int
    weights: float
    master: float
    moments: float
    gradients: float
    gathered: float  # weights of blocks in flight (zero 3), whole
    reduced: float  # gradients on the way to their shards
    attention: float
    feed_forward: float
    norms: float
    scores: float
    masks: float
    routed: float
    logits: float
    working: float
    communication: float
    fp8: float
    allocator: float
    context: float

    @property
    def state(self) -> float:
        """What training must hold from step to step, and gradients."""
        return self.weights + self.master + self.moments + self.gradients

    @property
    def activations(self) -> float:
        return self.attention + self.feed_forward + self.norms + self.scores + self.masks + self.routed

    @property
    def allocated(self) -> float:
        """Tensors: what frameworks report as allocated at most."""
        passing = self.logits + self.working + self.communication + self.fp8
        return self.state + self.gathered + self.reduced + self.activations + passing

    @property
    def reserved(self) -> float:
        """What the framework's allocator has taken from the device: what it reports as reserved at most."""
        return self.allocated + self.allocator

    @property
    def total(self) -> float:
        return self.reserved + self.context

    def parts(self) -> dict[str, float]:
        """Every component; they sum to the total."""
        return {name: getattr(self, name) for name in COMPONENTS}

    def band(self) -> Spread:
        """Least and most of the total, all components erring in one direction."""
        low = sum(bytes_ * SPREADS.get(name, (1.0, 1.0))[0] for name, bytes_ in self.parts().items())
        high = sum(bytes_ * SPREADS.get(name, (1.0, 1.0))[1] for name, bytes_ in self.parts().items())
        return low, high


COMPONENTS = tuple(name for name in RankMemory.__slots__ if name != "stage")


def rank_memory(work: Work, layout: Layout, cluster: Cluster, stage: int) -> RankMemory:
    """Peak of a rank of pipeline stage ``stage``, from 0."""
    assert 0 <= stage < layout.pp, (stage, layout.pp)
    return _stage_memory(_step(work, layout), stage)


def peak_memory(work: Work, layout: Layout, cluster: Cluster) -> RankMemory:
    """Of the stage that needs most."""
    step = _step(work, layout)
    candidates = distinct_stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    return max((_stage_memory(step, stage) for stage in candidates), key=lambda memory: memory.total)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all stages share."""

    work: Work
    layout: Layout
    held: tuple[Stage, ...]
    cut: Cut
    tokens: float
    micro_batches: int
    dense: BlockBytes
    routed: BlockBytes
    context: float

    @property
    def size(self) -> int:
        """Bytes of an element of activations."""
        return self.cut.size


def _step(work: Work, layout: Layout) -> _Step:
    model, cut = work.model, cut_of(work, layout)
    return _Step(
        work,
        layout,
        stages(model, layout.pp, layout.virtual, layout.tp, layout.ep),
        cut,
        work.rank_tokens(layout),
        layout.micro_batches(work.batch),
        block_bytes(model, False, cut),
        block_bytes(model, True, cut) if model.experts else NO_BLOCK,
        CONTEXT_BYTES + COMMUNICATOR_BYTES * _axes(layout),
    )


NO_BLOCK = BlockBytes(0, 0, 0, 0, 0, 0)


def _stage_memory(step: _Step, stage: int) -> RankMemory:
    held = step.held[stage]
    state, passing = state_bytes(step.work, step.layout, held), _passing(step, held)
    kept, (forward, backward) = _kept(step, held, stage), _working(step, held)
    logits = _logits(step) if held.is_last else 0.0
    bucket = _bucket(step, held)
    surplus = max(0.0, backward + bucket - logits - forward)
    passing["reduced"] += min(bucket, surplus)
    working = forward + max(0.0, surplus - bucket)
    comes_and_goes = sum(passing.values()) + sum(kept.values()) + logits + working
    return RankMemory(
        stage=stage,
        **state,
        **passing,
        **kept,
        logits=logits,
        working=working,
        allocator=ALLOCATOR_SHARE * comes_and_goes,
        context=step.context,
    )


def cut_of(work: Work, layout: Layout) -> Cut:
    """What of ``work`` and ``layout`` decides over activations."""
    return Cut(
        tp=layout.tp,
        cp=layout.cp,
        sequence_parallel=layout.sequence_parallel,
        recompute=layout.recompute,
        implementation=work.implementation,
        keys=0 if work.implementation.flash else work.sequence,
        size=work.element_bytes,
        product_size=1 if work.precision == "float8" else work.element_bytes,
    )


# --- state ----------------------------------------------------------------------------------------------------------------


def state_bytes(work: Work, layout: Layout, held: Stage) -> dict[str, float]:
    """ZeRO: 1 shards the optimizer, 2 gradients too, 3 weights too. Experts have their own, smaller group.

    A pipeline sums whole gradients over its micro-batches (``communication.scatters_each_pass``); zero 3: see ``_reduced``.
    Of moments in host memory, what is on the device at once.
    """
    whole, sharded = held.plain + held.experts, sharded_parameters(layout, held)
    moments = moments_bytes(work, layout, held)
    return {
        "weights": work.weight_bytes * (sharded if layout.zero >= 3 else whole),
        "gradients": work.gradient_bytes * (sharded if layout.zero >= (3 if layout.pp > 1 else 2) else whole),
        "moments": _moments_here(work, layout, moments),
        "master": work.master_bytes * (sharded if layout.zero >= 1 else whole),
    }


def moments_bytes(work: Work, layout: Layout, held: Stage) -> float:
    """Of a rank, wherever they lie."""
    return work.moment_bytes * (sharded_parameters(layout, held) if layout.zero >= 1 else held.plain + held.experts)


def _moments_here(work: Work, layout: Layout, moments: float) -> float:
    if not layout.offload.moments:
        return moments
    ways = layout.tp * (layout.shards if layout.zero >= 1 else 1)
    return portion_bytes(moments, work.moment_bytes * _largest_parameter(work.model) / ways)


@lru_cache(maxsize=256)
def _largest_parameter(model: ModelSpec) -> int:
    return max(shape.count for shape in parameter_shapes(model))


def sharded_parameters(layout: Layout, held: Stage) -> float:
    """Of a rank, when its parameters are divided over those that share states."""
    return held.plain / layout.shards + held.experts / expert_shards(layout)


def expert_shards(layout: Layout) -> float:
    """Ranks that hold the same experts and share their states."""
    return max(1.0, layout.shards / layout.ep)


def _passing(step: _Step, held: Stage) -> dict[str, float]:
    """What is whole for a while, and buffers."""
    return {
        "gathered": _gathered(step, held),
        "reduced": _reduced(step, held),
        "communication": _communication(step),
        "fp8": _fp8(step, held) if step.work.precision == "float8" else 0.0,
    }


def _gathered(step: _Step, held: Stage) -> float:
    """Zero 3: this block and the next, embedding and head throughout. Under a pipeline all stay whole for the step."""
    layout = step.layout
    if layout.zero < 3 or (layout.shards == 1 and step.work.weight_bytes == step.size):
        return 0.0
    if layout.pp > 1:
        return step.size * (held.plain + held.experts)
    return step.size * (2 * (held.block + held.block_experts) + held.ends)


def _reduced(step: _Step, held: Stage) -> float:
    """A pipeline of zero 3 sums whole gradients over the step, and shards them behind the last micro-batch. Chunks whose
    micro-batches all follow one another have done so before the next chunk begins."""
    layout = step.layout
    if layout.zero < 3 or layout.pp == 1:
        return 0.0
    one_by_one = step.micro_batches <= layout.pp
    return step.work.gradient_bytes * (held.plain + held.experts) / (layout.virtual if one_by_one else 1)


def _bucket(step: _Step, held: Stage) -> float:
    """Zero 2 and 3: one block's gradient as computed, and in the type in which it is summed."""
    if step.layout.zero < 2:
        return 0.0
    return (held.block + held.block_experts) * (step.size + step.work.gradient_bytes)


# --- activations ----------------------------------------------------------------------------------------------------------


def _kept(step: _Step, held: Stage, stage: int) -> dict[str, float]:
    """By kind, over the stage's blocks and its micro-batches in flight; of those in host memory, what is on the device."""
    times = step.tokens * chunks_alive(step.layout, stage, step.micro_batches) / step.layout.virtual
    if step.layout.offload.activations:
        times = min(times, step.tokens * HELD_BLOCKS / max(1, held.dense_blocks + held.routed_blocks))
    dense, routed, many, few = step.dense, step.routed, times * held.dense_blocks, times * held.routed_blocks
    return {
        "attention": many * dense.attention + few * routed.attention,
        "feed_forward": many * dense.feed_forward,
        "norms": many * dense.norms + few * routed.norms,
        "scores": many * dense.scores + few * routed.scores,
        "masks": many * dense.masks + few * routed.masks,
        "routed": few * routed.routed,
    }


def pass_bytes(work: Work, layout: Layout, held: Stage) -> float:
    """What the blocks of a stage keep of one micro-batch, wherever it lies."""
    step = _step(work, layout)
    return step.tokens * (held.dense_blocks * step.dense.kept + held.routed_blocks * step.routed.kept)


def _working(step: _Step, held: Stage) -> tuple[float, float]:
    """(forward, backward) of the block that works with most."""
    dense = step.dense if held.dense_blocks else NO_BLOCK
    routed = step.routed if held.routed_blocks else NO_BLOCK
    return step.tokens * max(dense.forward, routed.forward), step.tokens * max(dense.backward, routed.backward)


def _logits(step: _Step) -> float:
    """The loss on the last stage, the head's input, and logits that a pipeline keeps: all, and joined once more."""
    work, layout, how, tokens = step.work, step.layout, step.work.implementation, step.tokens
    loss, hidden = logit_bytes_per_token(work.model, step.cut)
    at_once = min(tokens, LOSS_CHUNK_TOKENS) if how.chunked_loss else tokens
    kept = 0.0
    if how.keeps_logits and layout.pp > 1:
        kept = 2 * step.micro_batches * tokens * step.size * work.model.vocabulary / layout.tp
    return loss * at_once + hidden * tokens + kept


# --- buffers --------------------------------------------------------------------------------------------------------------


def _communication(step: _Step) -> float:
    """Pipeline: a message each way, sent and received. Experts: tokens on their way out, as sent and as received."""
    model, layout = step.work.model, step.layout
    stream = step.size * step.tokens * model.width / (layout.tp if layout.sequence_parallel else 1)
    messages = 4 * stream if layout.pp > 1 else 0.0
    return messages + (2 * stream * model.experts.top_k if model.experts and layout.ep > 1 else 0.0)


def _fp8(step: _Step, held: Stage) -> float:
    """One block's weights in both orientations, and what its largest product reads."""
    model = step.work.model
    return 2 * (held.block + held.block_experts) + step.tokens * (model.width + model.ffn_width / step.layout.tp)


def _axes(layout: Layout) -> int:
    return sum(size > 1 for size in (layout.pp, layout.dp, layout.cp, layout.tp, layout.ep))
