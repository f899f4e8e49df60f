"""What a step communicates: every collective with its group, message, number and what it can hide behind.

The one home of these volumes: the model of step time prices them, the communication sheet shows them.

    forward, per block and micro-batch              backward                                step
    tp  gather | attention | scatter                the same mirrored, inputs again         gradients of norms
        gather | feed-forward | scatter
    cp  gather keys and values                      gather again, scatter their gradients
    ep  dispatch | experts | combine                the same mirrored
    pp  send to the next stage                      send to the one before
    dp  gather weights (zero 3)                     gather again, scatter gradients         reduce, gather weights (zero 0, 1)

Messages and calls are those of one rank of the pipeline stage with most blocks; what only the first or the last stage does
says so. Sources: Megatron (arXiv 2104.04473, 2205.05198), ZeRO (1910.02054), FSDP (2304.11277), Llama 3 (2407.21783).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headway.plan.step.shares import busiest_blocks, kv_ways, model_parts, routed_blocks
from headway.plan.work import Layout, Pipeline, Recompute, Work
from headway.recipe.roles import norms_of_block
from headway.recipe.spec import ModelSpec


class Axis(StrEnum):
    """The mesh axis whose ranks take part."""

    TP = "tp"
    CP = "cp"
    EP = "ep"
    DP_SHARD = "dp_shard"  # ranks that share states: dp_shard x cp; dp_shard x cp / ep for experts
    DP_REPLICATE = "dp_replicate"
    PP = "pp"
    WORLD = "world"


class Kind(StrEnum):
    """What a collective does with its message."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


class Phase(StrEnum):
    """When it happens."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Collective:
    """``payload_bytes`` is the whole logical message of one call: the tensor that is gathered or reduced, what one rank hands
    out in an all-to-all, the message that is sent."""

    name: str
    kind: Kind
    axis: Axis
    group: int  # ranks
    stride: int  # distance of neighbours in the group, in the rank order of plan/work.py
    payload_bytes: float
    calls: float  # per optimizer step and rank
    phase: Phase
    overlaps: str = ""  # computation that it can hide behind; empty: nothing, it is exposed
    waits_for: str = ""  # whom it waits for, in plain words
    stage: str = ""  # "first", "last": only that pipeline stage; "ends": both; empty: every stage
    copies: int = 1  # all-to-all: members that get the same token; those in one far domain share one message
    most_domains: int = 0  # all-to-all: domains that one token can reach; 0: all
    every_pass: bool = False  # happens for each micro-batch; else once a step, behind the first or the last one

    @property
    def bytes_per_rank(self) -> float:
        """What one rank sends in one call."""
        return sent_share(self.kind, self.group) * self.payload_bytes

    @property
    def step_bytes_per_rank(self) -> float:
        return self.calls * self.bytes_per_rank


def sent_share(kind: Kind, group: int) -> float:
    """Part of the message that each rank sends, by the algorithms that send least (rings)."""
    if kind is Kind.SEND_RECV:
        return 1.0
    share = (group - 1) / group
    return 2 * share if kind is Kind.ALL_REDUCE else share


def collectives(work: Work, layout: Layout) -> tuple[Collective, ...]:
    """Everything that one rank takes part in during an optimizer step of ``work`` on ``layout``."""
    found: list[Collective] = []
    if layout.tp > 1:
        found += _tensor_parallel(work, layout)
    if layout.cp > 1:
        found += _context_parallel(work, layout)
    if layout.ep > 1 and work.model.experts is not None:
        found += _expert_parallel(work, layout)
    if layout.pp > 1:
        found += _pipeline(work, layout)
    found += _data_parallel(work, layout)
    if layout.world > 1:
        found += _scalars(layout)
    return tuple(found)


# --- sizes that several share ---------------------------------------------------------------------------------------------


def stream_bytes(work: Work, layout: Layout) -> float:
    """The residual stream of one micro-batch on a context rank, whole over tp: 2 s b d / c."""
    return work.rank_tokens(layout) * work.model.width * work.element_bytes


def kv_bytes(work: Work, layout: Layout) -> float:
    """Keys and values of all tokens of a micro-batch in one layer, as one tp rank holds them; latents where there are any."""
    model = work.model
    if model.latent is not None:
        per_token = model.latent.kv_rank + model.latent.rope_width
    else:
        per_token = 2 * model.kv_heads * model.head_width // kv_ways(model, layout.tp)
    return layout.micro_batch * work.sequence * per_token * work.element_bytes


# --- tensor parallelism ---------------------------------------------------------------------------------------------------

_TP_WAITS = "the other ranks of its tensor group, after each product"


def _tensor_parallel(work: Work, layout: Layout) -> Iterator[Collective]:
    yield from _tp_blocks(work, layout)
    yield from _tp_ends(work, layout)
    if layout.sequence_parallel:
        norms = 4 * busiest_blocks(work.model, layout) * 2 * work.model.width
        yield _tp("gradients of norms", Kind.ALL_REDUCE, layout, norms, 1, Phase.STEP)


def _tp(
    name: str, kind: Kind, layout: Layout, payload: float, calls: float, phase: Phase, overlaps: str = "", stage: str = ""
) -> Collective:
    each = phase is not Phase.STEP
    return Collective(name, kind, Axis.TP, layout.tp, 1, payload, calls, phase, overlaps, _TP_WAITS, stage, every_pass=each)


def _tp_blocks(work: Work, layout: Layout) -> Iterator[Collective]:
    """What attention and feed-forward read is gathered before, what they make is summed after."""
    passes, stream = layout.micro_batches(work.batch), stream_bytes(work, layout)
    routed = routed_blocks(work.model, layout) if layout.ep > 1 and layout.sequence_parallel else 0
    reads, makes = _regions(work.model)
    blocks = busiest_blocks(work.model, layout)
    yield from _tp_regions("", layout, stream, (passes * (reads * blocks - routed), passes * (makes * blocks - routed)))
    if routed and work.model.experts is not None:
        # Tokens arrive on one tp rank and are needed on all that hold a part of the expert.
        copies = work.model.experts.top_k + (1 if work.model.experts.shared else 0)
        yield from _tp_regions(" of experts", layout, copies * stream, (passes * routed, passes * routed))


def _regions(model: ModelSpec) -> tuple[int, int]:
    """Inputs that a block's products read, outputs that are summed: a parallel block adds attention and feed-forward before."""
    return norms_of_block(model)[1], 1 if model.block.startswith("parallel") else 2


