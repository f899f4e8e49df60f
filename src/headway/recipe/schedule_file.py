"""What is published of a run without its model: tokens, lengths, batches, rates, and where the sources disagree.

    kind = "schedule"     recipes/deepseek-v4.1.toml                  kind = "recipe"     recipes/demo.toml
          |                                                                 |
          +------------------------ load_plannable(name) -------------------+

Such a file can be planned, never run. Whatever the source leaves out stays out: no length, batch or rate is filled in.
A stage has one piece of the rate curve, as in a recipe, so ``schedules.Schedule`` computes both (law 9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from headway.base.errors import Problem
from headway.recipe.checks import Finding, check_stage
from headway.recipe.fields import Listed, Name, Parameters, Positive, Section, Some, Tokens, Version
from headway.recipe.load import LoadedRecipe, find_recipe, load_recipe, read_document, validated
from headway.recipe.resolve import resolve_rate
from headway.recipe.schedules import Schedule, StepTokens, whole_batches
from headway.recipe.schema import RampPhase, Rate, Stage, said
from headway.recipe.spec import StageSpec

if TYPE_CHECKING:
    from headway.recipe.spec import Spec


class Counted(Section):
    """Parameters of the model, as far as they are published."""

    stored: Parameters | None = said("all parameters; None: not published", None)
    active: Parameters | None = said("parameters that one token passes; None: not published", None)
    source: str = said("where it is said", "")


class PublishedStage(Section):
    """A part of the run. None: not published."""

    name: Name = said("name of the part")
    tokens: Tokens = said("tokens to train")
    sequence: Annotated[int, Field(ge=2, le=2**30)] | None = said(
        "tokens per sequence, 2 to 2^30; None: not published, batches are counted in tokens", None
    )
    batch: Tokens | None = said("tokens per optimizer step; None: see ramp, or not published", None)
    ramp: Listed[RampPhase] = said("batch sizes in phases, instead of batch", ())
    rate: Rate | None = said("learning-rate curve, as shares of the peak; None: not published", None)
    source: str = said("where it is said", "")


class Statement(Section):
    """One of the values that a contradiction is made of."""

    value: Positive | Annotated[int, Field(gt=0)] = said("the number, in the unit of the contradiction")
    source: str = said("where it is said")


class Contradiction(Section):
    """One thing that is said in two ways. Both stay; nothing is reconciled silently."""

    what: str = said("the thing", min_length=1)
    unit: str = said("unit of the values", "")
    note: str = said("what follows, or what could explain it", "")
    values: Some[Statement] = said("each value with its source, at least two")


class ScheduleFile(Section):
    """A published schedule."""

    kind: Literal["schedule"] = said("says that this file is a schedule")
    schema_version: Version = said("version of this format", 1)
    name: Name = said("name of the run")
    source: str = said("what the figures are taken from")
    tokens: Tokens | None = said("tokens in all, as stated; None: the sum of the stages", None)
    peak_rate: Positive | None = said("learning rate where the factor is 1; None: not published", None, lt=1)
    parameters: Counted = said("size of the model", Counted())
    stages: Some[PublishedStage] = said("parts of the run, in order; at least one")
    contradictions: Listed[Contradiction] = said("what is said in two ways", ())
    notes: Listed[str] = said("anything worth knowing beside the numbers", ())


# --- loading ------------------------------------------------------------------------------------------------------------


def load_schedule(path_or_preset: str | Path, overrides: Iterable[str] = ()) -> ScheduleFile:
    """Read a schedule from a file or by a preset's name; ConfigError lists every problem."""
    document, problems = read_document(find_recipe(path_or_preset), list(overrides), kind="schedule")
    return validated(ScheduleFile, document, problems, schedule_findings)


def load_plannable(path_or_preset: str | Path, overrides: Iterable[str] = ()) -> LoadedRecipe | ScheduleFile:
    """Whatever ``headway plan`` accepts: a schedule where the file says so, else a recipe."""
    chosen = list(overrides)
    document, problems = read_document(find_recipe(path_or_preset), chosen, kind="recipe")
    if document.data.get("kind") == "schedule":
        return validated(ScheduleFile, document, problems, schedule_findings)
    return load_recipe(path_or_preset, chosen)


def schedule_findings(schedule: ScheduleFile) -> list[Finding]:
    """Rules across fields: those of a recipe's stages, as far as something is published, and those of this format."""
    findings: list[Finding] = []
    names = [stage.name for stage in schedule.stages]
    for index, stage in enumerate(schedule.stages):
        findings += check_stage(index, _as_recipe_stage(stage))
        if names.index(stage.name) < index:
            seen = f"two stages are named {stage.name!r}"
            findings.append((("stages", index, "name"), Problem(seen, "every name is used once in its list", "rename one")))
        if stage.rate is not None and schedule.peak_rate is None:
            seen = f"stage {stage.name!r} has a rate, but there is no peak_rate"
            findings.append((("stages", index, "rate"), Problem(seen, "a rate is a share of the peak", "add peak_rate")))
    for index, item in enumerate(schedule.contradictions):
        if len(item.values) < 2:
            seen = f"the contradiction about {item.what!r} has one value"
            findings.append((("contradictions", index), Problem(seen, "it takes two to contradict", "add the other value")))
    counted = schedule.parameters
    if counted.stored and counted.active and counted.active > counted.stored:
        seen = f"{counted.active:,} active parameters of {counted.stored:,} stored ones"
        findings.append((("parameters", "active"), Problem(seen, "a token passes some of the stored parameters", "swap them")))
    return findings


def _as_recipe_stage(stage: PublishedStage) -> Stage:
    """The stage under a recipe's rules; what is not published stands at a value that breaks none."""
    return Stage.model_construct(
        name=stage.name,
        tokens=stage.tokens,
        sequence=stage.sequence or 1,
        batch=stage.batch or (None if stage.ramp else stage.tokens),
        ramp=stage.ramp,
        rate=stage.rate or Rate(),
        mixture={"all": 1.0},
    )


# --- the schedule as the planner reads it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Peak:
    peak_rate: float


@dataclass(frozen=True)
class Timetable:
    """What ``Schedule`` reads of a Spec, and nothing else: stages and the peak rate."""

    stages: tuple[StageSpec, ...]
    optimizer: _Peak


def timetable(schedule: ScheduleFile) -> Schedule | None:
    """The one implementation of schedules over this file; None where a batch is not published."""
    if not all(stage.batch or stage.ramp for stage in schedule.stages):
        return None
    stages = tuple(_resolved(stage) for stage in schedule.stages)
    return Schedule(cast("Spec", Timetable(stages, _Peak(schedule.peak_rate or 0.0))))


def batch_phases(stage: PublishedStage) -> list[tuple[int, int]]:
    """(from token of the stage, batch tokens), first from 0; empty where nothing is published."""
    return [(phase.start, phase.batch) for phase in stage.ramp] or ([(0, stage.batch)] if stage.batch else [])


def _resolved(stage: PublishedStage) -> StageSpec:
    """Without a published length a sequence counts as one token, so that batches are exact."""
    length = stage.sequence or 1
    sequences, phases = whole_batches(stage.tokens, length, batch_phases(stage))
    return StageSpec(
        name=stage.name,
        tokens=stage.tokens,
        sequence_length=length,
        sequences=sequences,
        phases=phases,
        rate=resolve_rate(stage.rate or Rate(), StepTokens(phases, sequences, length)),
        quanta=(),
        rope_base=0.0,
    )
