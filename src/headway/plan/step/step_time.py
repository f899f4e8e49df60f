"""Seconds of one optimizer step of a Work on a Layout over a Cluster, by part, with its range.

    busy     = passes x (blocks: compute + exposed tp, cp, ep + what dp and the host's link cannot hide) + ends (embedding, head)
    step     = (passes - 1) x the slowest stage + every stage once / chunks          pipeline: fill and drain are its bubble
             + gradients that are left to reduce + update + stragglers (0 by the fit: what grows with a group is in its hops)

Every part is in seconds of the step's wall time, so that they add up to it. Goodput (failures, saves) multiplies separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.plan.memory.model import pass_bytes
from headway.plan.memory.stages import stages
from headway.plan.step.communication import Axis, Collective, Phase, collectives
from headway.plan.step.compute import HOST_BYTES_PER_SECOND, block_seconds, head_seconds, update_seconds
from headway.plan.step.fitted import FITTED, SPREAD, Constants
from headway.plan.step.network import collective_seconds
from headway.plan.step.shares import busiest_blocks, routed_blocks, stage_blocks
from headway.plan.work import Cluster, Layout, Pipeline, Work
from headway.recipe.spec import ModelSpec

PARTS = ("compute", "recompute", "head", "tp", "cp", "ep", "dp", "pp", "host", "bubble", "update", "stragglers")


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

    bare: dict[Axis, float]  # nothing to hide behind
    hidden: dict[Axis, float]  # behind the computation of blocks
    forward: float  # data-parallel, behind the blocks of a forward pass
    backward: float
    once: float  # after the last micro-batch, or before the first
    first: float  # of the first stage alone, for its embedding
    last: float  # of the last stage alone, for its head


def step_time(work: Work, layout: Layout, cluster: Cluster, constants: Constants = FITTED) -> StepTime:
    """The whole step. Layouts are taken as feasible (``feasible.py``)."""
    passes = layout.micro_batches(work.batch)
    compute, again = _blocks(work, layout, cluster, constants)
    busy = passes * (sum(compute) + again)
    priced = _price(collectives(work, layout), work, layout, cluster, constants)
    exposed = _exposed(priced, busy, constants)
    dp = _data_parallel(priced, (passes * compute[0], passes * (compute[1] + again)), work, constants)
    host = passes * _host(work, layout, (compute[0], compute[1] + again))
    stage = (busy + sum(exposed.values()) + dp + host) / passes
    head = sum(head_seconds(work, layout, cluster.chip, constants)) + priced.last / passes
    pace, bubble = _pipeline(work.model, layout, stage, (priced.first / passes, head))
    left = _left(priced.once, compute[1] + again, constants) if work.implementation.overlap else priced.once
    parts = {
        "compute": passes * sum(compute),
        "recompute": passes * again,
        "head": passes * (pace - stage),
        "tp": exposed[Axis.TP],
        "cp": exposed[Axis.CP],
        "ep": exposed[Axis.EP],
        "dp": dp + left + exposed[Axis.WORLD],
        "pp": exposed[Axis.PP],
        "host": host,
        "bubble": bubble,
        "update": _update(work, layout, cluster, constants),
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


def _price(found: Iterable[Collective], work: Work, layout: Layout, cluster: Cluster, constants: Constants) -> _Priced:
    bare, hidden = (dict.fromkeys((Axis.TP, Axis.CP, Axis.EP, Axis.PP, Axis.WORLD), 0.0) for _ in range(2))
    forward = backward = 0.0
    once, ends = {"": 0.0, "first": 0.0, "last": 0.0, "ends": 0.0}, {"first": 0.0, "last": 0.0}
    for one in found:
        seconds = one.calls * collective_seconds(one, cluster, constants)
        if one.axis in (Axis.DP_SHARD, Axis.DP_REPLICATE):
            if not one.every_pass:
                once[one.stage] += seconds
            elif one.phase is Phase.FORWARD:
                forward += seconds + _copies(one, cluster, constants)
            else:
                backward += seconds + _copies(one, cluster, constants)
        elif one.stage in ends:
            ends[one.stage] += seconds
        else:
            hides = one.overlaps or (one.axis is Axis.TP and work.implementation.overlap_tp)
            (hidden if hides else bare)[one.axis] += seconds
    # One rank is both ends of a pipeline of one stage, and at most one of them of a longer one.
    both = sum if layout.pp == 1 else max
    return _Priced(bare, hidden, forward, backward, once[""] + both((once["first"], once["last"])), ends["first"], ends["last"])


def _exposed(priced: _Priced, busy: float, constants: Constants) -> dict[Axis, float]:
    """By axis: what is bare, and its share of what computation does not hide."""
    wanted = sum(priced.hidden.values())
    share = _left(wanted, busy, constants) / wanted if wanted else 0.0
    return {axis: seconds + share * priced.hidden[axis] for axis, seconds in priced.bare.items()}


def _data_parallel(priced: _Priced, behind: tuple[float, float], work: Work, constants: Constants) -> float:
    """What gathers and scatters of every micro-batch add to forward and backward passes of ``behind`` seconds."""
    if not work.implementation.overlap:
        return priced.forward + priced.backward
    return _left(priced.forward, behind[0], constants) + _left(priced.backward, behind[1], constants)


def _copies(one: Collective, cluster: Cluster, constants: Constants) -> float:
    """Seconds that gathered weights and gradients take on their way between buffers and parameters, read and written once."""
    return one.calls * 2 * one.payload_bytes / (cluster.chip.memory_bandwidth * constants.memory)


def _left(seconds: float, behind: float, constants: Constants) -> float:
    """What collectives of ``seconds`` add to computation of ``behind`` seconds that runs beside them."""
    return max(0.0, seconds - behind) + constants.contention * min(seconds, behind)


def _pipeline(model: ModelSpec, layout: Layout, stage: float, ends: tuple[float, float]) -> tuple[float, float]:
    """The slowest stage's seconds for one micro-batch, and what filling and draining the pipeline takes.

    ``stage``: of the stage with most blocks. ``ends``: what first and last stage have beside their blocks.
    """
    first, last = ends
    if layout.pp == 1:
        return stage + first + last, 0.0
    blocks = busiest_blocks(model, layout)
    stages = [size / blocks * stage for size in stage_blocks(model, layout)]
    stages[0] += first
    stages[-1] += last
    pace = max(stages)
    share = 1 / 3 if layout.pipeline is Pipeline.ZERO_BUBBLE else 1.0  # of a pass, what cannot be filled with weight gradients
    return pace, share * (sum(stages) - pace) / layout.virtual


def _host(work: Work, layout: Layout, behind: tuple[float, float]) -> float:
    """What activations of one micro-batch, on their way to host memory and back, add to its forward and backward passes of
    ``behind`` seconds: copies run beside the computation, one way at a time."""
    if not layout.offload.activations:
        return 0.0
    found = stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    seconds = max(pass_bytes(work, layout, held) for held in found) / HOST_BYTES_PER_SECOND
    return sum(max(0.0, seconds - hidden) for hidden in behind)


def _update(work: Work, layout: Layout, cluster: Cluster, constants: Constants) -> float:
    """Of the stage with most parameters: those whose moments lie on one rank."""
    found = stages(work.model, layout.pp, layout.virtual, layout.tp, layout.ep)
    if layout.zero == 0:
        held = max(stage.plain + stage.experts for stage in found)
    else:
        ways = max(1, layout.shards // layout.ep)
        held = max(stage.plain / layout.shards + stage.experts / ways for stage in found)
    return update_seconds(held, work, layout, cluster.chip, constants)
