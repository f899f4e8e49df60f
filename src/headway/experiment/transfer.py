"""Whether an optimum stays where it is as the model grows wider, and what a transfer of it would have cost.

    optima per width --drift_of--> slope, factor, verdict      "the optimum moves by at most a factor of 2 over these widths"
    one more width, which no fit saw --compare--> predicted against found: ratio, nats lost

The verdict is on the factor between the largest and the smallest optimum, with its interval:

    transfers            the upper end of the interval is within the stated factor
    does not transfer    the lower end is beyond it: refused
    undecided            anything else, and wherever an optimum is not bracketed (unless its one end is enough to refuse)

Of every pair of widths the difference of log2 optima is drawn from the optima's own draws. Upper end: the largest of the
pairs' upper ends, each at 97.5 %; the pair that truly differs most is one of them. Lower end: the largest of their lower ends,
each at 2.5 % over the number of pairs, since any of them could be the one that is far out by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from headway.base.errors import ConfigError
from headway.experiment.optimum import CONFIDENCE, DRAWS, SEED, Optimum, Point, loss_at

FACTOR = 2.0
TRANSFERS, REFUSED, UNDECIDED = "transfers", "does not transfer", "undecided"
_TAIL = (1 - CONFIDENCE) / 2
_ROUNDING = 1e-9
"""Octaves: an optimum that moved by exactly the stated factor moved by at most that."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """``slope``: octaves of the optimum per octave of width, by least squares. ``moved``: largest over smallest optimum.

    None where nothing can be said, and for the ends of an interval that are open.
    """

    verdict: str
    reason: str
    allowed: float  # the stated factor
    widths: tuple[int, ...]
    moved: float | None = None
    moved_low: float | None = None
    moved_high: float | None = None
    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    at_mean: float | None = None  # log2 of the fitted optimum at the mean of log2 width

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def on_line(self, width: float) -> float | None:
        """The optimum at ``width`` by the fitted line."""
        if self.slope is None or self.at_mean is None:
            return None
        return float(2.0 ** (self.at_mean + self.slope * (np.log2(width) - np.log2(self.widths).mean())))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A value carried to a width that no fit saw, against the optimum found there. ``ratio``: predicted / found."""

    width: int
    predicted: float
    found: Optimum
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    lost: float | None  # nats above the optimum's loss; None where that cannot be told
    verdict: str

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"found": self.found.to_json()}


def drift_of(optima: Mapping[int, Optimum], allowed: float = FACTOR) -> Drift:
    """How far the optimum moves over the widths of ``optima``, and the verdict at the factor ``allowed``."""
    if not 1 < allowed < float("inf"):
        raise ConfigError(f"a factor of {allowed:g}", "a factor by which an optimum may move is above 1", "such as --factor 2")
    widths = tuple(sorted(optima))
    found = [optima[width] for width in widths]
    if len(widths) < 2:
        reason = "one width says nothing about drift" if widths else "no widths"
        return Drift(verdict=UNDECIDED, reason=reason, allowed=allowed, widths=widths)
    low, high = _moved_between(found)
    verdict, reason = _verdict(found, widths, (low, high), allowed)
    known: dict[str, Any] = {"verdict": verdict, "reason": reason, "allowed": allowed, "widths": widths}
    known |= {"moved_low": _factor(low), "moved_high": _factor(high) if np.isfinite(high) else None}
    if any(o.value is None for o in found):
        return Drift(**known)
    places = np.log2([float(o.value or 0.0) for o in found])
    known["moved"] = _factor(float(np.ptp(places)))
    if all(o.bracketed for o in found):
        known |= _line(widths, found)
    return Drift(**known)


def _factor(octaves: float) -> float:
    return float(2.0**octaves)


def _verdict(found: Sequence[Optimum], widths: Sequence[int], moved: tuple[float, float], allowed: float) -> tuple[str, str]:
    limit = float(np.log2(allowed)) + _ROUNDING
    low, high = moved
    if low > limit:
        return REFUSED, f"the optimum moves by a factor of {_factor(low):.3g} or more, {allowed:g} is allowed"
    loose = [f"{width} ({o.state})" for width, o in zip(widths, found, strict=True) if not o.bracketed]
    if loose:
        return UNDECIDED, f"not bracketed at width {', '.join(loose)}"
    if high > limit:
        range_ = f"{_factor(low):.3g} to {_factor(high):.3g}" if np.isfinite(high) else f"{_factor(low):.3g} upwards"
        return UNDECIDED, f"the optimum may move by any factor from {range_}, {allowed:g} is allowed"
    return TRANSFERS, f"the optimum moves by at most a factor of {_factor(high):.3g}, {allowed:g} is allowed"


def _moved_between(found: Sequence[Optimum]) -> tuple[float, float]:
    """Octaves between the largest and the smallest optimum, at least and at most."""
    pairs = [_difference(found[i], found[j], generator_place=i * len(found) + j) for i, j in permutations(range(len(found)), 2)]
    tail = _TAIL / len(pairs)
    low = max(float(np.quantile(pair, tail)) if isinstance(pair, np.ndarray) else pair[0] for pair in pairs)
    high = max(float(np.quantile(pair, 1 - _TAIL)) if isinstance(pair, np.ndarray) else pair[1] for pair in pairs)
    return max(0.0, low), max(0.0, high)


