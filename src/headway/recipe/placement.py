"""Whether a deployment fits itself (every layout's product is the number of processes, the engine can run it), and a recipe.

A stage takes the layout of its name, else "default", else one process. Which stages fall back is known only where recipe and
deployment meet: ``check_stages``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError, Problem
from headway.recipe.checks import Finding, nearest_hint

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment, Layout

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
LARGEST_RUNNABLE_WORLD = 1


def check_deployment(deployment: Deployment, *, runnable: bool = True) -> Iterator[Finding]:
    """Problems of a deployment; ``runnable``: also those that only matter when something is to be started."""
    names = list(deployment.layouts) if deployment.layouts else ["default"]
    for name in names:
        layout = deployment.layout(name)
        if layout.world != deployment.world:
            yield (
                ("layouts", name) if deployment.layouts else ("nodes",),
                Problem(
                    f"layout {name!r} {_needs(layout, deployment)}",
                    "the product of a layout's axes is the number of processes",
                    "change the layout, nodes or processes_per_node",
                ),
            )
    if runnable and deployment.world > LARGEST_RUNNABLE_WORLD:
        yield (
            ("processes_per_node",) if deployment.processes_per_node > 1 else ("nodes",),
            Problem(
                f"the deployment has {deployment.world} processes",
                f"this version of the engine runs {LARGEST_RUNNABLE_WORLD} process; larger deployments can be planned",
                "use nodes = 1 and processes_per_node = 1",
            ),
        )


def _needs(layout: Layout, deployment: Deployment) -> str:
    product = " x ".join(f"{axis} {getattr(layout, axis)}" for axis in AXES)
    return (
        f"needs {layout.world} processes ({product}), the deployment has {deployment.world} "
        f"({deployment.nodes} nodes x {deployment.processes_per_node})"
    )


def check_stages(deployment: Deployment, stages: Sequence[str]) -> None:
    """Refuse layouts for stages that the recipe does not have, and stages that fall back on a layout that does not fit."""
    problems = [
        Problem(
            f"layouts.{name} is for no stage of the recipe",
            f"a layout is named after a stage or default; stages are {', '.join(stages)}",
            nearest_hint(name, [*stages, "default"]) or "remove it, or name a stage",
        )
        for name in deployment.layouts
        if name != "default" and name not in stages
    ]
    for stage in stages:
        layout = deployment.layout(stage)
        if stage not in deployment.layouts and layout.world != deployment.world:
            seen = f"stage {stage!r} has no layout of its own, and without layouts.default it {_needs(layout, deployment)}"
            problems.append(Problem(seen, "every stage runs on all processes", f"add layouts.default, or layouts.{stage}"))
    if problems:
        raise ConfigError(problems)
