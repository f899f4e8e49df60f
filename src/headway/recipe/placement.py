"""Whether a deployment fits itself (every layout's product is the number of processes, the engine can run it), and a recipe.

A stage takes the layout of its name, else "default", else one process. What is known only where recipe and deployment meet:
which stages fall back (``check_stages``), and which of a chip's peaks counts (``settle``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError, Problem
from headway.base.units import format_bytes
from headway.recipe.checks import Finding, divisors, nearest_hint
from headway.recipe.chips import check_peak, find_chip
from headway.recipe.deployment import AXES, LARGEST_MACHINE
from headway.recipe.failure_checks import check_survival

if TYPE_CHECKING:
    from pydantic import BaseModel

    from headway.recipe.deployment import Deployment, Layout

PLANNED_FIELDS = {"checkpoints": ("every", "bytes_per_parameter", "tiers"), "failures": ("pauses", "elastic")}
"""Of sections whose other fields are acted upon, or only say what is the case."""
PLANNED_OF_LAYOUTS = ("micro_batch", "sequence_parallel")
"""Of a layout: the engine's micro-batch is in tokens and the deployment's, tensor parallelism always divides the tokens too."""
MEMORY_TOLERANCE = 1.08
"""Sizes are written in GB and GiB; nothing that is sold differs from its neighbour by less."""

EVERY_ADDRESS = ("", "*", "0.0.0.0", "::")
"""What a socket takes for all of its machine's addresses."""


def check_deployment(deployment: Deployment, *, runnable: bool = True) -> Iterator[Finding]:
    """Problems of a deployment; ``runnable``: also those that only matter when something is to be started."""
    yield from _check_layouts(deployment, runnable)
    yield from _check_accelerator(deployment, runnable)
    yield from _check_alternatives(deployment)
    yield from check_survival(deployment)
    if not runnable:
        return
    yield from _check_runnable(deployment)
    yield from _check_groups(deployment)
    yield from _check_planned_only(deployment)


def _check_runnable(deployment: Deployment) -> Iterator[Finding]:
    """Several machines have names, and something that runs a command on them."""
    fleet, nodes = deployment.fleet, deployment.nodes
    if len(set(fleet.hosts)) < len(fleet.hosts):
        twice = sorted({host for host in fleet.hosts if fleet.hosts.count(host) > 1})
        yield ("fleet", "hosts"), Problem(f"{', '.join(twice)} twice in fleet.hosts", "a machine has one agent", "name each once")
    if len(fleet.hosts) < (nodes if nodes > 1 else 0):
        yield (
            ("nodes",) if not fleet.hosts else ("fleet", "hosts"),
            Problem(
                f"the deployment has {nodes} nodes, and fleet.hosts names {len(fleet.hosts)}",
                "a run on several machines is told their names",
                'such as fleet.hosts = ["n0", "n1"], fleet.start = ["ssh", "{host}"]; or nodes = 1 for this machine alone',
            ),
        )
    if fleet.hosts and fleet.start is None:
        yield (
            ("fleet", "hosts"),
            Problem(
                f"fleet.hosts names {len(fleet.hosts)} machines, and nothing says how a command is run on them",
                "fleet.start is the command before the command",
                'fleet.start = ["ssh", "{host}"]; [] runs all of them on this machine',
            ),
        )
    if fleet.start and len(fleet.hosts) > 1 and not any("{host}" in part for part in fleet.start):
        yield (
            ("fleet", "start"),
            Problem(
                f"fleet.start is {' '.join(fleet.start)}, the same for all {len(fleet.hosts)} machines",
                "{host} stands for the machine on which the command is run",
                'fleet.start = ["ssh", "{host}"], or ["srun", "-N1", "-w", "{host}"]',
            ),
        )
    if fleet.hosts and fleet.address in EVERY_ADDRESS:
        yield (
            ("fleet", "address"),
            Problem(
                f"fleet.address = {fleet.address!r} is every address of a machine, and none that others reach",
                "the ranks meet at the one address that is stated, and nowhere else is anything opened",
                "state the address of the machine that runs headway, as the others see it",
            ),
        )
    if fleet.least is not None and fleet.least > nodes:
        yield (
            ("fleet", "least"),
            Problem(f"at least {fleet.least} of {nodes} nodes", "it is how few are enough", "lower fleet.least"),
        )