def _tp_regions(what: str, layout: Layout, payload: float, regions: tuple[float, float]) -> Iterator[Collective]:
    """``regions``: inputs of products that are split by columns, outputs of products that are split by rows."""
    again, (inputs, outputs) = layout.recompute is Recompute.FULL, regions

    def one(name: str, kind: Kind, calls: float, phase: Phase = Phase.BACKWARD, overlaps: str = "") -> Collective:
        return _tp(name.replace("puts", f"puts{what}", 1), kind, layout, payload, calls, phase, overlaps)

    if not layout.sequence_parallel:
        yield one("sum of outputs", Kind.ALL_REDUCE, outputs, Phase.FORWARD)
        if again:
            yield one("sum of outputs, recomputed", Kind.ALL_REDUCE, outputs)
        yield _tp(f"sum of input gradients{what}", Kind.ALL_REDUCE, layout, payload, inputs, Phase.BACKWARD, _WEIGHT_GRADIENT)
        return
    yield one("gather of inputs", Kind.ALL_GATHER, inputs, Phase.FORWARD)
    yield one("scatter of outputs", Kind.REDUCE_SCATTER, outputs, Phase.FORWARD)
    if again:
        yield one("gather of inputs, recomputed", Kind.ALL_GATHER, inputs)
        yield one("scatter of outputs, recomputed", Kind.REDUCE_SCATTER, outputs)
    yield _tp(f"gather of output gradients{what}", Kind.ALL_GATHER, layout, payload, outputs, Phase.BACKWARD)
    # Only the shard of the input was kept; its gather hides behind the gradient of the same input.
    yield _tp(f"gather of inputs again{what}", Kind.ALL_GATHER, layout, payload, inputs, Phase.BACKWARD, _INPUT_GRADIENT)
    yield _tp(f"scatter of input gradients{what}", Kind.REDUCE_SCATTER, layout, payload, inputs, Phase.BACKWARD, _WEIGHT_GRADIENT)


