"""What can be set about supervision, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SuperviseOptions:
    """All times in seconds."""

    max_fruitless_attempts: int = 3  # attempts in a row without newly committed progress
    ttl_seconds: float = 15.0  # a lease whose counter stood still this long has expired
    hang_floor_seconds: float = 120.0  # silence below this is never a hang
    hang_factor: float = 8.0  # nor below this many times the longest row of the run
    startup_seconds: float = 1800.0  # allowed silence in a phase that this run has not ended before, and the most in any
    hard_seconds: Mapping[str, float] = field(default_factory=dict)  # the same for single phases (rundir.heartbeats.PHASES)
    beat_seconds: float = 1.0  # between two looks at the ranks' heartbeats
    stacks_seconds: float = 2.0  # how long ranks that hang may take to write their stacks
    grace_seconds: float = 30.0  # between the termination signal and the kill; at least twice the longest step and save
    writers_seconds: float = (
        60.0  # how long writers may take to finish what a dead trainer had sealed; at least twice the longest
    )
    hang_grace_seconds: float = 5.0  # grace for a trainer that hangs: it rarely answers
    orphan_seconds: float = 30.0  # how long the trainer of a dead owner may take to end by itself; at least as above
    backoff_seconds: float = 1.0  # pause before a restart, times the number of fruitless attempts
    poll_seconds: float = 0.1
    requeue: tuple[str, ...] = ()  # command that puts the job into its batch system's queue again
    author: str = "automatic"  # who started this supervisor

    @staticmethod
    def of(deployment: dict[str, Any], author: str = "automatic") -> SuperviseOptions:
        """From a resolved deployment's ``supervise`` section (see ``run.json``); what it does not say has its default."""
        section = deployment.get("supervise", {})
        names = {"max_fruitless_attempts": "max_fruitless_attempts", "lease_ttl": "ttl_seconds"}
        names |= {"hang_floor": "hang_floor_seconds", "grace": "grace_seconds", "limits": "hard_seconds"}
        given = {names[key]: value for key, value in section.items() if key in names}
        return SuperviseOptions(**given, requeue=tuple(section.get("requeue", ())), author=author)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How supervision ended. ``state``: complete, stopped, failed, or lost (another owner has the run now).

    ``exit_code`` of a stop: 1 where a person is to decide about a spike."""

    state: str
    reason: str
    attempts: int
    exit_code: int
