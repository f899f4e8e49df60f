"""``headway plan compare A B``: two recipes, two clusters, two layouts, or both at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_OK, ConfigError
from headway.cli.options import Json, Markdown, Overrides

TWO = "Given once it is for both sides, given twice one for each."


def compare(
    *recipes: Annotated[
        str, Parameter(help="One or two recipes. NAME@CLUSTER plans a recipe on a cluster, such as beacon@8192xB200-SXM.")
    ],
    cluster: Annotated[
        list[str] | None,
        Parameter(metavar="CLUSTER", negative="", help=f"COUNTxCHIP, such as 1024xH100-SXM, or a deployment. {TWO}"),
    ] = None,
    layout: Annotated[
        list[str] | None, Parameter(metavar="LAYOUT", negative="", help=f"Sizes of the mesh axes, such as tp=8,pp=16. {TWO}")
    ] = None,
    deployment: Annotated[
        list[Path] | None, Parameter(metavar="FILE", negative="", help=f"A deployment file or preset. {TWO}")
    ] = None,
    overrides: Overrides = None,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Show every quantity, also those that are equal.")] = False,
    json: Json = False,
    markdown: Markdown = False,
) -> int:
    """Set two plans side by side: what differs, by how much, and which risks only one of them has.

    Two recipes, as in: compare llama3-8b llama3-70b. Or one recipe on two clusters, as in: compare beacon --cluster
    16384xH100-SXM --cluster 8192xB200-SXM. Overrides are for both sides. A recipe file that is called compare is named with
    its suffix: headway plan compare.toml.
    """
    from headway.cli.output import console, print_json, say
    from headway.cli.plan_build import build_plan
    from headway.plan.compare import compare_plans, comparison_lines, comparison_markdown

    sides = sides_of(recipes, cluster or (), layout or (), deployment or (), overrides or ())
    labels = labels_of(sides)
    comparison = compare_plans(labels, [build_plan(side) for side in sides])
    if json:
        print_json(comparison.to_json())
    elif markdown:
        say(comparison_markdown(comparison, everything=all_).rstrip())
    else:
        screen = console()
        for line in comparison_lines(comparison, screen.width, everything=all_):
            say(line)
    return EXIT_OK


def sides_of(
    recipes: Sequence[str], clusters: Sequence[str], layouts: Sequence[str], deployments: Sequence[Path], overrides: Sequence[str]
) -> list[Any]:
    """Exactly two plans as asked for; a clear error where there is only one, or where a side is not clear."""
    from headway.cli.plan_build import Wanted

    for name, given in (("recipes", recipes), ("--cluster", clusters), ("--layout", layouts), ("--deployment", deployments)):
        if len(given) > 2:
            raise ConfigError(
                f"{len(given)} {name}", "two plans are compared: once is for both, twice one for each", "leave some out"
            )
    if not recipes:
        rule = "compare sets two plans side by side: two recipes, or one recipe with --cluster, --layout or --deployment twice"
        raise ConfigError("no recipe to compare", rule, "a recipe file called compare is planned by headway plan ./compare.toml")
    if max(map(len, (recipes, clusters, layouts, deployments))) < 2:
        rule = "two plans are compared: two recipes, or one recipe with --cluster, --layout or --deployment twice"
        raise ConfigError(f"{recipes[0]} alone", rule, f"headway plan compare {recipes[0]} OTHER, or headway plan {recipes[0]}")
    sides = []
    for side in (0, 1):
        name, at, place = _of(side, recipes).rpartition("@")
        recipe, own = (name, place) if at else (place, None)
        if at and not (name and place):
            rule = "RECIPE@CLUSTER names both, such as beacon@8192xB200-SXM"
            raise ConfigError(
                f"{_of(side, recipes)!r} names no {'cluster' if name else 'recipe'}", rule, "name it, or leave out the @"
            )
        if own is not None and clusters:
            raise ConfigError(f"{_of(side, recipes)} and --cluster", "a side has one cluster", "leave out one of the two")
        sides.append(
            Wanted(
                recipe=recipe,
                cluster=own or (_of(side, clusters) if clusters else None),
                layouts=(_of(side, layouts),) if layouts else (),
                overrides=tuple(overrides),
                deployment=_of(side, deployments) if deployments else None,
            )
        )
    return sides


def _of(side: int, given: Sequence[Any]) -> Any:
    return given[min(side, len(given) - 1)]


def labels_of(sides: Sequence[Any]) -> tuple[str, str]:
    """What tells the two apart, and nothing else."""
    first, second = sides
    differing = [name for name in ("recipe", "cluster", "layouts", "deployment") if getattr(first, name) != getattr(second, name)]
    if not differing:
        return "A", "B"

    def label(side: Any) -> str:
        values = [getattr(side, name) for name in differing]
        return " ".join(", ".join(v) if isinstance(v, tuple) else str(v or "as declared") for v in values)

    return label(first), label(second)
