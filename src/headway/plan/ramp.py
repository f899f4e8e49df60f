"""The schedule over the run's tokens, under a batch ramp coupled to steps.

    batch    |              ________________  16M      steps = tokens of a phase / its batch
             |      _______|                   8M
             |_____|                           4M      4M phase: 62,500 steps, 8M: 343,750, 16M: 750,000
             +-----+-------+----------------> tokens
    step time   short  longer      longest             a step is as long as its batch, so warm-up counted in steps is short

Warm-up stands in the recipe in tokens. Counted in steps it depends on the batch: 8,000 steps are 32 B tokens and 3.3 hours at
4M, and 128 B tokens and 13.2 hours if every batch had 16M. Both are shown. All values are ``recipe.schedules.Schedule``'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.facts import PlanFacts
from headway.plan.laws.forecast import predicted_loss, run_parameters
from headway.plan.laws.hyperparameters import CRITICAL_SOURCE, TRADE_SOURCE, critical_batch_tokens, trade
from headway.plan.laws.scaling_sets import REFIT
from headway.plan.plan import Cell, Column, Table
from headway.plan.rates import Phase, phases_of
from headway.recipe.schedules import Schedule, spans
from headway.recipe.spec import BatchPhase, RateSpec, Spec, StageSpec

SHARES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
"""Where the schedule table looks: shares of the run's tokens."""
COSINE_END = 0.01
"""Llama 3 glides to a hundredth of the peak (arXiv 2407.21783, section 3.4.1)."""
WSD_DECAY_SHARE = 0.1
"""Warm-up, hold, then down to zero over the last tenth (Hu et al. 2024, arXiv 2404.06395)."""


def step_at_tokens(schedule: Schedule, tokens: float) -> int:
    """The step (from 0) that trains token ``tokens``; the last one at the end."""
    low, high = 0, schedule.total_steps - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if schedule.tokens_before(middle) <= tokens else (low, middle - 1)
    return low


# --- the same batches under another rate curve -----------------------------------------------------------------------------


def with_cosine(spec: Spec) -> Spec:
    """The run as one stage whose rate glides over all tokens after the warm-up."""
    stage = _merged(spec)
    return replace(spec, stages=(replace(stage, rate=_rate(spec, "cosine", 1.0, COSINE_END)),))


def with_wsd(spec: Spec) -> Spec:
    """The run as a hold and, from the first step boundary in the last tenth on, a line to zero."""
    stage = _merged(spec)
    hold, decay = _split(stage, math.ceil((1 - WSD_DECAY_SHARE) * stage.sequences))
    constant, line = _rate(spec, "constant", 1.0, 1.0), replace(_rate(spec, "linear", 1.0, 0.0), warmup_tokens=0)
    if hold is None:  # a run of one step
        return replace(spec, stages=(replace(decay, rate=replace(line, warmup_tokens=constant.warmup_tokens)),))
    return replace(spec, stages=(replace(hold, rate=constant), replace(decay, rate=line)))


def _rate(spec: Spec, shape: str, start: float, end: float) -> RateSpec:
    return replace(spec.stages[0].rate, shape=shape, start=start, end=end, tail_tokens=0)


def _merged(spec: Spec) -> StageSpec:
    """All stages as one: the same steps with the same batches, in units that divide every sequence length."""
    unit = math.gcd(*(stage.sequence_length for stage in spec.stages))
    phases, before = [], 0
    for stage in spec.stages:
        each = stage.sequence_length // unit
        phases += [BatchPhase(before + phase.first_sequence * each, phase.batch_sequences * each) for phase in stage.phases]
        before += stage.sequences * each
    tokens = sum(stage.tokens for stage in spec.stages)
    return replace(spec.stages[-1], name="all", tokens=tokens, sequence_length=unit, sequences=before, phases=tuple(phases))


