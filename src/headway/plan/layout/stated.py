"""Layouts of the command line, ``--layout tp=8,pp=16`` or ``STAGE:tp=8``, as those of a deployment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.plan.cluster import cluster_of, layout_from
from headway.plan.layout.search import search, searched_for
from headway.plan.rates import can_compute
from headway.plan.work import Layout
from headway.recipe.checks import nearest_hint
from headway.recipe.deployment import Layout as Stated
from headway.recipe.load import Document, validated

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec, StageSpec

OPEN = ("virtual", "pipeline", "micro_batch", "zero", "recompute")
"""Fields that are chosen where the command line leaves them open. Of the axes, dp_shard fills the rest and the others are one."""
SHORT = {"dp": "dp_shard", "shard": "dp_shard", "replicate": "dp_replicate", "vp": "virtual", "mb": "micro_batch"}
"""Other names that people use on the command line."""
LONGEST_SIZE = 12  # digits


def with_layouts(spec: Spec, deployment: Deployment, texts: Sequence[str]) -> Deployment:
    """``deployment`` with the layouts of ``--layout``; those for one stage leave the others as they are.

    What a text leaves open is, stage by stage, that of the fastest layout that fits; of the default one where none does.
    """
    layouts = {} if any(":" not in text for text in texts) else dict(deployment.layouts)
    for text in sorted(texts, key=lambda text: ":" in text):  # those for one stage have the last word
        name, _, sizes = text.rpartition(":")
        name = name.strip() or "default"
        layouts[name] = stated = read_layout(sizes, deployment, text)
        named = stated_fields(_with_commas(sizes))
        for stage in spec.stages:
            if name in ("default", stage.name):
                layouts[stage.name] = _completed(stated, named, spec, stage, deployment)
    return deployment.model_copy(update={"layouts": layouts})


def _completed(stated: Stated, named: Collection[str], spec: Spec, stage: StageSpec, deployment: Deployment) -> Stated:
    """``stated``, with the fields that the search is free to choose as it chooses them for ``stage``."""
    cluster = cluster_of(deployment, spec.precision.compute)
    if cluster is None or not can_compute(cluster, spec):
        return stated
    given = {field: value for field, value in vars(layout_from(stated)).items() if field in named or field not in OPEN}
    work, smaller = searched_for(spec, stage, deployment)
    best = search(work, cluster, fixed=given, batches=smaller).best
    return stated if best is None else Stated.model_validate(_plain(best.layout))


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
    return validated(Stated, Document("", where, _plain(layout), {}, {}), [], lambda _: ())


def _plain(layout: Layout) -> dict[str, Any]:
    values = {name: getattr(layout, name) for name in Stated.model_fields}
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}


def parse_layout(text: str, base: Layout, chips: int | None = None) -> Layout:
    """``base`` with the fields named in ``text``, such as "tp=8,pp=16,recompute=full".

    With ``chips`` and no dp_shard in the text, replicas that share states fill the cluster.
    """
    stated = stated_fields(text)
    layout = replace(base, **stated)
    if chips is None or "dp_shard" in stated:
        return layout
    others = layout.world // layout.dp_shard
    if others > chips or chips % others:
        rule = f"the other axes multiply to {others:,}: {chips:,} chips are no multiple of that"
        raise ConfigError(f"layout {text!r} on {chips:,} chips", rule, "choose divisors of the number of chips")
    return replace(layout, dp_shard=chips // others)


def stated_fields(text: str) -> dict[str, Any]:
    """Fields of a Layout that ``text`` names, with their values."""
    stated: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_").casefold()
        name = SHORT.get(name, name)
        _check_name(part.strip(), name, bool(equals and value), stated)
        stated[name] = _value(name, value)
    return stated


def _check_name(part: str, name: str, complete: bool, stated: dict[str, Any]) -> None:
    known = [field.name for field in fields(Layout)]
    if name not in known:
        hint = nearest_hint(name, known) or f"fields: {', '.join(known)}"
        raise ConfigError(f"{part!r} names no field of a layout", "a layout is written as tp=8,pp=16", hint)
    if not complete:
        raise ConfigError(f"{part!r} has no value", "a layout is written as tp=8,pp=16", f"{name}=1")
    if name in stated:
        raise ConfigError(f"{name} is given twice", "each field of a layout once", f"leave out {part!r}")


def _value(name: str, value: str) -> Any:
    kind = type(getattr(Layout(), name))
    if kind is bool:
        if value.casefold() in ("true", "false"):
            return value.casefold() == "true"
        raise ConfigError(f"{name}={value}", f"{name} is true or false", f"{name}=true")
    if kind is int:
        least = 0 if name == "zero" else 1
        if value.isdecimal() and len(value) <= LONGEST_SIZE and int(value) >= least:
            return int(value)
        rule = f"{name} is a whole number, at least {least}, of at most {LONGEST_SIZE} digits"
        raise ConfigError(f"{name}={value[:40]}", rule, f"{name}={least}")
    if value.casefold() in [member.value for member in kind]:
        return kind(value.casefold())
    choices = [member.value for member in kind]
    hint = nearest_hint(value, choices) or f"{name}={choices[0]}"
    raise ConfigError(f"{name}={value}", f"{name} is one of {', '.join(choices)}", hint)
