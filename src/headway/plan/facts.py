"""What the sections of a plan share: schedule, counts, layouts, rates. Each computed once, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headway.base.units import format_seconds
from headway.formulas.flops import Convention
from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.formulas.quantity import Input, Quantity, estimate, unknown
from headway.plan.cluster import cluster_of, steps_between_checkpoints
from headway.plan.memory.state import checkpoint_quantity
from headway.plan.ranges import rising
from headway.plan.rates import (
    Pace,
    Predicted,
    assumed_rate,
    found_layouts,
    pace_of,
    paces_at,
    phases_of,
    plain,
    predict,
    predicted_pace,
    stated_layouts,
    together,
)
from headway.plan.work import Cluster, Layout
from headway.recipe.chips import unproven
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.plan.calibrated import Calibrated
    from headway.recipe.deployment import Deployment

CHECKPOINT_BYTES = 12
"""Per parameter, where a deployment states nothing: fp32 weights and two moments."""
ASSUMED_WRITE_SPEED = 500e6
"""Bytes per second and machine, where nobody measured: a local disk with fsync. A cluster's storage grows with its machines:
Llama 3 had 2 TB/s sustained for 2,048 of them, twice this (arXiv 2407.21783)."""
ASSUMED_WRITE_SPREAD = (0.25, 5.0)


@dataclass(frozen=True)
class PlanFacts:
    """A Spec on a deployment, with what was measured there.

    ``extras``: sections that were asked for although they take longer (search, sheet, simulate). ``given_notes``: what is
    known beside recipe and deployment, such as sources that do not exist yet.
    """

    spec: Spec
    deployment: Deployment
    calibration: dict[str, Any] | None
    extras: frozenset[str] = frozenset()
    given_notes: tuple[str, ...] = field(default=())

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.spec)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What should be known beside the numbers, and is no risk of the recipe."""
        searched = ["no layout is stated: the fastest that fits was looked for; fix one with --layout"] if self._searched else []
        doubt = unproven(self.cluster.chip) if self.cluster and not self.cluster.chip.announced else None  # that is a risk
        made = (*searched, *self._short_interval(), *(self.calibrated.notes if self.calibrated else ()))
        return (*self.given_notes, *([doubt] if doubt else []), *made)

    def _short_interval(self) -> list[str]:
        step, every = self.main_step, self.deployment.checkpoints.every
        if step is None or every is None or every >= step.number():
            return []
        said = f"checkpoints.every, {format_seconds(every)}, is shorter than a step of {format_seconds(step.number())}"
        return [f"{said}: one is planned after every step"]

    # --- counts -------------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Quantity]:
        return parameter_quantities(self.spec.model)

    @cached_property
    def tokens(self) -> Quantity:
        inputs = {stage.name: stage.sequences * stage.sequence_length for stage in self.spec.stages}
        return Quantity("tokens", self.schedule.total_tokens, "tokens", "sum over stages of sequences x sequence length", inputs)

    @cached_property
    def steps(self) -> Quantity:
        inputs = {stage.name: self.schedule.stage_steps(i) for i, stage in enumerate(self.spec.stages)}
        return Quantity("steps", self.schedule.total_steps, "steps", "sum over stages of whole batches", inputs)

    @property
    def mean_sequence_length(self) -> float:
        """Sequence length of the average token: attention is linear in it, so that one number stands for all stages."""
        stages = self.spec.stages
        return sum(s.sequences * s.sequence_length**2 for s in stages) / self.schedule.total_tokens

    def total_flops(self, convention: Convention) -> Quantity:
        """Of the whole run; every stage at its own sequence length."""
        from headway.plan.compute_section import total_flops

        return total_flops(self, convention)

    # --- where it runs ------------------------------------------------------------------------------------------------

    @cached_property
    def cluster(self) -> Cluster | None:
        """None where the device is no chip of the table."""
        return cluster_of(self.deployment, self.spec.precision.compute)

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """By stage: as stated; on a cluster without any, the fastest that fits."""
        if not self._searched:
            return stated_layouts(self.spec, self.deployment)
        assert self.cluster is not None
        return found_layouts(self.spec, self.deployment, self.cluster)

    @property
    def _searched(self) -> bool:
        return self.cluster is not None and not self.deployment.layouts and self.deployment.world > 1

    @cached_property
    def peak_flops_per_second(self) -> float | None:
        """Of one device in the recipe's precision: as stated, or the chip's; None: unknown."""
        stated, cluster = self.deployment.accelerator.peak_flops, self.cluster
        if stated is not None:
            return float(stated)
        return cluster.chip.peaks.get(self.spec.precision.compute) if cluster else None

    # --- rates --------------------------------------------------------------------------------------------------------

    @cached_property
    def calibrated(self) -> Calibrated | None:
        """What of a calibration holds here."""
        if self.calibration is None:
            return None
        from headway.plan.calibrated import apply_calibration

        return apply_calibration(self.calibration, self)

    @cached_property
    def predicted(self) -> list[Predicted]:
        """Every phase by the model of a step; empty where the chip is not known."""
        return predict(self.spec, self.deployment, dict(self.layouts)) if self.cluster is not None else []

    @cached_property
    def paces(self) -> list[Pace]:
        """Every phase with its step time, from the first source that knows (see ``rates``); empty where none does."""
        phases = phases_of(self.spec)
        if self.calibrated and self.calibrated.rates:
            return paces_at(phases, self.calibrated.rates, "batch_tokens / tokens_per_second")
        if self.assumed_flops_per_second.value is not None:
            convention = Convention(self.deployment.accelerator.utilisation_convention)
            speed = self.assumed_flops_per_second
            rates = {s.name: assumed_rate(self.spec, s, speed, convention) for s in self.spec.stages}
            return paces_at(phases, rates, "batch_tokens / tokens_per_second")
        return [pace_of(one.phase, predicted_pace(one)) for one in self.predicted]

    @property
    def stands_on_prediction(self) -> bool:
        return self.assumed_flops_per_second.value is None and not (self.calibrated and self.calibrated.rates)

    def stage_seconds(self, stage: str, name: str = "") -> Quantity | None:
        """All steps of a stage; None where no rate is known."""
        paces = [pace for pace in self.paces if pace.stage == stage]
        if not paces:
            return None
        low, value, high = together(paces)
        inputs: dict[str, Input] = {pace.seconds.name: pace.seconds for pace in paces}
        formula = "sum over phases of steps x step time"
        name = name or f"stage_seconds_{plain(stage)}"
        return Quantity(name, value, "seconds", formula, inputs, paces[0].seconds.source, low, high)

    @cached_property
    def rate_from(self) -> Quantity:
        """In words: where the rate comes from."""
        accelerator = self.deployment.accelerator
        if self.calibrated and self.calibrated.rates:
            words = self.calibrated.words
        elif self.assumed_flops_per_second.value is not None:
            words = f"assumed: {100 * (accelerator.utilisation or 0):.3g} % of the peak ({accelerator.utilisation_convention})"
        elif self.predicted:
            words = "predicted for this chip and layout"
        else:
            words = "unknown"
        return Quantity("rate_from", words, "", "calibration, else stated utilisation, else prediction", {}, "the first known")

    @cached_property
    def tokens_per_second(self) -> Quantity:
        """Mean over the run: measured, assumed, predicted, or unknown."""
        name, unit = "tokens_per_second", "tokens/s"
        if self.calibrated and self.calibrated.mean is not None:
            return self.calibrated.mean
        if not self.paces:
            return unknown(name, unit, self._missing_rate)
        low, seconds, high = together(self.paces)
        total = self.tokens.number()
        if self.assumed_flops_per_second.value is not None and self.deployment.accelerator.utilisation_convention == "6N":
            flops = self.total_flops(Convention.SIX_N)
            inputs: dict[str, Input] = {"R": self.assumed_flops_per_second, "flops": flops, "tokens": self.tokens}
            return Quantity(
                name, total / seconds, unit, "R tokens / flops, by 6N", inputs, "assumed utilisation", total / high, total / low
            )
        inputs = {"tokens": self.tokens, **{pace.seconds.name: pace.seconds for pace in self.paces}}
        formula = "tokens / sum over phases of steps x step time"
        return Quantity(name, total / seconds, unit, formula, inputs, self.rate_from.shown(), total / high, total / low)

    @property
    def _missing_rate(self) -> str:
        if self.cluster is not None:
            return f"{self.cluster.chip.name} has no rate in {self.spec.precision.compute}; needs accelerator.utilisation"
        return "needs a calibration, or accelerator.peak_flops and utilisation, or accelerator.kind with a chip of the table"

    @cached_property
    def assumed_flops_per_second(self) -> Quantity:
        """What the whole deployment computes at the utilisation that it states."""
        utilisation, peak = self.deployment.accelerator.utilisation, self.peak_flops_per_second
        if peak is None or utilisation is None:
            return unknown("deployment_flops_per_second", "FLOP/s", "needs accelerator.peak_flops and accelerator.utilisation")
        inputs = {"world": self.deployment.world, "peak": peak, "utilisation": utilisation}
        value = self.deployment.world * peak * utilisation
        return Quantity(
            "deployment_flops_per_second", value, "FLOP/s", "world x peak x utilisation", inputs, "assumed utilisation"
        )

    @cached_property
    def step_seconds(self) -> Quantity:
        """Mean over the run."""
        mean = self.tokens.number() / self.steps.number()
        inputs = {"tokens": self.tokens, "steps": self.steps}
        return self.spent("step_seconds", mean, "tokens / steps / tokens_per_second", inputs)

    @cached_property
    def training_seconds(self) -> Quantity:
        """All steps, nothing else."""
        return self.spent("training_seconds", self.tokens.number(), "tokens / tokens_per_second", {"tokens": self.tokens})

    def spent(self, name: str, tokens: float, formula: str, inputs: dict[str, Quantity] | None = None) -> Quantity:
        """Seconds that ``tokens`` take at the mean rate."""
        rate = self.tokens_per_second
        if rate.value is None:
            return unknown(name, "seconds", rate.formula)
        low, high = tokens / rate.at("high"), tokens / rate.at("low")
        known: dict[str, Input] = {"tokens_per_second": rate, **(inputs or {})}
        return Quantity(name, tokens / rate.number(), "seconds", formula, known, rate.source, low, high)

    @cached_property
    def wall_seconds(self) -> Quantity:
        """How long the devices are held: ``wall_seconds``; ``predicted_seconds`` where nobody knows how often they fail."""
        from headway.plan.failure.section import FailureFacts

        return FailureFacts(self).wall

    # --- saves and evaluations ----------------------------------------------------------------------------------------

    @cached_property
    def checkpoint_size(self) -> Quantity:
        """As this engine writes it, unless the deployment states other bytes than those of its weights and two moments."""
        each = self.deployment.checkpoints.bytes_per_parameter
        if each == CHECKPOINT_BYTES:
            return checkpoint_quantity(self.spec.model, self.spec.optimizer)
        inputs: dict[str, Input] = {"N": self.parameters["stored"], "each": each}
        value, source = each * count_parameters(self.spec.model).stored, "deployment: checkpoints.bytes_per_parameter"
        return Quantity("checkpoint_bytes", value, "bytes", f"{each} N", inputs, source)

    @cached_property
    def steps_per_checkpoint(self) -> Quantity:
        """As stated, or what fits into the time stated in the phase that trains the most tokens: steps of a ramp are shorter."""
        policy, name = self.deployment.checkpoints, "steps_per_checkpoint"
        if policy.every is None:
            return Quantity(name, policy.every_steps, "steps", "chosen", {}, "deployment: checkpoints.every_steps")
        step = self.main_step
        if step is None:
            return unknown(name, "steps", self.training_seconds.formula)
        low, value, high = (
            steps_between_checkpoints(policy, seconds) for seconds in (step.at("high"), step.number(), step.at("low"))
        )
        inputs: dict[str, Input] = {"every": policy.every, "step_seconds": step}
        source, formula = "deployment: checkpoints.every", "floor(every / step_seconds), where most tokens are trained"
        ends = (low, high) if step.is_estimate else (None, None)
        return Quantity(name, value, "steps", formula, inputs, source, *ends)

    @property
    def main_step(self) -> Quantity | None:
        """Step time of the phase that trains the most tokens; None where no rate is known."""
        return max(self.paces, key=lambda pace: pace.tokens).seconds if self.paces else None

    @cached_property
    def saves(self) -> Quantity:
        """Over the run's own steps, or by the clock over its training time. Where failures undo work it is saved again."""
        name, every, remark = "checkpoints", self.deployment.checkpoints.every, "the last step always has one"
        if every is None:
            cadence = self.steps_per_checkpoint
            inputs: dict[str, Input] = {"steps": self.steps, "every": cadence}
            count = math.ceil(self.schedule.total_steps / int(cadence.number()))
            return Quantity(name, count, "times", f"ceil(steps / every), {remark}", inputs)
        training = self.training_seconds
        if training.value is None:
            return unknown(name, "times", training.formula)
        from headway.plan.failure.section import checkpoint_interval

        interval = checkpoint_interval(self)
        inputs = {"training_seconds": training, "every": interval}
        value, low, high = rising(lambda seconds, tau: math.ceil(seconds / tau), training, interval)
        return Quantity(name, value, "times", f"ceil(training_seconds / every), {remark}", inputs, "", low, high)

    @cached_property
    def save_seconds(self) -> Quantity:
        """One save: measured, or bytes over the storage's speed, or over what disks do."""
        name, formula = "save_seconds", "bytes / write_speed"
        if self.calibrated and self.calibrated.save is not None:
            return self.calibrated.save
        stated = self.deployment.storage.write_speed
        speed = stated or ASSUMED_WRITE_SPEED * self.deployment.nodes
        inputs: dict[str, Input] = {"bytes": self.checkpoint_size, "write_speed": speed}
        assumed = "assumed: 500 MB/s of each machine"
        source, spread = ("the deployment; range assumed", (0.8, 2.0)) if stated else (assumed, ASSUMED_WRITE_SPREAD)
        return estimate(name, self.checkpoint_size.number() / speed, "seconds", formula, inputs, source, spread)

    @cached_property
    def evaluations(self) -> Quantity:
        value = self.schedule.count_evaluations()
        inputs: dict[str, Input] = {"tokens": self.tokens, "every_tokens": self.spec.evaluation.every_tokens}
        return Quantity("evaluations", value, "times", "steps that pass a multiple of every_tokens, and the last", inputs, "")

    @cached_property
    def evaluation_seconds(self) -> Quantity:
        """One evaluation over all sources: measured, or forward passes at three times the training rate."""
        name = "evaluation_seconds"
        if self.calibrated and self.calibrated.evaluation is not None:
            return self.calibrated.evaluation
        tokens = self.spec.evaluation.tokens_per_source * len(self.spec.sources)
        return self.spent(name, tokens / 3, "held-out tokens / (3 x training rate): a forward pass is a third")