def _split(stage: StageSpec, wanted: int) -> tuple[StageSpec | None, StageSpec]:
    """At the first step boundary at or after sequence ``wanted``, but before the last step."""
    phases = [span for span in spans(stage) if span.steps]
    phase = next(span for span in phases if span.end_sequence >= wanted)
    cut = phase.first_sequence + math.ceil((wanted - phase.first_sequence) / phase.batch_sequences) * phase.batch_sequences
    cut = min(cut, stage.sequences - phases[-1].batch_sequences)
    if cut <= 0:
        return None, stage
    head = tuple(BatchPhase(s.first_sequence, s.batch_sequences) for s in phases if s.first_sequence < cut)
    tail = tuple(BatchPhase(max(s.first_sequence, cut) - cut, s.batch_sequences) for s in phases if s.end_sequence > cut)
    T = stage.sequence_length
    hold = replace(stage, name="hold", tokens=cut * T, sequences=cut, phases=head)
    return hold, replace(stage, name="decay", tokens=stage.tokens - cut * T, sequences=stage.sequences - cut, phases=tail)


# --- tables ----------------------------------------------------------------------------------------------------------------


SCHEDULE_COLUMNS = (
    Column("of the tokens", "share"),
    Column("tokens before"),
    Column("stage"),
    Column("step"),
    Column("learning rate", "rate"),
    Column("batch (tokens)"),
)
"""A share of the tokens, and a ``ScheduleRow``."""


class ScheduleRow(NamedTuple):
    """One step as tables show it; ``step`` counted from one."""

    tokens_before: int
    stage: str
    step: int
    rate: float
    batch_tokens: int


def schedule_row(schedule: Schedule, step: int) -> ScheduleRow:
    """Of the step ``step`` (from 0), as it runs."""
    place = schedule.place(step)
    stage = schedule.spec.stages[place.stage]
    batch = place.batch_sequences * stage.sequence_length
    return ScheduleRow(schedule.tokens_before(step), stage.name, step + 1, schedule.rate(step), batch)


def schedule_table(facts: PlanFacts) -> Table:
    """Rate, batch and step time at shares of the tokens: of the step that trains that token, exactly as it will run.

    Beside the recipe's own rate stand the two usual shapes over the same steps, with the same peak and warm-up.
    """
    schedule = facts.schedule
    others = Schedule(with_cosine(facts.spec)), Schedule(with_wsd(facts.spec))
    times = {(phase.stage.name, batch_tokens(phase)): _seconds(facts, phase) for phase in phases_of(facts.spec)}
    rows: list[tuple[Cell, ...]] = []
    for share in SHARES:
        step = step_at_tokens(schedule, share * schedule.total_tokens)
        row = schedule_row(schedule, step)
        rows.append((share, *row, times.get((row.stage, row.batch_tokens)), *(other.rate(step) for other in others)))
    others_too = (Column("step time", "seconds"), Column("were it cosine", "rate"), Column("were it WSD", "rate"))
    return Table("Schedule", (*SCHEDULE_COLUMNS, *others_too), tuple(rows))


def ramp_table(facts: PlanFacts) -> Table:
    """Per phase: steps, time, and how much of a token's worth a batch of that size keeps, in its middle and at its end."""
    rows: list[tuple[Cell, ...]] = []
    before, total = 0, facts.tokens.number()
    for phase in phases_of(facts.spec):
        batch = batch_tokens(phase)
        tokens, each = phase.steps * batch, _seconds(facts, phase)
        whole = None if each is None else each * phase.steps
        kept = (gradient_efficiency(facts, batch, at) for at in (before + tokens / 2, before + tokens))
        rows.append((phase.stage.name, batch, before, phase.steps, tokens, tokens / total, each, whole, *kept))
        before += tokens
    titles = (("stage", ""), ("batch (tokens)", ""), ("from token", ""), ("steps", ""), ("tokens", ""))
    columns = [Column(*pair) for pair in titles]
    columns += [Column("of the tokens", "share"), Column("step time", "seconds"), Column("time", "seconds")]
    columns += [Column("gradient efficiency, middle", "share"), Column("end", "share")]
    return Table("Batch ramp", tuple(columns), tuple(rows))


EFFICIENCY_NOTE = (
    f"gradient efficiency: 1 / (1 + B / Bcrit) ({TRADE_SOURCE}) with Bcrit of the loss predicted there ({CRITICAL_SOURCE}): "
    "a rough guide, the critical batch of other data may differ several times"
)
"""Stands under the table of the ramp."""


