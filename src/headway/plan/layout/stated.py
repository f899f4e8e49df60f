"""Layouts of the command line, ``--layout tp=8,pp=16`` or ``STAGE:tp=8``, as those of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError
from headway.plan.layout.section import parse_layout
from headway.plan.work import Layout
from headway.recipe.deployment import Layout as Stated
from headway.recipe.load import Document
from headway.recipe.problems import parse_all

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment


def with_layouts(deployment: Deployment, texts: Sequence[str]) -> Deployment:
    """``deployment`` with the layouts of ``--layout``; those for one stage leave the others as they are."""
    layouts = {} if any(":" not in text for text in texts) else dict(deployment.layouts)
    for text in texts:
        stage, _, sizes = text.rpartition(":")
        layouts[stage.strip() or "default"] = read_layout(sizes, deployment, text)
    return deployment.model_copy(update={"layouts": layouts})


def read_layout(sizes: str, deployment: Deployment, text: str) -> Stated:
    """``tp=8,pp=16`` -> a layout of all devices; what is left over goes to dp_shard unless that is given."""
    where, world = f"--layout {text}", deployment.world
    try:
        layout = parse_layout(", ".join(sizes.replace(",", " ").split()), Layout(), world)
    except ConfigError as error:
        raise ConfigError([replace(problem, where=where) for problem in error.problems]) from None
    if layout.world != world:
        others = layout.world // layout.dp_shard
        rest = f": it fills the rest, {world // others:,}" if world % others == 0 else f", and choose divisors of {world:,}"
        rule = "pp x dp_replicate x dp_shard x cp x tp is the number of devices"
        raise ConfigError(f"a layout of {layout.world:,} for {world:,} devices", rule, f"leave out dp_shard (dp){rest}", where)
    values = {name: getattr(layout, name) for name in Stated.model_fields}
    plain = {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}
    stated, problems = parse_all(Stated, Document("", where, plain, {}, {}))
    if stated is None:
        raise ConfigError(problems)
    return stated
