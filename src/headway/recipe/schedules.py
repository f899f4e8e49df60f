"""The one implementation of every schedule: place of a step, batch, learning rate.

Planner, trainer, monitor and plots all call these. Position is the trained index: u sequences of the current stage.

    stage "main", T = 256      u: 0 ......... 4096 ................ 16384 = M
    phases                        b = 16        b = 64
    steps                      0, 1, ... 255,  256, 257, ...        447

The learning rate of a step is the stage's curve at the middle of the step's tokens: above zero at the first step of a
warm-up, above zero at the last step of a decay to zero. Where the curve is a straight line over the step (constant, linear,
warm-up) its integral over the tokens is exact, whatever the batch ramp; on a curved piece, and in the one step that spans a
corner, it is the midpoint rule, off by a term that falls with the square of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.recipe.spec import BatchPhase, RateSpec, Spec, StageSpec

SHAPES = ("constant", "linear", "cosine", "inverse_sqrt", "one_minus_sqrt")


@dataclass(frozen=True)
class Steps:
    """A count of optimizer steps, written "2000 steps": how many tokens that is depends on the batches."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} steps"


@dataclass(frozen=True)
class StepPlace:
    """Where step ``step`` (0-based, global) stands: stage, first trained index u, sequences in its batch."""

    step: int
    stage: int
    first_sequence: int
    batch_sequences: int

    @property
    def end_sequence(self) -> int:
        return self.first_sequence + self.batch_sequences


@dataclass(frozen=True)
class Span:
    """A batch phase from its first trained index to its end: so many steps of one batch."""

    first_sequence: int
    end_sequence: int
    batch_sequences: int

    @property
    def sequences(self) -> int:
        return self.end_sequence - self.first_sequence

    @property
    def steps(self) -> int:
        return self.sequences // self.batch_sequences


def spans(stage: StageSpec) -> tuple[Span, ...]:
    """Every phase of ``stage``, in order, those without a step included."""
    return _spans(stage.phases, stage.sequences)


def _spans(phases: Sequence[BatchPhase], sequences: int) -> tuple[Span, ...]:
    ends = until([phase.first_sequence for phase in phases], sequences)
    return tuple(Span(p.first_sequence, end, p.batch_sequences) for p, end in zip(phases, ends, strict=True))


@dataclass(frozen=True)
class StepTokens:
    """How many tokens the first or last steps of a stage train on, under its batch ramp."""

    phases: tuple[BatchPhase, ...]
    sequences: int
    sequence_length: int

    def first(self, steps: int) -> int:
        """Beyond the stage's end at its last batch: a warm-up may be longer than its stage, and is then refused."""
        return self._count(steps, _spans(self.phases, self.sequences))

    def last(self, steps: int) -> int:
        return self._count(steps, _spans(self.phases, self.sequences)[::-1])

    def _count(self, steps: int, order: Sequence[Span]) -> int:
        found = 0
        for span in order:
            taken = min(steps, span.steps)
            found, steps = found + taken * span.batch_sequences, steps - taken
        return (found + steps * order[-1].batch_sequences) * self.sequence_length


def until(starts: Sequence[int], end: int) -> list[int]:
    """Where what begins at ``starts`` ends: where the next begins, the last at ``end``."""
    return [*starts[1:], end]


def whole_batches(tokens: int, sequence_length: int, ramp: list[tuple[int, int]]) -> tuple[int, tuple[BatchPhase, ...]]:
    """Sequences of a stage and its batch phases.

    ``ramp``: (from tokens of the stage, batch tokens), first from 0. Whole batches are added until their tokens reach the
    next phase's start (or ``tokens``); a batch holds round(batch tokens / sequence length) sequences, at least one.
    """
    phases: list[BatchPhase] = []
    sequences = 0
    for (_, batch_tokens), end in zip(ramp, until([start for start, _ in ramp], tokens), strict=True):
        batch = max(1, round(batch_tokens / sequence_length))
        missing = min(end, tokens) - sequences * sequence_length
        if missing > 0 or not phases:
            phases.append(BatchPhase(sequences, batch))
            sequences += max(0, -(-missing // (batch * sequence_length))) * batch
    return sequences, tuple(phases)


def shape_value(shape: str, x: float, start: float, end: float) -> float:
    """The curve between ``start`` and ``end`` at x in [0, 1]."""
    if shape == "constant":
        return start
    if shape == "linear":
        return start + (end - start) * x
    if shape == "cosine":
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * x))
    if shape == "one_minus_sqrt":
        return end + (start - end) * (1 - math.sqrt(x))
    if shape == "inverse_sqrt":  # start / sqrt(1 + c x) with c such that x = 1 gives end
        return start / math.sqrt(1 + ((start / end) ** 2 - 1) * x)
    raise AssertionError(shape)


def rate_factor(rate: RateSpec, tokens_done: float, tokens_total: float) -> float:
    """Share of the peak rate after ``tokens_done`` of the stage's ``tokens_total`` tokens."""
    if tokens_done < rate.warmup_tokens:
        return rate.start * tokens_done / rate.warmup_tokens
    if rate.tail_tokens and tokens_done >= tokens_total - rate.tail_tokens:
        return rate.end
    rest = tokens_total - rate.warmup_tokens - rate.tail_tokens
    x = 0.0 if rest <= 0 else min(1.0, (tokens_done - rate.warmup_tokens) / rest)
    return shape_value(rate.shape, x, rate.start, rate.end)


