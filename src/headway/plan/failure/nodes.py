"""Nodes of simulated runs: which are missing, and when their places are filled again.

The i-th node to break is replaced by a stand-by while there are any, later by the node that was repaired for longest:

    break      b0   b1   b2   b3          two stand-bys, repair time r
    filled at  b0   b1   max(b2, b0 + r)  max(b3, b1 + r)

so one list of break times per run says everything. Repairs take the same time, hence places are filled in order.
"""

from __future__ import annotations

import numpy as np

from headway.plan.failure.checkpoints import Floats, Ints
from headway.plan.failure.faults import SimulatedRun

MOST_MISSING = 4_096
TICK = 1e-6
"""Seconds: a sum of times may fall short of the moment that it was made for by rounding."""


class NodePool:
    """``broken`` nodes so far and ``filled`` places, per simulated run."""

    def __init__(self, run: SimulatedRun, runs: int):
        self.standby, self.repair = run.nodes.standby, run.nodes.repair_seconds
        self.step = 0.0 if run.nodes.shrunken_pace is None else 1 - run.nodes.shrunken_pace
        self.most_missing = 0 if not self.step else min(MOST_MISSING, int(np.ceil(1 / self.step - 1e-9)) - 1)
        largest = max(fault.nodes for fault in run.faults)
        self.times: Floats = np.zeros((runs, self.standby + self.most_missing + largest + 1))
        self.broken: Ints = np.zeros(runs, dtype=np.int64)
        self.filled: Ints = np.zeros(runs, dtype=np.int64)

    def break_nodes(self, rows: Ints, count: Ints, now: Floats) -> None:
        """``count`` nodes of each run break at ``now``."""
        for already in range(int(count.max(initial=0))):
            more = count > already
            hit = rows[more]
            self.times[hit, self.broken[hit] % self.times.shape[1]] = now[more]
            self.broken[hit] += 1

    def fill(self, rows: Ints, now: Floats) -> None:
        """Take in what is ready by ``now``."""
        while True:
            ready = (self.filled[rows] < self.broken[rows]) & (self._filled_at(rows, self.filled[rows]) <= now + TICK)
            if not ready.any():
                return
            self.filled[rows[ready]] += 1

    def missing(self, rows: Ints) -> Ints:
        return self.broken[rows] - self.filled[rows]

    def ready_for(self, rows: Ints, most_missing: int) -> Floats:
        """When at most so many are missing; -inf where that is so already."""
        index = self.broken[rows] - 1 - most_missing
        return np.where(index >= self.filled[rows], self._filled_at(rows, np.maximum(index, 0)), -np.inf)

    def next_fill(self, rows: Ints) -> Floats:
        """When the next missing node comes back; inf where none is missing."""
        return np.where(self.missing(rows) > 0, self._filled_at(rows, self.filled[rows]), np.inf)

    def pace(self, rows: Ints) -> Floats:
        return np.asarray(1.0 - self.step * self.missing(rows), dtype=np.float64)

    def _filled_at(self, rows: Ints, index: Ints) -> Floats:
        width = self.times.shape[1]
        own: Floats = self.times[rows, index % width]
        repaired: Floats = self.times[rows, np.maximum(index - self.standby, 0) % width] + self.repair
        return np.where(index < self.standby, own, np.maximum(own, repaired))
