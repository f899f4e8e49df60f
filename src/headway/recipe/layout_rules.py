"""Rules that a layout breaks or keeps, for planner and engine alike: a model, a sequence and a batch cut by the axes of a mesh.

    tp              heads, inner widths                     ->  every tensor rank has as many
    pp x virtual    layers                                  ->  chunks of layers
    cp, tp          tokens of a sequence                    ->  2 cp chunks, and tp parts of a rank's tokens
    ep              experts, over dp_shard x cp             ->  every rank has as many

Each rule answers one ``Problem`` with both numbers and the sizes that would do, or None. What the engine refuses beyond these
stands in ``engine_layouts.py``, what plans refuse beyond them in ``plan/layout/feasible.py``.
"""

from __future__ import annotations

import math
from typing import Protocol

from headway.base.errors import Problem
from headway.recipe.findings import divisors
from headway.recipe.spec import ModelSpec

UNINTERLEAVED = ("gpipe", "1f1b")
"""Orders of micro-batches with one piece of the model per rank."""


class Task(Protocol):
    """What is computed. ``sequence`` in tokens, ``batch`` in sequences."""

    @property
    def model(self) -> ModelSpec: ...
    @property
    def sequence(self) -> int: ...
    @property
    def batch(self) -> int: ...


class Sizes(Protocol):
    """How it is cut; the names are those of a deployment's layout."""

    @property
    def pp(self) -> int: ...
    @property
    def dp_replicate(self) -> int: ...
    @property
    def dp_shard(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def virtual(self) -> int: ...
    @property
    def pipeline(self) -> str: ...
    @property
    def zero(self) -> int: ...


def heads(task: Task, sizes: Sizes) -> Problem | None:
    count = task.model.heads
    if count % sizes.tp == 0:
        return None
    return Problem(f"tp {sizes.tp} for {count} heads", "each tensor rank has as many heads", divisors_hint("tp", count))


def widths(task: Task, sizes: Sizes) -> Problem | None:
    """Of the feed-forward where a layer has one, and of an expert."""
    model = task.model
    dense = any(not model.has_experts(layer) for layer in range(model.layers))
    found = {"ffn width": model.ffn_width} if dense else {}
    if model.experts is not None:
        found["expert width"] = model.experts.width
    for name, width in found.items():
        if width % sizes.tp:
            return Problem(f"tp {sizes.tp} for an {name} of {width:,}", "widths are split evenly", divisors_hint("tp", width))
    return None


def depth(task: Task, sizes: Sizes) -> Problem | None:
    have, most, chunks = blocks(task.model), most_chunks(task.model), sizes.pp * sizes.virtual
    if chunks <= most or chunks == 1:
        return None
    seen = f"{have} layers for pp {sizes.pp} x virtual {sizes.virtual} = {chunks} chunks"
    return Problem(seen, "a chunk holds a layer at least; the first and the last may have none", f"at most {most} chunks")


def blocks(model: ModelSpec) -> int:
    """Of the decoder and of its mtp heads."""
    return model.layers + model.mtp_layers


def most_chunks(model: ModelSpec) -> int:
    """Of a pipeline: the first may hold the embedding alone and the last the head (Llama 3: 126 layers in 16 x 8 chunks)."""
    return blocks(model) + 2


def pieces(sizes: Sizes) -> Problem | None:
    """Several pieces a rank need a pipeline of several ranks that interleaves them."""
    if sizes.virtual == 1 or (sizes.pp > 1 and sizes.pipeline not in UNINTERLEAVED):
        return None
    seen = f"virtual {sizes.virtual} with pp {sizes.pp} and pipeline {sizes.pipeline}"
    return Problem(seen, "several chunks a rank need a pipeline that interleaves them", "virtual 1, or pipeline interleaved")


def experts(task: Task, sizes: Sizes) -> Problem | None:
    options, ep, shards = task.model.experts, sizes.ep, sizes.dp_shard * sizes.cp
    if ep == 1:
        return None
    if options is None:
        return Problem(f"ep {ep} for a model without experts", "ep spreads experts over ranks", "ep 1")
    if options.experts % ep:
        seen = f"ep {ep} for {options.experts} experts"
        return Problem(seen, "each rank holds as many experts", divisors_hint("ep", options.experts))
    if shards % ep:
        seen = f"ep {ep} over dp_shard {sizes.dp_shard} x cp {sizes.cp} = {shards} ranks"
        return Problem(seen, "experts lie over dp_shard x cp", divisors_hint("ep", math.gcd(shards, options.experts)))
    return None


def context(task: Task, sizes: Sizes) -> Problem | None:
    cp, sequence = sizes.cp, task.sequence
    if cp == 1 or sequence % (2 * cp) == 0:
        return None
    rule = "a causal sequence is cut into 2 cp chunks, one early and one late for each rank, so that all have as much to do"
    return Problem(f"cp {cp} for sequences of {sequence:,} tokens", rule, divisors_hint("2 cp", sequence))


def tokens(task: Task, sizes: Sizes) -> Problem | None:
    """Sequence parallelism."""
    part = task.sequence // sizes.cp
    if sizes.tp == 1 or part % sizes.tp == 0:
        return None
    seen = f"tp {sizes.tp} for {part:,} tokens of a sequence per context rank"
    rule = "with sequence parallelism norms and residual stream are split over the tensor ranks by token"
    return Problem(seen, rule, divisors_hint("tp", part))


def divisors_hint(name: str, of: int) -> str:
    """``tp one of 1, 2, 4``."""
    shown = divisors(of)
    return f"{name} one of {', '.join(str(d) for d in shown[:8])}{', ...' if len(shown) > 8 else ''}"
