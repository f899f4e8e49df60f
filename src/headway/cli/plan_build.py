"""From what stands on the command line to a plan: recipe, cluster, layouts, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError

if TYPE_CHECKING:
    from headway.plan.plan import Plan
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec


SERIOUS_HELD_OUT, SERIOUS_TOKENS = 10**6, 10 * 10**9
"""Tokens held out per source, from so many trained tokens on."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One plan as asked for."""

    recipe: str
    cluster: str | None = None
    layouts: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    deployment: Path | None = None
    data: str | None = None


def build_plan(
    wanted: Wanted, *, extras: frozenset[str] = frozenset(), calibration: Path | None = None, calibrate: bool = False
) -> Plan:
    """The plan of a recipe, or of a published schedule. ``extras``: sections that take longer."""
    from headway.recipe.load import LoadedRecipe
    from headway.recipe.schedule_file import load_plannable

    for_recipe = [text for text in wanted.overrides if not text.startswith("deployment.")]
    loaded = load_plannable(wanted.recipe, for_recipe)
    if isinstance(loaded, LoadedRecipe):
        return plan_of_recipe(wanted, extras=extras, calibration=calibration, calibrate=calibrate)
    from headway.plan.published.schedule_plan import make_schedule_plan

    refuse_without_model(wanted, extras, calibration or calibrate)
    return make_schedule_plan(loaded)


def plan_of_recipe(wanted: Wanted, *, extras: frozenset[str], calibration: Path | None = None, calibrate: bool = False) -> Plan:
    from headway.cli.describe import describe, spec_of
    from headway.plan.plan import make_plan
    from headway.recipe.cluster import carried_over
    from headway.recipe.placement import check_domain, check_stages, settle

    description = describe(wanted.recipe, wanted.overrides, wanted.deployment, runnable=calibrate)
    spec = spec_of(description, wanted.data)
    deployment = settle(placed(spec, description.deployment, wanted), spec.precision.compute)
    check_domain(deployment)
    check_stages(deployment, [stage.name for stage in spec.stages])
    measured = measurement(spec, deployment, calibration, calibrate=calibrate)
    notes = (
        *missing_sources(description.recipe),
        *beyond_held_out(description.recipe),
        *few_held_out(description.recipe),
        *carried_over(description.deployment, deployment),
    )
    return make_plan(spec, deployment, measured, extras=extras, notes=notes)


def placed(spec: Spec, deployment: Deployment, wanted: Wanted) -> Deployment:
    """On the cluster and with the layouts of the command line."""
    if wanted.cluster is not None:
        from headway.cli.describe import split_overrides
        from headway.recipe.cluster import with_cluster

        said = [override.partition("=")[0].strip() for override in split_overrides(wanted.overrides)[1]]
        deployment = with_cluster(deployment, wanted.cluster, said)
    if not wanted.layouts:
        return deployment
    from headway.plan.layout.stated import with_layouts

    return with_layouts(spec, deployment, wanted.layouts)


def measurement(spec: Any, deployment: Any, file: Path | None, *, calibrate: bool) -> dict[str, Any] | None:
    """From a file, or by measuring now, or none."""
    if file is not None and calibrate:
        raise ConfigError("--calibrate and --calibration", "a plan stands on one measurement", "give one of the two")
    if calibrate:
        from headway.cli.plan import measure

        return measure(spec, deployment)
    if file is None:
        return None
    from headway.plan.calibration import load_calibration

    return load_calibration(file)


def refuse_without_model(wanted: Wanted, extras: frozenset[str], measured: object) -> None:
    """A published schedule has no model: nothing about devices follows from it."""
    given = [f"--{name}" for name in sorted(extras)]
    given += ["--cluster"] if wanted.cluster else []
    given += ["--layout"] if wanted.layouts else []
    given += ["--calibrate or --calibration"] if measured else []
    given += ["--deployment"] if wanted.deployment else []
    given += ["--data"] if wanted.data else []
    given += [f"--set {text}" for text in wanted.overrides if text.strip().startswith("deployment.")]
    if given:
        rule = "a schedule is published without its model: no FLOPs, memory or time follow from it"
        raise ConfigError(f"{', '.join(given)} for the schedule {wanted.recipe}", rule, "leave it out, or write a recipe")


def missing_sources(recipe: Any) -> tuple[str, ...]:
    """A note where text that a recipe names is not there: a plan does not need it, ``data build`` will."""
    here = [s for s in recipe.data.sources if s.path and s.kind != "huggingface" and "://" not in s.path]
    missing = [f"{source.name} ({source.path})" for source in here if not Path(source.path).exists()]
    if not missing:
        return ()
    there = "does" if len(missing) == 1 else "do"
    return (f"{there} not exist yet under this directory: {', '.join(missing)}; headway data build needs it",)


def beyond_held_out(recipe: Any) -> tuple[str, ...]:
    """A note where evaluations ask for more than is held out: only that much can be scored."""
    wanted, there = recipe.evaluation.tokens_per_source, recipe.data.held_out
    if wanted <= there:
        return ()
    return (f"evaluation.tokens_per_source, {wanted:,}, is more than data.held_out, {there:,}: at most that is scored",)


def few_held_out(recipe: Any) -> tuple[str, ...]:
    """A note where a large run holds out little: what it decides on are differences that so few tokens do not show."""
    there, trained = recipe.data.held_out, sum(stage.tokens for stage in recipe.stages)
    if there >= SERIOUS_HELD_OUT or trained < SERIOUS_TOKENS:
        return ()
    more = f"data.held_out, {there:,} tokens per source, is less than the {SERIOUS_HELD_OUT:,} of a run of this length"
    return (f"{more}: the error of a held-out loss falls with the root of the tokens; a set is frozen when data is built",)


def one_form(*, json: bool, markdown: bool, html: bool, why: str | None) -> None:
    """One way of showing at a time; --why can be JSON."""
    asked = [name for name, given in (("--json", json), ("--markdown", markdown), ("--html", html)) if given]
    if len(asked) > 1:
        raise ConfigError(" and ".join(asked), "a plan is printed in one form", "give one of them")
    if why is not None and (markdown or html):
        raise ConfigError(f"--why with {asked[0]}", "an explanation is text or JSON", f"leave out {asked[0]}")
