"""``headway plan RECIPE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import DataOption, DeploymentOption, Json, Overrides, RecipeArgument


def plan(
    recipe: RecipeArgument,
    /,
    *,
    overrides: Overrides = None,
    deployment: DeploymentOption = None,
    data: DataOption = None,
    json: Json = False,
    markdown: Annotated[bool, Parameter(negative="", help="Print the plan as Markdown.")] = False,
    why: Annotated[
        str | None, Parameter(metavar="QUANTITY", help="Show where one number comes from: formula, inputs, source.")
    ] = None,
    calibrate: Annotated[
        bool, Parameter(negative="", help="Measure this machine first (some 10 seconds) and predict the time from it.")
    ] = False,
) -> int:
    """Show what a recipe will do: parameters, tokens, memory, time, schedule.

    The plan is exact where arithmetic decides and gives a range where something must be predicted. Before the data is
    built it stands on the recipe alone; afterwards on the frozen spec. The exit code is 1 when the plan names risks.
    """
    from headway.cli.describe import describe, spec_of
    from headway.plan.plan import make_plan

    description = describe(recipe, overrides, deployment, runnable=calibrate)
    spec = spec_of(description, data)
    calibration = measure(spec, description.deployment) if calibrate else None
    made = make_plan(spec, description.deployment, calibration)
    if why is not None:
        show_why(made, why, json=json)
    else:
        show(made, json=json, markdown=markdown)
    return EXIT_FINDINGS if made.risks and why is None else EXIT_OK


def show(plan: Any, *, json: bool = False, markdown: bool = False) -> None:
    """The whole plan: as JSON, as Markdown, or as tables."""
    from headway.cli.output import console, print_json, say
    from headway.plan.render import print_plan, to_markdown

    if json:
        print_json(plan.to_json())
    elif markdown:
        say(to_markdown(plan).rstrip())
    else:
        print_plan(plan, console())


def show_why(plan: Any, name: str, *, json: bool) -> None:
    """The tree under one number."""
    from headway.cli.output import print_json, say
    from headway.plan.plan import why

    if json:
        print_json(plan.quantity(name).to_json())
    else:
        say(why(plan, name))


def measure(spec: Any, deployment: Any) -> dict[str, Any]:
    """A short measurement of the real training step on this machine, by the engine."""
    from tempfile import TemporaryDirectory

    from headway.base.files import write_json
    from headway.cli.engine import ask_engine

    with TemporaryDirectory() as directory:
        file = Path(directory) / "spec.json"
        write_json(file, spec.to_json())
        here = deployment.resolved()
        options = ["--threads", str(here["threads"]), "--micro-batch-tokens", str(here["micro_batch"])]
        return ask_engine("calibrate", [str(file), *options])
