"""The nodes of a run as its records tell: which train, which are away and why."""

from __future__ import annotations

from dataclasses import dataclass

from headway.rundir.segments import Segment


@dataclass(frozen=True)
class Nodes:
    """``training``: of the newest segment, in the order of its ranks. ``away``: host -> why, lost or evicted since."""

    training: tuple[str, ...]
    wanted: int
    away: dict[str, str]


def nodes_of(events: list[dict], segments: list[Segment], deployment: dict) -> Nodes | None:
    """None: a run of one machine."""
    hosts = segments[-1].layout.get("hosts") if segments else None
    if not hosts:
        return None
    away: dict[str, str] = {}
    for event in events:
        if event["kind"] == "open":  # an owner begins with all of them
            away.clear()
        elif event["kind"] == "node" and event["state"] == "back":
            away.pop(event["host"], None)
        elif event["kind"] == "node":
            away[event["host"]] = f"{event['state']}: {event['reason']}"
    return Nodes(tuple(hosts), int(deployment.get("nodes", 1)), away)
