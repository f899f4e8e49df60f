"""What the sections of a plan share: schedule, counts, rates. Each computed once, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headway.formulas.checkpoint_interval import interval_quantity, young_interval_seconds
from headway.formulas.flops import FORMULAS, SOURCE, Convention, flops_per_token, flops_quantity
from headway.formulas.memory import checkpoint_bytes
from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.formulas.quantity import Input, Quantity, estimate, unknown
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment

MEASURED = "calibration on this machine"
ASSUMED_UTILISATION_SPREAD = (0.8, 1.2)
"""An assumed utilisation is believed to within a fifth: published runs of one size differ by as much."""
ASSUMED_WRITE_SPEED = 500e6
"""Bytes per second of a local disk with fsync, where nobody measured."""
ASSUMED_WRITE_SPREAD = (0.25, 5.0)

DRIFT = 0.15
"""A few seconds of measurement do not see how a shared machine drifts over minutes: the range is never narrower than this.
Two quiet runs of the demo came out 7 % below and 4 % above their own measurement."""


@dataclass(frozen=True)
class PlanFacts:
    """A Spec on a deployment, with what was measured there."""

    spec: Spec
    deployment: Deployment
    calibration: dict[str, Any] | None

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.spec)

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
        parts = [
            (stage.sequences * stage.sequence_length, flops_per_token(self.spec.model, stage.sequence_length, convention))
            for stage in self.spec.stages
        ]
        lengths = {stage.sequence_length for stage in self.spec.stages}
        name = f"flops_{'6n' if convention is Convention.SIX_N else convention.value}"
        inputs: dict[str, Quantity] = {"tokens": self.tokens}
        if len(lengths) == 1:
            inputs["per_token"] = flops_quantity(self.spec.model, lengths.pop(), convention)
        formula = f"sum over stages of tokens x ({FORMULAS[convention]})"
        return Quantity(name, float(sum(t * f for t, f in parts)), "FLOP", formula, inputs, SOURCE)

    # --- rates --------------------------------------------------------------------------------------------------------

    @cached_property
    def tokens_per_second(self) -> Quantity:
        """Measured, or from a peak and an assumed utilisation, or unknown."""
        if self.calibration:
            rate = float(self.calibration["tokens_per_second"])
            low = min(rate * (1 - DRIFT), float(self.calibration.get("low", rate)))
            high = max(rate * (1 + DRIFT), float(self.calibration.get("high", rate)))
            timed = {"steps_timed": self.calibration.get("steps_timed", "not recorded")}
            return Quantity("tokens_per_second", rate, "tokens/s", "measured", timed, MEASURED, low, high)
        speed, flops = self.assumed_flops_per_second, self.total_flops(Convention.SIX_N)
        if speed.value is None:
            return unknown("tokens_per_second", "tokens/s", "needs a calibration, or accelerator.peak_flops and utilisation")
        rate = speed.number() / flops.number() * self.tokens.number()
        inputs: dict[str, Input] = {"R": speed, "flops": flops, "tokens": self.tokens}
        formula = "R tokens / flops, by 6N"
        return estimate("tokens_per_second", rate, "tokens/s", formula, inputs, "assumed utilisation", ASSUMED_UTILISATION_SPREAD)

    @cached_property
    def assumed_flops_per_second(self) -> Quantity:
        """What the whole deployment computes at the assumed utilisation."""
        accelerator = self.deployment.accelerator
        if accelerator.peak_flops is None or accelerator.utilisation is None:
            return unknown("deployment_flops_per_second", "FLOP/s", "needs accelerator.peak_flops and accelerator.utilisation")
        inputs = {"world": self.deployment.world, "peak": accelerator.peak_flops, "utilisation": accelerator.utilisation}
        value = self.deployment.world * accelerator.peak_flops * accelerator.utilisation
        return Quantity("deployment_flops_per_second", value, "FLOP/s", "world x peak x utilisation", inputs, "the deployment")

    @cached_property
    def step_seconds(self) -> Quantity:
        """Mean over the run."""
        return self.spent("step_seconds", self.tokens.number() / self.steps.number(), "mean batch tokens / tokens per second")

    def spent(self, name: str, tokens: float, formula: str, inputs: dict[str, Quantity] | None = None) -> Quantity:
        """Seconds that ``tokens`` take at the known rate."""
        rate = self.tokens_per_second
        if rate.value is None:
            return unknown(name, "seconds", rate.formula)
        low = tokens / (rate.high or rate.number())
        high = tokens / (rate.low or rate.number())
        return Quantity(
            name,
            tokens / rate.number(),
            "seconds",
            formula,
            {"tokens_per_second": rate, **(inputs or {})},
            rate.source,
            low,
            high,
        )

    # --- saves and evaluations ----------------------------------------------------------------------------------------

    @cached_property
    def checkpoint_size(self) -> Quantity:
        count = count_parameters(self.spec.model).total
        return Quantity(
            "checkpoint_bytes", checkpoint_bytes(count), "bytes", "12 N", {"N": self.parameters["total"]}, "fp32: weights, m, v"
        )

    @cached_property
    def saves(self) -> Quantity:
        every, steps = self.deployment.checkpoints.every_steps, self.schedule.total_steps
        formula = "steps / every, and one at the end"
        return Quantity("checkpoints", -(-steps // every), "times", formula, {"steps": self.steps, "every": every}, "")

    @cached_property
    def save_seconds(self) -> Quantity:
        """One save: measured, or bytes over the storage's speed, or over what disks do."""
        name, formula = "save_seconds", "bytes / write speed"
        if self.calibration and self.calibration.get("seconds_per_save") is not None:
            return estimate(name, float(self.calibration["seconds_per_save"]), "seconds", "measured", {}, MEASURED, (0.5, 2.0))
        stated = self.deployment.storage.write_speed
        speed = stated or ASSUMED_WRITE_SPEED
        inputs: dict[str, Input] = {"bytes": self.checkpoint_size, "write_speed": speed}
        source, spread = ("the deployment", (0.8, 2.0)) if stated else ("assumed: a local disk", ASSUMED_WRITE_SPREAD)
        return estimate(name, self.checkpoint_size.number() / speed, "seconds", formula, inputs, source, spread)

    @cached_property
    def evaluations(self) -> Quantity:
        value = self.schedule.count_evaluations()
        inputs: dict[str, Input] = {"tokens": self.tokens, "every_tokens": self.spec.evaluation.every_tokens}
        return Quantity("evaluations", value, "times", "steps that pass a multiple of every_tokens, and the last", inputs, "")

    @cached_property
    def evaluation_seconds(self) -> Quantity:
        """One evaluation over all sources: measured, or forward passes at three times the training rate."""
        name, spread = "evaluation_seconds", (0.7, 1.5)
        calibration = self.calibration or {}
        if "seconds_per_evaluation" in calibration:
            return estimate(name, float(calibration["seconds_per_evaluation"]), "seconds", "measured", {}, MEASURED, spread)
        tokens = self.spec.evaluation.tokens_per_source * len(self.spec.sources)
        rate = calibration.get("evaluation_tokens_per_second")
        if rate:
            inputs: dict[str, Input] = {"tokens": tokens, "evaluation_tokens_per_second": float(rate)}
            return estimate(name, tokens / float(rate), "seconds", "tokens / rate", inputs, MEASURED, spread)
        return self.spent(name, tokens / 3, "held-out tokens / (3 x training rate): a forward pass is a third")

    @cached_property
    def young_interval(self) -> Quantity:
        """To first order, for comparison: it parts from Daly's where a save is not cheap against the time between failures."""
        every, cost = self.deployment.failures.every, self.save_seconds
        if every is None:
            return unknown("young_checkpoint_interval", "seconds", "needs failures.every")
        low, value, high = (
            young_interval_seconds(c, every) for c in (cost.low or cost.number(), cost.number(), cost.high or cost.number())
        )
        inputs: dict[str, Input] = {"c": cost, "M": every}
        return Quantity("young_checkpoint_interval", value, "seconds", "sqrt(2 c M)", inputs, "Young 1974", low, high)

    @cached_property
    def best_interval(self) -> Quantity:
        every = self.deployment.failures.every
        if every is None:
            return unknown("best_checkpoint_interval", "seconds", "needs failures.every")
        return interval_quantity(self.save_seconds, every)
