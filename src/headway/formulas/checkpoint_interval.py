"""How often to save: the interval that loses least, for a cost per save and a mean time between failures.

A save costs c seconds of training; a failure loses half an interval on average. Young (1974) balances the two to first
order, Daly (2006) to higher order; they part when the cost is not small against the time between failures.
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


def interval_quantity(save_seconds: Quantity | float, between_failures_seconds: float) -> Quantity:
    """Daly's interval; the range is where the loss is within about 10 % of the best (a factor of 1.55 either way)."""
    cost = save_seconds.number() if isinstance(save_seconds, Quantity) else save_seconds
    value = daly_interval_seconds(cost, between_failures_seconds)
    return Quantity(
        "best_checkpoint_interval",
        value,
        "seconds",
        "sqrt(2 c M) (1 + sqrt(c / 2 M) / 3 + c / 18 M) - c",
        {"c": save_seconds, "M": between_failures_seconds},
        "Daly 2006",
        value / FLATNESS,
        value * FLATNESS,
    )


FLATNESS = 1.55
"""(x + 1 / x) / 2 = 1.1 at x = 1.56: that far from the optimum the sum of both losses has grown by 10 %."""
