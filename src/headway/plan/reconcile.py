"""The planner's step beside a dry run of the engine's: every kind of exchange, parameters and FLOPs of a rank, line by line.

    planned          plan/step/communication.py, memory, FLOPs: what an engine of this kind does
    + departures     where this engine does otherwise, each with its reason and by how much
    = expected  <->  seen     calls exactly, bytes and FLOPs within ``BYTES_TOLERANCE``

What is neither planned nor a known departure does not agree, whichever of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headway.formulas.activations import GROUPED_CHUNKS, element_bytes, loss_chunk_tokens
from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.plan.memory.model import sharded_parameters
from headway.plan.memory.stages import stages
from headway.plan.step.communication import Axis, Collective, collectives, scatters_each_pass, stream_bytes
from headway.plan.step.shares import WHOLE, blocks, model_parts
from headway.plan.work import Layout, Work
from headway.recipe.roles import Role, norms_of_block, parameter_shapes
from headway.recipe.spec import ModelSpec, PrecisionSpec

BYTES_TOLERANCE = 0.02
MASTER_BYTES = 4
FORWARD_SHARE = 1 / 3

Key = tuple[str, str, str]
"""Axis, kind, phase."""
GATHER_F, GATHER_B = ("dp_shard", "all_gather", "forward"), ("dp_shard", "all_gather", "backward")
SCATTER, REPLICATE = ("dp_shard", "reduce_scatter", "backward"), ("dp_replicate", "all_reduce", "backward")
TP_GATHER_B, TP_LOSS = ("tp", "all_gather", "backward"), ("tp", "all_reduce", "forward")
TP_SUM_B, TP_STEP = ("tp", "all_reduce", "backward"), ("tp", "all_reduce", "step")


@dataclass(frozen=True)
class Departure:
    """What this engine adds (or leaves out: below 0) to what is planned, per step and rank."""

    key: Key
    calls: float
    bytes: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """Calls are exact; ``bytes``: whole messages, summed over calls (or parameters, or FLOPs: see ``what``)."""

    what: str
    planned_calls: float | None
    planned: float
    expected_calls: float | None
    expected: float
    seen_calls: float | None
    seen: float
    reasons: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        near = abs(self.seen - self.expected) <= BYTES_TOLERANCE * max(abs(self.expected), 1.0)
        return near and self.seen_calls == self.expected_calls


def engine_work(model: ModelSpec, precision: PrecisionSpec, sequence: int, batch: int) -> Work:
    """A step of this engine: fp32 master weights and two moments, gathered in the type that products run in."""
    return Work(
        model=model,
        sequence=sequence,
        batch=batch,
        precision=precision.compute,
        weight_bytes=element_bytes(precision.compute),
        gradient_bytes=MASTER_BYTES,
        optimizer_bytes=12,
    )


def reconcile(work: Work, layout: Layout, seen: dict[str, Any]) -> list[Line]:
    """``seen``: what a dry run answered."""
    return [*_exchanges(work, layout, seen["exchanges"]), *_quantities(work, layout, seen)]


def _exchanges(work: Work, layout: Layout, seen: list[dict[str, Any]]) -> Iterator[Line]:
    planned = _summed(
        (_key(c), c.calls, c.calls * c.payload_bytes) for c in collectives(work, layout) if c.axis is not Axis.WORLD
    )
    met = _summed(((e["axis"], e["kind"], e["phase"]), e["calls"], e["calls"] * e["payload_bytes"]) for e in seen)
    found = list(departures(work, layout))
    added = _summed((d.key, d.calls, d.bytes) for d in found)
    for key in sorted(planned.keys() | met.keys() | added.keys()):
        calls, size = planned.get(key, (0.0, 0.0))
        more_calls, more = added.get(key, (0.0, 0.0))
        seen_calls, seen_bytes = met.get(key, (0.0, 0.0))
        if not (calls or seen_calls or calls + more_calls):
            continue
        axis, kind, phase = key
        yield Line(
            what=f"{axis}, {kind.replace('_', '-')}, {phase}",
            planned_calls=calls,
            planned=size,
            expected_calls=calls + more_calls,
            expected=size + more,
            seen_calls=seen_calls,
            seen=seen_bytes,
            reasons=tuple(d.reason for d in found if d.key == key),
        )


def _key(one: Collective) -> Key:
    return str(one.axis), str(one.kind), str(one.phase)


def _summed(entries: Iterator[tuple[Key, float, float]]) -> dict[Key, tuple[float, float]]:
    found: dict[Key, tuple[float, float]] = {}
    for key, calls, size in entries:
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + calls, before[1] + size)
    return found


def _quantities(work: Work, layout: Layout, seen: dict[str, Any]) -> Iterator[Line]:
    """Parameters and FLOPs of a rank."""
    (held,) = stages(work.model, 1, 1, layout.tp, layout.ep)
    padding = sum(padded(work.model, layout)) / layout.shards
    yield _quantity("parameters of a rank", sharded_parameters(layout, held), seen["parameters"], padding)
    tokens = layout.micro_batches(work.batch) * layout.micro_batch * work.sequence / (layout.cp * layout.tp)
    attention = attention_flops_per_token(work.model, work.sequence, Convention.FULL)
    products = flops_per_token(work.model, work.sequence, Convention.FULL) - attention
    yield _quantity("FLOPs of products", products * tokens, sum(seen["flops"].values()))
    causal = attention_flops_per_token(work.model, work.sequence, Convention.CAUSAL) * tokens
    yield _quantity("FLOPs of attention, forward", causal * FORWARD_SHARE, seen["attention_flops"].get("forward", 0))


def _quantity(what: str, planned: float, seen: float, padding: float = 0.0) -> Line:
    return Line(
        what=what,
        planned_calls=None,
        planned=planned,
        expected_calls=None,
        expected=planned + padding,
        seen_calls=None,
        seen=seen,
        reasons=(PADDING,) if padding else (),
    )


# --- where this engine departs from what is planned ---------------------------------------------------------------------


def departures(work: Work, layout: Layout) -> Iterator[Departure]:
    if layout.tp > 1:
        yield from _tensor(work, layout)
    if layout.shards > 1:
        yield from _weights(work, layout)
        yield from _gradients(work, layout)
    if layout.dp_replicate > 1:
        yield Departure(REPLICATE, _groups(work.model) - _units(work.model), 0.0, ONE_GROUP)
    if layout.shards > 1 and any(padded(work.model, layout)):
        yield from _padding(work, layout)


PADDING = "each parameter is cut by its first dimension, which is padded to as many rows for each rank"
COLUMNS = ("attention.o.", "ffn.down.", "shared.down.")
"""What tensor parallelism does not cut by its first dimension, beside ``WHOLE`` and gains."""


def padded(model: ModelSpec, layout: Layout) -> tuple[float, float]:
    """Elements of a tensor rank that are added so that its rows divide over the ranks that share them: of blocks, of the rest."""
    added = [0.0, 0.0]
    for shape in parameter_shapes(model):
        if shape.role is Role.BALANCE:
            continue
        whole = shape.role is Role.GAIN or any(part in f"{shape.name}." for part in WHOLE) or shape.name == "positions.weight"
        by_row = not whole and len(shape.shape) < 3 and not any(part in f"{shape.name}." for part in COLUMNS)
        rows = -(-shape.shape[0] // layout.tp) if by_row else shape.shape[0]
        row = shape.count / (1 if whole else layout.tp) / rows
        added[not shape.name.startswith(("layers.", "mtp."))] += (-(-rows // layout.shards) * layout.shards - rows) * row
    return added[0], added[1]


def _padding(work: Work, layout: Layout) -> Iterator[Departure]:
    passes, (block, root) = layout.micro_batches(work.batch), padded(work.model, layout)
    yield Departure(GATHER_F, 0, passes * (block * work.weight_bytes + root * MASTER_BYTES), PADDING)
    if layout.zero == 3:
        yield Departure(GATHER_B, 0, passes * block * work.weight_bytes, PADDING)
    times = passes if scatters_each_pass(layout) else 1
    yield Departure(SCATTER, 0, times * MASTER_BYTES * (block + root), PADDING)
    if layout.dp_replicate > 1:
        yield Departure(REPLICATE, 0, MASTER_BYTES * (block + root) / layout.shards, PADDING)


ONE_GROUP = "embedding, last norm and head are one group"


def _tensor(work: Work, layout: Layout) -> Iterator[Departure]:
    model, passes, stream = work.model, layout.micro_batches(work.batch), stream_bytes(work, layout)
    again = passes * norms_of_block(model)[1] * blocks(model)
    yield Departure(TP_GATHER_B, -again, -again * stream, "what was gathered for a product is kept, not gathered again")
    heads = passes * (1 + model.mtp_layers)
    chunks = _chunks(int(work.rank_tokens(layout)), -(-model.vocabulary // layout.tp))
    reason = f"the loss is taken in {chunks} chunks of tokens, with two exchanges each: the same bytes"
    yield Departure(TP_LOSS, heads * (2 * chunks - 3), 0.0, reason)
    planned = 4 * blocks(model) * 2 * model.width
    times = passes if scatters_each_pass(layout) else 1
    whole, size = _whole(work, of_one_pass=times == passes)
    reason = (
        f"gradients of what every tensor rank has whole are summed one by one, behind {'each' if times > 1 else 'the last'} pass"
    )
    yield Departure(TP_STEP, -1, -planned, reason)
    yield Departure(TP_SUM_B, times * whole, times * size, reason)


def _chunks(tokens: int, vocabulary: int) -> int:
    """Of the loss: groups of a few chunks, the last ones shorter."""
    chunk = loss_chunk_tokens(vocabulary)
    group = chunk * GROUPED_CHUNKS
    return tokens // group * GROUPED_CHUNKS + -(-(tokens % group) // chunk)


def _whole(work: Work, *, of_one_pass: bool) -> tuple[int, float]:
    """Parameters that every tensor rank has whole: how many, and the bytes of their gradients. Of one micro-batch these are in
    the type of products, sums over several in float32."""
    size = element_bytes(work.precision) if of_one_pass else MASTER_BYTES
    found = [s for s in parameter_shapes(work.model) if s.role is Role.GAIN or any(part in f"{s.name}." for part in WHOLE)]
    found += [s for s in parameter_shapes(work.model) if s.name == "positions.weight"]
    in_blocks = [s.name.startswith(("layers.", "mtp.")) for s in found]
    return len(found), sum(s.count * (size if inside else MASTER_BYTES) for s, inside in zip(found, in_blocks, strict=True))


def _weights(work: Work, layout: Layout) -> Iterator[Departure]:
    model, passes = work.model, layout.micro_batches(work.batch)
    root, groups, units = _root_parameters(work, layout), _groups(model), _units(model)
    wider = root * (MASTER_BYTES - work.weight_bytes)
    if layout.zero == 3:
        reason = f"{ONE_GROUP}, gathered in float32 because the embedding is read so"
        yield Departure(GATHER_F, passes * (groups - units), passes * wider, reason)
        calls = passes * (groups - 1 - units)
        yield Departure(GATHER_B, calls, -passes * root * work.weight_bytes, "that group stays until its micro-batch ends")
        return
    once = sum(c.calls * c.payload_bytes for c in collectives(work, layout) if _key(c) == GATHER_F)
    reason = f"weights are gathered for every micro-batch, not once a step; {ONE_GROUP}"
    yield Departure(GATHER_F, passes * groups - units, passes * (once + wider) - once, reason)


def _gradients(work: Work, layout: Layout) -> Iterator[Departure]:
    planned = [c for c in collectives(work, layout) if _key(c) == SCATTER]
    passes = layout.micro_batches(work.batch) if scatters_each_pass(layout) else 1
    yield Departure(SCATTER, passes * _groups(work.model) - sum(c.calls for c in planned), 0.0, ONE_GROUP)


def _groups(model: ModelSpec) -> int:
    """That are gathered and scattered together: blocks, their routers, and one for the rest."""
    return blocks(model) + model_parts(model).routed_layers + 1


def _units(model: ModelSpec) -> int:
    """The same as planned: blocks, their experts, embedding, head with the last norm."""
    return blocks(model) + model_parts(model).routed_layers + 2


def _root_parameters(work: Work, layout: Layout) -> float:
    parts = model_parts(work.model)
    return (parts.embedding + parts.head) / layout.tp + parts.ends
