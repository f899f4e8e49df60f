"""Which layouts are proven: a table, of which a machine takes what it has processes for, and a model what its sizes allow.

What the architecture or the number of processes does not allow is listed as not run, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.base.errors import ConfigError
from headway.parallel.mesh import Axes
from headway.recipe.engine_layouts import Sizes, Task, refused, shown
from headway.recipe.spec import Spec

TABLE: dict[str, dict[str, Any]] = {
    "fsdp2": {"dp_shard": 2},
    "fsdp3": {"dp_shard": 3},
    "fsdp4": {"dp_shard": 4},
    "fsdp2, offload": {"dp_shard": 2, "offload": "all"},
    "hsdp2x2": {"dp_replicate": 2, "dp_shard": 2},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
    "pp2": {"pp": 2},
    "pp2, gpipe": {"pp": 2, "pipeline": "gpipe"},
    "pp2, interleaved": {"pp": 2, "virtual": 2, "pipeline": "interleaved"},
    "pp2, zero-bubble": {"pp": 2, "virtual": 2, "pipeline": "zero-bubble"},
    "pp4": {"pp": 4},
    "pp2 x fsdp2": {"pp": 2, "dp_shard": 2},
    "pp2 x tp2": {"pp": 2, "tp": 2},
    "cp2": {"cp": 2},
    "cp4": {"cp": 4},
    "cp2 x fsdp2": {"cp": 2, "dp_shard": 2},
    "cp2 x tp2": {"cp": 2, "tp": 2},
    "ep2": {"dp_shard": 2, "ep": 2},
    "ep4": {"dp_shard": 4, "ep": 4},
    "ep2 x tp2": {"dp_shard": 2, "ep": 2, "tp": 2},
    "pp2 x fsdp2 x tp2": {"pp": 2, "dp_shard": 2, "tp": 2},
    "cp2 x fsdp2 x tp2": {"cp": 2, "dp_shard": 2, "tp": 2},
}
QUICK = ("fsdp2", "tp2", "fsdp2 x tp2", "pp2", "cp2", "ep2")


@dataclass(frozen=True)
class Entry:
    """A layout to prove. ``reason``: why it is not run; empty: it is."""

    name: str
    axes: Axes
    reason: str = ""


def chosen(spec: Spec, most_ranks: int, *, quick: bool = False) -> list[Entry]:
    """Of the table, what concerns the model of ``spec``; with reasons for what it or the machine does not allow."""
    names = QUICK if quick else tuple(TABLE)
    entries = (Entry(name, Axes.of(TABLE[name])) for name in names)
    return [_judged(entry, spec, most_ranks) for entry in entries if entry.axes.ep == 1 or spec.model.experts is not None]


def asked(spec: Spec, layouts: Sequence[dict[str, Any]], most_ranks: int) -> list[Entry]:
    """What a person named. ConfigError for what cannot be run."""
    entries = []
    for layout in layouts:
        sizes, axes = Sizes(**{**vars(Sizes()), **_sizes(layout)}), Axes.of(layout)
        problems = [replace(p, where=f"--layout {sizes}") for task in Task.of(spec) for p in refused(task, sizes)]
        if problems:
            raise ConfigError(problems)
        if axes.world > most_ranks:
            rule = "a layout needs as many processes as its axes multiply to"
            raise ConfigError(f"--layout {sizes} on {most_ranks} processes", rule, f"--ranks {axes.world}")
        entries.append(Entry(str(sizes), axes))
    return entries


def _judged(entry: Entry, spec: Spec, most_ranks: int) -> Entry:
    problems = [p for task in Task.of(spec) for p in refused(task, Sizes.of(entry.axes))]
    if problems:
        return replace(entry, reason=shown(problems))
    if entry.axes.world > most_ranks:
        return replace(entry, reason=f"it needs {entry.axes.world} processes, and {most_ranks} are used: --ranks")
    return entry


def _sizes(layout: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in layout.items() if name in vars(Sizes())}


def runnable(entries: Sequence[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if not entry.reason)


def widest(entries: Sequence[Entry]) -> Entry | None:
    """Of those that run, the one that cuts in most ways, over fewest processes. Whole copies cut nothing: they count half."""

    def ways(entry: Entry) -> tuple[float, int]:
        cut = sum(weight for axis, weight in _CUTS.items() if getattr(entry.axes, axis) > 1)
        return cut, -entry.axes.world

    return max(runnable(entries), key=ways, default=None)


_CUTS = {"pp": 1.0, "dp_replicate": 0.5, "dp_shard": 1.0, "cp": 1.0, "tp": 1.0, "ep": 1.0}
