"""What each pipeline stage holds, and how many of its micro-batches are alive at once.

    model chunks in order      0   1   2   3   4   5   6   7          pp 4, virtual 2: stage 1 holds chunks 1 and 5
    on stage                   0   1   2   3   0   1   2   3

The first chunk has the embedding, the last the head (a tied head is a copy of the embedding) and heads for further tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headway.plan.step.shares import model_parts, stage_kinds
from headway.plan.work import Layout, Pipeline
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """Parameters of one rank before sharding of states, and blocks of each kind."""

    dense_blocks: int
    routed_blocks: int
    block: float  # parameters of its largest block without experts, on one rank
    block_experts: float  # and of that block's experts
    plain: float  # all, without experts
    experts: float
    ends: float  # of plain: embedding, head, final norm
    is_last: bool


@lru_cache(maxsize=4096)
def stages(model: ModelSpec, pp: int, virtual: int, tp: int, ep: int) -> tuple[Stage, ...]:
    """Every stage, in order."""
    layout = Layout(pp=pp, virtual=virtual, tp=tp, ep=ep)
    return tuple(_stage(model, layout, rank, kinds) for rank, kinds in enumerate(stage_kinds(model, pp, virtual)))


@lru_cache(maxsize=4096)
def distinct_stages(model: ModelSpec, pp: int, virtual: int, tp: int, ep: int) -> tuple[int, ...]:
    """The first stage of every kind: later ones of a kind keep no more micro-batches, so one of these is the worst."""
    seen: dict[Stage, int] = {}
    for rank, stage in enumerate(stages(model, pp, virtual, tp, ep)):
        seen.setdefault(stage, rank)
    return tuple(seen.values())


def chunks_alive(layout: Layout, stage: int, micro_batches: int) -> int:
    """Most micro-batches, times chunks, whose activations ``stage`` keeps at once."""
    pp, virtual, m = layout.pp, layout.virtual, micro_batches
    if layout.pipeline is Pipeline.GPIPE:
        return m * virtual
    if virtual > 1:  # warm-up of the interleaved schedule and one more (arXiv 2104.04473): L (1 + (p - 1) / (p v)) on stage 0
        return min(2 * (pp - stage - 1) + (virtual - 1) * pp + 1, m * virtual)
    return min(m, pp - stage)


def _stage(model: ModelSpec, layout: Layout, rank: int, kinds: tuple[int, int]) -> Stage:
    parts, (dense, routed) = model_parts(model), kinds
    is_last = rank == layout.pp - 1
    ends = parts.embedding / layout.tp + parts.positions if rank == 0 else 0.0
    if is_last:
        copied = model.vocabulary * model.width if layout.pp > 1 else 0
        ends += (parts.head or copied) / layout.tp + parts.ends
    in_dense, in_routed = parts.dense.dense(model, layout), parts.routed.dense(model, layout)
    experts = parts.routed.routed(layout)
    largest_is_routed = routed > 0 and in_routed + experts >= (in_dense if dense else 0)
    return Stage(
        dense_blocks=dense,
        routed_blocks=routed,
        block=in_routed if largest_is_routed else in_dense,
        block_experts=experts if largest_is_routed else 0.0,
        plain=dense * in_dense + routed * in_routed + ends,
        experts=routed * experts,
        ends=ends,
        is_last=is_last,
    )
