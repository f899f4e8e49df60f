"""From what stands on the command line to a plan: recipe, cluster, layouts, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError

if TYPE_CHECKING:
    from headway.plan.plan import Plan
    from headway.recipe.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One plan as asked for."""

    recipe: str
    cluster: str | None = None
    layouts: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    deployment: Path | None = None
    data: Path | None = None


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
    from headway.recipe.placement import check_stages, settle

    description = describe(wanted.recipe, wanted.overrides, wanted.deployment, runnable=calibrate)
    spec = spec_of(description, wanted.data)
    deployment = settle(placed(description.deployment, wanted), spec.precision.compute)
    check_stages(deployment, [stage.name for stage in spec.stages])
    measured = measurement(spec, deployment, calibration, calibrate=calibrate)
    return make_plan(spec, deployment, measured, extras=extras, notes=missing_sources(description.recipe))


def placed(deployment: Deployment, wanted: Wanted) -> Deployment:
    """On the cluster and with the layouts of the command line."""
    if wanted.cluster is not None:
        from headway.recipe.cluster import with_cluster

        deployment = with_cluster(deployment, wanted.cluster)
    return with_layouts(deployment, wanted.layouts) if wanted.layouts else deployment


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
    if given:
        rule = "a schedule is published without its model: no FLOPs, memory or time follow from it"
        raise ConfigError(f"{', '.join(given)} for the schedule {wanted.recipe}", rule, "leave it out, or write a recipe")


def missing_sources(recipe: Any) -> tuple[str, ...]:
    """A note where text that a recipe names is not there: a plan does not need it, ``data build`` will."""
    missing = [
        f"{source.name} ({source.path})" for source in recipe.data.sources if source.path and not Path(source.path).exists()
    ]
    if not missing:
        return ()
    there = "does" if len(missing) == 1 else "do"
    return (f"{there} not exist yet under this directory: {', '.join(missing)}; headway data build needs it",)


# --- layouts ------------------------------------------------------------------------------------------------------------


def with_layouts(deployment: Deployment, texts: Sequence[str]) -> Deployment:
    """``deployment`` with the layouts of ``--layout``; those for one stage leave the others as they are."""
    layouts = {} if any(":" not in text for text in texts) else dict(deployment.layouts)
    for text in texts:
        stage, _, sizes = text.rpartition(":")
        layouts[stage.strip() or "default"] = read_layout(sizes, deployment, text)
    return deployment.model_copy(update={"layouts": layouts})


def read_layout(sizes: str, deployment: Deployment, text: str) -> Any:
    """``tp=8,pp=16`` -> a layout of all devices; what is left over goes to dp_shard unless that is given."""
    from headway.plan.layout.section import parse_layout
    from headway.plan.work import Layout
    from headway.recipe.deployment import Layout as Stated

    try:
        layout = parse_layout(", ".join(sizes.replace(",", " ").split()), Layout(), deployment.world)
    except ConfigError as error:
        raise ConfigError([replace(problem, where=f"--layout {text}") for problem in error.problems]) from None
    if layout.world != deployment.world:
        rule = "pp x dp_replicate x dp_shard x cp x tp is the number of devices"
        way_out = "leave out dp_shard: it fills the rest"
        raise ConfigError(f"a layout of {layout.world:,} for {deployment.world:,} devices", rule, way_out, f"--layout {text}")
    plain = {name: getattr(layout, name) for name in Stated.model_fields}
    return Stated.model_validate({name: str(value) if isinstance(value, StrEnum) else value for name, value in plain.items()})


def one_form(*, json: bool, markdown: bool, html: bool, why: str | None) -> None:
    """One way of showing at a time; --why can be JSON."""
    asked = [name for name, given in (("--json", json), ("--markdown", markdown), ("--html", html)) if given]
    if len(asked) > 1:
        raise ConfigError(" and ".join(asked), "a plan is printed in one form", "give one of them")
    if why is not None and (markdown or html):
        raise ConfigError(f"--why with {asked[0]}", "an explanation is text or JSON", f"leave out {asked[0]}")
