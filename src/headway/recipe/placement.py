"""Whether a deployment fits itself: every layout's product is the number of processes, and the engine can run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.base.errors import Problem
from headway.recipe.checks import Finding

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
LARGEST_RUNNABLE_WORLD = 1


def check_deployment(deployment: Deployment, *, runnable: bool = True) -> Iterator[Finding]:
    """Problems of a deployment; ``runnable``: also those that only matter when something is to be started."""
    names = list(deployment.layouts) if deployment.layouts else ["default"]
    for name in names:
        layout = deployment.layout(name)
        if layout.world != deployment.world:
            product = " x ".join(f"{axis} {getattr(layout, axis)}" for axis in AXES)
            yield (
                ("layouts", name) if deployment.layouts else ("nodes",),
                Problem(
                    f"layout {name!r} needs {layout.world} processes ({product}), the deployment has {deployment.world} "
                    f"({deployment.nodes} nodes x {deployment.processes_per_node})",
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
