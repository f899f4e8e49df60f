"""What the sections of a plan share: schedule, counts, layouts, rates. Each computed once, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headway.formulas.checkpoint_interval import interval_quantity, young_interval_seconds
from headway.formulas.flops import Convention
from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.formulas.quantity import Input, Quantity, estimate, unknown
from headway.plan.cluster import cluster_of, steps_between_checkpoints
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
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.plan.calibrated import Calibrated
    from headway.recipe.deployment import Deployment

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
        return (*self.given_notes, *searched, *(self.calibrated.notes if self.calibrated else ()))

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
    def mean_context(self) -> float:
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

        return apply_calibration(self.calibration, self.spec, self.deployment, self.predicted)

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
        return Quantity("rate_from", words, "", "calibration, else stated utilisation, else prediction", {}, "plan.rates")

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
        low = tokens / (rate.high or rate.number())
        high = tokens / (rate.low or rate.number())
        known: dict[str, Input] = {"tokens_per_second": rate, **(inputs or {})}
        return Quantity(name, tokens / rate.number(), "seconds", formula, known, rate.source, low, high)

    # --- saves and evaluations ----------------------------------------------------------------------------------------

    @cached_property
    def checkpoint_size(self) -> Quantity:
        each = self.deployment.checkpoints.bytes_per_parameter
        stored = self.parameters["stored"]
        inputs: dict[str, Input] = {"N": stored, "each": each}
        source = "fp32: weights, m, v" if each == 12 else "deployment: checkpoints.bytes_per_parameter"
        value = each * count_parameters(self.spec.model).stored
        return Quantity("checkpoint_bytes", value, "bytes", f"{each} N", inputs, source)

    @cached_property
    def steps_per_checkpoint(self) -> Quantity:
        """As stated, or what fits into the time stated."""
        policy, name = self.deployment.checkpoints, "steps_per_checkpoint"
        every = steps_between_checkpoints(policy, self._step_number)
        if policy.every is None or self._step_number is None:
            return Quantity(name, every, "steps", "chosen", {}, "deployment: checkpoints.every_steps")
        inputs: dict[str, Input] = {"every": policy.every, "step_seconds": self.longest_pace.seconds}
        return Quantity(name, every, "steps", "floor(every / step_seconds)", inputs, "deployment: checkpoints.every")

    @property
    def longest_pace(self) -> Pace:
        """The phase that trains the most tokens."""
        return max(self.paces, key=lambda pace: pace.tokens)

    @property
    def _step_number(self) -> float | None:
        """Seconds of a step in the phase that trains most."""
        return self.longest_pace.seconds.number() if self.paces else None

    @cached_property
    def saves(self) -> Quantity:
        every, steps = self.steps_per_checkpoint, self.schedule.total_steps
        formula = "ceil(steps / every), the last step always has one"
        return Quantity("checkpoints", -(-steps // int(every.number())), "times", formula, {"steps": self.steps, "every": every})

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
        source, spread = ("the deployment", (0.8, 2.0)) if stated else (assumed, ASSUMED_WRITE_SPREAD)
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

    @cached_property
    def young_interval(self) -> Quantity:
        """To first order, for comparison: it parts from Daly's where a save is not cheap against the time between failures."""
        every, cost = self.deployment.between_failures, self.save_seconds
        if every is None:
            return unknown("young_checkpoint_interval", "seconds", "needs failures.every or failures.per_device")
        low, value, high = (
            young_interval_seconds(c, every) for c in (cost.low or cost.number(), cost.number(), cost.high or cost.number())
        )
        inputs: dict[str, Input] = {"c": cost, "M": every}
        return Quantity("young_checkpoint_interval", value, "seconds", "sqrt(2 c M)", inputs, "Young 1974", low, high)

    @cached_property
    def best_interval(self) -> Quantity:
        every = self.deployment.between_failures
        if every is None:
            return unknown("best_checkpoint_interval", "seconds", "needs failures.every or failures.per_device")
        return interval_quantity(self.save_seconds, every)
