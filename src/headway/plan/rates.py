"""How long a step takes, per stage and batch of the ramp, and where that is known from.

    a calibration           measured here, or on a machine, model and layout like this
    a stated utilisation    a share of the peak that the deployment asks the plan to assume
    the model of a step     predicted from chip, layout and work (``step/step_time.py``)
    nothing                 then nothing is said about time

In this order. A plan is made for its inputs, and a stated utilisation is one of them: where the chip is known too, the
prediction stands beside it, and a risk says when the two part by more than the model's error.

A Pace is one phase of a ramp: so many steps of one batch at one length on one layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError
from headway.formulas.chips import dense_peak
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.quantity import Input, Quantity, estimate
from headway.plan.cluster import cluster_of, layout_of, work_of
from headway.plan.layout.feasible import check_layout
from headway.plan.layout.search import search_stage
from headway.plan.step.compute import achievable
from headway.plan.step.shares import busiest_blocks
from headway.plan.step.step_time import StepTime, step_time
from headway.plan.work import Cluster, Layout, Work
from headway.recipe.schedules import spans

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec, StageSpec

ASSUMED_UTILISATION_SPREAD = (0.8, 1.2)
"""An assumed utilisation is believed to within a fifth: published runs of one size differ by as much."""
PREDICTED = "the model of a step"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One phase of a stage. ``name``: of its step time among the quantities."""

    stage: str
    name: str
    steps: int
    batch_sequences: int
    sequence_length: int
    seconds: Quantity

    @property
    def tokens(self) -> int:
        return self.steps * self.batch_sequences * self.sequence_length

    @property
    def batch_tokens(self) -> int:
        return self.batch_sequences * self.sequence_length


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase before anything is known of its time."""

    stage: StageSpec
    name: str
    steps: int
    batch_sequences: int


def phases_of(spec: Spec) -> list[Phase]:
    """Of all stages, in order. The last phase of a stage goes by the stage's name, those before it have a number too."""
    found = []
    for stage in spec.stages:
        for place, span in enumerate(spans(stage), start=1):
            last = place == len(stage.phases)
            name = plain(stage.name) if last else f"{plain(stage.name)}_phase_{place}"
            found.append(Phase(stage=stage, name=name, steps=span.steps, batch_sequences=span.batch_sequences))
    return found


def plain(name: str) -> str:
    """A stage's name as part of a quantity's."""
    return re.sub(r"\W+", "_", name).strip("_").casefold() or "stage"


# --- predicted ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the model of a step says of one phase."""

    phase: Phase
    work: Work
    layout: Layout
    cluster: Cluster
    time: StepTime


def predict(spec: Spec, deployment: Deployment, layouts: dict[str, Layout]) -> list[Predicted]:
    """Of every phase; nothing where the device is no chip of the table. Layouts that cannot be are refused."""
    cluster = cluster_of(deployment, spec.precision.compute)
    if cluster is None or not can_compute(cluster, spec):
        return []
    made: list[Predicted] = []
    for phase in phases_of(spec):
        layout = layouts[phase.stage.name]
        work = work_of(spec, phase.stage, deployment, phase.batch_sequences)
        alike = next((one for one in made if (one.work, one.layout) == (work, layout)), None)
        if alike is None:
            check_layout(work, layout, cluster)
        time = alike.time if alike else step_time(work, layout, cluster)
        made.append(Predicted(phase=phase, work=work, layout=layout, cluster=cluster, time=time))
    return made


def can_compute(cluster: Cluster, spec: Spec) -> bool:
    """Whether the chip has a rate in the recipe's precision."""
    return spec.precision.compute in cluster.chip.peaks


def stated_layouts(spec: Spec, deployment: Deployment) -> dict[str, Layout]:
    """One per stage, as the deployment states it."""
    return {stage.name: layout_of(deployment, stage.name) for stage in spec.stages}


def found_layouts(spec: Spec, deployment: Deployment, cluster: Cluster) -> dict[str, Layout]:
    """The fastest that fits, per stage; ConfigError where none does, or where the chip has no rate in the recipe's precision."""
    if not can_compute(cluster, spec):
        rates = ", ".join(cluster.chip.peaks)
        rule = f"layouts are looked for by their step time, and its rates are those in {rates}"
        way_out = f"[precision] compute in {rates}, another chip, or a layout of your own with --layout"
        raise ConfigError(f"{cluster.chip.name} has no rate in {spec.precision.compute}", rule, way_out)
    found = {}
    for stage in spec.stages:
        result = search_stage(spec, stage, deployment, cluster)
        if result.best is None:
            rule, way_out = result.why_none()
            seen = f"no layout of {cluster.chips:,} {cluster.chip.name} can hold stage {stage.name!r}"
            raise ConfigError(seen, rule, f"{way_out}, or a layout of your own with --layout")
        found[stage.name] = result.best.layout
    return found


def predicted_pace(one: Predicted, name: str = "step_seconds") -> Quantity:
    """Step time of a phase with its parts as inputs."""
    label = f"{name}_{one.phase.name}"
    parts: dict[str, Input] = {part: _part(part, seconds, one, label) for part, seconds in one.time.parts.items() if seconds}
    formula = " + ".join(parts) or "model of a step"
    low, high = min(one.time.low, one.time.seconds), max(one.time.high, one.time.seconds)
    inputs: dict[str, Input] = {**parts, "layout": one.layout.shown(), "chips": f"{one.cluster.chips:,} {one.cluster.chip.name}"}
    return Quantity(label, one.time.seconds, "seconds", formula, inputs, PREDICTED, low, high)


