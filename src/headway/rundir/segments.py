"""Segments: the chain of attempts that makes up a run.

Each is written by the owner of the lease before it starts, and never changed. A checkpoint (segment g, step s) is
admissible iff g is on the current chain and s <= the restored step of g's child on it (CONTRACTS section 2).

    1: steps 1-57 (killed)      chain: 1 -> 2 -> 3
       \\_ 2: restored 40, steps 41-90 (killed)
            \\_ 3: restored 80, ...
       checkpoints g1/s40 yes, g1/s50 no (beyond the restored 40), g2/s80 yes, g2/s90 no, g3/... yes
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.digests import canonical_json
from headway.base.errors import RunError
from headway.base.files import create_exclusive, make_directory, read_json
from headway.base.plain import from_plain
from headway.rundir.layout import RunDirectory

ROLLED_BACK, ACCEPTED = "rolled_back", "accepted"
"""What a segment's record of a spike says was done about it."""
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
_DIRECTORY = re.compile(r"\d{4,}", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """One attempt. ``restored_step`` 0 with ``checkpoint`` None: from initial weights."""

    id: int
    parent: int | None
    restored_step: int
    checkpoint: str | None  # directory name under checkpoints/
    reason: str
    author: str  # "automatic" or a person
    epoch: int  # lease epoch of the owner that wrote it
    layout: dict[str, Any]
    skips: tuple[dict, ...] = ()  # skip records in force: {stage, first, count}
    quarantines: tuple[dict, ...] = ()  # quarantine records in force: {source, token, tokens, stage, first}
    transitions: tuple[dict, ...] = ()  # of the mixture: {stage, first, quanta, weights, reason, author, consumed}
    rates: tuple[
        dict, ...
    ] = ()  # {first, factor}: from step ``first`` on the rate is that of the recipe times this, until the next
    spikes: tuple[dict, ...] = ()  # what was done about each so far: {step, action, restored, recurrence, ...}
    rejected: tuple[dict, ...] = ()  # checkpoints that were refused on the way: {checkpoint, reason}
    deployment: dict[str, Any] | None = None  # resolved, where the run went on under another than it was created with
    kind: str = "segment"
    schema_version: int = 1


def stream_record(segment: Segment) -> list[dict]:
    """What decides the stream of a segment, beside its Spec."""
    return [dict(record) for record in (*segment.skips, *segment.quarantines, *segment.transitions)]


def deployment_of(run: RunDirectory, segments: list[Segment] | None = None) -> dict[str, Any]:
    """The resolved deployment in force: that of the newest segment, else the one that the run was created with."""
    segments = read_segments(run) if segments is None else segments
    return (segments[-1].deployment if segments else None) or run.info()["deployment"]


def in_force(segment: Segment, stated: dict[str, Any]) -> dict[str, Any]:
    """The deployment that ``segment`` runs under: its own or the run's, with the layouts that it was shrunk to, if it was."""
    deployment = segment.deployment or stated
    layouts = segment.layout.get("layouts")
    return deployment | {"layouts": layouts} if layouts else deployment


def layout_of(deployment: dict[str, Any], stage: str) -> dict[str, Any]:
    """The axes of a training stage in a resolved deployment; empty: one process."""
    layouts = deployment.get("layouts", {})
    return layouts.get(stage) or layouts.get("default") or {}


def layout_words(layout: dict[str, Any]) -> str:
    """A segment's layout for people, such as ``4 processes: dp_shard 2 x tp 2``."""
    axes = layout.get("axes", {})
    sizes = [f"{name} {size}" for name, size in axes.items() if type(size) is int and size > 1 and name in AXES]
    world = layout.get("world", 1)
    return f"{world} {'process' if world == 1 else 'processes'}" + (f": {' x '.join(sizes)}" if sizes else "")


def write_segment(run: RunDirectory, segment: Segment) -> None:
    """Create the segment's directory and record, durably: no checkpoint outlives its segment. Refuses to overwrite."""
    directory = make_directory(run.segment(segment.id), "segment directory")
    if not create_exclusive(directory / "segment.json", canonical_json(dataclasses.asdict(segment))):
        raise RunError(
            f"segment {segment.id} exists already", f"path: {directory}", "another owner wrote it: check with headway status"
        )


def read_segments(run: RunDirectory) -> list[Segment]:
    """All segments, by id. A directory that is named otherwise (a copy, say) is none.

    Nor is what an owner wrote after the next one's first: it had stood still (stopped, or on storage that did not answer), had
    lost its lease, and did not know it yet. Were that the newest, all that is saved by who has the run now would not count.
    """
    segments, epoch = list[Segment](), 0
    for segment in sorted((_read_segment(path) for path in _files(run)), key=lambda segment: segment.id):
        if segment.epoch >= epoch:
            segments.append(segment)
            epoch = segment.epoch
    return segments


def newest_id(run: RunDirectory) -> int:
    """The highest that any owner took, in time or late; 0: none did."""
    return max((int(path.parent.name) for path in _files(run)), default=0)


def _files(run: RunDirectory) -> list[Path]:
    files = run.segments.glob("[0-9]*/segment.json") if run.segments.is_dir() else ()
    return [path for path in files if _DIRECTORY.fullmatch(path.parent.name)]


def _read_segment(path: Path) -> Segment:
    segment: Segment = from_plain(Segment, read_json(path, "segment"), str(path))
    if segment.id != int(path.parent.name):
        raise RunError(f"{path} speaks of segment {segment.id}", "a segment lies in the directory of its id", "restore that file")
    if wrong := _layout_problem(segment.layout):
        raise RunError(f"{path}: layout.{wrong}", "a layout has the sizes that it was written with", "restore that file")
    return segment


def _layout_problem(layout: dict[str, Any]) -> str:
    """What readers cannot rely on; empty: they can."""
    axes, hosts = layout.get("axes", {}), layout.get("hosts", [])
    if not isinstance(axes, dict) or any(isinstance(value, list | dict) for value in axes.values()):
        return "axes is no object of plain values"
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        return "hosts is no list of names"
    sizes = {"world": layout.get("world", 1), "per_node": layout.get("per_node", 1)}
    sizes |= {f"axes.{name}": 1 if axes.get(name) is None else axes[name] for name in AXES}
    wrong = [name for name, size in sizes.items() if type(size) is not int or size < 1]
    return f"{wrong[0]} is no whole number above 0" if wrong else ""


def current_chain(segments: list[Segment]) -> list[Segment]:
    """From the first segment to the newest, along parents. The newest id is the current one."""
    if not segments:
        return []
    by_id, chain = {s.id: s for s in segments}, []
    current: Segment | None = max(segments, key=lambda s: s.id)
    while current is not None:
        chain.append(current)
        if current.parent is not None and current.parent >= current.id:
            raise RunError(
                f"segment {current.id} names parent {current.parent}",
                "a parent's id is lower than its child's: it was written before",
                "restore that segment's segment.json",
            )
        if current.parent is not None and current.parent not in by_id:
            raise RunError(
                f"segment {current.id} names parent {current.parent}, which is missing",
                "a chain has no holes",
                "restore that segment's directory",
            )
        current = by_id[current.parent] if current.parent is not None else None
    return chain[::-1]


def is_admissible(chain: list[Segment], segment: int, step: int) -> bool:
    """Whether a checkpoint of ``segment`` at ``step`` belongs to the history of the current chain."""
    for position, member in enumerate(chain):
        if member.id == segment:
            child = chain[position + 1] if position + 1 < len(chain) else None
            return member.restored_step < step and (child is None or step <= child.restored_step)
    return False
