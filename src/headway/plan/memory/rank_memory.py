"""Memory of a rank in the plan: every component as a quantity that can say why, and a table over pipeline stages.

rank_memory, peak_memory     bytes by component (``model.py``), for searches
memory_quantities            the same of one stage as quantities, with their sum, its band and what the chip has left
rank_memory_section          every training stage's worst rank; components of the fullest, over its pipeline stages
"""

from __future__ import annotations

from headway.formulas.quantity import Input, Quantity
from headway.plan.cluster import layout_of, work_of
from headway.plan.facts import PlanFacts
from headway.plan.memory.activations import LOSS_CHUNK_TOKENS
from headway.plan.memory.model import (
    ALLOCATOR_SHARE,
    COMMUNICATOR_BYTES,
    COMPONENTS,
    CONTEXT_BYTES,
    SPREADS,
    RankMemory,
    moments_bytes,
    pass_bytes,
    peak_memory,
    rank_memory,
    sharded_parameters,
)
from headway.plan.memory.stages import chunks_alive, distinct_stages, stages
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.work import EXPERT_IMBALANCE, Cluster, Layout, Work
from headway.recipe.offload import HELD_BLOCKS, PORTION_BYTES, Offload

__all__ = ["RankMemory", "memory_quantities", "peak_memory", "rank_memory", "rank_memory_section"]

STATE = {"weights": 3, "gradients": 2, "moments": 1, "master": 1}
"""Components of the state, and from which ZeRO stage on each is sharded."""
KEPT = ("attention", "feed_forward", "norms", "scores", "masks", "routed")
ACTIVATIONS = "bytes per token counted tensor by tensor (arXiv 2205.05198)"

OTHERS = {
    "gathered": (
        "weights of this block and the next, embedding and head throughout, under zero 3; with pipeline stages all of the stage",
        "FSDP2: what is gathered and when it is freed",
    ),
    "reduced": (
        "one block's gradient as computed and as summed, as far as backward does not find room where the loss was; "
        "under zero 3 with pipeline stages, whole gradients until the last micro-batch",
        "FSDP2, torch.distributed.pipelining",
    ),
    "logits": ("per logit x tokens x vocabulary / tp, and what the head reads; last stage only", "counted by kind of loss"),
    "working": ("what the largest block holds in forward, or backward holds beyond what the loss leaves", ACTIVATIONS),
    "communication": ("messages to and from neighbours of the pipeline, tokens on their way to experts", "counted"),
    "fp8": ("one block's weights in both orientations, inputs of its largest product, one byte each", "counted"),
}

SHOWN_STAGES = 6
"""Columns of the table: beyond these only the first stage of each kind and the last."""

WORDS = {
    "weights": "weights",
    "master": "master copies",
    "moments": "moments",
    "gradients": "gradients",
    "gathered": "weights gathered for use",
    "reduced": "gradients before they are sharded",
    "attention": "activations: attention",
    "feed_forward": "activations: feed-forward",
    "norms": "activations: norms and residual stream",
    "scores": "activations: scores",
    "masks": "activations: dropout masks",
    "routed": "activations: experts",
    "logits": "logits and loss",
    "working": "working memory of a block",
    "communication": "communication buffers",
    "fp8": "eight-bit copies",
    "allocator": "held by the allocator",
    "context": "context and communicators",
}


def memory_quantities(work: Work, layout: Layout, cluster: Cluster, stage: int, suffix: str = "") -> dict[str, Quantity]:
    """Every component of pipeline stage ``stage`` that is not empty, ``total`` and ``headroom``. ``suffix`` goes on all names."""
    memory = rank_memory(work, layout, cluster, stage)
    parts = {name: _component(name, memory, work, layout, suffix) for name, bytes_ in memory.parts().items() if bytes_}
    low, high = memory.band()
    inputs: dict[str, Input] = {part.name: part for part in parts.values()}
    total = Quantity(
        f"rank_memory{suffix}",
        memory.total,
        "bytes",
        " + ".join(inputs),
        inputs,
        f"pipeline stage {stage} of {layout.pp}; range: every component errs in the same direction",
        low,
        high,
    )
    found = parts | {"total": total, "headroom": _headroom(total, cluster, suffix)}
    return found | ({"host": _in_host_memory(work, layout, stage, suffix)} if layout.offload is not Offload.NONE else {})