def _tp_ends(work: Work, layout: Layout) -> Iterator[Collective]:
    """Embedding, head and loss over a split vocabulary."""
    passes, stream = layout.micro_batches(work.batch), stream_bytes(work, layout)
    heads = passes * (1 + work.model.mtp_layers)
    if layout.sequence_parallel:
        yield _tp("embedding", Kind.REDUCE_SCATTER, layout, stream, passes, Phase.FORWARD, stage="first")
        yield _tp("embedding gradient", Kind.ALL_GATHER, layout, stream, passes, Phase.BACKWARD, stage="first")
        yield _tp("head", Kind.ALL_GATHER, layout, stream, heads, Phase.FORWARD, stage="last")
        yield _tp("head gradient", Kind.REDUCE_SCATTER, layout, stream, heads, Phase.BACKWARD, stage="last")
    else:
        yield _tp("embedding", Kind.ALL_REDUCE, layout, stream, passes, Phase.FORWARD, stage="first")
        yield _tp("head gradient", Kind.ALL_REDUCE, layout, stream, heads, Phase.BACKWARD, stage="last")
    # Largest logit, sum of exponentials, logit of the target: one fp32 per token each.
    yield _tp("loss", Kind.ALL_REDUCE, layout, 4 * work.rank_tokens(layout), 3 * heads, Phase.FORWARD, stage="last")


_WEIGHT_GRADIENT = "gradient of the same product's weights"
_INPUT_GRADIENT = "gradient of the same product's input"

# --- context, experts, pipeline -------------------------------------------------------------------------------------------


def _context_parallel(work: Work, layout: Layout) -> Iterator[Collective]:
    """Each context rank attends with its queries to keys and values of the whole sequence."""
    payload = kv_bytes(work, layout)
    calls = layout.micro_batches(work.batch) * busiest_blocks(work.model, layout)

    def one(name: str, kind: Kind, phase: Phase) -> Collective:
        waits = "the ranks that hold the other parts of the same sequences"
        return Collective(name, kind, Axis.CP, layout.cp, layout.tp, payload, calls, phase, "", waits, every_pass=True)

    yield one("gather of keys and values", Kind.ALL_GATHER, Phase.FORWARD)
    if layout.recompute is Recompute.FULL:
        yield one("gather of keys and values, recomputed", Kind.ALL_GATHER, Phase.BACKWARD)
    yield one("gather of keys and values again", Kind.ALL_GATHER, Phase.BACKWARD)
    yield one("scatter of their gradients", Kind.REDUCE_SCATTER, Phase.BACKWARD)


def _expert_parallel(work: Work, layout: Layout) -> Iterator[Collective]:
    """Every token goes to top_k experts and comes back, forward and backward."""
    experts = work.model.experts
    assert experts is not None
    calls = layout.micro_batches(work.batch) * routed_blocks(work.model, layout)
    spread = layout.tp if layout.sequence_parallel else 1
    payload = stream_bytes(work, layout) / spread * experts.top_k
    waits = "the ranks whose experts got most tokens"

    def one(name: str, phase: Phase, size: float = payload) -> Collective:
        return Collective(
            name,
            Kind.ALL_TO_ALL,
            Axis.EP,
            layout.ep,
            layout.tp,
            size,
            calls,
            phase,
            hides,
            waits,
            copies=experts.top_k,
            most_domains=experts.groups_per_token,
            every_pass=True,
        )

    # With eight-bit products tokens travel to experts in eight bits, and what comes back in sixteen (arXiv 2412.19437).
    there = payload / 2 if work.precision == "float8" else payload
    hides = "another micro-batch's computation" if work.implementation.overlap_ep else ""
    yield one("tokens per expert", Phase.FORWARD, 8.0 * experts.experts)
    yield one("dispatch to experts", Phase.FORWARD, there)
    yield one("combine from experts", Phase.FORWARD)
    if layout.recompute is Recompute.FULL:
        yield one("tokens per expert, recomputed", Phase.BACKWARD, 8.0 * experts.experts)
        yield one("dispatch to experts, recomputed", Phase.BACKWARD, there)
        yield one("combine from experts, recomputed", Phase.BACKWARD)
    yield one("dispatch of gradients", Phase.BACKWARD)
    yield one("combine of gradients", Phase.BACKWARD)


