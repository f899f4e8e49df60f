"""What interruptions cost. T0 useful seconds, M mean time between interruptions, tau interval, R restart, c cost of a save.

first order        T0 / M failures, each loses tau / 2 + R              counts failures over useful time only
self-consistent    T (1 - (tau / 2 + R) / M) = T0 (1 + c / tau)         counts them over the time that really passes
Daly               M e^(R / M) (e^((tau + c) / M) - 1) T0 / tau         exact for exponential failures, restarts included
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interruptions:
    """Seconds throughout. ``save`` is the training time that one save costs."""

    between: float
    restart: float
    interval: float
    save: float = 0.0

    @property
    def lost_per_failure(self) -> float:
        return self.interval / 2 + self.restart


def expected_failures(useful_seconds: float, between_seconds: float) -> float:
    return useful_seconds / between_seconds


def lost_seconds_first_order(useful_seconds: float, interruptions: Interruptions) -> float:
    """Time lost to failures; saves left out."""
    return expected_failures(useful_seconds, interruptions.between) * interruptions.lost_per_failure


def wall_seconds_self_consistent(useful_seconds: float, interruptions: Interruptions) -> float | None:
    """Wall time with saves; None when failures come faster than they are recovered from."""
    lost = interruptions.lost_per_failure / interruptions.between
    if lost >= 1:
        return None
    return useful_seconds * (1 + interruptions.save / interruptions.interval) / (1 - lost)


def wall_seconds_daly(useful_seconds: float, interruptions: Interruptions) -> float | None:
    """Daly 2006, equation 13; None beyond what a float can hold (practically never done)."""
    M = interruptions.between
    exponent = (interruptions.interval + interruptions.save) / M
    if exponent > 700 or interruptions.restart / M > 700:
        return None
    return M * math.exp(interruptions.restart / M) * math.expm1(exponent) * useful_seconds / interruptions.interval
