"""Where this engine does otherwise than an engine of its kind is planned: what, by how much, and why.

    tensor parallelism     what was gathered is kept; each layer gathers for itself what planned ones share, and latents in place
                           of the stream
    context parallelism    keys and values apart, kept; of latents, what was made of them
    recomputation          what a block's forward pass exchanges otherwise, again; but not the last sum, which no gradient needs
    experts                tokens are gathered over tp before they are sent; loads are counted over whole rows
    pipelines              the ends have one neighbour; a shared embedding's gradient travels in shards
    states                 embedding, last norm and head are one group; routers are groups in float32

Every amount follows from the sizes of the model and the layout; what is planned comes from ``step/communication.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.activations import GROUPED_CHUNKS, element_bytes, loss_chunk_tokens
from headway.plan.held import Held, held, is_whole, padded, whole
from headway.plan.step.communication import Collective, Kind, collectives, kv_bytes, scatters_each_pass, stream_bytes
from headway.plan.work import Layout, Recompute, Work
from headway.recipe.roles import norms_of_block
from headway.recipe.spec import ModelSpec

MASTER_BYTES, COUNT_BYTES = 4, 8

Key = tuple[str, str, str]
"""Axis, kind, phase."""


def _keys(axis: str) -> tuple[Key, Key, Key, Key]:
    """Gathers and sums of the forward pass, then of the backward pass, where they change roles."""
    kinds = ("all_gather", "reduce_scatter")
    forward, backward = (tuple((axis, kind, phase) for kind in kinds) for phase in ("forward", "backward"))
    return forward[0], forward[1], backward[0], backward[1]


TP_GATHER, TP_SCATTER, TP_GATHER_B, TP_SCATTER_B = _keys("tp")
CP_GATHER, _, CP_GATHER_B, CP_SCATTER_B = _keys("cp")
GATHER, _, GATHER_B, SCATTER = _keys("dp_shard")
TP_SUM, TP_SUM_B, TP_STEP = (("tp", "all_reduce", phase) for phase in ("forward", "backward", "step"))
PP_STEP = ("pp", "all_reduce", "step")
CP_SUM, REPLICATE = ("cp", "all_reduce", "forward"), ("dp_replicate", "all_reduce", "backward")
SEND, SEND_B = (("ep", "all_to_all", phase) for phase in ("forward", "backward"))


@dataclass(frozen=True)
class Departure:
    """What this engine adds (or leaves out: below 0) to what is planned, per step and rank."""

    key: Key
    calls: float
    bytes: float
    reason: str


def departures(work: Work, layout: Layout) -> Iterator[Departure]:
    yield from _with_recomputed(_blocks(work, layout), work, layout)
    if layout.pp > 1:
        yield from _messages(work, layout)
    if layout.tp > 1:
        yield from _ends(work, layout)
        yield from _whole_gradients(work, layout)
    if layout.shards > 1:
        yield from _weights(work, layout)
        yield from _gradients(work, layout)
        yield from _padding(work, layout)
    if layout.dp_replicate > 1:
        yield from _replicas(work, layout)


def _blocks(work: Work, layout: Layout) -> Iterator[Departure]:
    """Inside of blocks."""
    if layout.tp > 1:
        yield from _tensor(work, layout)
    if layout.cp > 1:
        yield from _context(work, layout)
    if layout.ep > 1:
        yield from _experts(work, layout)
    yield from _loads(work, layout)


def _with_recomputed(found: Iterator[Departure], work: Work, layout: Layout) -> Iterator[Departure]:
    """What departs in a block's forward pass departs again where it is computed again."""
    for one in found:
        yield one
        axis, kind, phase = one.key
        if layout.recompute is Recompute.FULL and phase == "forward":
            yield Departure((axis, kind, "backward"), one.calls, one.bytes, one.reason)
    if layout.recompute is Recompute.FULL and layout.tp > 1 and ends_in_product(work.model):
        times = layout.micro_batches(work.batch) * held(work.model, layout).blocks
        yield Departure(TP_SCATTER_B, -times, -times * stream_bytes(work, layout), NOT_AGAIN)


NOT_AGAIN = "a block is computed again up to what its gradients need: not its last product, nor the sum of that over ranks"


def ends_in_product(model: ModelSpec) -> bool:
    """Whether no norm follows within a block."""
    return model.block in ("pre", "parallel", "parallel-two-norms")


@lru_cache(maxsize=64)
def planned_here(work: Work, layout: Layout) -> tuple[Collective, ...]:
    """Of the rank that is run; a message to a neighbour is sent by one and received by the other."""
    here = held(work.model, layout)
    ends = {"": True, "first": here.is_first, "last": here.is_last, "ends": here.is_first or here.is_last}
    found = [one for one in collectives(work, layout) if one.axis != "world" and ends[one.stage]]
    return tuple(one for one in found if one.kind is not Kind.SEND_RECV)


