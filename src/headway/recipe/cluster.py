"""A cluster named for a plan, ``16384xH100-SXM``: it replaces where a recipe's own deployment runs, and nothing else.

    "1024xH200"         devices x chip: whole machines, or a part of one; layouts are dropped, the planner looks for them
    "my.toml", "demo"   a deployment file or preset: its devices, prices and layouts

Checkpoint policy, failures and storage stay the recipe's, as far as they are no totals of its cluster:

    a rate of interruptions of the whole job     the same per device
    speeds of the storage, stand-bys             the same per machine, per device
    prices, watts, the pace with a node missing  of other devices or sizes: they go

What was carried over is said in notes of the plan (``carried_over``). Overrides of the command line are of the new cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.base.units import format_seconds, format_storage
from headway.recipe.chips import Chip, find_chip
from headway.recipe.deployment import LARGEST_MACHINE

if TYPE_CHECKING:
    from headway.recipe.deployment import Accelerator, Deployment, Failures, Storage

_SHORTHAND = re.compile(r"^\s*([+-]?[0-9][0-9,_]*(?:\.[0-9]+)?)\s*[xX*×]\s*(.*?)\s*$")
FORM = "a cluster is COUNTxCHIP, such as 1024xH100-SXM, or a deployment file or preset"
MOST_DEVICES = 2**31 - 1
MACHINE = 8
"""Devices of a machine whose links reach no further than it, where a chip has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """So many chips of one kind, in whole domains or in a part of one."""

    chip: Chip
    nodes: int
    processes_per_node: int