def _check_groups(deployment: Deployment) -> Iterator[Finding]:
    """Replica groups that may be lost one by one."""
    if deployment.supervise.per_step == "off":
        return
    at, off = ("supervise", "per_step"), 'or per_step = "off"'
    for name in deployment.layouts or ["default"]:
        replicas = deployment.layout(name).dp_replicate
        if replicas < 2:
            seen, rule = (
                f"layout {name!r} has dp_replicate {replicas}",
                "torchft needs two or more whole replicas to lose one of them",
            )
            yield at, Problem(seen, rule, f"dp_replicate = 2 or more, {off}")
    if deployment.fleet.hosts:
        rule = "replica groups are started on one machine"
        yield at, Problem(f"torchft over {len(deployment.fleet.hosts)} machines of fleet.hosts", rule, f"leave fleet out, {off}")
    if deployment.supervise.corruption.repeat_every:
        seen = f"torchft and supervise.corruption.repeat_every = {deployment.supervise.corruption.repeat_every}"
        rule = "a step that groups take together cannot be carried out again by one of them"
        yield at, Problem(seen, rule, f"supervise.corruption.repeat_every = 0, {off}")


def _check_layouts(deployment: Deployment, runnable: bool) -> Iterator[Finding]:
    """Without any, a plan on known chips looks for the best ones itself."""
    if not deployment.layouts and not runnable and deployment.chip is not None:
        return
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


def _check_accelerator(deployment: Deployment, runnable: bool) -> Iterator[Finding]:
    """A name that can be one chip only, a memory that this chip has, fast links that divide the devices."""
    accelerator, at = deployment.accelerator, "accelerator"
    try:
        chip = deployment.chip  # refuses names that several chips go by
        if chip is None and deployment.world > 1 and accelerator.peak_flops is None and accelerator.kind != "cpu":
            find_chip(accelerator.kind)
    except ConfigError as error:
        yield from (((at, "kind"), problem) for problem in error.problems)
        return
    if chip and accelerator.memory and accelerator.memory > chip.memory_bytes * MEMORY_TOLERANCE:
        seen = f"{chip.name} is given {format_bytes(accelerator.memory)}"
        rule = f"it has {format_bytes(chip.memory_bytes)}"
        yield (at, "memory"), Problem(seen, rule, "leave memory out, or name the part that has it")
    if runnable:
        yield from _check_domain(deployment)
    if (chip or accelerator.domain) and deployment.world > deployment.domain and deployment.world % deployment.domain:
        fits = max(size for size in divisors(deployment.world) if size <= deployment.domain)
        yield (
            (at, "domain" if accelerator.domain else "kind"),
            Problem(
                f"{deployment.world:,} devices do not fill domains of {deployment.domain:,}",
                "a domain is the devices that fast links join, and plans use all of each",
                f"change the number of devices, or state accelerator.domain = {fits:,}",
            ),
        )


def _check_domain(deployment: Deployment) -> Iterator[Finding]:
    """Fast links join the devices of a machine, and more than one only where the chip's do: racks, slices."""
    chip, stated, machine = deployment.chip, deployment.accelerator.domain, deployment.processes_per_node
    spans = chip is not None and chip.domain > LARGEST_MACHINE
    most = max(machine, chip.domain) if chip is not None and spans else machine
    if stated is not None and stated > most:
        whose = f"a domain of {chip.name}" if chip is not None and spans else "a machine here"
        seen, rule = f"a domain of {stated:,} devices", f"fast links join at most {most:,}: {whose} has no more"
        way_out = f"give at most {most:,}, or leave domain out"
        yield ("accelerator", "domain"), Problem(seen, rule, way_out, "accelerator.domain")