@lru_cache(maxsize=64)
def planned_messages(work: Work, layout: Layout) -> tuple[tuple[Key, float, float], ...]:
    """(key, calls, bytes) of what is sent to the next stage, or to the one before, and received from the other."""
    found = [one for one in collectives(work, layout) if one.kind is Kind.SEND_RECV]
    return tuple(
        (("pp", kind, str(one.phase)), one.calls, one.calls * one.payload_bytes) for one in found for kind in ("send", "recv")
    )


def key_of(one: Collective) -> Key:
    return str(one.axis), str(one.kind), str(one.phase)


def _planned(work: Work, layout: Layout, key: Key, name: str = "") -> tuple[float, float]:
    """(calls, bytes) of those whose name begins so."""
    found = [one for one in planned_here(work, layout) if key_of(one) == key and one.name.startswith(name)]
    return sum(one.calls for one in found), sum(one.calls * one.payload_bytes for one in found)


# --- tensor parallelism -------------------------------------------------------------------------------------------------

KEPT = "what was gathered for a product is kept, not gathered again"


def _tensor(work: Work, layout: Layout) -> Iterator[Departure]:
    calls, size = _planned(work, layout, TP_GATHER_B, "gather of inputs again")
    yield Departure(TP_GATHER_B, -calls, -size, KEPT)
    yield from _layers(work, layout)
    if work.model.experts is not None:
        yield from _tokens_of_experts(work, layout)


def _inputs(calls: float, size: float, reason: str) -> Iterator[Departure]:
    """Gathered, and their gradients summed."""
    yield Departure(TP_GATHER, calls, size, reason)
    yield Departure(TP_SCATTER_B, calls, size, reason)


def _outputs(calls: float, size: float, reason: str) -> Iterator[Departure]:
    """Summed, and their gradients gathered."""
    yield Departure(TP_SCATTER, calls, size, reason)
    yield Departure(TP_GATHER_B, calls, size, reason)


def _layers(work: Work, layout: Layout) -> Iterator[Departure]:
    """What attention and feed-forward exchange otherwise."""
    model, passes, stream = work.model, layout.micro_batches(work.batch), stream_bytes(work, layout)
    times = passes * held(model, layout).blocks
    if model.block.startswith("parallel"):
        more = times * (2 - norms_of_block(model)[1])
        reason = "attention and feed-forward of a parallel block exchange for themselves"
        yield from _inputs(more, more * stream, reason)
        yield from _outputs(times, times * stream, reason)
    if model.latent is not None:
        latent, turned = model.latent, model.latent.rope_width
        wider = latent.kv_rank + turned + (latent.query_rank or model.width) - model.width
        size = times * work.rank_tokens(layout) * wider * work.element_bytes
        reason = "latents of keys, what turns of them, and those of queries are gathered, in place of the stream"
        yield from _inputs(times * (1 + (turned > 0)), size, reason)


def _tokens_of_experts(work: Work, layout: Layout) -> Iterator[Departure]:
    model, stream, experts = work.model, stream_bytes(work, layout), work.model.experts
    assert experts is not None
    times, shared = layout.micro_batches(work.batch) * held(model, layout).routed, 1 if experts.shared else 0
    if layout.ep > 1:
        size = times * (experts.top_k + shared - 1) * stream
        reason = "tokens are gathered before they are sent to experts, not all their copies behind it"
        yield from _inputs(0, -size, reason)
        yield from _outputs(0, -size, reason)
    if shared:
        yield from _inputs(times, times * stream, "shared experts exchange for themselves")
        yield from _outputs(times, times * stream, "shared experts exchange for themselves")
    chosen, reason = times * work.rank_tokens(layout) * experts.top_k, "with tokens go their choices and weights"
    yield Departure(TP_GATHER, 2 * times, chosen * (COUNT_BYTES + MASTER_BYTES), reason)
    yield Departure(TP_SCATTER_B, times, chosen * MASTER_BYTES, reason)