BATCH_POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Of the batch in the rate, by ``RateSpec.batch_rule``."""


def batch_factor(stage: StageSpec, batch_sequences: int) -> float:
    """Of the rate in a batch ramp, against the stage's largest batch: noise per update falls with the batch."""
    largest = max(phase.batch_sequences for phase in stage.phases)
    return (batch_sequences / largest) ** BATCH_POWERS[stage.rate.batch_rule]


class Schedule:
    """Step arithmetic over all stages of a Spec. Stateless: any step's place in O(stages + phases).

    ``rates``: records {first, factor} of a segment, by ``first``: from global step ``first`` (0-based) on the rate is the
    recipe's times ``factor``, until the next of them.
    """

    def __init__(self, spec: Spec, rates: Sequence[Mapping[str, Any]] = ()):
        self.spec, self._rates = spec, tuple((int(one["first"]), float(one["factor"])) for one in rates)

    @cached_property
    def _steps(self) -> list[list[int]]:
        """Per stage and phase."""
        return [[span.steps for span in spans(stage)] for stage in self.spec.stages]

    @cached_property
    def _stage_steps(self) -> list[int]:
        return [sum(steps) for steps in self._steps]

    @property
    def total_steps(self) -> int:
        return sum(self._stage_steps)

    def stage_steps(self, stage: int) -> int:
        return self._stage_steps[stage]

    def first_step(self, stage: int) -> int:
        return sum(self._stage_steps[:stage])

    @property
    def total_tokens(self) -> int:
        return sum(s.sequences * s.sequence_length for s in self.spec.stages)

    def place(self, step: int) -> StepPlace:
        """The place of global step ``step``; ``total_steps`` itself is the end of the last stage (batch 0)."""
        assert 0 <= step <= self.total_steps, step
        rest = step
        for index, stage in enumerate(self.spec.stages):
            if rest < self._stage_steps[index]:
                for phase, steps in zip(stage.phases, self._steps[index], strict=True):
                    if rest < steps:
                        first = phase.first_sequence + rest * phase.batch_sequences
                        return StepPlace(step, index, first, phase.batch_sequences)
                    rest -= steps
            rest -= self._stage_steps[index]
        last = len(self.spec.stages) - 1
        return StepPlace(step, last, self.spec.stages[last].sequences, 0)

    def tokens_before(self, step: int) -> int:
        """Tokens trained by the steps before ``step``."""
        place = self.place(step)
        before = sum(s.sequences * s.sequence_length for s in self.spec.stages[: place.stage])
        return before + place.first_sequence * self.spec.stages[place.stage].sequence_length

    def rate(self, step: int) -> float:
        """Learning rate of global step ``step``."""
        place = self.place(step)
        stage = self.spec.stages[place.stage]
        middle = (place.first_sequence + place.batch_sequences / 2) * stage.sequence_length
        total = stage.sequences * stage.sequence_length
        factor = rate_factor(stage.rate, middle, total) * batch_factor(stage, place.batch_sequences)
        return self.spec.optimizer.peak_rate * factor * self.lowered(step)

    def lowered(self, step: int) -> float:
        """Factor that interventions put on the rate of global step ``step``; 1: none."""
        return next((factor for first, factor in reversed(self._rates) if first <= step), 1.0)

    def rate_at_tokens(self, tokens: float) -> float:
        """The continuous curve at ``tokens`` of the whole run (for tables and plots)."""
        lowered = next((f for first, f in reversed(self._rates) if self.tokens_before(first) <= tokens), 1.0)
        for stage in self.spec.stages:
            total = stage.sequences * stage.sequence_length
            if tokens <= total or stage is self.spec.stages[-1]:
                tokens = min(tokens, total)
                batch = [p.batch_sequences for p in stage.phases if p.first_sequence * stage.sequence_length <= tokens][-1]
                factor = rate_factor(stage.rate, tokens, total) * batch_factor(stage, batch)
                return self.spec.optimizer.peak_rate * factor * lowered
            tokens -= total
        raise AssertionError

    def evaluation_due(self, step_done: int) -> bool:
        """Whether the boundary after ``step_done`` steps is the first at or after a multiple of every_tokens, or the end."""
        every = self.spec.evaluation.every_tokens
        if step_done <= 0:
            return False
        crossed = self.tokens_before(step_done) // every > self.tokens_before(step_done - 1) // every
        return crossed or step_done == self.total_steps

    def count_evaluations(self) -> int:
        """How many boundaries of the run have an evaluation due, without walking all steps."""
        every, count, at = self.spec.evaluation.every_tokens, 0, 0
        for stage, phases in zip(self.spec.stages, self._steps, strict=True):
            for phase, steps in zip(stage.phases, phases, strict=True):
                batch = phase.batch_sequences * stage.sequence_length
                # a batch of at least every_tokens passes a multiple each time, a smaller one never two
                count += steps if batch >= every else (at + steps * batch) // every - at // every
                at += steps * batch
        last_passed = at // every > self.tokens_before(self.total_steps - 1) // every
        return count if last_passed else count + 1