def parse_cluster(text: str) -> Devices | None:
    """``16384xH100-SXM`` -> 2,048 machines of 8; None where ``text`` is no such shorthand but the name of a file."""
    match = _SHORTHAND.match(text)
    if match is None or text.endswith(".toml"):
        return None
    count, chip = _count(match[1], text), _chip(match[2], text)
    domain = chip.domain if chip.domain > 1 else MACHINE
    if count <= domain:
        return Devices(chip=chip, nodes=1, processes_per_node=count)
    if count % domain:
        below = count // domain * domain
        rule = f"the fast links of {chip.name} join {domain:,} devices, and plans use whole groups"
        way_out = f"use {below:,} or {below + domain:,}, or a deployment file with accelerator.domain"
        raise ConfigError(f"{count:,} devices do not fill domains of {domain:,}", rule, way_out)
    return Devices(chip=chip, nodes=count // domain, processes_per_node=domain)


def _count(text: str, cluster: str) -> int:
    number = float(text.replace(",", "").replace("_", ""))
    if not number.is_integer() or not 1 <= number <= MOST_DEVICES:
        rule = f"a count is whole, at least 1 and at most {MOST_DEVICES:,}"
        raise ConfigError(f"a cluster of {text} devices in {cluster!r}", rule, "write it like 1024xH100-SXM")
    return int(number)


def _chip(name: str, cluster: str) -> Chip:
    try:
        return find_chip(name)
    except ConfigError as error:
        seen, rule = (error.problems[0].seen, error.problems[0].rule) if name else ("no chip is named", FORM)
        raise ConfigError(f"cluster {cluster!r}: {seen}", rule, _meant(cluster)) from None


def _meant(text: str) -> str:
    """The form, with as much of it as ``text`` has: its count, and the chip that it names or nearly names."""
    left, _, right = re.sub("[X*×]", "x", text).strip().rpartition("x")
    count, name = (right, left) if right.isdecimal() else (left if left.isdecimal() else "1024", right)
    try:
        return f"write it like {count}x{find_chip(name or 'H100-SXM').name}"
    except ConfigError as error:
        return f"write it like {count}xH100-SXM; {error.problems[0].way_out}"


def with_cluster(deployment: Deployment, text: str, said: Sequence[str] = ()) -> Deployment:
    """``deployment`` carried out on the cluster ``text`` instead: shorthand, file or preset.

    ``said``: fields such as failures.every that the command line states beside it. They are of the new cluster.
    """
    devices = parse_cluster(text)
    moved = _on_devices(deployment, devices) if devices is not None else _as_in_file(deployment, text)
    resized = {"failures": _failures_of(deployment, moved), "storage": _storage_of(deployment, moved)}
    return _restated(moved.model_copy(update=resized), deployment, said)


def _as_in_file(deployment: Deployment, text: str) -> Deployment:
    from headway.recipe.load import find_deployment, load_deployment

    try:
        path = find_deployment(text)
    except ConfigError as error:
        problem = error.problems[0]
        way_out = _meant(text) if re.search(r"\d", text) else problem.way_out
        raise ConfigError(f"{text!r} is no cluster", f"{FORM}; {problem.rule}", way_out) from None
    if path == Path():
        raise ConfigError("an empty cluster", FORM, _meant(text))
    other = load_deployment(text, runnable=False)
    fields = ("nodes", "processes_per_node", "layouts", "price_per_hour", "currency", "power")
    update = {field: getattr(other, field) for field in fields}
    return deployment.model_copy(update=update | {"accelerator": _with_target(other.accelerator, deployment.accelerator)})


def _with_target(device: Accelerator, asked: Accelerator) -> Accelerator:
    """``device`` at the utilisation that was asked of the run, unless it states its own."""
    if device.utilisation is not None:
        return device
    target = {"utilisation": asked.utilisation, "utilisation_convention": asked.utilisation_convention}
    return device.model_copy(update=target)


def _on_devices(deployment: Deployment, devices: Devices) -> Deployment:
    """What belonged to the other device goes."""
    accelerator = deployment.accelerator
    device = type(accelerator)(kind=devices.chip.name)
    update: dict[str, Any] = {
        "accelerator": _with_target(device, accelerator),
        "nodes": devices.nodes,
        "processes_per_node": devices.processes_per_node,
        "layouts": {},
    }
    if deployment.chip != devices.chip:
        update |= {"price_per_hour": None, "power": deployment.power.model_copy(update={"watts": None})}
    return deployment.model_copy(update=update)


# --- totals of a cluster, at another size ---------------------------------------------------------------------------------


def _failures_of(deployment: Deployment, moved: Deployment) -> Failures:
    """Those of ``deployment`` on devices that break as often, each."""
    failures, world = deployment.failures, moved.world
    if world == deployment.world:
        return failures
    update: dict[str, Any] = {"spares": math.ceil(failures.spares * world / deployment.world)}
    if failures.every is not None:
        update |= {"every": None, "per_device": failures.every * deployment.world}
    if failures.elastic is not None:
        update["elastic"] = failures.elastic.model_copy(update={"pace": None}) if moved.nodes > 1 else None
    return failures.model_copy(update=update)


def _storage_of(deployment: Deployment, moved: Deployment) -> Storage:
    """Storage is built for a cluster: every machine brings its share of the speed."""
    share = _machines(moved) / _machines(deployment)
    speeds = {name: getattr(deployment.storage, name) for name in ("write_speed", "read_speed")}
    grown = {name: max(1, round(speed * share)) for name, speed in speeds.items() if speed is not None}
    return deployment.storage.model_copy(update=grown)


def _machines(deployment: Deployment) -> float:
    """A rack or slice that is one domain counts as the machines in it."""
    return deployment.world / MACHINE if deployment.processes_per_node > LARGEST_MACHINE else deployment.nodes


PLACE = ("nodes", "processes_per_node", "layouts", "accelerator.kind")
"""Fields that the cluster itself states."""


def _restated(moved: Deployment, deployment: Deployment, said: Sequence[str]) -> Deployment:
    for name in said:
        section, _, rest = name.partition(".")
        field = rest.partition(".")[0]
        if section in PLACE or name in PLACE:
            continue
        value = getattr(deployment, section)
        if field:
            carried = {"per_device": None} if name == "failures.every" else {}  # as which the rate was carried over
            update = {field: getattr(value, field)} | carried
            value = getattr(moved, section).model_copy(update=update)
        moved = moved.model_copy(update={section: value})
    return moved


def carried_over(stated: Deployment, placed: Deployment) -> tuple[str, ...]:
    """Notes on what ``placed``, the deployment on another cluster, took over from ``stated`` and is no measurement there."""
    return (*_failure_notes(stated, placed), *_storage_notes(stated, placed), *_device_notes(stated, placed))


def _failure_notes(stated: Deployment, placed: Deployment) -> Iterator[str]:
    before, after = stated.between_failures, placed.between_failures
    elsewhere = stated.chip != placed.chip or (stated.failures.every is not None and stated.world != placed.world)
    if elsewhere and before and after and math.isclose(before * stated.world, after * placed.world):
        yield (
            f"failures: a device is taken to be interrupted as often as one of the {_devices_of(stated)} that the rate is of, "
            f"every {after * placed.world / 3600:,.0f} hours: the job every {format_seconds(after)}, not every "
            f"{format_seconds(before)}; deployment.failures.per_device states another rate"
        )
    if stated.failures.spares != placed.failures.spares:
        yield f"failures: {placed.failures.spares:,} devices stand by, as large a share as the {stated.failures.spares:,} stated"
    before_shrinking, shrinking = stated.failures.elastic, placed.failures.elastic
    if before_shrinking and shrinking is None:
        yield "failures: one node cannot shrink: the job waits for the repair"
    elif before_shrinking != shrinking:
        yield "failures: the pace with a node missing was stated for another number of nodes: here it is the share that is left"


def _storage_notes(stated: Deployment, placed: Deployment) -> Iterator[str]:
    for name in ("write_speed", "read_speed"):
        before, after = getattr(stated.storage, name), getattr(placed.storage, name)
        if before is not None and before != after:
            yield (
                f"storage: {name} grows with the machines (assumed): {format_storage(after)}/s here, "
                f"{format_storage(before)}/s of the {_devices_of(stated)} that it is stated for"
            )


def _device_notes(stated: Deployment, placed: Deployment) -> Iterator[str]:
    """What was of the other device and went with it."""
    here, there = placed.accelerator.kind, stated.accelerator.kind
    if stated.price_per_hour is not None and placed.price_per_hour is None:
        yield (
            f"price: {stated.price_per_hour:g} {stated.currency} an hour is stated for {there}: what {here} costs is unknown; "
            "deployment.price_per_hour states it"
        )
    if stated.power.watts is not None and placed.power.watts is None:
        yield f"power: {stated.power.watts:g} W are stated for {there}, not for {here}; deployment.power.watts states its own"


def _devices_of(deployment: Deployment) -> str:
    return f"{deployment.world:,} {deployment.accelerator.kind}"