def _part(name: str, seconds: float, one: Predicted, label: str) -> Quantity:
    """A part of the step with what decides it; each error of it is in the range of the whole."""
    formula, needed = PARTS[name]
    inputs = {key: value for key, value in _measures(one).items() if key in needed}
    return Quantity(f"{label}_{plain(name)}", seconds, "seconds", formula, inputs, PREDICTED)


def _measures(one: Predicted) -> dict[str, Input]:
    """What parts of a step are made of."""
    chip, cluster, work, layout = one.cluster.chip, one.cluster, one.work, one.layout
    achieved = achievable(chip, work.precision)
    return {
        "micro_batches": layout.micro_batches(work.batch),
        "tokens": layout.micro_batch * work.sequence // layout.cp,
        "blocks": busiest_blocks(work.model, layout),
        "achievable": Quantity("achievable_flops", achieved, "FLOP/s", f"of {dense_peak(chip, work.precision):.4g} at most"),
        "memory_bandwidth": Quantity("memory_bandwidth", chip.memory_bandwidth, "bytes/s", "table of chips", {}, chip.source),
        "links": f"{cluster.domain:,} devices in a domain, {_rate(chip.link_bandwidth)} each",
        "network": f"{_rate(cluster.network)} a device",
        "recompute": str(layout.recompute),
        "vocabulary": work.model.vocabulary,
        "pp": layout.pp,
        "virtual": layout.virtual,
        "pipeline": str(layout.pipeline),
    }


def _rate(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "unknown"
    return f"{bandwidth / 1e9:,.4g} GB/s" if math.isfinite(bandwidth) else "none needed"


_PASS = ("micro_batches", "tokens", "blocks", "achievable", "memory_bandwidth")
_WIRE = ("micro_batches", "links", "network")
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "compute": (
        "of every block and micro-batch, forward and backward: products at achievable rate, operands at memory_bandwidth, "
        "attention at its kernel's share, elementwise passes at memory_bandwidth",
        _PASS,
    ),
    "recompute": ("what of every block and micro-batch the backward pass computes again", (*_PASS, "recompute")),
    "head": (
        "embedding, head and loss of every micro-batch, beyond what the fullest pipeline stage takes without them",
        ("micro_batches", "tokens", "vocabulary", "achievable", "memory_bandwidth"),
    ),
    "tp": ("messages between parts of a matrix, as far as nothing hides them: see the communication sheet", _WIRE),
    "cp": ("messages between parts of a sequence, as far as nothing hides them: see the communication sheet", _WIRE),
    "ep": ("tokens to experts and back, as far as nothing hides them: see the communication sheet", _WIRE),
    "dp": (
        "gathered weights and reduced gradients, as far as nothing hides them: see the communication sheet",
        _WIRE,
    ),
    "pp": ("messages between pipeline stages, as far as nothing hides them: see the communication sheet", _WIRE),
    "host": ("activations on their way to host memory and back, as far as computation does not hide them", _PASS),
    "bubble": (
        "filling and draining: one micro-batch through all other stages, divided among the chunks of a rank",
        ("pp", "virtual", "pipeline", "micro_batches"),
    ),
    "update": ("states of the rank that holds most, read and written at memory_bandwidth", ("memory_bandwidth",)),
    "stragglers": ("a share of the step per doubling of domains", ()),
}
"""Of each part of a step: how it comes about, and which of ``_measures`` it is made of."""


def pace_of(phase: Phase, seconds: Quantity) -> Pace:
    return Pace(
        stage=phase.stage.name,
        name=phase.name,
        steps=phase.steps,
        batch_sequences=phase.batch_sequences,
        sequence_length=phase.stage.sequence_length,
        seconds=seconds,
    )


# --- at a rate ----------------------------------------------------------------------------------------------------------


def paces_at(phases: Sequence[Phase], rates: Mapping[str, Quantity], formula: str) -> list[Pace]:
    """Step times at tokens per second, by the name of the phase where it has its own rate, else of its stage."""
    made = []
    for phase in phases:
        rate, tokens = rates.get(phase.name) or rates[phase.stage.name], phase.batch_sequences * phase.stage.sequence_length
        low, high = tokens / rate.at("high"), tokens / rate.at("low")
        inputs: dict[str, Input] = {"batch_tokens": tokens, "tokens_per_second": rate}
        name = f"step_seconds_{phase.name}"
        seconds = Quantity(name, tokens / rate.number(), "seconds", formula, inputs, rate.source, low, high)
        made.append(pace_of(phase, seconds))
    return made


def assumed_rate(spec: Spec, stage: StageSpec, speed: Quantity, convention: Convention) -> Quantity:
    """Tokens per second of a stage at an assumed share of the peak, which counts FLOPs by ``convention``."""
    per_token = flops_per_token(spec.model, stage.sequence_length, convention)
    inputs: dict[str, Input] = {"R": speed, "flops_per_token": per_token}
    name = f"tokens_per_second_{plain(stage.name)}"
    formula = f"R / flops_per_token, by {convention.value}"
    return estimate(name, speed.number() / per_token, "tokens/s", formula, inputs, speed.source, ASSUMED_UTILISATION_SPREAD)


def together(paces: Sequence[Pace]) -> tuple[float, float, float]:
    """Seconds of all steps: low, value, high. What one step is off by, all are."""
    value = sum(pace.steps * pace.seconds.number() for pace in paces)
    low = sum(pace.steps * pace.seconds.at("low") for pace in paces)
    high = sum(pace.steps * pace.seconds.at("high") for pace in paces)
    return low, value, high
