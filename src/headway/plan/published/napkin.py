"""The plan on a napkin: four inputs, one rate, one batch; and what the whole plan says in the same place.

    N, D, cluster, MFU  -->  6 N D / (devices x peak x MFU)  -->  days, steps of the largest batch, interruptions, lost time

A napkin counts 6 N D and nothing else, has one batch for the whole run, takes batches to three figures and counts
interruptions over useful time. What that leaves out stands beside it. The Beacon plan (docs/sources.md) is made this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import floor, log10

from headway.formulas.checkpoint_interval import young_interval_seconds
from headway.formulas.failures import (
    Interruptions,
    expected_failures,
    lost_seconds_first_order,
    wall_seconds_daly,
    wall_seconds_self_consistent,
)
from headway.formulas.flops import Convention
from headway.formulas.quantity import Input, Quantity
from headway.plan.facts import PlanFacts
from headway.plan.failure.section import FailureFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.ramp import batch_tokens, warmup_quantities
from headway.plan.rates import phases_of

SOURCE = "docs/sources.md: the Beacon plan, script"
STATE_BYTES = 16
"""Per parameter: bf16 weights and gradients, fp32 master weights and two moments."""


def napkin_section(facts: PlanFacts) -> Section | None:
    """None where an input is missing: the plan states no utilisation, or the peak is not known."""
    if facts.assumed_flops_per_second.value is None:
        return None
    napkin = Napkin(facts)
    quantities = [*napkin.compute(), *napkin.steps(), *napkin.memory(), *napkin.phases()]
    tables = [_beside(napkin), _ramp(napkin)]
    if facts.deployment.between_failures is not None:
        quantities += napkin.failures()
        tables.insert(1, _wall_times(napkin))
    return Section("On a napkin", tuple(quantities), tuple(tables))


def three_figures(value: float) -> float:
    """As people write a batch: 15,998,976 is 16.0M."""
    digits = 2 - floor(log10(abs(value)))
    return round(value, digits)


@dataclass(frozen=True)
class Napkin:
    """The figures of one run. Every method returns quantities that stand on those before."""

    facts: PlanFacts

    # --- inputs ---------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Quantity:
        return self.facts.parameters["in_6n"]

    @cached_property
    def tokens(self) -> Quantity:
        stages = self.facts.spec.stages
        return _made("tokens", sum(s.tokens for s in stages), "tokens", "sum of stages", {s.name: s.tokens for s in stages})

    @property
    def speed(self) -> Quantity:
        return self.facts.assumed_flops_per_second

    @cached_property
    def batch(self) -> Quantity:
        largest = max(batch_tokens(phase) for phase in phases_of(self.facts.spec))
        formula = "largest batch of the run, to three figures"
        return _made("batch", int(three_figures(largest)), "tokens", formula, {"largest": largest})

    # --- compute and time -----------------------------------------------------------------------------------------------

    @cached_property
    def flops(self) -> Quantity:
        value = 6 * self.parameters.number() * self.tokens.number()
        return _made("flops", value, "FLOP", "6 N D", {"N": self.parameters, "D": self.tokens})

    @cached_property
    def useful(self) -> Quantity:
        value = self.flops.number() / self.speed.number()
        return _made("useful_seconds", value, "seconds", "C / R, no failures", {"C": self.flops, "R": self.speed})

    def compute(self) -> list[Quantity]:
        ratio = self.tokens.number() / self.parameters.number()
        inputs: dict[str, Input] = {"D": self.tokens, "N": self.parameters}
        density = _made("tokens_per_parameter", ratio, "", "D / N", inputs)
        return [self.parameters, self.tokens, self.speed, self.flops, density, self.useful]

    # --- batch and steps ------------------------------------------------------------------------------------------------

    @cached_property
    def step(self) -> Quantity:
        value = 6 * self.parameters.number() * self.batch.number() / self.speed.number()
        inputs: dict[str, Input] = {"N": self.parameters, "B": self.batch, "R": self.speed}
        return _made("step_seconds", value, "seconds", "6 N B / R", inputs)

    def steps(self) -> list[Quantity]:
        sequence = self.facts.spec.stages[0].sequence_length
        inputs: dict[str, Input] = {"D": self.tokens, "B": self.batch}
        steps = _made("steps", round(self.tokens.number() / self.batch.number()), "steps", "D / B, one batch throughout", inputs)
        count = int(self.batch.number() // sequence)
        rows = _made("sequences_per_step", count, "sequences", "floor(B / s)", {"B": self.batch, "s": sequence})
        return [self.batch, steps, rows, self.step, self.ramp_steps]

    @cached_property
    def ramp(self) -> list[tuple[float, float]]:
        """(from token, batch): neighbours of one batch, to three figures, are one phase."""
        found: list[tuple[float, float]] = []
        before = 0
        for phase in phases_of(self.facts.spec):
            batch = three_figures(batch_tokens(phase))
            if not found or found[-1][1] != batch:
                found.append((three_figures(before) if before else 0.0, batch))
            before += phase.steps * batch_tokens(phase)
        return found

    @property
    def ramp_rows(self) -> list[tuple[float, float, float]]:
        """(batch, tokens, steps) of each phase."""
        ends = [start for start, _ in self.ramp[1:]] + [self.tokens.number()]
        return [(batch, end - start, (end - start) / batch) for (start, batch), end in zip(self.ramp, ends, strict=True)]

    @cached_property
    def ramp_steps(self) -> Quantity:
        rows = self.ramp_rows
        inputs: dict[str, Input] = {f"steps_{place}": steps for place, (_, _, steps) in enumerate(rows, start=1)}
        return _made("ramp_steps", round(sum(steps for _, _, steps in rows)), "steps", " + ".join(inputs), inputs)

    # --- memory and saves -----------------------------------------------------------------------------------------------

    @cached_property
    def state(self) -> Quantity:
        value = STATE_BYTES * self.parameters.number()
        return _made("state_bytes", value, "bytes", f"{STATE_BYTES} N", {"N": self.parameters})

    @cached_property
    def save(self) -> Quantity | None:
        speed = self.facts.deployment.storage.write_speed
        if speed is None:
            return None
        inputs: dict[str, Input] = {"state": self.state, "write_speed": speed}
        return _made("save_seconds", self.state.number() / speed, "seconds", "state / write_speed", inputs)

    def memory(self) -> list[Quantity]:
        devices = self.facts.deployment.world
        each = self.state.number() / devices
        inputs: dict[str, Input] = {"state": self.state, "devices": devices}
        share = _made("state_bytes_per_device", each, "bytes", "state / devices, before activations", inputs)
        weights = _made("weight_bytes", 2 * self.parameters.number(), "bytes", "2 N, bf16", {"N": self.parameters})
        return [self.state, share, weights, *([self.save] if self.save else [])]

    # --- phases of the rate -----------------------------------------------------------------------------------------------

    def phases(self) -> list[Quantity]:
        """Warm-up as if the batch were the largest, and under the ramp; the last stage where it anneals."""
        made: list[Quantity] = []
        warmup, first = self.facts.spec.stages[0].rate.warmup_tokens, self.ramp[0][1]
        if warmup:
            steps = _made("warmup_steps", round(warmup / first), "steps", "W / b", {"W": warmup, "b": first})
            made += [steps, *self._of_steps("warmup", steps, self.batch.number(), "B")]
            if first != self.batch.number():
                made += self._of_steps("warmup_under_ramp", steps, first, "b")
        last = self.facts.spec.stages[-1]
        if len(self.facts.spec.stages) > 1 and last.rate.end == 0:
            inputs: dict[str, Input] = {"A": last.tokens, "B": self.batch}
            made.append(_made("anneal_steps", round(last.tokens / self.batch.number()), "steps", "A / B", inputs))
        return made

    def _of_steps(self, name: str, steps: Quantity, batch: float, letter: str) -> list[Quantity]:
        inputs: dict[str, Input] = {"S": steps, letter: batch}
        tokens = _made(f"{name}_tokens", round(steps.number() * batch), "tokens", f"S {letter}", inputs)
        seconds = 6 * self.parameters.number() * tokens.number() / self.speed.number()
        inputs = {"N": self.parameters, "W": tokens, "R": self.speed}
        return [tokens, _made(f"{name}_seconds", seconds, "seconds", "6 N W / R", inputs)]

    # --- failures -------------------------------------------------------------------------------------------------------

    def rate_of_failures(self, interval: float, save: float) -> Interruptions:
        known = FailureFacts(self.facts)
        return Interruptions(known.M.number(), known.R.number(), interval, save)

    @cached_property
    def interval(self) -> Quantity:
        policy = self.facts.deployment.checkpoints
        if policy.every is not None:
            return _made("checkpoint_interval", max(policy.every, self.step.number()), "seconds", "chosen, at least a step", {})
        inputs: dict[str, Input] = {"every": policy.every_steps, "step": self.step}
        return _made("checkpoint_interval", policy.every_steps * self.step.number(), "seconds", "every step", inputs)

    @property
    def first_order(self) -> list[Quantity]:
        """Failures over useful time, half an interval and a restart each; saves are free."""
        rate, useful = self.rate_of_failures(self.interval.number(), 0.0), self.useful.number()
        inputs: dict[str, Input] = {"T0": self.useful, "M": rate.between, "tau": self.interval, "R": rate.restart}
        few: dict[str, Input] = {"T0": self.useful, "M": rate.between}
        count = _made("failures", expected_failures(useful, rate.between), "times", "T0 / M", few)
        lost = _made("lost_seconds", lost_seconds_first_order(useful, rate), "seconds", "T0 / M (tau / 2 + R)", inputs)
        wall = useful + lost.number()
        total = _made("wall_seconds", wall, "seconds", "T0 + lost", {"T0": self.useful, "lost": lost})
        return [count, lost, total]

    def failures(self) -> list[Quantity]:
        count, lost, wall = self.first_order
        devices = self.facts.deployment.world
        inputs: dict[str, Input] = {"devices": devices, "wall": wall}
        hours = _made("device_hours", devices * wall.number() / 3600, "h", "devices wall / 3600", inputs)
        share = self.useful.number() / wall.number()
        effective = _made("effective_share", share, "share", "T0 / wall", {"T0": self.useful, "wall": wall})
        inputs = {"interval": self.interval, "step": self.step}
        between = round(self.interval.number() / self.step.number())
        steps = _made("steps_per_checkpoint", between, "steps", "round(interval / step)", inputs)
        return [count, self.interval, steps, lost, wall, effective, hours, *self.corrected()]

    def corrected(self) -> list[Quantity]:
        """By formulas that count failures over the time that really passes. Saves to whole seconds, as the text writes them."""
        save = float(round(self.save.number())) if self.save else 0.0
        tau = self.interval.number()
        words = "T0 (1 + c / tau) / (1 - (tau / 2 + R) / M)"
        made = [self._wall("self_consistent", tau, 0.0, words), self._wall("self_consistent_with_saves", tau, save, words)]
        made.append(self._wall("daly", tau, save, "M e^(R / M) (e^((tau + c) / M) - 1) T0 / tau"))
        if save:
            between = self.rate_of_failures(tau, save).between
            inputs: dict[str, Input] = {"c": save, "M": between}
            best = _made("young_interval", young_interval_seconds(save, between), "seconds", "sqrt(2 c M)", inputs)
            made += [best, self._wall("at_young", best.number(), save, words)]
        return [quantity for quantity in made if quantity is not None]

    def _wall(self, name: str, interval: float, save: float, formula: str) -> Quantity | None:
        """None where failures come faster than work is saved."""
        rate = self.rate_of_failures(interval, save)
        wall = (wall_seconds_daly if name == "daly" else wall_seconds_self_consistent)(self.useful.number(), rate)
        inputs: dict[str, Input] = {"T0": self.useful, "M": rate.between, "R": rate.restart, "tau": interval, "c": save}
        return None if wall is None else _made(f"wall_seconds_{name}", wall, "seconds", formula, inputs)


def _made(name: str, value: float, unit: str, formula: str, inputs: dict[str, Input]) -> Quantity:
    return Quantity(f"napkin_{name}", value, unit, formula, inputs, SOURCE)


# --- tables -------------------------------------------------------------------------------------------------------------


def _beside(napkin: Napkin) -> Table:
    """What the whole plan says of the same things."""
    facts = napkin.facts
    known = {q.name: q for q in (*napkin.compute(), *napkin.steps(), *napkin.memory(), *napkin.phases())}
    planned = {"flops": facts.total_flops(Convention.SIX_N), "useful_seconds": facts.training_seconds, "steps": facts.steps}
    planned |= {"ramp_steps": facts.steps, "step_seconds": facts.step_seconds, "save_seconds": facts.save_seconds}
    planned |= {"state_bytes": facts.checkpoint_size}
    planned |= {q.name: q for q in warmup_quantities(facts) if q.name in ("warmup_tokens", "warmup_seconds")}
    rows: list[tuple[Cell, ...]] = []
    for name, quantity in planned.items():
        figure = known.get(f"napkin_{name}")
        if figure is not None and quantity.value is not None:
            ratio = quantity.number() / figure.number()
            rows.append((name.removesuffix("_seconds").replace("_", " "), figure.shown(), quantity.shown(), ratio, REASONS[name]))
    columns = tuple(map(Column, ("figure", "napkin", "plan", "plan / napkin", "why they part")))
    return Table("The napkin beside the plan", columns, tuple(rows))


REASONS = {
    "flops": "whole batches are trained",
    "useful_seconds": "whole batches are trained",
    "steps": "one batch throughout; the plan ramps",
    "ramp_steps": "batches to three figures; the plan has whole sequences",
    "step_seconds": "the largest batch; the plan's is the mean",
    "save_seconds": "N as people call it; the plan saves every parameter",
    "state_bytes": "N as people call it; the plan counts every parameter",
    "warmup_tokens": "the same steps at the largest batch; the plan warms up under its ramp",
    "warmup_seconds": "the same steps at the largest batch; the plan warms up under its ramp",
}


def _wall_times(napkin: Napkin) -> Table:
    """One question, several answers: which assumption each makes."""
    known = {q.name: q for q in (*napkin.first_order, *napkin.corrected())}
    rows = [
        (words, known[f"napkin_{name}"], known[f"napkin_{name}"].number() / napkin.useful.number() - 1)
        for name, words in ANSWERS.items()
        if f"napkin_{name}" in known
    ]
    columns = (Column("by"), Column("wall time", "seconds"), Column("beyond useful time", "share"))
    return Table("Wall time with failures", columns, tuple(rows))


ANSWERS = {
    "wall_seconds": "first order: failures over useful time, saves free",
    "wall_seconds_self_consistent": "self-consistent: failures over the time that passes, saves free",
    "wall_seconds_self_consistent_with_saves": "self-consistent, with saves",
    "wall_seconds_daly": "Daly: exact for exponential failures, with saves",
    "wall_seconds_at_young": "self-consistent, with saves, at Young's interval",
}


def _ramp(napkin: Napkin) -> Table:
    rows = tuple((batch, tokens, steps) for batch, tokens, steps in napkin.ramp_rows)
    columns = (Column("batch", "tokens"), Column("tokens", "tokens"), Column("steps", "steps"))
    return Table("Ramp in round batches", columns, rows)