def _in_host_memory(work: Work, layout: Layout, stage: int, suffix: str) -> Quantity:
    """Not of the device: beside the total."""
    held = stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)[stage]
    parts: dict[str, float] = {}
    if layout.offload.moments:
        parts["moments"] = moments_bytes(work, layout, held)
    if layout.offload.activations:
        alive = chunks_alive(layout, stage, layout.micro_batches(work.batch)) / layout.virtual
        parts["activations"] = pass_bytes(work, layout, held) * alive
    inputs: dict[str, Input] = dict(parts)
    source = f"offload {layout.offload}; beside the device's memory"
    return Quantity(f"rank_host{suffix}", sum(parts.values()), "bytes", " + ".join(parts), inputs, source)


def _headroom(total: Quantity, cluster: Cluster, suffix: str) -> Quantity:
    device = cluster.chip.memory_bytes
    inputs: dict[str, Input] = {"device": device, "rank_memory": total}
    name, formula = f"memory_headroom{suffix}", "device - rank_memory; below zero: it does not fit"
    source = f"{cluster.chip.name}: memory as frameworks see it"
    low, high = device - total.at("high"), device - total.at("low")
    return Quantity(name, device - total.number(), "bytes", formula, inputs, source, low, high)


def _component(name: str, memory: RankMemory, work: Work, layout: Layout, suffix: str) -> Quantity:
    value = getattr(memory, name)
    formula, inputs, source = _explain(name, memory, work, layout)
    spread = SPREADS.get(name)
    low, high = (value * spread[0], value * spread[1]) if spread else (None, None)
    return Quantity(f"rank_{name}{suffix}", value, "bytes", formula, inputs, source, low, high)


def _explain(name: str, memory: RankMemory, work: Work, layout: Layout) -> tuple[str, dict[str, Input], str]:
    """Formula, inputs, source."""
    if name in STATE:
        return _explain_state(name, memory, work, layout)
    if name in KEPT:
        return _explain_kept(name, memory, work, layout)
    if name == "allocator":
        passing = memory.allocated - memory.state
        formula, source = (
            "share passing; passing: all that comes and goes in a step",
            "blocks that a caching allocator cannot join",
        )
        return formula, {"share": ALLOCATOR_SHARE, "passing": passing}, source
    if name == "context":
        axes = round((memory.context - CONTEXT_BYTES) / COMMUNICATOR_BYTES)
        inputs: dict[str, Input] = {"context": CONTEXT_BYTES, "communicator": COMMUNICATOR_BYTES, "axes": axes}
        return "context + communicator axes; not in what frameworks report", inputs, "1 to 5 GiB in reports"
    formula, source = OTHERS[name]
    return formula, _passing_inputs(name, work, layout), source


def _explain_state(name: str, memory: RankMemory, work: Work, layout: Layout) -> tuple[str, dict[str, Input], str]:
    held = stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)[memory.stage]
    if name == "moments" and layout.offload.moments:
        inputs: dict[str, Input] = {"moments": moments_bytes(work, layout, held), "portion": PORTION_BYTES}
        return "min(moments, portion), one parameter's at least; the rest in host memory", inputs, f"offload {layout.offload}"
    is_sharded = layout.zero >= STATE[name]
    count = sharded_parameters(layout, held) if is_sharded else held.plain + held.experts
    each = round(getattr(memory, name) / count) if count else 0
    where = f"over {layout.shards:,} ranks that share states" if is_sharded else "all that the rank computes with"
    return f"each P; P: parameters, {where}", {"each": each, "P": count}, f"ZeRO {layout.zero} (arXiv 1910.02054)"


