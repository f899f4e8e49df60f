"""What interruptions cost. T0 useful seconds, M mean time between interruptions, tau interval, R restart, c cost of a save.

    useful   |-----tau-----|c|-----tau-----|c|-----x            x  an interruption: the work since the last save is gone,
                                             |--R--|-----       R  until the job steps again

first order        T0 + (T0 / M) (tau / 2 + R)                  counts interruptions over useful time; saves left out
self-consistent    T (1 - (tau / 2 + R) / M) = T0 (1 + c / tau) counts them over the time that really passes, and charges
                                                                the full price also to one that strikes a restart
safe restarts      (M + R) (e^((tau + c) / M) - 1) T0 / tau     exact where nothing fails while the job restarts
Daly               M e^(R / M) (e^((tau + c) / M) - 1) T0 / tau exact where restarts are struck like any other time

Without saves they stand in this order: first order <= safe restarts <= Daly <= self-consistent, and they agree while
(tau + R) / M is small. A simulation meets the two exact ones under the assumption named beside each. The self-consistent
form, turned over, is the expected effective training time ratio of arXiv 2410.21680.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.formulas.quantity import Input, Quantity


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


LARGEST_EXPONENT = 700.0
"""e^710 is beyond a float: a run that would need so long is practically never done."""


def expected_failures(useful_seconds: float, between_seconds: float) -> float:
    """Over useful time: what a first-order estimate counts."""
    return useful_seconds / between_seconds


def failures_over_wall(wall_seconds: float, between_seconds: float) -> float:
    """Over the time that passes, replay and restarts included: what an operator will count."""
    return wall_seconds / between_seconds


def lost_seconds_first_order(useful_seconds: float, interruptions: Interruptions) -> float:
    """Time lost to failures; saves left out."""
    return expected_failures(useful_seconds, interruptions.between) * interruptions.lost_per_failure


def wall_seconds_first_order(useful_seconds: float, interruptions: Interruptions) -> float:
    """Useful time and what interruptions of useful time cost; never infinite, and far too small where losses are large."""
    return useful_seconds + lost_seconds_first_order(useful_seconds, interruptions)


def wall_seconds_self_consistent(useful_seconds: float, interruptions: Interruptions) -> float | None:
    """Wall time with saves; None when failures come faster than they are recovered from."""
    lost = interruptions.lost_per_failure / interruptions.between
    if lost >= 1:
        return None
    return useful_seconds * (1 + interruptions.save / interruptions.interval) / (1 - lost)


def wall_seconds_safe_restarts(useful_seconds: float, interruptions: Interruptions) -> float | None:
    """Exact for exponential failures of training and saving; None beyond what a float can hold."""
    M, segments = interruptions.between, useful_seconds / interruptions.interval
    exponent = (interruptions.interval + interruptions.save) / M
    if exponent > LARGEST_EXPONENT:
        return None
    return (M + interruptions.restart) * math.expm1(exponent) * segments


def wall_seconds_daly(useful_seconds: float, interruptions: Interruptions) -> float | None:
    """Daly 2006, equation 13; None beyond what a float can hold (practically never done)."""
    M = interruptions.between
    exponent = (interruptions.interval + interruptions.save) / M
    if exponent > LARGEST_EXPONENT or interruptions.restart / M > LARGEST_EXPONENT:
        return None
    return M * math.exp(interruptions.restart / M) * math.expm1(exponent) * useful_seconds / interruptions.interval


def productive_seconds_of_shrunken_run(repair: float, reconfigure: float, pace: float) -> float:
    """r max(0, R - d): healthy-equivalent seconds that a run on fewer devices earns while the missing ones are repaired."""
    if not 0 <= pace <= 1:
        raise ConfigError(f"a pace of {pace:g}", "fewer devices go on at a share of the throughput between 0 and 1", "")
    if repair < 0 or reconfigure < 0:
        raise ConfigError(f"repair {repair:g} s, reconfiguration {reconfigure:g} s", "durations are not negative", "")
    return pace * max(0.0, repair - reconfigure)


RECOVERY_CAVEATS = (
    "waiting idle earns nothing in the same window; the two are equal where the reconfiguration takes as long as the repair",
    "same objective: the global batch, its reduction and the data order stay as they were, otherwise it is another run",
    "no rollback: the state of the lost devices is held elsewhere; where it is not, the work since the last save is lost too",
    "rejoining is not charged: coming back to full size costs another reconfiguration",
    "pace is measured, not the share of devices left: unequal shards, another batch split and links in other places slow it",
)
"""What r max(0, R - d) leaves out (docs/sources.md: the run-design worksheet, elasticity)."""


def recovery_quantity(repair: Quantity | float, reconfigure: Quantity | float, pace: float) -> Quantity:
    """The gain of going on with fewer devices over waiting, for one repair; its formula carries the caveats."""
    R, d = (x.number() if isinstance(x, Quantity) else x for x in (repair, reconfigure))
    inputs: dict[str, Input] = {"r": pace, "R": repair, "d": reconfigure}
    formula = "r max(0, R - d), healthy-equivalent; " + "; ".join(RECOVERY_CAVEATS)
    gain = productive_seconds_of_shrunken_run(R, d, pace)
    source = "docs/sources.md: the run-design worksheet, elasticity"
    return Quantity("seconds_earned_by_shrinking", gain, "seconds", formula, inputs, source)
