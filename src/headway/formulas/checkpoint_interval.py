"""How often to save: the interval that loses least, for a cost per save and a mean time between failures.

A save costs c seconds of training; a failure loses half an interval on average. Young (1974) balances the two to first
order, Daly (2006) to higher order; they part when the cost is not small against the time between failures.

    tau (c = 5 min)   first order - c   + one term   equation 37   exact
    M = 24 h             115.0 min        116.7         116.7      116.7
    M =  6 h              55.0             56.7          56.7       56.7
    M = 15 min             7.2              8.9           9.1        9.2      only the full series prints Daly's 9.1
"""

from __future__ import annotations

import math

from headway.formulas.quantity import Quantity


def young_interval_seconds(save_seconds: float, between_failures_seconds: float) -> float:
    """sqrt(2 c M): seconds of training between two saves (Young 1974)."""
    return math.sqrt(2 * save_seconds * between_failures_seconds)


def daly_interval_seconds(save_seconds: float, between_failures_seconds: float) -> float:
    """Daly 2006, equation 37: for c < 2 M; beyond that, M."""
    c, M = save_seconds, between_failures_seconds
    if c >= 2 * M:
        return M
    return math.sqrt(2 * c * M) * (1 + math.sqrt(c / (2 * M)) / 3 + c / (18 * M)) - c


def exact_interval_seconds(save_seconds: float, between_failures_seconds: float) -> float:
    """Where Daly's exponential wall time is least: e^-(tau + c)/M = 1 - tau / M, by Newton from above."""
    c, M = save_seconds / between_failures_seconds, between_failures_seconds
    x = min(1.0, math.sqrt(2 * c))  # tau / M; the optimum is below both
    for _ in range(60):
        step = (math.exp(-(x + c)) - (1 - x)) / (1 - math.exp(-(x + c))) if x + c > 0 else 0.0
        x -= step
        if abs(step) < 1e-15:
            break
    return max(0.0, x) * M


def overhead_shares(interval_seconds: float, save_seconds: float, between_failures_seconds: float) -> tuple[float, float]:
    """(saves, replay) as shares of training time to first order: c / tau and tau / 2 M. Equal at Young's interval."""
    return save_seconds / interval_seconds, interval_seconds / (2 * between_failures_seconds)


def cost_for_which_young_says(interval_seconds: float, between_failures_seconds: float) -> float:
    """tau^2 / 2 M: the save that would make this interval the best one, to compare with what a save really costs."""
    return interval_seconds**2 / (2 * between_failures_seconds)


def interval_quantity(save_seconds: Quantity | float, between_failures_seconds: Quantity | float) -> Quantity:
    """Daly's interval; the range is where the loss is within about 10 % of the best (a factor of 1.55 either way)."""
    cost, between = (x.number() if isinstance(x, Quantity) else x for x in (save_seconds, between_failures_seconds))
    value = daly_interval_seconds(cost, between)
    series = "sqrt(2 c M) (1 + sqrt(c / (2 M)) / 3 + c / (18 M)) - c" if cost < 2 * between else "M"
    return Quantity(
        "best_checkpoint_interval",
        value,
        "seconds",
        f"{series}; range: where the losses are within 10 % of the least",
        {"c": save_seconds, "M": between_failures_seconds},
        "Daly 2006, equation 37",
        value / FLATNESS,
        value * FLATNESS,
    )


FLATNESS = 1.55
"""(x + 1 / x) / 2 = 1.1 at x = 1.56: that far from the optimum the sum of both losses has grown by 10 %."""
