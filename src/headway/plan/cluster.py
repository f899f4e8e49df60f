"""From the deployment to the input of the models of memory, time and communication: ``Cluster``, ``Layout``, ``Work``.

deployment.accelerator, nodes, domain ----> Cluster     None for cpu and devices whose figures nobody gave
deployment.layouts[stage]             ----> Layout      one per training stage
spec, stage, batch, deployment.state  ----> Work        one optimizer step of that stage
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError
from headway.formulas.chips import Chip
from headway.formulas.parameters import count_parameters
from headway.plan.memory.state import one_moment_parameters
from headway.plan.work import Cluster, Implementation, Layout, Loss, Pipeline, Recompute, Work
from headway.recipe.offload import Offload
from headway.recipe.spec import Spec, StageSpec

if TYPE_CHECKING:
    from headway.recipe.deployment import CheckpointPolicy, Deployment
    from headway.recipe.deployment import Layout as Stated


def cluster_of(deployment: Deployment, precision: str = "bfloat16") -> Cluster | None:
    """Where the run happens; None where the device is no chip of the table: its links and memory are not known.

    Stated figures count before the table's: a stated peak stands for ``precision``, the other precisions follow it.
    """
    chip = deployment.chip
    if chip is None:
        return None
    domain = min(deployment.domain, deployment.world)
    return Cluster(
        chip=_as_stated(chip, deployment, precision),
        chips=deployment.world,
        domain=domain,
        network=_network(chip, deployment, alone=domain == deployment.world),
    )


def _as_stated(chip: Chip, deployment: Deployment, precision: str) -> Chip:
    stated = deployment.accelerator
    if stated.memory is not None:
        chip = dataclasses.replace(chip, memory_bytes=stated.memory)
    table = chip.peaks.get(precision)
    if stated.peak_flops is None or table is None or math.isclose(stated.peak_flops, table, rel_tol=1e-3):
        return chip
    part = stated.peak_flops / table  # a part that is clocked lower is so in every precision
    peaks, achievable = ({name: rate * part for name, rate in rates.items()} for rates in (chip.peaks, chip.achievable))
    return dataclasses.replace(chip, peaks=peaks, achievable=achievable)


def _network(chip: Chip, deployment: Deployment, *, alone: bool) -> float:
    """Bytes/s of a chip to other domains. One that has no other domain never asks: infinite."""
    stated = deployment.accelerator.network
    if stated is not None:
        return float(stated)
    if chip.network_bandwidth is not None:
        return chip.network_bandwidth
    if alone and (chip.link_bandwidth is not None or deployment.world == 1):
        return math.inf
    if alone:
        raise ConfigError(
            f"the table knows no links of {chip.name}",
            f"{deployment.world:,} devices exchange gradients over them",
            'state accelerator.network, bytes per second of one device, such as "50GB"',
        )
    raise ConfigError(
        f"the table knows no network between machines of {chip.name}",
        f"{deployment.world:,} devices lie in domains of {deployment.domain:,}, which a network joins",
        'state accelerator.network, bytes per second of one device, such as "50GB"',
    )


def layout_of(deployment: Deployment, stage: str, micro_batch: int | None = None) -> Layout:
    """How ``stage`` is cut; ``micro_batch`` in sequences, None: as stated."""
    layout = layout_from(deployment.layout(stage))
    return layout if micro_batch is None else dataclasses.replace(layout, micro_batch=micro_batch)


def layout_from(stated: Stated) -> Layout:
    """That of a deployment as the models take it."""
    kinds = {"pipeline": Pipeline(stated.pipeline), "recompute": Recompute(stated.recompute), "offload": Offload(stated.offload)}
    return Layout(**stated.model_dump() | kinds)


def largest_batch(stage: StageSpec) -> int:
    """Sequences."""
    return max(phase.batch_sequences for phase in stage.phases)


def work_of(spec: Spec, stage: StageSpec, deployment: Deployment, batch: int | None = None) -> Work:
    """One optimizer step of ``stage``; ``batch`` in sequences, None: the largest of the stage."""
    return Work(
        model=spec.model,
        sequence=stage.sequence_length,
        batch=batch or largest_batch(stage),
        precision=spec.precision.compute,
        implementation=_implementation(deployment),
        one_moment=one_moment_parameters(spec.model, spec.optimizer) / count_parameters(spec.model).stored,
        **deployment.state.model_dump(),
    )


def steps_between_checkpoints(policy: CheckpointPolicy, step_seconds: float | None) -> int:
    """The cadence in steps: as stated, or the whole steps that fit into the time stated; without a step time, as stated."""
    if policy.every is None or not step_seconds:
        return policy.every_steps
    return max(1, int(policy.every / step_seconds))


def _implementation(deployment: Deployment) -> Implementation:
    stated = deployment.implementation.model_dump()
    return Implementation(**stated | {"loss": Loss(stated["loss"])})
