"""Seconds of one optimizer step of a Work on a Layout over a Cluster, by part, with its range.

    busy     = passes x (blocks: compute + exposed tp, cp, ep + what dp cannot hide) + ends (embedding, head)
    step     = (passes - 1) x the slowest stage + every stage once / chunks          pipeline: fill and drain are its bubble
             + gradients that are left to reduce + update + stragglers

Every part is in seconds of the step's wall time, so that they add up to it. Goodput (failures, saves) multiplies separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.plan.step.communication import Axis, Collective, Phase, collectives
from headway.plan.step.compute import block_seconds, head_seconds, update_seconds
from headway.plan.step.fitted import FITTED, SPREAD, Constants
from headway.plan.step.network import collective_seconds
from headway.plan.step.shares import busiest_blocks, model_parts, routed_blocks, stage_blocks
from headway.plan.work import Cluster, Layout, Pipeline, Work
from headway.recipe.spec import ModelSpec

PARTS = ("compute", "recompute", "head", "tp", "cp", "ep", "dp", "pp", "bubble", "update", "stragglers")


@dataclass(frozen=True)
class StepTime:
    """``parts`` sum to ``seconds``; ``low`` and ``high`` from the errors on chips and models that the fit never saw."""

    seconds: float
    low: float
    high: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Priced:
    """Seconds per step of one rank's collectives, by what they can hide behind."""

    exposed: dict[Axis, float]
    forward: float  # data-parallel, behind the blocks of a forward pass
    backward: float
    once: float  # after the last micro-batch
    ends: float  # of the last stage alone


def step_time(work: Work, layout: Layout, cluster: Cluster, constants: Constants = FITTED) -> StepTime:
    """The whole step. Layouts are taken as feasible (``feasible.py``)."""
    passes = layout.micro_batches(work.batch)
    compute, again = _blocks(work, layout, cluster, constants)
    head = sum(head_seconds(work, layout, cluster.chip, constants))
    priced = _price(collectives(work, layout), work, cluster, constants)
    hidden = work.implementation.overlap
    dp = _left(priced.forward, passes * compute[0], constants, hidden) + _left(
        priced.backward, passes * (compute[1] + again), constants, hidden
    )
    stage = sum(compute) + again + (sum(priced.exposed.values()) + dp) / passes
    ends = head + priced.ends / passes
    pace, bubble = _pipeline(work.model, layout, passes, (stage, ends))
    once = _left(priced.once, compute[1] + again, constants, hidden)
    update = update_seconds(_updated(work, layout), cluster.chip, constants)
    parts = {
        "compute": passes * sum(compute),
        "recompute": passes * again,
        "head": passes * (pace - stage),
        "tp": priced.exposed[Axis.TP],
        "cp": priced.exposed[Axis.CP],
        "ep": priced.exposed[Axis.EP],
        "dp": dp + once,
        "pp": priced.exposed[Axis.PP],
        "bubble": bubble,
        "update": update,
    }
    healthy = sum(parts.values())
    parts["stragglers"] = healthy * constants.stragglers * max(0, (cluster.chips // cluster.domain).bit_length() - 1)
    seconds = healthy + parts["stragglers"]
    return StepTime(seconds, SPREAD[0] * seconds, SPREAD[1] * seconds, parts)


def _blocks(work: Work, layout: Layout, cluster: Cluster, constants: Constants) -> tuple[tuple[float, float], float]:
    """Forward and backward of the busiest stage's blocks for one micro-batch, and what is computed again."""
    blocks, routed = busiest_blocks(work.model, layout), routed_blocks(work.model, layout)
    forward = backward = again = 0.0
    for count, with_experts in ((blocks - routed, False), (routed, True)):
        if count:
            one = block_seconds(work, layout, cluster.chip, with_experts, constants)
            forward, backward, again = (
                forward + count * one.forward,
                backward + count * one.backward,
                again + count * one.again,
            )
    return (forward, backward), again


def _price(found: Iterable[Collective], work: Work, cluster: Cluster, constants: Constants) -> _Priced:
    exposed = dict.fromkeys((Axis.TP, Axis.CP, Axis.EP, Axis.PP, Axis.WORLD), 0.0)
    forward = backward = once = ends = 0.0
    for one in found:
        seconds = one.calls * collective_seconds(one, cluster, constants)
        if one.axis in (Axis.DP_SHARD, Axis.DP_REPLICATE):
            if not one.every_pass:
                once += seconds
            elif one.phase is Phase.FORWARD:
                forward += seconds + _copies(one, cluster, constants)
            else:
                backward += seconds + _copies(one, cluster, constants)
        elif one.stage == "last":
            ends += seconds
        elif one.stage != "first":
            hides = one.overlaps or (one.axis is Axis.TP and work.implementation.overlap_tp)
            exposed[one.axis] += seconds * (constants.contention if hides else 1.0)
    return _Priced(exposed, forward, backward, once, ends)


def _copies(one: Collective, cluster: Cluster, constants: Constants) -> float:
    """Seconds that gathered weights and gradients take on their way between buffers and parameters, read and written once."""
    return one.calls * 2 * one.payload_bytes / (cluster.chip.memory_bandwidth * constants.memory)


def _left(seconds: float, behind: float, constants: Constants, hidden: bool) -> float:
    """What collectives of ``seconds`` add to computation of ``behind`` seconds."""
    if not hidden:
        return seconds
    return max(0.0, seconds - behind) + constants.contention * min(seconds, behind)


def _pipeline(model: ModelSpec, layout: Layout, passes: int, seconds: tuple[float, float]) -> tuple[float, float]:
    """The slowest stage's seconds for one micro-batch, and what filling and draining the pipeline takes.

    ``seconds``: of the stage with most blocks, and of head and loss, which the last stage has beside its blocks.
    """
    stage, ends = seconds
    if layout.pp == 1:
        return stage + ends, 0.0
    blocks = busiest_blocks(model, layout)
    stages = [size / blocks * stage for size in stage_blocks(model, layout)]
    stages[-1] += ends
    pace = max(stages)
    share = 1 / 3 if layout.pipeline is Pipeline.ZERO_BUBBLE else 1.0  # of a pass, what cannot be filled with weight gradients
    return pace, share * (sum(stages) - pace) / layout.virtual


def _updated(work: Work, layout: Layout) -> float:
    """Parameters whose moments lie on one rank of the busiest stage."""
    parts, blocks, routed = model_parts(work.model), busiest_blocks(work.model, layout), routed_blocks(work.model, layout)
    dense = (blocks - routed) * parts.dense.dense(work.model, layout) + routed * parts.routed.dense(work.model, layout)
    dense += (parts.embedding + parts.head) / (layout.tp * min(layout.pp, 2))
    experts = routed * parts.routed.routed(layout)
    if layout.zero == 0:
        return dense + experts
    return dense / layout.shards + experts / max(1, layout.shards // layout.ep)