def _explain_kept(name: str, memory: RankMemory, work: Work, layout: Layout) -> tuple[str, dict[str, Input], str]:
    tokens = work.rank_tokens(layout)
    alive = chunks_alive(layout, memory.stage, layout.micro_batches(work.batch)) / layout.virtual
    if layout.offload.activations:
        inputs: dict[str, Input] = {"kept": getattr(memory, name)}
        return f"kept, by {HELD_BLOCKS} blocks at most; the rest in host memory", inputs, f"offload {layout.offload}"
    inputs = {"per_token": getattr(memory, name) / (tokens * alive), "tokens": tokens, "alive": alive}
    what = f"bytes of all blocks of the stage, recompute {layout.recompute}"
    if name == "routed":
        what += f", {EXPERT_IMBALANCE:g} x the mean load"
    return f"per_token tokens alive; per_token: {what}; alive: micro-batches in flight", inputs, ACTIVATIONS


def _passing_inputs(name: str, work: Work, layout: Layout) -> dict[str, Input]:
    sizes: dict[str, Input] = {"tokens": work.rank_tokens(layout), "width": work.model.width, "tp": layout.tp}
    if name == "logits":
        how = work.implementation
        at_once = f"{LOSS_CHUNK_TOKENS} tokens at a time" if how.chunked_loss else "all tokens at once"
        return sizes | {"vocabulary": work.model.vocabulary, "loss": f"{how.loss}, {at_once}"}
    if name in ("gathered", "reduced"):
        return {"zero": layout.zero, "pp": layout.pp, "shards": layout.shards, "tp": layout.tp}
    return sizes


# --- the section ----------------------------------------------------------------------------------------------------------


def rank_memory_section(facts: PlanFacts) -> Section | None:
    """Worst rank of every training stage; components of the fullest of them. None: no chip is known."""
    cluster, trained = facts.cluster, facts.spec.stages
    if cluster is None:
        return None
    layouts = {stage.name: facts.layouts.get(stage.name) or layout_of(facts.deployment, stage.name) for stage in trained}
    works = {stage.name: work_of(facts.spec, stage, facts.deployment) for stage in trained}
    worst = {name: peak_memory(works[name], layouts[name], cluster) for name in works}
    fullest = max(trained, key=lambda stage: (worst[stage.name].total, stage.sequences * stage.sequence_length)).name
    quantities: list[Quantity] = []
    for name in sorted(works, key=lambda name: name != fullest):
        suffix = "" if name == fullest else f"_{name}".replace("-", "_")
        found = memory_quantities(works[name], layouts[name], cluster, worst[name].stage, suffix)
        quantities += found.values() if name == fullest else [found["total"], found["headroom"]]
    title = f"Bytes per rank in stage {fullest}: {layouts[fullest].shown()}"
    return Section("Memory per rank", tuple(quantities), (stage_table(works[fullest], layouts[fullest], cluster, title),))


def stage_table(work: Work, layout: Layout, cluster: Cluster, title: str) -> Table:
    """Components over pipeline stages, with their sum and its range."""
    shown = shown_stages(work, layout)
    memories = [rank_memory(work, layout, cluster, stage) for stage in shown]
    rows: list[tuple[Cell, ...]] = [
        (WORDS[name], *(getattr(memory, name) for memory in memories))
        for name in COMPONENTS
        if any(getattr(memory, name) for memory in memories)
    ]
    bands = [memory.band() for memory in memories]
    rows += [("total", *(m.total for m in memories)), ("at least", *(b[0] for b in bands)), ("at most", *(b[1] for b in bands))]
    columns = (Column("component"), *(Column(f"pipeline stage {stage}", "bytes") for stage in shown))
    return Table(title, columns, tuple(rows))


def shown_stages(work: Work, layout: Layout) -> list[int]:
    if layout.pp <= SHOWN_STAGES:
        return list(range(layout.pp))
    kinds = distinct_stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    return sorted({*kinds[: SHOWN_STAGES - 1], layout.pp - 1})
