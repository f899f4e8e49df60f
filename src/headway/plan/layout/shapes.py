"""What there is to choose from: mesh axes that the model and the links allow, and of each shape the options that fit.

    shapes     tp, cp, pp, ep, replicas               divisors that the model and the links allow
    options    zero, shards, micro-batch, chunks      of these, all; of recomputation only the least that fits

``pins``: fields of a layout that are given, and not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headway.base.errors import ConfigError
from headway.formulas.stages import most_chunks
from headway.plan.layout.feasible import SIZES, divisors, few_sequences
from headway.plan.layout.sieve import Fit, Shape, Sieve
from headway.plan.work import Cluster, Layout, Pipeline, Recompute, Work

LONG_PART_TOKENS = 4096
"""A sequence is not cut into parts shorter than this: attention between ranks would cost more than it saves."""
MOST_CHUNKS = 8
"""Of a pipeline rank: more are not looked at. Each adds messages that nothing hides on real networks (Llama 3 had 8)."""

Pins = Mapping[str, object]


def shape_of(layout: Layout) -> Shape:
    return layout.tp, layout.pp, layout.ep, layout.virtual, layout.pipeline, layout.zero


def checked_pins(fixed: Pins) -> dict[str, object]:
    known = Layout.__dataclass_fields__
    for name in fixed:
        if name not in known:
            raise ConfigError(f"a layout has no field {name!r}", f"fields: {', '.join(known)}", "name one of them")
    return dict(fixed)


def tensor_sizes(work: Work, cluster: Cluster, pins: Pins) -> Iterator[list[int]]:
    """First those within a domain and one doubling beyond, to say what it would cost; further ones only if nothing fits."""
    sizes = [t for t in divisors(work.model.heads) if cluster.chips % t == 0]
    if "tp" in pins:
        yield [t for t in sizes if t == pins["tp"]]
        return
    yield [t for t in sizes if t <= 2 * cluster.domain]
    yield [t for t in sizes if t > 2 * cluster.domain]


def shapes(sieve: Sieve, pins: Pins, tps: list[int]) -> Iterator[Layout]:
    """Mesh axes that the model and the batch allow; data ranks all share states at first."""
    work, cluster = sieve.work, sieve.cluster
    base = replace(Layout(), **{k: v for k, v in pins.items() if k not in SIZES})  # type: ignore[arg-type]
    for tp in tps:
        for cp in _pinned(pins, "cp", _context_sizes(work, cluster.chips // tp)):
            most = min(most_chunks(work.model), cluster.chips // (tp * cp))
            for pp in _pinned(pins, "pp", [p for p in divisors(cluster.chips // (tp * cp)) if p <= most]):
                if cluster.chips % (tp * cp * pp):
                    continue
                dp = cluster.chips // (tp * cp * pp)
                shape = replace(base, tp=tp, cp=cp, pp=pp, dp_shard=dp)
                if dp <= sieve.least_batch:
                    yield from _with_experts(work, shape, pins)
                else:
                    sieve.refuse(few_sequences(sieve.least_batch, dp))


def _context_sizes(work: Work, chips: int) -> list[int]:
    return [c for c in divisors(chips) if c == 1 or (work.sequence % (2 * c) == 0 and work.sequence // c >= LONG_PART_TOKENS)]


def _with_experts(work: Work, shape: Layout, pins: Pins) -> Iterator[Layout]:
    experts = work.model.experts
    sizes = [e for e in divisors(experts.experts) if shape.shards % e == 0] if experts else [1]
    for ep in _pinned(pins, "ep", sizes):
        yield replace(shape, ep=ep)


def options(shape: Layout, pins: Pins, sieve: Sieve) -> Iterator[Fit]:
    """Layouts of one shape that fit, each with the least recomputation that lets it."""
    if sieve.among is not None and (shape.tp, shape.pp, shape.ep) not in {wanted[:3] for wanted in sieve.among}:
        return
    if not sieve.may_fit(shape):
        return
    for split in _splits(shape, pins):
        for zero in _zeros(split, pins):
            for chunked in _chunkings(sieve.work, replace(split, zero=zero), pins):
                if sieve.among is None or shape_of(chunked) in sieve.among:
                    yield from _micro_batches(chunked, pins, sieve)


def _splits(shape: Layout, pins: Pins) -> Iterator[Layout]:
    """States over all data ranks, or replicated groups of 8, 64, ... of them: every factor of eight."""
    dp = shape.dp_shard
    shards = [s for s in divisors(dp) if s == dp or _is_power_of(s, 8)]
    for size in _pinned(pins, "dp_shard", shards):
        if dp % size == 0 and pins.get("dp_replicate", dp // size) == dp // size:
            yield replace(shape, dp_shard=size, dp_replicate=dp // size)


def _is_power_of(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1


def _zeros(split: Layout, pins: Pins) -> list[int]:
    """A pipeline holds weights and gradients through the step: there 2 and 3 do what 1 does."""
    if "zero" in pins:
        return [int(str(pins["zero"]))]
    if split.shards == 1:
        return [0]
    return [1, 2, 3] if split.pp == 1 else [1]


def _chunkings(work: Work, split: Layout, pins: Pins) -> Iterator[Layout]:
    """One chunk a rank, with gradients of weights put off to fill the pipeline where they stay whole; or interleaved ones:
    powers of two, and one layer each."""
    if split.pp == 1 or pins.get("pipeline", Pipeline.INTERLEAVED) is not Pipeline.INTERLEAVED:
        yield from (replace(split, virtual=v) for v in _pinned(pins, "virtual", [1]))
        return
    most = most_chunks(work.model) // split.pp
    sizes = [v for v in range(1, min(most, MOST_CHUNKS) + 1) if v & (v - 1) == 0 or v == most]
    for virtual in _pinned(pins, "virtual", sizes):
        order = Pipeline.INTERLEAVED if virtual > 1 else pins.get("pipeline", Pipeline.ONE_F_ONE_B)
        yield replace(split, virtual=virtual, pipeline=order)  # type: ignore[arg-type]
        if virtual == 1 and "pipeline" not in pins and split.zero <= 1:
            yield replace(split, virtual=1, pipeline=Pipeline.ZERO_BUBBLE)


def _micro_batches(chunked: Layout, pins: Pins, sieve: Sieve) -> Iterator[Fit]:
    share = -(-sieve.least_batch // chunked.dp)
    sizes = [2**k for k in range(share.bit_length()) if 2**k <= share]
    kinds = [chunked.recompute] if "recompute" in pins else _recomputations(sieve.work)
    for size in _pinned(pins, "micro_batch", sizes):
        layout = replace(chunked, micro_batch=size)
        if not sieve.can_be(layout):
            continue
        fits = (sieve.fit(replace(layout, recompute=kind)) for kind in kinds)
        least = next((fit for fit in fits if fit is not None), None)
        if least is None:
            return  # a larger one needs more
        yield least
        kinds = kinds[kinds.index(least[0].recompute) :]  # and lets no less be recomputed


def _recomputations(work: Work) -> list[Recompute]:
    """From none to full. Where scores never reach memory, selective saves nothing."""
    some = [Recompute.LIGHT, Recompute.OPS] if work.implementation.flash else [Recompute.SELECTIVE]
    return [Recompute.NONE, *some, Recompute.FULL]


def _pinned(pins: Pins, name: str, sizes: list[int]) -> list[int]:
    return [int(str(pins[name]))] if name in pins else sizes