def _pipeline(work: Work, layout: Layout) -> Iterator[Collective]:
    """A stage sends its tensor rank's part of the stream; without sequence parallelism the receivers gather it (2104.04473)."""
    stride, passes = layout.world // layout.pp, layout.micro_batches(work.batch)
    sent, calls = stream_bytes(work, layout) / layout.tp, passes * layout.virtual
    hides = {Pipeline.INTERLEAVED: "another chunk's micro-batch", Pipeline.ZERO_BUBBLE: "gradients of weights"}
    for name, phase, waits in (
        ("activations to the next stage", Phase.FORWARD, "the stage before: the slowest stage sets the pace"),
        ("gradients to the stage before", Phase.BACKWARD, "the stage after: the slowest stage sets the pace"),
    ):
        overlaps = hides.get(layout.pipeline, "")
        yield Collective(name, Kind.SEND_RECV, Axis.PP, 2, stride, sent, calls, phase, overlaps, waits, every_pass=True)
        if layout.tp > 1 and not layout.sequence_parallel:
            yield _tp(f"gather of received {name.split()[0]}", Kind.ALL_GATHER, layout, sent * layout.tp, calls, phase)
    if work.model.tied_embeddings:
        size = work.gradient_bytes * model_parts(work.model).embedding / layout.tp
        far = stride * (layout.pp - 1)
        waits = "the other end of the pipeline"
        yield Collective(
            "gradients of the tied embedding", Kind.ALL_REDUCE, Axis.PP, 2, far, size, 1, Phase.STEP, "", waits, "ends"
        )


# --- data parallelism -----------------------------------------------------------------------------------------------------

_LAST_BACKWARD = "backward pass of the neighbouring blocks"
_NEXT_FORWARD = "forward pass of the neighbouring blocks"


@dataclass(frozen=True, slots=True)
class _Unit:
    """Parameters that are reduced or gathered together: a block, its experts, the embedding, the head with the last norm (and
    what heads for further tokens have beside their blocks)."""

    name: str
    parameters: float  # on one rank, before sharding
    count: float  # of them on one rank
    ways: int  # expert ranks over which copies do not exist
    stage: str


def _data_parallel(work: Work, layout: Layout) -> Iterator[Collective]:
    """By zero: 0 reduces; 1 reduces to shards and gathers weights once a step; 2 reduces per micro-batch; 3 gathers per
    micro-batch too. A pipeline holds the stage's weights and gradients through the step: there 2 and 3 do as 1."""
    for unit in _units(work, layout):
        shards, stride = layout.shards // unit.ways, layout.tp * unit.ways
        if layout.zero == 0:
            yield from _whole_gradients(work, layout, unit)
            continue
        if shards > 1:
            yield from _gathers(work, layout, unit)
            yield from _scatters(work, layout, unit)
        if layout.dp_replicate > 1:
            size = work.gradient_bytes * unit.parameters / shards
            yield _dp(
                f"sum of gradient shards, {unit.name}", Kind.ALL_REDUCE, unit, (layout.dp_replicate, shards * stride), size, 0
            )


def _units(work: Work, layout: Layout) -> Iterator[_Unit]:
    model, parts = work.model, model_parts(work.model)
    blocks, routed = busiest_blocks(model, layout), routed_blocks(model, layout)
    if blocks > routed:
        yield _Unit("blocks", parts.dense.dense(model, layout), blocks - routed, 1, "")
    if routed:
        yield _Unit("blocks with experts", parts.routed.dense(model, layout), routed, 1, "")
        yield _Unit("experts", parts.routed.routed(layout), routed, layout.ep, "")
    yield _Unit("embedding", parts.embedding / layout.tp + parts.positions, 1, 1, "first")
    copied = parts.embedding if model.tied_embeddings and layout.pp > 1 else 0
    name = "head and last norm" if parts.head or copied else "last norm"
    yield _Unit(name, (parts.head or copied) / layout.tp + parts.ends, 1, 1, "last")