def _ends(work: Work, layout: Layout) -> Iterator[Departure]:
    """Of embedding and loss."""
    model, passes = work.model, layout.micro_batches(work.batch)
    if not held(model, layout).is_last:
        return
    if further := passes * model.mtp_layers:
        size = further * stream_bytes(work, layout)
        yield from _outputs(further, size, "heads for further tokens look up the embedding again")
    heads = passes + further
    chunks = _chunks(int(work.rank_tokens(layout)), -(-model.vocabulary // layout.tp))
    reason = f"the loss is taken in {chunks} chunks of tokens, with two exchanges each: the same bytes"
    yield Departure(TP_SUM, heads * (2 * chunks - 3), 0.0, reason)


def _chunks(tokens: int, vocabulary: int) -> int:
    """Of the loss: groups of a few chunks, the last ones shorter."""
    chunk = loss_chunk_tokens(vocabulary)
    group = chunk * GROUPED_CHUNKS
    return tokens // group * GROUPED_CHUNKS + -(-(tokens % group) // chunk)


def _whole_gradients(work: Work, layout: Layout) -> Iterator[Departure]:
    """Of one micro-batch those of blocks are in the type of products, but for routers; sums over several, and those of a
    pipeline, in float32."""
    times = _scatters(work, layout)
    reason = (
        f"gradients of what every tensor rank has whole are summed one by one, behind {'each' if times > 1 else 'the last'} pass"
    )
    calls, size = _planned(work, layout, TP_STEP)
    yield Departure(TP_STEP, -calls, -size, reason)
    summed = layout.pp > 1 or layout.micro_batches(work.batch) > times
    narrow = MASTER_BYTES if summed else element_bytes(work.precision)
    found = [shape for shape in held(work.model, layout).shapes if is_whole(shape)]
    wide = [".router." in shape.name or not shape.name.startswith(("layers.", "mtp.")) for shape in found]
    size = sum(whole(shape, layout) * (MASTER_BYTES if is_wide else narrow) for shape, is_wide in zip(found, wide, strict=True))
    yield Departure(TP_SUM_B, times * len(found), times * size, reason)


# --- context, experts -----------------------------------------------------------------------------------------------------


def _context(work: Work, layout: Layout) -> Iterator[Departure]:
    model, times = work.model, layout.micro_batches(work.batch) * held(work.model, layout).blocks
    calls, size = _planned(work, layout, CP_GATHER_B, "gather of keys and values again")
    yield Departure(CP_GATHER_B, -calls, -size, "keys and values stay gathered until their gradients are taken")
    more, wider, reason = times, 0.0, "keys and values are exchanged one after the other: the same bytes"
    if model.latent is not None:
        latent, turned = model.latent, model.latent.rope_width
        row = model.heads / layout.tp * (latent.nope_width + latent.value_width) + turned
        wider = times * (layout.micro_batch * work.sequence * row * work.element_bytes - kv_bytes(work, layout))
        more, reason = times * (turned > 0), "of latents, the keys and values of heads that were made of them are exchanged"
    yield Departure(CP_GATHER, more, wider, reason)
    yield Departure(CP_SCATTER_B, more, wider, reason)


def _experts(work: Work, layout: Layout) -> Iterator[Departure]:
    """Rows of all tokens that a tensor rank has gathered, in the type of the stream."""
    experts = work.model.experts
    assert experts is not None
    size = layout.micro_batches(work.batch) * held(work.model, layout).routed * stream_bytes(work, layout) * experts.top_k
    if layout.tp > 1:
        for key in (SEND, SEND_B):
            yield Departure(key, 0, 2 * size * (1 - 1 / layout.tp), "each tensor rank sends all tokens that it has gathered")
    if work.precision == "float8":
        yield Departure(SEND, 0, size / layout.tp / 2, "tokens travel in the type of the stream")


def _loads(work: Work, layout: Layout) -> Iterator[Departure]:
    experts = work.model.experts
    if experts is None:
        return
    times = layout.micro_batches(work.batch) * held(work.model, layout).routed
    size = times * layout.micro_batch * experts.experts * COUNT_BYTES
    for key, ranks in ((TP_SUM, layout.tp), (CP_SUM, layout.cp)):
        if ranks > 1:
            yield Departure(key, times, size, "loads of experts are counted over whole sequences")


# --- states ---------------------------------------------------------------------------------------------------------------

ONE_GROUP = "embedding, last norm and head are one group"
PADDING = "each parameter is cut by its first dimension, which is padded to as many rows for each rank"
ROUTERS = "each router is a group, gathered in float32 because it computes so"
IN_BLOCK = "experts that all ranks have are gathered with their block"


def _weights(work: Work, layout: Layout) -> Iterator[Departure]:
    passes, here = layout.micro_batches(work.batch), held(work.model, layout)
    root, width = here.root(layout), MASTER_BYTES if here.embeds else work.weight_bytes
    wider, routers = root * (width - work.weight_bytes), here.routers * (MASTER_BYTES - work.weight_bytes)
    if layout.pp > 1:
        if here.embeds:
            yield Departure(GATHER, 0, wider, "with the embedding its group is gathered in float32, because it is read so")
        yield from _copied(GATHER, work, layout, work.weight_bytes)
        yield from _groups_of_experts(GATHER, here, layout, 1, routers)
        return
    if layout.zero == 3:
        reason = f"{ONE_GROUP}, gathered in float32 because the embedding is read so"
        yield Departure(GATHER, -passes, passes * wider, reason)
        yield Departure(GATHER_B, -2 * passes, -passes * root * work.weight_bytes, "that group stays until its micro-batch ends")
        for key in (GATHER, GATHER_B):
            yield from _groups_of_experts(key, here, layout, passes, passes * routers)
        return
    once, size = _planned(work, layout, GATHER)
    reason = f"weights are gathered for every micro-batch, not once a step; {ONE_GROUP}"
    yield Departure(GATHER, passes * (once - 1) - once, passes * (size + wider) - size, reason)
    yield from _groups_of_experts(GATHER, here, layout, passes, passes * routers)


def _copied(key: Key, work: Work, layout: Layout, bytes_: float) -> Iterator[Departure]:
    """``bytes_`` per parameter."""
    if own_copy(work.model, layout):
        size = work.model.vocabulary * work.model.width / layout.tp * bytes_
        yield Departure(key, 0, size, OWN_COPY)


OWN_COPY = "heads for further tokens have an embedding of their own stage, which learns as the first one's"


def own_copy(model: ModelSpec, layout: Layout) -> bool:
    """Whether this stage has a copy of the embedding that is not planned."""
    return layout.pp > 1 and held(model, layout).is_last and model.mtp_layers > 0 and not model.tied_embeddings


def _groups_of_experts(key: Key, here: Held, layout: Layout, passes: int, size: float) -> Iterator[Departure]:
    if here.routed:
        yield Departure(key, passes * here.routed, size, ROUTERS)
        if layout.ep == 1:
            yield Departure(key, -passes * here.routed, 0.0, IN_BLOCK)


def _gradients(work: Work, layout: Layout) -> Iterator[Departure]:
    times = _scatters(work, layout)
    if layout.pp == 1:
        yield Departure(SCATTER, -times, 0.0, ONE_GROUP)
    yield from _copied(SCATTER, work, layout, MASTER_BYTES)
    yield from _groups_of_experts(SCATTER, held(work.model, layout), layout, times, 0.0)


def _scatters(work: Work, layout: Layout) -> int:
    """How often a step, of each group."""
    return layout.micro_batches(work.batch) if scatters_each_pass(layout) else 1


def _replicas(work: Work, layout: Layout) -> Iterator[Departure]:
    if layout.pp == 1:
        yield Departure(REPLICATE, -1, 0.0, ONE_GROUP)
    yield from _copied(REPLICATE, work, layout, MASTER_BYTES / layout.shards)
    yield from _groups_of_experts(REPLICATE, held(work.model, layout), layout, 1, 0.0)


def _messages(work: Work, layout: Layout) -> Iterator[Departure]:
    """Of the ends of a pipeline, and of an embedding that both have."""
    model, here, passes = work.model, held(work.model, layout), layout.micro_batches(work.batch)
    size = passes * stream_bytes(work, layout) / layout.tp
    for kind, phase in [("recv", "forward"), ("send", "backward")] if here.is_first else []:
        yield Departure(("pp", kind, phase), -passes, -size, "nobody is before the first chunk")
    for kind, phase in [("send", "forward"), ("recv", "backward")] if here.is_last else []:
        yield Departure(("pp", kind, phase), -passes, -size, "nobody is behind the last chunk")
    calls, planned = _planned(work, layout, PP_STEP)
    shared = (model.tied_embeddings or model.mtp_layers > 0) and (here.is_first or here.is_last)
    if not shared:
        return
    reason = "both ends of the pipeline send each other their shards of the embedding's gradient"
    if calls:
        yield Departure(PP_STEP, -calls, -planned, reason)
    rows = math.ceil(math.ceil(model.vocabulary / layout.tp) / layout.shards)
    for kind in ("send", "recv"):
        yield Departure(("pp", kind, "step"), 1, MASTER_BYTES * rows * model.width, reason)


def _padding(work: Work, layout: Layout) -> Iterator[Departure]:
    passes, added = layout.micro_batches(work.batch), padded(work.model, layout)
    if not any(added.elements.values()):
        return
    blocks = added.elements["block"] * work.weight_bytes + added.elements["router"] * MASTER_BYTES
    root = added.elements["root"] * (MASTER_BYTES if held(work.model, layout).embeds else work.weight_bytes)
    yield Departure(GATHER, 0, (passes if layout.pp == 1 else 1) * (blocks + root), PADDING)
    if layout.zero == 3 and layout.pp == 1:
        yield Departure(GATHER_B, 0, passes * blocks, PADDING)
    yield Departure(SCATTER, 0, _scatters(work, layout) * MASTER_BYTES * sum(added.elements.values()), PADDING)
    if layout.dp_replicate > 1:
        yield Departure(REPLICATE, 0, MASTER_BYTES * added.of_rank, PADDING)
