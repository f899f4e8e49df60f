"""What the supervisor makes of silent corruption: an event with its evidence, and what it says about a machine.

    exit {corruption: {kind, rank, host, ...}}  corruption {rank, host, parameter, findings: 1}    once: it happens to any machine
    exit {...}                                  corruption {..., findings: 2, evidence: true}      twice: evidence against it

A finding that names no machine says so, and is no evidence against any; a node is known by its name in the fleet. When the next
attempt has repeated those steps it may tell which of two copies was wrong, and since when: that is an event of its own, and
counts in place of the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.rundir.events import read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import read_segments
from headway.store.suspects import finding_of

Record = Callable[..., None]
"""Writes an event: its kind, then its fields."""

ENOUGH = 2
"""Findings in one run that name a machine: bits flip once on healthy ones too."""


def of_exit(run: RunDirectory, segment: int) -> dict[str, Any]:
    """What an exit event says about it; empty: nothing was found."""
    found = finding_of(run, segment)
    if found is None:
        return {}
    told = {key: found.get(key) for key in ("rank", "ranks", "host", "hosts", "by", "step", "parameter")}
    return {"corruption": {"kind": "corruption", **told}}


def record_finding(run: RunDirectory, segment: int, record: Record) -> None:
    """Once the attempt of ``segment`` has ended."""
    found = finding_of(run, segment)
    if found is None:
        return
    told = {key: found.get(key) for key in ("by", "agreed", "rank", "ranks", "host", "hosts", "parameter", "tensors")}
    fields = {"segment": segment, "step": found["step"], "reason": str(found.get("words", "")), **told}
    record("corruption", **_weighed(run, fields))


def record_location(run: RunDirectory, row: dict, record: Record) -> None:
    """A row ``located``: the repetition has shown where it began."""
    since = f"since step {row['first_step']}" if row.get("first_step") is not None else "in the steps that were repeated"
    named = row.get("rank") is not None
    whose = f"rank {row['rank']} ({row['host']}) was wrong" if named else "which rank was wrong is not known"
    reason = f"the repetition of segment {row['of_segment']} shows: copies of {row['parameter']} were not equal {since}; {whose}"
    told = {key: row.get(key) for key in ("rank", "host", "parameter", "first_step")}
    fields = {"segment": row["of_segment"], "step": row["step"], "reason": reason, "by": "located", **told}
    record("corruption", **_weighed(run, fields))


def accused(events: list[dict[str, Any]]) -> set[str]:
    """The machines against which there is evidence."""
    return {event["host"] for event in events if event["kind"] == "corruption" and event.get("evidence")}


def _machine(run: RunDirectory, fields: dict[str, Any]) -> str | None:
    """The one that all named ranks were on: a node by its name, else a host as it calls itself."""
    layout = next((segment.layout for segment in read_segments(run) if segment.id == fields["segment"]), {})
    ranks = [fields["rank"]] if fields.get("rank") is not None else fields.get("ranks") or []
    if "hosts" not in layout:
        return fields["host"]
    nodes = {layout["hosts"][rank // layout["per_node"]] for rank in ranks}
    return nodes.pop() if len(nodes) == 1 else None


def _weighed(run: RunDirectory, fields: dict[str, Any]) -> dict[str, Any]:
    """With ``findings``: segments of this run that named the machine, this one included; ``evidence``: they are enough."""
    host, named = _machine(run, fields), {fields["segment"]}
    fields = fields | {"host": host}
    if host is None:
        return fields | {"findings": 0, "evidence": False}
    named |= {e["segment"] for e in read_events(run) if e["kind"] == "corruption" and e.get("host") == host}
    findings, evidence = len(named), len(named) >= ENOUGH
    more = f"; finding {findings} on {host} in this run: evidence against that machine" if evidence else ""
    return fields | {"findings": findings, "evidence": evidence, "reason": fields["reason"] + more}