def _dp(
    name: str, kind: Kind, unit: _Unit, ranks: tuple[int, int], per_unit: float, passes: int, phase: Phase = Phase.BACKWARD
) -> Collective:
    """``passes``: how often a step; 0 for once, after or before all micro-batches."""
    group, stride = ranks
    axis = Axis.DP_REPLICATE if kind is Kind.ALL_REDUCE else Axis.DP_SHARD
    overlaps = _NEXT_FORWARD if phase is Phase.FORWARD else _LAST_BACKWARD
    waits = "every replica: the slowest one sets the pace of all"
    calls = max(1, passes) * unit.count
    return Collective(name, kind, axis, group, stride, per_unit, calls, phase, overlaps, waits, unit.stage, every_pass=passes > 0)


def _whole_gradients(work: Work, layout: Layout, unit: _Unit) -> Iterator[Collective]:
    """Zero 0: every data and context rank holds everything, experts excepted."""
    group = layout.dp * layout.cp // unit.ways
    if group > 1:
        ranks = (group, layout.tp * unit.ways)
        yield _dp(f"sum of gradients, {unit.name}", Kind.ALL_REDUCE, unit, ranks, work.gradient_bytes * unit.parameters, 0)


def _gathers(work: Work, layout: Layout, unit: _Unit) -> Iterator[Collective]:
    """Weights: before each use with zero 3, after the update otherwise (hidden behind the first micro-batch)."""
    ranks = (layout.shards // unit.ways, layout.tp * unit.ways)
    size = work.weight_bytes * unit.parameters
    if regathers(layout):
        passes = layout.micro_batches(work.batch)
        yield _dp(f"gather of weights, {unit.name}", Kind.ALL_GATHER, unit, ranks, size, passes, Phase.FORWARD)
        yield _dp(f"gather of weights again, {unit.name}", Kind.ALL_GATHER, unit, ranks, size, passes)
    else:
        yield _dp(f"gather of weights, {unit.name}", Kind.ALL_GATHER, unit, ranks, size, 0, Phase.FORWARD)


def _scatters(work: Work, layout: Layout, unit: _Unit) -> Iterator[Collective]:
    ranks = (layout.shards // unit.ways, layout.tp * unit.ways)
    passes = layout.micro_batches(work.batch) if scatters_each_pass(layout) else 0
    size = work.gradient_bytes * unit.parameters
    yield _dp(f"scatter of gradients, {unit.name}", Kind.REDUCE_SCATTER, unit, ranks, size, passes)


def regathers(layout: Layout) -> bool:
    """Whether weights are gathered for every micro-batch: a pipeline keeps them for the step instead."""
    return layout.zero == 3 and layout.pp == 1


def scatters_each_pass(layout: Layout) -> bool:
    """Whether gradients are reduced to shards after every micro-batch, so that no rank ever holds them whole.

    A pipeline sums whole gradients over its micro-batches and reduces them once (Llama 3, torch.distributed.pipelining;
    DeepSpeed refuses zero 2 and 3 with a pipeline for the same reason).
    """
    return layout.zero >= 2 and layout.pp == 1


def _scalars(layout: Layout) -> Iterator[Collective]:
    """Small, but every rank waits in them for the slowest of all."""
    waits = "all ranks of the job"
    data = layout.dp * layout.cp
    if data > 1:
        yield Collective("loss and token count", Kind.ALL_REDUCE, Axis.WORLD, data, layout.tp, 16.0, 1, Phase.STEP, "", waits)
    yield Collective("gradient norm", Kind.ALL_REDUCE, Axis.WORLD, layout.world, 1, 4.0, 1, Phase.STEP, "", waits)