def _difference(one: Optimum, other: Optimum, generator_place: int) -> np.ndarray | tuple[float, float]:
    """Draws of log2(one / other); where one of them has none, the least and the most that their intervals allow."""
    if one.draws is not None and other.draws is not None:
        return one.draws - np.random.default_rng([SEED, generator_place]).permutation(other.draws)
    (low, high), (other_low, other_high) = _ends(one), _ends(other)
    return low - other_high, high - other_low


def _ends(optimum: Optimum) -> tuple[float, float]:
    low = -np.inf if optimum.low is None else float(np.log2(optimum.low))
    return low, np.inf if optimum.high is None else float(np.log2(optimum.high))


def _line(widths: Sequence[int], found: Sequence[Optimum]) -> dict[str, float]:
    """Least squares of log2 optimum on log2 width. What scatters beyond the optima's own uncertainty widens the interval."""
    x = np.log2(widths) - np.log2(widths).mean()
    places = np.log2([float(o.value or 0.0) for o in found])
    sxx = float(x @ x)
    slope = float(x @ places / sxx)
    generator = np.random.default_rng(SEED)
    draws = np.array([generator.permutation(o.draws) for o in found if o.draws is not None])
    slopes = x @ draws / sxx
    dof = len(widths) - 2
    if dof > 0:
        residuals = places - places.mean() - slope * x
        scatter = max(0.0, float(residuals @ residuals) / dof - float(draws.var(axis=1).mean()))
        slopes = slopes + np.sqrt(scatter / sxx) * generator.standard_t(dof, DRAWS)
    low, high = np.quantile(slopes, [_TAIL, 1 - _TAIL])
    return {"slope": slope, "slope_low": float(low), "slope_high": float(high), "at_mean": float(places.mean())}


# --- what a transfer sets -----------------------------------------------------------------------------------------------


def carried(optima: Mapping[int, Optimum]) -> Optimum | None:
    """The one value that a transfer carries over: the mean of the log2 optima, each weighed by how well it is known.

    None unless all are bracketed. The interval holds what the optima leave open and how far they scatter.
    """
    found = [o for o in optima.values() if o.bracketed and o.draws is not None and o.value]
    if not found or len(found) < len(optima):
        return None
    generator = np.random.default_rng([SEED, 1])
    places = np.log2([float(o.value or 0.0) for o in found])
    draws = np.array([generator.permutation(o.draws) for o in found if o.draws is not None])
    scatter = max(0.0, float(places.var(ddof=1) - draws.var(axis=1).mean())) if len(found) > 1 else 0.0
    weights = 1.0 / np.maximum(draws.var(axis=1) + scatter, 1e-12)
    weights /= weights.sum()
    mean = weights @ draws + np.sqrt(scatter * (weights @ weights)) * generator.standard_normal(DRAWS)
    low, high = np.quantile(mean, [_TAIL, 1 - _TAIL])
    value = float(2.0 ** (weights @ places))
    return Optimum(state=found[0].state, value=value, low=_factor(low), high=_factor(high), draws=mean)


def compare(width: int, predicted: float, found: Optimum, points: Sequence[Point], allowed: float = FACTOR) -> Comparison:
    """What carrying ``predicted`` to ``width`` would have meant, given what was found there."""
    low, high = _ends(found)
    place, limit = float(np.log2(predicted)), float(np.log2(allowed)) + _ROUNDING
    least = max(low - place, place - high, 0.0)
    most = max(abs(place - low), abs(place - high))
    if least > limit:
        verdict = REFUSED
    elif not found.bracketed or most > limit:
        verdict = UNDECIDED
    else:
        verdict = TRANSFERS
    return Comparison(
        width=width,
        predicted=predicted,
        found=found,
        ratio=None if found.value is None else predicted / found.value,
        ratio_low=None if found.high is None else predicted / found.high,
        ratio_high=None if found.low is None else predicted / found.low,
        lost=loss_at(points, found, predicted),
        verdict=verdict,
    )


def overall(drift: Drift, held_out: Comparison | None) -> tuple[str, str]:
    """The verdict of both, with its reason: the held-out width can refuse or leave open what the drift allowed."""
    if held_out is None or drift.verdict != TRANSFERS or held_out.verdict == TRANSFERS:
        return drift.verdict, drift.reason
    ends = [None if r is None else max(r, 1 / r) for r in (held_out.ratio_low, held_out.ratio_high)]
    where = f"width {held_out.width}, which the fit never saw"
    if held_out.verdict == REFUSED:
        return REFUSED, f"the value predicted for {where}, is off by more than the allowed factor of {drift.allowed:g}"
    if not held_out.found.bracketed:
        return UNDECIDED, f"the optimum at {where}, is not bracketed ({held_out.found.state})"
    farthest = max(end for end in ends if end is not None)
    return UNDECIDED, f"the value predicted for {where}, may be off by a factor of {farthest:.3g}, {drift.allowed:g} is allowed"
