"""A cluster named for a plan, ``16384xH100-SXM``: it replaces where a recipe's own deployment runs, and nothing else.

    "1024xH200"         devices x chip: whole machines, or a part of one; layouts are dropped, the planner looks for them
    "my.toml", "demo"   a deployment file or preset: its devices, prices and layouts

Checkpoint policy, failures and storage stay the recipe's. Prices and watts belong to a device, and go with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.recipe.chips import Chip, find_chip

if TYPE_CHECKING:
    from headway.recipe.deployment import Accelerator, Deployment

_SHORTHAND = re.compile(r"^\s*([+-]?[0-9][0-9,_]*(?:\.[0-9]+)?)\s*[xX*×]\s*(\S.*?)\s*$")
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
    if match is None:
        return None
    chip, count = find_chip(match[2]), _count(match[1], text)
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
    if not number.is_integer() or not 1 <= number < 2**31:
        raise ConfigError(
            f"a cluster of {text} devices in {cluster!r}", "a count is whole and at least 1", "write it like 1024xH100"
        )
    return int(number)


def with_cluster(deployment: Deployment, text: str) -> Deployment:
    """``deployment`` carried out on the cluster ``text`` instead: shorthand, file or preset."""
    devices = parse_cluster(text)
    if devices is not None:
        return _on_devices(deployment, devices)
    from headway.recipe.load import load_deployment

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