def check_domain(deployment: Deployment) -> None:
    """Refuse fast links that join more than they can, on the cluster that a plan is for in the end."""
    problems = [problem for _, problem in _check_domain(deployment)]
    if problems:
        raise ConfigError(problems)


def _check_alternatives(deployment: Deployment) -> Iterator[Finding]:
    """Fields of which one may be given."""
    failures, checkpoints = deployment.failures, deployment.checkpoints
    if failures.every is not None and failures.per_device is not None:
        yield (
            ("failures", "per_device"),
            Problem(
                "interruptions are given both for the whole job and per device",
                "the one follows from the other and the number of devices",
                "leave out every, or per_device",
            ),
        )
    if checkpoints.every is not None and "every_steps" in checkpoints.model_fields_set:
        yield (
            ("checkpoints", "every"),
            Problem(
                f"checkpoints are written both every {checkpoints.every_steps:,} steps and by the clock",
                "one cadence counts",
                "leave out every (plans only) or every_steps",
            ),
        )


def _check_planned_only(deployment: Deployment) -> Iterator[Finding]:
    """What describes a run that this engine does not carry out: refused, so that nobody believes it was acted upon."""
    for name, layout in deployment.layouts.items():
        extras = [field for field in _changed(layout) if field in PLANNED_OF_LAYOUTS]
        yield from _planned_not_run(("layouts", name), extras, layout)
    for section in ("state", "implementation"):
        value = getattr(deployment, section)
        yield from _planned_not_run((section,), _changed(value), value)
    for name, planned in PLANNED_FIELDS.items():
        section = getattr(deployment, name)
        extras = [field for field in _changed(section) if field in planned]
        yield from _planned_not_run((name,), extras, section)


def _planned_not_run(path: tuple[str, ...], fields: Sequence[str], section: BaseModel) -> Iterator[Finding]:
    for field in fields:
        seen = f"{'.'.join((*path, field))} {_as_stated(getattr(section, field))}"
        way_out = "give checkpoints.every_steps instead" if field == "every" else f"leave {field} out"
        yield (*path, field), Problem(seen, "that is planned, not run: this version of the engine does not act upon it", way_out)


def _as_stated(value: Any) -> str:
    """A value as the file has it; of tables only that they stand there."""
    if isinstance(value, tuple):
        return f"has {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    return "is stated" if hasattr(value, "model_fields_set") else f"= {value}"


def _changed(section: BaseModel) -> list[str]:
    """Fields that do not have their default."""
    fields: dict[str, Any] = type(section).model_fields
    return [name for name, field in fields.items() if getattr(section, name) != field.default]


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
    for stage in stages if deployment.layouts else ():  # without any, on a cluster named for a plan: the planner looks for one
        layout = deployment.layout(stage)
        if stage not in deployment.layouts and layout.world != deployment.world:
            seen = f"stage {stage!r} has no layout of its own, and without layouts.default it {_needs(layout, deployment)}"
            problems.append(Problem(seen, "every stage runs on all processes", f"add layouts.default, or layouts.{stage}"))
    if problems:
        raise ConfigError(problems)


def settle(deployment: Deployment, precision: str) -> Deployment:
    """The deployment with its chip's peak in ``precision`` and memory filled in; a stated peak that cannot be is refused."""
    chip, stated = deployment.chip, deployment.accelerator
    if chip is None:
        return deployment
    if stated.peak_flops is not None:
        try:
            check_peak(chip, stated.peak_flops, precision)
        except ConfigError as error:
            problem = error.problems[0]
            raise ConfigError(f"accelerator.peak_flops: {problem.seen}", problem.rule, problem.way_out) from None
    peak = chip.peaks.get(precision)
    filled = {
        "peak_flops": stated.peak_flops or (round(peak) if peak is not None else None),
        "memory": stated.memory or chip.memory_bytes,
    }
    return deployment.model_copy(update={"accelerator": stated.model_copy(update=filled)})
