"""Layouts of the command line, ``--layout tp=8,pp=16`` or ``STAGE:tp=8``, as those of a deployment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.plan.cluster import cluster_of, layout_of
from headway.plan.layout.search import search, searched_for
from headway.plan.layout.section import parse_layout, stated_fields
from headway.plan.rates import can_compute
from headway.plan.work import Layout
from headway.recipe.deployment import Layout as Stated
from headway.recipe.load import Document
from headway.recipe.problems import parse_all

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec, StageSpec


OPEN = ("virtual", "pipeline", "micro_batch", "zero", "recompute")
"""Fields that are chosen where the command line leaves them open. Of the axes, dp_shard fills the rest and the others are one."""


def with_layouts(spec: Spec, deployment: Deployment, texts: Sequence[str]) -> Deployment:
    """``deployment`` with the layouts of ``--layout``; those for one stage leave the others as they are.

    What a text leaves open is, stage by stage, that of the fastest layout that fits; of the default one where none does.
    """
    layouts = {} if any(":" not in text for text in texts) else dict(deployment.layouts)
    for text in sorted(texts, key=lambda text: ":" in text):  # those for one stage have the last word
        name, _, sizes = text.rpartition(":")
        name, fields = name.strip() or "default", _fields(sizes)
        layouts[name] = stated = read_layout(sizes, deployment, text)
        for stage in spec.stages:
            if name in ("default", stage.name):
                layouts[stage.name] = _completed(stated, fields, spec, stage, deployment)
    return deployment.model_copy(update={"layouts": layouts})


def _completed(stated: Stated, named: Collection[str], spec: Spec, stage: StageSpec, deployment: Deployment) -> Stated:
    """``stated``, with the fields that the search is free to choose as it chooses them for ``stage``."""
    cluster = cluster_of(deployment, spec.precision.compute)
    if cluster is None or not can_compute(cluster, spec):
        return stated
    alone = deployment.model_copy(update={"layouts": {"default": stated}})
    given = {field: value for field, value in vars(layout_of(alone, stage.name)).items() if field in named or field not in OPEN}
    work, smaller = searched_for(spec, stage, deployment)
    best = search(work, cluster, fixed=given, batches=smaller).best
    return stated if best is None else Stated.model_validate(_plain(best.layout))


def _fields(sizes: str) -> Collection[str]:
    try:
        return stated_fields(_with_commas(sizes))
    except ConfigError:
        return ()  # read_layout says it


def _with_commas(sizes: str) -> str:
    return ", ".join(sizes.replace(",", " ").split())


def read_layout(sizes: str, deployment: Deployment, text: str) -> Stated:
    """``tp=8,pp=16`` -> a layout of all devices; what is left over goes to dp_shard unless that is given."""
    where, world = f"--layout {text}", deployment.world
    try:
        layout = parse_layout(_with_commas(sizes), Layout(), world)
    except ConfigError as error:
        raise ConfigError([replace(problem, where=where) for problem in error.problems]) from None
    if layout.world != world:
        others = layout.world // layout.dp_shard
        rest = f": it fills the rest, {world // others:,}" if world % others == 0 else f", and choose divisors of {world:,}"
        rule = "pp x dp_replicate x dp_shard x cp x tp is the number of devices"
        raise ConfigError(f"a layout of {layout.world:,} for {world:,} devices", rule, f"leave out dp_shard (dp){rest}", where)
    stated, problems = parse_all(Stated, Document("", where, _plain(layout), {}, {}))
    if stated is None:
        raise ConfigError(problems)
    return stated


def _plain(layout: Layout) -> dict[str, Any]:
    values = {name: getattr(layout, name) for name in Stated.model_fields}
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}
