"""Rules that published numbers must pass. Each computes what follows from the parts and says whether it agrees.

product        tp x pp x cp x dp                 against the number of devices
sum            parts of a whole                  against the whole
quotient       first / second / third            against a share, a duration
same           one thing said in several places
at least       first / second                    against the least share that was claimed
within         first / second - 1                against the largest distance that was claimed
divides        first sequences over second replicas
young          interval, between: the cost of a save for which that interval would be the best
interruptions  useful, between, interval, restart: wall time to first order (and Daly's, exact for exponential faults)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.formulas.checkpoint_interval import cost_for_which_young_says
from headway.formulas.failures import Interruptions, wall_seconds_daly, wall_seconds_first_order
from headway.formulas.quantity import show_number


@dataclass(frozen=True)
class Verdict:
    """``computed`` is what the parts give; ``remark`` says what the bare number does not."""

    computed: float
    agrees: bool
    remark: str = ""


Parts = Mapping[str, float]


def product(parts: Parts, stated: float, tolerance: float) -> Verdict:
    return _against(math.prod(parts.values()), stated, tolerance)


def total(parts: Parts, stated: float, tolerance: float) -> Verdict:
    return _against(sum(parts.values()), stated, tolerance)


def quotient(parts: Parts, stated: float, tolerance: float) -> Verdict:
    first, *others = parts.values()
    return _against(first / math.prod(others), stated, tolerance)


def same(parts: Parts, stated: float, tolerance: float) -> Verdict:
    """``computed`` is the largest over the smallest."""
    ratio = max(parts.values()) / min(parts.values())
    return Verdict(ratio, ratio <= 1 + tolerance, f"factor {ratio:.4g} between the largest and the smallest")


def at_least(parts: Parts, stated: float, tolerance: float) -> Verdict:
    first, second = list(parts.values())[:2]
    return Verdict(first / second, first / second >= stated)


def within(parts: Parts, stated: float, tolerance: float) -> Verdict:
    first, second = list(parts.values())[:2]
    off = first / second - 1
    return Verdict(abs(off), abs(off) <= stated, f"{100 * off:+.0f} %")


def divides(parts: Parts, stated: float, tolerance: float) -> Verdict:
    """``computed`` is the remainder. Replicas with fewer sequences wait for those with one more."""
    whole, by = list(parts.values())[:2]
    rest = math.fmod(whole, by)
    padded = math.ceil(whole / by) * by
    remark = f"some wait: as slow as {padded:,.0f}, {100 * (padded / whole - 1):.1f} % extra; {padded:,.0f} divides"
    return Verdict(rest, rest == 0, remark if rest else "")


def young(parts: Parts, stated: float, tolerance: float) -> Verdict:
    """sqrt(2 c M) = tau, solved for the cost c of a save."""
    interval, between = list(parts.values())[:2]
    cost = cost_for_which_young_says(interval, between)
    return Verdict(cost, math.isclose(cost, stated, rel_tol=max(tolerance, 1e-12)), "cost of a save that would justify it")


def interruptions(parts: Parts, stated: float, tolerance: float) -> Verdict:
    useful, between, interval, restart = list(parts.values())[:4]
    rate = Interruptions(between, restart, interval)
    first = wall_seconds_first_order(useful, rate)
    daly = wall_seconds_daly(useful, rate)
    exact = "never done" if daly is None else show_number(daly, "seconds")
    return Verdict(first, math.isclose(first, stated, rel_tol=tolerance), f"first order; exponential faults: {exact}")


def _against(computed: float, stated: float, tolerance: float) -> Verdict:
    return Verdict(computed, abs(computed / stated - 1) <= tolerance)


RULES: dict[str, Callable[[Parts, float, float], Verdict]] = {
    "product": product,
    "sum": total,
    "quotient": quotient,
    "same": same,
    "at least": at_least,
    "within": within,
    "divides": divides,
    "young": young,
    "interruptions": interruptions,
}
NEED_STATED = {"product", "sum", "quotient", "at least", "within", "young", "interruptions"}
FEWEST_PARTS = dict.fromkeys(RULES, 2) | {"interruptions": 4}
