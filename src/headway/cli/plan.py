"""``headway plan RECIPE``, and the group of verbs around it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.help import house_style
from headway.cli.main import PLAN_VERBS
from headway.cli.options import (
    CalibrationOption,
    ClusterOption,
    DataOption,
    DeploymentOption,
    Html,
    Json,
    LayoutOption,
    Markdown,
    Overrides,
    RecipeArgument,
    Why,
)

app = App(name="plan", sort_key=0, help_epilogue="", **house_style())
for _verb, _target in PLAN_VERBS.items():
    app.command(_target, name=_verb, help_epilogue="")


@app.default
def plan(
    recipe: RecipeArgument,
    /,
    *,
    cluster: ClusterOption = None,
    layout: LayoutOption = None,
    overrides: Overrides = None,
    deployment: DeploymentOption = None,
    data: DataOption = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = False,
    why: Why = None,
    summary: Annotated[bool, Parameter(negative="", help="Print the first screen and the risks only.")] = False,
    search: Annotated[
        bool, Parameter(negative="", help="Rank all layouts that fit the cluster, and say why the others lose.")
    ] = False,
    sheet: Annotated[
        bool, Parameter(negative="", help="Add the communication sheet: every collective of a step, who, bytes, link.")
    ] = False,
    simulate: Annotated[
        bool, Parameter(negative="", help="Add a simulation of the run with its failures: finish time and goodput.")
    ] = False,
    calibration: CalibrationOption = None,
    calibrate: Annotated[
        bool, Parameter(negative="", help="Measure this machine first (some 10 seconds) and predict the time from it.")
    ] = False,
) -> int:
    """Show what a recipe will do: parameters, tokens, memory, layout, time, failures, cost.

    The plan is exact where arithmetic decides and gives a range where something must be predicted. Before the data is
    built it stands on the recipe alone; afterwards on the frozen spec. The exit code is 1 when the plan names risks.
    A recipe file is named with its suffix or directory, so that it is never taken for one of the commands.
    """
    from headway.cli.plan_build import Wanted, build_plan, one_form

    one_form(json=json, markdown=markdown, html=html, why=why)
    extras = [name for name, asked in (("search", search), ("sheet", sheet), ("simulate", simulate)) if asked]
    wanted = Wanted(
        recipe=recipe,
        cluster=cluster,
        layouts=tuple(layout or ()),
        overrides=tuple(overrides or ()),
        deployment=deployment,
        data=data,
    )
    made = build_plan(wanted, extras=frozenset(extras), calibration=calibration, calibrate=calibrate)
    if why is not None:
        show_why(made, why, json=json)
    else:
        show(made, json=json, markdown=markdown, html=html, brief=summary)
    return EXIT_FINDINGS if made.risks and why is None else EXIT_OK


def show(plan: Any, *, json: bool = False, markdown: bool = False, html: bool = False, brief: bool = False) -> None:
    """The whole plan: as JSON, as Markdown, as a page, or as text, all of it or its first screen."""
    from headway.cli.output import console, print_json, say

    if json:
        print_json(plan.to_json())
    elif html:
        from headway.report.plan_page import plan_html

        say(plan_html(plan).rstrip())
    elif markdown:
        from headway.plan.show.render import to_markdown

        say(to_markdown(plan).rstrip())
    else:
        from headway.plan.show.render import print_plan

        print_plan(plan, console(), brief=brief)


def show_why(plan: Any, name: str, *, json: bool) -> None:
    """The tree under one number."""
    from headway.cli.output import print_json, say
    from headway.plan.show.meanings import meaning_of
    from headway.plan.show.why import find_quantity, why

    if json:
        quantity = find_quantity(plan, name)
        print_json(quantity.to_json() | {"meaning": meaning_of(quantity.name)})
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
