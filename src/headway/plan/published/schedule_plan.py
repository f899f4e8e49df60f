"""A plan of a published schedule: what follows from tokens, batches and rates alone, and where the sources disagree.

There is no model, so there are no FLOPs, no memory and no time. What the file leaves out is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.base.digests import digest_json
from headway.base.units import format_count
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.plan import Cell, Column, Plan, Risk, Section, Table
from headway.plan.ramp import SCHEDULE_COLUMNS, SHARES, schedule_row, step_at_tokens
from headway.recipe.schedule_file import PublishedStage, ScheduleFile, batch_phases, timetable
from headway.recipe.schedules import until

ROUNDED = 0.01
"""Totals in print are rounded: beyond this they are another number."""


@dataclass(frozen=True)
class SchedulePlan(Plan):
    """A plan without a model: it is printed, explained and saved as any other."""

    standing: str = "a published schedule without a model"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"kind": "schedule plan"}


def make_schedule_plan(file: ScheduleFile) -> SchedulePlan:
    """Everything that follows from ``file``."""
    sections = (inputs(file), batch_and_steps(file), rates(file), exposure(file), contradictions(file))
    digest = digest_json(file.model_dump(mode="json", by_alias=True))
    return SchedulePlan(file.name, digest, False, tuple(section for section in sections if section is not None), risks(file))


def total_tokens(file: ScheduleFile) -> Quantity:
    """As stated; where nothing is stated, the sum of the stages."""
    if file.tokens is not None:
        return Quantity("tokens", file.tokens, "tokens", "as stated", {}, file.source)
    inputs: dict[str, Input] = {stage.name: stage.tokens for stage in file.stages}
    return Quantity("tokens", sum(stage.tokens for stage in file.stages), "tokens", "sum of stages", inputs, file.source)


# --- sections -----------------------------------------------------------------------------------------------------------


def inputs(file: ScheduleFile) -> Section:
    counted = file.parameters
    made = [Quantity("source", file.source, "", "chosen", {}, file.source), total_tokens(file)]
    for name, value in (("stored_parameters", counted.stored), ("active_parameters", counted.active)):
        if value is None:
            made.append(unknown(name, "parameters", "not in the source"))
        else:
            made.append(Quantity(name, value, "parameters", "as stated", {}, counted.source or file.source))
    if file.peak_rate is None:
        made.append(unknown("peak_rate", "rate", "not in the source"))
    else:
        made.append(Quantity("peak_rate", file.peak_rate, "rate", "as stated", {}, file.source))
    return Section("Inputs", tuple(made), notes=file.notes)


def batch_and_steps(file: ScheduleFile) -> Section:
    columns = ("stage", "tokens", "sequence", "from token", "batch (tokens)", "updates", "rate", "source")
    rows: list[tuple[Cell, ...]] = []
    for stage in file.stages:
        curve = _curve(stage)
        phases: Sequence[tuple[Cell, Cell, Cell]] = [
            (start, batch, round(updates)) for start, batch, updates in _phases(stage)
        ] or [(0, None, None)]
        rows += [(stage.name, stage.tokens, stage.sequence, *phase, curve, stage.source) for phase in phases]
    return Section(
        "Batch and steps",
        tuple(_updates(file)),
        (Table("Stages", tuple(map(Column, columns)), tuple(rows)),),
    )


def _updates(file: ScheduleFile) -> list[Quantity]:
    schedule = timetable(file)
    if schedule is None:
        return [unknown("updates", "steps", "needs the batch of every stage, which is not in the source")]
    exact = sum(updates for stage in file.stages for _, _, updates in _phases(stage))
    given: dict[str, Input] = {"tokens": total_tokens(file)}
    given |= {f"batch_of_{stage.name}": batch for stage in file.stages for _, batch, _ in _phases(stage)}
    made = [
        Quantity("updates", int(exact), "steps", "sum over batches of tokens / batch, whole ones", given, file.source),
        Quantity(
            "steps",
            schedule.total_steps,
            "steps",
            "whole batches until every stage has its tokens, as a run would count them",
            {stage.name: schedule.stage_steps(index) for index, stage in enumerate(file.stages)},
            "the schedule",
        ),
    ]
    first = file.stages[0]
    if first.rate is not None and first.rate.warmup:
        batch = _phases(first)[0][1]
        tokens = schedule.spec.stages[0].rate.warmup_tokens
        inputs: dict[str, Input] = {"warmup_tokens": tokens, "batch": batch}
        made.append(Quantity("warmup_steps", tokens / batch, "steps", "warm-up tokens / batch", inputs, first.source))
    return made


def _phases(stage: PublishedStage) -> list[tuple[int, int, float]]:
    """(from token, batch tokens, tokens / batch) of every published batch of a stage."""
    phases = batch_phases(stage)
    ends = until([start for start, _ in phases], stage.tokens) if phases else []
    return [(start, batch, (end - start) / batch) for (start, batch), end in zip(phases, ends, strict=True)]


def _curve(stage: PublishedStage) -> str | None:
    rate = stage.rate
    if rate is None:
        return None
    end = rate.start if rate.shape == "constant" else rate.end or 0.0
    words = f"{rate.shape} {rate.start:g}" if end == rate.start else f"{rate.shape} {rate.start:g} to {end:g}"
    return f"warm-up, {words}" if rate.warmup else words


def rates(file: ScheduleFile) -> Section | None:
    """At shares of the tokens and where a stage begins; only where batches and rates are published."""
    schedule = timetable(file)
    if schedule is None or file.peak_rate is None or any(stage.rate is None for stage in file.stages):
        return None
    total = schedule.total_tokens
    begins = (schedule.tokens_before(schedule.first_step(index)) for index in range(len(file.stages)))
    looked_at = sorted({*(round(share * total) for share in SHARES), *begins})
    rows = tuple(schedule_row(schedule, step_at_tokens(schedule, tokens)) for tokens in looked_at)
    with_shares = tuple((row.tokens_before / total, *row) for row in rows)
    return Section("Schedule", (), (Table("Schedule", SCHEDULE_COLUMNS, with_shares),))


def exposure(file: ScheduleFile) -> Section:
    """Tokens per parameter: the denominator is named, because for experts it decides the figure."""
    tokens, counted = total_tokens(file), file.parameters
    made = []
    for kind, count in (("active", counted.active), ("stored", counted.stored)):
        name = f"tokens_per_{kind}_parameter"
        if count is None:
            made.append(unknown(name, "", f"{kind} parameters are not in the source"))
            continue
        inputs: dict[str, Input] = {"tokens": tokens, "parameters": count}
        made.append(Quantity(name, tokens.number() / count, "", f"tokens / {kind} parameters", inputs, counted.source))
    return Section("Exposure", tuple(made))


def contradictions(file: ScheduleFile) -> Section | None:
    """What the file itself lists, and what its own numbers give away."""
    rows: list[tuple[Cell, ...]] = []
    for item in file.contradictions:
        values = [statement.value for statement in item.values]
        ratio = max(values) / min(values)
        for statement in item.values:
            rows.append((item.what, statement.value, item.unit, statement.source, ratio, item.note))
    rows += _sum_of_stages(file)
    if not rows:
        return None
    columns = ("about", "value", "unit", "said by", "largest / smallest", "note")
    return Section("Contradictions in the source", (), (Table("Said in two ways", tuple(map(Column, columns)), tuple(rows)),))


def risks(file: ScheduleFile) -> tuple[Risk, ...]:
    """A total that its own stages contradict: every figure per token stands on it."""
    parts = sum(stage.tokens for stage in file.stages)
    if file.tokens is None or abs(parts / file.tokens - 1) <= ROUNDED:
        return ()
    number = f"{format_count(file.tokens, 'tokens')} in all as stated, {format_count(parts, 'tokens')} in the stages"
    consequence = "steps follow from the stages, tokens per parameter from the total: one of the two is another run's"
    return (Risk("the stated total contradicts the stages", consequence, number),)


def _sum_of_stages(file: ScheduleFile) -> list[tuple[Cell, ...]]:
    """A total beside stages that do not add up to it leaves open which of them it holds."""
    parts = sum(stage.tokens for stage in file.stages)
    if file.tokens is None or parts == file.tokens:
        return []
    ratio = max(parts, file.tokens) / min(parts, file.tokens)
    note = "whether every stage lies inside the total is not said"
    about = "tokens in all"
    return [
        (about, file.tokens, "tokens", "the total as stated", ratio, note),
        (about, parts, "tokens", f"sum of {', '.join(stage.name for stage in file.stages)}", ratio, note),
    ]
