"""What came out of a simulation: distributions of finish time, goodput, replay and interruptions, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headway.plan.failure.faults import SimulatedRun

CATEGORIES = (
    "productive",  # first passes over the data, at full pace: the useful seconds, in every finished run
    "replay",  # passes over what was done before and lost
    "writes",  # training stands while a checkpoint is taken
    "degraded",  # what a slower pace costs beyond the same work at full pace
    "detection",  # stopped, and nobody knows yet
    "waiting",  # no node to go on with
    "reconfiguration",  # shrinking and growing
    "restart",  # start-up and reading the checkpoint
    "planned",  # maintenance
)
"""They sum to the wall time of every run."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Of one figure over the simulated runs; inf where a run was given up."""

    p5: float
    p50: float
    p95: float
    mean: float

    @classmethod
    def of(cls, values: NDArray) -> Distribution:
        p5, p50, p95 = np.quantile(values, (0.05, 0.5, 0.95), method="closest_observation")
        return cls(p5=float(p5), p50=float(p50), p95=float(p95), mean=float(np.mean(values)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Arrays have one entry per simulated run. A run that is not ``finished`` was given up at its ``wall_seconds``."""

    run: SimulatedRun
    wall_seconds: NDArray[np.float64]
    finished: NDArray[np.bool_]
    spent: Mapping[str, NDArray[np.float64]]  # by category
    stops: Mapping[str, NDArray[np.int64]]  # interruptions by class of fault
    restores: NDArray[np.int64]  # after interruptions; rows are the run's tiers, and at the end: from the beginning
    shrinks: NDArray[np.int64]  # interruptions after which the job went on with fewer nodes
    parts: int = 1  # that every run was put together from

    @property
    def runs(self) -> int:
        return len(self.wall_seconds)

    @property
    def unfinished_share(self) -> float:
        return float(1 - self.finished.mean())

    @cached_property
    def finish(self) -> Distribution:
        """Seconds from start to end."""
        return Distribution.of(np.where(self.finished, self.wall_seconds, np.inf))

    @cached_property
    def goodput(self) -> Distribution:
        """Useful over wall time; of a run that was given up, of what it had reached."""
        return Distribution.of(self.spent["productive"] / self.wall_seconds)

    @cached_property
    def lost_tokens(self) -> Distribution:
        """Tokens that were trained more than once."""
        return Distribution.of(self.spent["replay"] * self.run.tokens_per_second)

    @cached_property
    def interruptions(self) -> Distribution:
        return Distribution.of(sum(self.stops.values(), np.zeros(self.runs)))

    def time(self, category: str) -> Distribution:
        """Seconds that went into one category."""
        return Distribution.of(self.spent[category])

    @property
    def standard_error_seconds(self) -> float:
        """Of the mean finish time: what another seed would change."""
        return float(np.std(self.wall_seconds, ddof=1) / np.sqrt(self.runs)) if self.runs > 1 else 0.0