def batch_tokens(phase: Phase) -> int:
    return phase.batch_sequences * phase.stage.sequence_length


def gradient_efficiency(facts: PlanFacts, batch: float, tokens: float) -> float | None:
    """Share of a token's worth that a batch keeps, at the loss predicted after ``tokens``; None: out of the laws' reach."""
    parameters = run_parameters(facts).number()
    if 6 * parameters * tokens < REFIT.least_flops:
        return None
    return trade(batch, critical_batch_tokens(predicted_loss(tokens, parameters))).efficiency


# --- warm-up -----------------------------------------------------------------------------------------------------------------


def warmup_quantities(facts: PlanFacts) -> tuple[Quantity, ...]:
    """In tokens, steps and time under the ramp; and what as many steps would be with the run's largest batch throughout."""
    chosen = facts.spec.stages[0].rate.warmup_tokens
    tokens = Quantity("warmup_tokens", chosen, "tokens", "chosen", {}, "recipe: stages.0.rate")
    if chosen == 0:
        return (tokens,)
    steps, phases = _warmup_steps(facts, tokens), phases_of(facts.spec)
    largest = max(phases, key=batch_tokens)
    inputs: dict[str, Input] = {"steps": steps, "largest batch": batch_tokens(largest)}
    words, value = "steps x largest batch; had every batch that size", int(steps.number()) * batch_tokens(largest)
    constant = Quantity("warmup_tokens_at_largest_batch", value, "tokens", words, inputs, "")
    under = _seconds_of("warmup_seconds", [(count, _pace(facts, phase)) for phase, count in _first(phases, steps)], steps)
    flat = _seconds_of("warmup_seconds_at_largest_batch", [(int(steps.number()), _pace(facts, largest))], steps)
    return tokens, steps, under, constant, flat


def _warmup_steps(facts: PlanFacts, tokens: Quantity) -> Quantity:
    """Steps that begin inside the warm-up, the last one perhaps across its end."""
    schedule = facts.schedule
    step = step_at_tokens(schedule, tokens.number())
    inside = step + (schedule.tokens_before(step) < tokens.number())
    inputs: dict[str, Input] = {"tokens": tokens, "first batch": batch_tokens(phases_of(facts.spec)[0])}
    words = "steps that begin before the warm-up ends, under the ramp"
    return Quantity("warmup_steps", inside, "steps", words, inputs, "the schedule")


def _first(phases: Sequence[Phase], steps: Quantity) -> Iterator[tuple[Phase, int]]:
    """The phases of the run's first steps, with how many of them each has."""
    left = int(steps.number())
    for phase in phases:
        if left:
            yield phase, min(left, phase.steps)
        left -= min(left, phase.steps)


def _pace(facts: PlanFacts, phase: Phase) -> Quantity:
    """Step time of a phase; unknown where no rate is."""
    name, stage, batch = f"step_seconds_{phase.name}", phase.stage.name, batch_tokens(phase)
    known = (pace.seconds for pace in facts.paces if (pace.stage, pace.batch_tokens) == (stage, batch))
    return next(known, None) or facts.spent(name, batch, "batch tokens / tokens per second")


def _seconds(facts: PlanFacts, phase: Phase) -> float | None:
    pace = _pace(facts, phase)
    return None if pace.value is None else pace.number()


def _seconds_of(name: str, paces: Sequence[tuple[int, Quantity]], steps: Quantity) -> Quantity:
    """So many steps of each step time."""
    if any(each.value is None for _, each in paces):
        return unknown(name, "seconds", paces[0][1].formula)
    low = math.fsum(count * each.at("low") for count, each in paces)
    value = math.fsum(count * each.number() for count, each in paces)
    high = math.fsum(count * each.at("high") for count, each in paces)
    inputs: dict[str, Input] = {"steps": steps, **{each.name: each for _, each in paces}}
    formula = f"steps x {paces[0][1].name}" if len(paces) == 1 else "sum over phases of steps x step time"
    return Quantity(name, value, "seconds", formula, inputs, paces[0][1].source, low, high)
