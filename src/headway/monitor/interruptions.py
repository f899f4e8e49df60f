"""What a run's records say about its interruptions: how long trainers were at risk before each, and how long restarts took.

    segment   1: steps ......... killed | 2: dies before a step | 3: steps ... asked to stop | 4: steps ... hang | 5: now
    gaps         \\___ gap 1 ____/                                   \\______ gap 2 __________________/           | quiet
    restarts                     \\__________ exit -> first step of 3 _/                             \\_ of 5 ____/

Only an attempt that did a step was interrupted, and only its time since the state was restored was at risk: what fails before
its first step (a full disk, say, three times in a row) prolongs one restart, and no interval between saves would have helped.
An attempt that saved and ended by itself is none, whoever asked for it (a person, a scheduler, a layout or nodes that go on, a
spike), nor is a refused configuration; the death of the owner is one, and the loss of its lease.
Times are differences of one boot's clock; where there are none, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import EXIT_CONFIG, EXIT_OK

PASSED_OVER = ("checkpoint_rejected", "quarantine", "mixture", "corruption", "spike")
"""Events that say what is left out, between an exit and what follows from it."""


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """Seconds, oldest first."""

    gaps: tuple[float, ...]
    """time at risk before each interruption, over as many attempts as it took"""
    quiet: float
    """time at risk since the last one"""
    restarts: tuple[float, ...]
    """from the exit to the end of the next step, of those that nobody stood in the way of"""


def read_interruptions(events: list[dict], steps: dict[int, list[dict]]) -> Interruptions:
    """From the chain of events (``read_events``) and the rows of all segments, on the chain or not (``read_all_steps``)."""
    exits = {event["segment"]: index for index, event in enumerate(events) if event["kind"] == "exit"}
    gaps, restarts = list[float](), list[float]()
    quiet = 0.0
    down: int | None = None  # index of the exit that waits for its restart
    for segment, rows in sorted(steps.items()):
        first = next((row for row in rows if row["kind"] == "step"), None)
        if first is None:
            continue
        if down is not None:
            restarts += _restart_seconds(events, down, first, segment)
        quiet += _at_risk_ns(rows) / 1e9
        down = exits.get(segment)
        if down is None and segment == max(steps):  # it runs
            break
        if _was_asked_for(events, down, rows):
            down = None
        else:
            gaps.append(quiet)
            quiet = 0.0
    return Interruptions(gaps=tuple(gaps), quiet=quiet, restarts=tuple(restarts))


def _at_risk_ns(rows: list[dict]) -> int:
    """Since the state was restored. What the last row does not tell (half a step on average) is left out."""
    return sum(sum(row.get("split", {}).values()) for row in rows if row["kind"] not in ("start", "restored"))


def _was_asked_for(events: list[dict], index: int | None, rows: list[dict]) -> bool:
    """Whether this exit (None: lost) ended an attempt as somebody wanted it to.

    The supervisor that obeys a stop finishes the run for the very reason of the exit, killed or not; a crash that is followed
    by a stop has a reason of its own. A take-over and a lost lease are followed by no such finish.
    """
    ends = [row["state"] for row in rows if row["kind"] == "end"]
    if index is None:
        return bool(ends)
    if "complete" in ends or events[index].get("code") == EXIT_CONFIG:
        return True
    after = next((event for event in events[index + 1 :] if event["kind"] not in PASSED_OVER), None)
    if ends and events[index].get("code") == EXIT_OK:
        return after is None or after.get("state") != "lost"
    if after is None or after["kind"] != "finish":
        return False
    return after["state"] == "complete" or (after["state"] == "stopped" and after["reason"] == events[index].get("reason"))


def _restart_seconds(events: list[dict], down: int, first: dict, segment: int) -> list[float]:
    """One or none: where the run was finished, or its owner changed, a person took the time that passed."""
    between = list[str]()
    for event in events[down + 1 :]:
        if event["kind"] == "launch" and event["segment"] == segment:
            break
        between.append(event["kind"])
    left, back = events[down]["stamp"], first["stamp"]
    if left["boot_id"] != back["boot_id"] or {"finish", "open"} & set(between):
        return []
    return [max(0, back["boot_ns"] - left["boot_ns"]) / 1e9]
