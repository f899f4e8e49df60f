"""Layouts that cannot be, each with the rule it breaks and the nearest that can; and what a layout wastes, priced.

    problems        hard: the step would be wrong or impossible          ->  refused, nothing starts
    warnings        priced: the step is right and costs more than it must ->  shares of the step, as quantities
    nearest_layout  the feasible layout with the smallest change, counted in doublings

A published layout whose product is not the number of chips stated is told by the same rule: by which factor, and which axis
would mend it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

from headway.base.errors import ConfigError, Problem
from headway.formulas.quantity import Quantity
from headway.formulas.stages import blocks, most_chunks
from headway.plan.step.shares import busiest_blocks, model_parts
from headway.plan.work import SIZES as MESH_SIZES
from headway.plan.work import Cluster, Layout, Pipeline, Work
from headway.recipe.deployment import AXES

SIZES = (*MESH_SIZES, "micro_batch")
SEQUENCES_RULE = "every replica has at least one sequence"
PRODUCT_RULE = "pp x dp_replicate x dp_shard x cp x tp is the number of chips (ep lies over dp_shard x cp: not counted)"


def problems(work: Work, layout: Layout, cluster: Cluster) -> list[Problem]:
    """Everything that makes ``layout`` impossible; each way out ends in the nearest layout that can be."""
    found = list(broken_rules(work, layout, cluster))
    if not found:
        return []
    nearest = nearest_layout(work, layout, cluster)
    hint = f"nearest that can: {nearest.shown()}" if nearest else "no layout of these chips can hold this work"
    return [replace(p, way_out=f"{p.way_out}; {hint}" if p.way_out else hint) for p in found]


def check_layout(work: Work, layout: Layout, cluster: Cluster) -> None:
    """ConfigError with all problems of ``layout``."""
    found = problems(work, layout, cluster)
    if found:
        raise ConfigError(found)


def is_feasible(work: Work, layout: Layout, cluster: Cluster) -> bool:
    return next(broken_rules(work, layout, cluster), None) is None


def broken_rules(work: Work, layout: Layout, cluster: Cluster) -> Iterator[Problem]:
    """Problems without the search for the nearest layout: cheap."""
    small = [name for name in SIZES if getattr(layout, name) < 1]
    if small:
        yield Problem(f"{small[0]} {getattr(layout, small[0])}", "sizes are 1 or more", "leave out axes that are not used")
        return
    product = product_problem(layout, cluster.chips)
    if product:
        yield product
    for rule in _RULES:
        problem = rule(work, layout)
        if problem:
            yield problem


# --- rules ----------------------------------------------------------------------------------------------------------------


def product_problem(layout: Layout, chips: int) -> Problem | None:
    """The product and the chips, both, and which axis would mend the factor between them."""
    if layout.world == chips:
        return None
    factor = Fraction(chips, layout.world)
    more, times = ("more", factor) if factor > 1 else ("fewer", 1 / factor)
    mends = [f"{axis} {int(getattr(layout, axis) * factor)}" for axis in _mendable(layout, factor)]
    way_out = f"{' or '.join(mends)} would mend it" if mends else "no single axis mends it"
    sizes = " x ".join(f"{axis} {getattr(layout, axis)}" for axis in AXES)
    shown = f"{times}" if times.denominator == 1 else f"{float(times):.3g}"
    seen = f"the layout has {layout.world:,} devices ({sizes}), the cluster {chips:,} chips: {shown} times {more}"
    return Problem(seen, PRODUCT_RULE, way_out)


def _mendable(layout: Layout, factor: Fraction) -> list[str]:
    """Axes that stay whole times ``factor``; data parallelism first, since it changes nothing else."""
    larger = "dp_shard" if layout.dp_shard >= layout.dp_replicate else "dp_replicate"
    order = sorted(AXES, key=lambda axis: (axis != larger, not axis.startswith("dp")))
    whole = [axis for axis in order if (getattr(layout, axis) * factor).denominator == 1]
    return [axis for axis in whole if getattr(layout, axis) > 1 or (factor > 1 and axis.startswith("dp"))]


def _heads(work: Work, layout: Layout) -> Problem | None:
    heads = work.model.heads
    if heads % layout.tp == 0:
        return None
    return Problem(f"tp {layout.tp} for {heads} heads", "each tensor rank has as many heads", _divisors_hint("tp", heads))


def _kv_heads(work: Work, layout: Layout) -> Problem | None:
    kv, tp = work.model.kv_heads, layout.tp
    if work.model.latent is not None or kv % tp == 0 or tp % kv == 0:
        return None
    rule = "key-value heads are split evenly, or each is copied to as many tensor ranks"
    return Problem(f"tp {tp} for {kv} key-value heads", rule, f"a divisor or a multiple of {kv}")


def _widths(work: Work, layout: Layout) -> Problem | None:
    widths = {"ffn width": work.model.ffn_width} if model_parts(work.model).dense.split else {}
    if work.model.experts is not None:
        widths["expert width"] = work.model.experts.width
    for name, width in widths.items():
        if width % layout.tp:
            return Problem(f"tp {layout.tp} for an {name} of {width:,}", "widths are split evenly", _divisors_hint("tp", width))
    return None


def _depth(work: Work, layout: Layout) -> Problem | None:
    have, most, chunks = blocks(work.model), most_chunks(work.model), layout.pp * layout.virtual
    if chunks <= most or chunks == 1:
        return None
    seen = f"{have} layers for pp {layout.pp} x virtual {layout.virtual} = {chunks} chunks"
    return Problem(seen, "a chunk holds a layer at least; the first and the last may have none", f"at most {most} chunks")


def _interleaving(work: Work, layout: Layout) -> Problem | None:
    """torch's schedules take micro-batches in m // pp equal rounds; a multiple of pp, which Megatron asks for, always is one."""
    if layout.virtual == 1:
        return None
    if layout.pp == 1 or layout.pipeline in (Pipeline.ONE_F_ONE_B, Pipeline.GPIPE):
        seen = f"virtual {layout.virtual} with pp {layout.pp} and pipeline {layout.pipeline}"
        return Problem(seen, "several chunks a rank need a pipeline that interleaves them", "virtual 1, or pipeline interleaved")
    passes = layout.micro_batches(work.batch)
    rounds = max(1, passes // layout.pp)
    if passes % rounds == 0:
        return None
    seen = f"{passes} micro-batches a replica over pp {layout.pp}, {layout.pipeline}: {rounds} rounds"
    whole = max(1, round(passes / layout.pp)) * layout.pp
    return Problem(seen, "several chunks a rank take micro-batches in equal rounds", f"virtual 1, or {whole} micro-batches")


def _experts(work: Work, layout: Layout) -> Problem | None:
    experts, ep = work.model.experts, layout.ep
    if ep == 1:
        return None
    if experts is None:
        return Problem(f"ep {ep} for a model without experts", "ep spreads experts over ranks", "ep 1")
    if experts.experts % ep:
        seen = f"ep {ep} for {experts.experts} experts"
        return Problem(seen, "each rank holds as many experts", _divisors_hint("ep", experts.experts))
    if layout.shards % ep:
        seen = f"ep {ep} over dp_shard {layout.dp_shard} x cp {layout.cp} = {layout.shards} ranks"
        return Problem(seen, "experts lie over dp_shard x cp", _divisors_hint("ep", math.gcd(layout.shards, experts.experts)))
    return None


def _context(work: Work, layout: Layout) -> Problem | None:
    cp, sequence = layout.cp, work.sequence
    if cp == 1 or sequence % (2 * cp) == 0:
        return None
    rule = "a causal sequence is cut into 2 cp chunks, one early and one late for each rank, so that all have as much to do"
    return Problem(f"cp {cp} for sequences of {sequence:,} tokens", rule, _divisors_hint("2 cp", sequence))


def _sequence(work: Work, layout: Layout) -> Problem | None:
    part = work.sequence // layout.cp
    if layout.tp == 1 or not layout.sequence_parallel or part % layout.tp == 0:
        return None
    seen = f"tp {layout.tp} for {part:,} tokens of a sequence per context rank"
    rule = "with sequence parallelism norms and residual stream are split over the tensor ranks by token"
    return Problem(seen, rule, _divisors_hint("tp", part))


def _batch(work: Work, layout: Layout) -> Problem | None:
    share = -(-work.batch // layout.dp)
    if layout.dp > work.batch:
        return few_sequences(work.batch, layout.dp)
    if layout.micro_batch <= share:
        return None
    seen = f"micro-batch {layout.micro_batch} where a replica has {share} of {work.batch:,} sequences (dp {layout.dp})"
    return Problem(seen, "a micro-batch is a part of the replica's share", f"micro-batch {share} or less")


def few_sequences(batch: int, replicas: int) -> Problem:
    """``replicas`` for a smaller ``batch``."""
    seen = f"{replicas:,} replicas for a batch of {batch:,} sequences"
    return Problem(seen, SEQUENCES_RULE, "fewer replicas: more tp, pp or cp, or a larger batch")


def _zero(work: Work, layout: Layout) -> Problem | None:
    if layout.zero in (0, 1, 2, 3):
        return None
    return Problem(f"zero {layout.zero}", "0, 1, 2 or 3: what is sharded over dp_shard x cp", "zero 3")


_RULES: tuple[Callable[[Work, Layout], Problem | None], ...] = (
    _heads,
    _kv_heads,
    _widths,
    _depth,
    _interleaving,
    _experts,
    _context,
    _sequence,
    _batch,
    _zero,
)


def _divisors_hint(name: str, of: int) -> str:
    shown = divisors(of)
    return f"{name} one of {', '.join(str(d) for d in shown[:8])}{', ...' if len(shown) > 8 else ''}"


def divisors(number: int) -> list[int]:
    """In order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


# --- the nearest that can -------------------------------------------------------------------------------------------------

_WEIGHTS = {"dp_shard": 0.5, "dp_replicate": 0.6, "micro_batch": 0.7, "virtual": 0.8, "ep": 0.9}
"""Of a doubling; 1 for the others. Replicas change nothing but the share of the batch; tp, cp and pp change every message."""


def nearest_layout(work: Work, layout: Layout, cluster: Cluster) -> Layout | None:
    """The feasible layout with the smallest weighted sum of doublings from ``layout``; None where there is none."""
    best, least = None, math.inf
    for tp, cp, pp in _shapes(work, cluster):
        changed = sum(_doublings(layout, axis, size) for axis, size in (("tp", tp), ("cp", cp), ("pp", pp)))
        if changed >= least:
            continue
        for candidate in _completions(work, replace(layout, tp=tp, cp=cp, pp=pp), cluster):
            distance = sum(_doublings(layout, axis, getattr(candidate, axis)) for axis in SIZES)
            if distance < least - 1e-9 and is_feasible(work, candidate, cluster):
                best, least = candidate, distance
    return best


def _doublings(layout: Layout, axis: str, size: int) -> float:
    return _WEIGHTS.get(axis, 1.0) * abs(math.log2(size / max(1, getattr(layout, axis))))


def _shapes(work: Work, cluster: Cluster) -> Iterator[tuple[int, int, int]]:
    """tp, cp, pp whose product divides the chips."""
    for tp in _up_to(divisors(cluster.chips), work.model.heads):
        for cp in _up_to(divisors(cluster.chips // tp), work.sequence):
            for pp in _up_to(divisors(cluster.chips // (tp * cp)), most_chunks(work.model)):
                yield tp, cp, pp


def _completions(work: Work, shape: Layout, cluster: Cluster) -> Iterator[Layout]:
    """Replicas that fill the cluster, and the other sizes as they were, or mended where they no longer can be."""
    dp = cluster.chips // (shape.tp * shape.cp * shape.pp)
    if dp > work.batch:
        return
    virtual = _virtual(work, shape)
    for replicate in divisors(dp):
        split = replace(shape, dp_replicate=replicate, dp_shard=dp // replicate, virtual=virtual, zero=min(3, max(0, shape.zero)))
        ep = _nearest(split.ep, _expert_ways(work, split))
        for micro_batch in {_nearest(split.micro_batch, range(1, 1 + -(-work.batch // dp))), 1}:
            yield replace(split, ep=ep, micro_batch=micro_batch)
            if virtual > 1:
                yield replace(split, ep=ep, micro_batch=micro_batch, virtual=1)


def _virtual(work: Work, shape: Layout) -> int:
    if shape.pp == 1 or shape.pipeline in (Pipeline.ONE_F_ONE_B, Pipeline.GPIPE):
        return 1
    return min(max(1, shape.virtual), max(1, most_chunks(work.model) // shape.pp))


def _expert_ways(work: Work, layout: Layout) -> list[int]:
    experts = work.model.experts
    return divisors(math.gcd(layout.shards, experts.experts)) if experts else [1]


def _nearest(wanted: int, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: abs(math.log2(size / max(1, wanted))))


def _up_to(sizes: Iterable[int], most: int) -> list[int]:
    return [size for size in sizes if size <= most]


# --- what a layout wastes -------------------------------------------------------------------------------------------------


def warnings(work: Work, layout: Layout, cluster: Cluster) -> tuple[Quantity, ...]:
    """Shares of the step that a better fit would save; none for a layout that fits."""
    found = (
        batch_warning(work, layout),
        stages_warning(work, layout),
        vocabulary_warning(work, layout),
        copies_warning(work, layout),
        domain_warning(layout, cluster),
    )
    return tuple(q for q in found if q is not None)


def batch_warning(work: Work, layout: Layout) -> Quantity | None:
    """Sequences that replicas compute for nothing, as a share of the batch."""
    unit = layout.dp * layout.micro_batch
    slots = layout.micro_batches(work.batch) * unit
    if slots == work.batch:
        return None
    inputs = {
        "batch": work.batch,
        "dp": layout.dp,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches(work.batch),
        "slots": slots,
    }
    below = work.batch // unit * unit
    free = f"{slots:,} sequences, or {below:,}, would waste none" if below else f"{slots:,} sequences would waste none"
    formula = f"micro_batches x dp x micro_batch / batch - 1: replicas that have fewer sequences wait; {free}"
    return Quantity("batch_padding", slots / work.batch - 1, "share", formula, inputs, "a batch that does not divide")


def stages_warning(work: Work, layout: Layout) -> Quantity | None:
    """The fullest pipeline stage over the mean."""
    most, have = busiest_blocks(work.model, layout), blocks(work.model)
    if most * layout.pp == have:
        return None
    inputs = {"layers": have, "pp": layout.pp, "virtual": layout.virtual, "most": most}
    formula = "most x pp / layers - 1: the fullest stage sets the pace (free where the end stages have fewer: embedding and head)"
    return Quantity("stage_imbalance", most * layout.pp / have - 1, "share", formula, inputs, "layers that do not divide")


def vocabulary_warning(work: Work, layout: Layout) -> Quantity | None:
    """Rows added to embedding and head so that they divide over tp."""
    size, tp = work.model.vocabulary, layout.tp
    padded = -(-size // tp) * tp
    if padded == size:
        return None
    inputs = {"vocabulary": size, "tp": tp, "padded": padded}
    formula = f"padded / vocabulary - 1: {padded - size} rows are added, never predicted and never trained"
    return Quantity("vocabulary_padding", padded / size - 1, "share", formula, inputs, "a vocabulary that does not divide")


def copies_warning(work: Work, layout: Layout) -> Quantity | None:
    """Keys and values beyond one copy."""
    kv, tp = work.model.kv_heads, layout.tp
    if tp <= kv or work.model.latent is not None:
        return None
    formula = "tp / kv_heads - 1: each key-value head is computed and kept by as many tensor ranks"
    inputs = {"tp": tp, "kv_heads": kv}
    return Quantity("kv_copies", tp / kv - 1, "share", formula, inputs, "more tensor ranks than key-value heads")


def domain_warning(layout: Layout, cluster: Cluster) -> Quantity | None:
    """How much slower the links are that tensor parallelism has to use."""
    link, spans = cluster.chip.link_bandwidth, cluster.spans(layout.tp, 1)
    if layout.tp == 1 or spans == 1 or not link:
        return None
    inputs = {"tp": layout.tp, "domain": cluster.domain, "domains": spans, "link": link, "network": cluster.network}
    formula = "link / network - 1: every product waits for messages between domains, which are that much slower than within one"
    slower = max(0.0, link / cluster.network - 1)
    return Quantity("tp_across_domains", slower, "share", formula, inputs, "tp beyond the fast links")
