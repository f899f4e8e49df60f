"""What a trainer says to its writer. ``wire`` carries it; every message also has a ``kind``.

from anybody     hello  lend  attach (an Attachment)  end
from the trainer begin  seal (a Seal)  hurry
to the trainer   hello  lent  ready  refused                                      answers
                 written  committed  failed  crashed  pruned  retention_failed  over_budget  mirrored  mirror_failed  done
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.store.rectangle import Part
from headway.store.retention import Retention


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """What a trainer says about itself and its saves, once."""

    segment: int
    world: int
    parts: tuple[Part, ...]  # that this rank writes
    keep_last: int
    permanent_every: int = 0
    keep_best: int = 0
    back_steps: int = 0
    budget: int | None = None
    linger_seconds: float = 300.0
    commit_seconds: float = 120.0  # for the slowest rank, after the coordinator's own receipt
    flush_speed: float | None = None  # bytes per second while training goes on
    mirror: str | None = None  # URL of the second place
    mirror_every: int = 1  # of the committed ones, by their ordinal

    def retention(self) -> Retention:
        return Retention(
            keep_last=self.keep_last,
            permanent_every=self.permanent_every,
            keep_best=self.keep_best,
            back_steps=self.back_steps,
            budget_bytes=self.budget,
        )


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A whole snapshot lies in the memory. ``attempt``: how often this trainer saved that step before."""

    step: int
    attempt: int
    state: dict[str, Any]
    mesh: dict[str, Any] = field(default_factory=dict)
    placements: dict[str, Any] = field(default_factory=dict)
