"""What a save costs training while it is written beside it: steps that took longer than the others, over one flush.

    step  step  snapshot  STEP  STEP  durable  step  step        slowed = 2 x (median of STEP - median of step)

Medians, since an evaluation or a stumble of the machine now and then is part of neither. Less than zero counts as zero: a flush
speeds nothing up.
"""

from __future__ import annotations

from collections import deque
from statistics import median

USUAL, LEAST_USUAL = 32, 4
"""Newest steps without a flush that are compared with, and how few tell nothing."""


class Slowdown:
    """Told of every step once, in order."""

    def __init__(self) -> None:
        self._usual_ns: deque[int] = deque(maxlen=USUAL)
        self._during_ns: list[int] = []
        self._is_writing = False

    def begins(self) -> None:
        """A snapshot was handed to the writer."""
        self._is_writing, self._during_ns = True, []

    def step(self, ns: int) -> None:
        if self._is_writing:
            self._during_ns.append(ns)
        else:
            self._usual_ns.append(ns)

    def ends(self) -> int:
        """The flush is over; ns that its steps took longer, 0 where too few were seen."""
        during, self._during_ns, self._is_writing = self._during_ns, [], False
        if not during or len(self._usual_ns) < LEAST_USUAL:
            return 0
        return max(0, round((median(during) - median(self._usual_ns)) * len(during)))
