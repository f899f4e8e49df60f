"""Where a hyperparameter is best, and how well that is known: one parabola through the losses near the lowest one.

    loss |  .                              o    points of one width: value -> held-out loss, per seed
         |     o              o                 x = log2(value)
         |        o        o
         |           o--o                  within two octaves of the lowest: loss = c[seed] + b1 x + b2 x^2
         +------------------------- x      optimum: -b1 / (2 b2)
                     [-+-]                 interval: the optima of coefficients drawn from the fit's own uncertainty

- Every seed has a level of its own: seeds differ by more than the curve bends, and that says nothing about where it is lowest.
- The noise of a trial is what the parabolas leave over, pooled over all curves of one kind (widths); what a parabola cannot
  follow is part of it, so a curve that is lopsided gets a wider interval, not a wrong one.
- A trial that diverged is worse than every loss: its value bounds the optimum, and is never fitted.
- Nothing is said beyond what was swept. A lowest point at an end, a curve that is flat within its noise, or one that does not
  bend upwards are "not bracketed", and that end of the interval is open (None).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from headway.base.errors import ConfigError

NEAR = 2.0
"""Octaves on either side of the lowest point that a parabola is fitted to: farther out losses are no parabola in log2."""
CONFIDENCE = 0.95
DRAWS = 4000
SEED = 20_231
"""Of the draws: the same records give the same interval."""
BEYOND_NOISE = 3.0
"""Standard deviations by which a value must be worse to bound an optimum that lies at an end of what was swept."""

BRACKETED = "bracketed"
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Point:
    """One trial: ``loss`` in nats per token, None where it diverged."""

    value: float
    loss: float | None
    seed: int = 0


@dataclass(frozen=True)
class Noise:
    """Standard deviation of one trial's loss, nats, beyond its seed's level; ``dof``: how many residuals it rests on."""

    sigma: float
    dof: int


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """``value`` is None where nothing was found; ``low`` or ``high`` is None where that end is open.

    ``state``: "bracketed", or why it is not: "at the lower end", "at the upper end", "flat within noise", "not convex",
    "reaches an end", "too few values", "all diverged".
    """

    state: str
    value: float | None
    low: float | None
    high: float | None
    reason: str = ""
    loss: float | None = None  # of the curve at ``value``, nats; None where nothing could be fitted
    curvature: float | None = None  # b2: nats per octave squared
    trials: int = 0
    diverged: int = 0
    draws: np.ndarray | None = field(default=None, repr=False, compare=False)  # log2 optima; None unless bracketed

    @property
    def bracketed(self) -> bool:
        return self.state == BRACKETED

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "draws"}


def listed(value: float) -> Optimum:
    """An optimum as somebody published it, without any uncertainty."""
    draws = np.full(DRAWS, np.log2(value))
    return Optimum(state=BRACKETED, value=value, low=value, high=value, reason="as listed, without uncertainty", draws=draws)


def optima(curves: Mapping[K, Sequence[Point]], noise: Noise | None = None) -> dict[K, Optimum]:
    """The optimum of every curve; the noise is pooled over them where none is given (None again: one cannot be told)."""
    noise = noise or pooled_noise(curves.values())
    return {key: optimum(points, noise) for key, points in curves.items()}


def pooled_noise(curves: Any) -> Noise | None:
    """What the parabolas of all curves leave over; None where they leave nothing, as three points of one seed do."""
    fits = [fit for points in curves if (fit := _fit_near_lowest(_Curve.of(points))) is not None]
    dof = sum(fit.dof for fit in fits)
    return Noise(float(np.sqrt(sum(fit.rss for fit in fits) / dof)), dof) if dof else None


def optimum(points: Sequence[Point], noise: Noise | None = None) -> Optimum:
    """The optimum of one curve. Without ``noise`` its own residuals are taken, and without those the neighbouring values."""
    curve = _Curve.of(points)
    counts: dict[str, Any] = {"trials": len(points), "diverged": sum(p.loss is None for p in points)}
    fit = _fit_near_lowest(curve)
    noise = noise or (Noise(float(np.sqrt(fit.rss / fit.dof)), fit.dof) if fit and fit.dof else None)
    unbracketed = _outside(curve, noise)
    if unbracketed is not None:
        return Optimum(**unbracketed, **counts)
    if fit is None:
        return Optimum(**_between_neighbours(curve, "too few finite losses for a parabola"), **counts)
    if fit.b2 <= 0:
        reason = f"near its lowest point the curve bends downwards ({fit.b2:.2g} nats per octave squared)"
        return Optimum(state="not convex", value=curve.value_at(curve.lowest), low=None, high=None, reason=reason, **counts)
    if noise is None:
        return Optimum(**_between_neighbours(curve, "the noise is not known: as wide as the neighbouring values", fit), **counts)
    return Optimum(**_from_draws(curve, fit, noise), **counts)


def best_value(points: Sequence[Point]) -> float | None:
    """The value with the lowest loss, seeds put on one level; None where all diverged."""
    curve = _Curve.of(points)
    return curve.value_at(curve.lowest) if np.isfinite(curve.levels).any() else None


def levels(points: Sequence[Point]) -> dict[float, float | None]:
    """Value -> loss with the seeds put on one level, None where a trial diverged; by rising value."""
    curve = _Curve.of(points)
    return {curve.value_at(i): float(x) if np.isfinite(x) else None for i, x in enumerate(curve.levels)}


def loss_at(points: Sequence[Point], found: Optimum, value: float) -> float | None:
    """Loss above that of the optimum, nats, at any ``value``: by the parabola near it, else along the line between neighbours.

    None where that cannot be told: outside of what was swept, or beside a value that diverged.
    """
    if found.value is None or found.loss is None or found.curvature is None:
        return None
    curve, x = _Curve.of(points), float(np.log2(value))
    if abs(x - curve.x[curve.lowest]) <= 1.0:
        return float(found.curvature * (x - np.log2(found.value)) ** 2)
    if not curve.x[0] <= x <= curve.x[-1]:
        return None
    between = float(np.interp(x, curve.x, curve.levels))
    return max(0.0, between - found.loss) if np.isfinite(between) else None


# --- one curve ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """``x``: distinct log2 values, rising; ``levels``: loss per value on a common level, inf where a trial diverged."""

    points: Sequence[Point]
    x: np.ndarray
    levels: np.ndarray

    @staticmethod
    def of(points: Sequence[Point]) -> _Curve:
        _refuse_what_has_no_logarithm(points)
        x = np.unique([np.log2(p.value) for p in points])
        return _Curve(points=points, x=x, levels=_levels(points, x))

    @property
    def lowest(self) -> int:
        return int(np.argmin(self.levels))

    def value_at(self, place: int) -> float:
        return next(p.value for p in self.points if np.log2(p.value) == self.x[place])


def _refuse_what_has_no_logarithm(points: Sequence[Point]) -> None:
    wrong = sorted({p.value for p in points if not 0 < p.value < float("inf")})
    if wrong or not points:
        seen = f"values {wrong} have no logarithm" if wrong else "no trials at all"
        raise ConfigError(seen, "optima are sought in log2 of positive values", "leave zero out of the sweep")


def _levels(points: Sequence[Point], x: np.ndarray) -> np.ndarray:
    """Loss per value after the seeds' own levels are taken out (two-way least squares)."""
    diverged = {float(np.log2(p.value)) for p in points if p.loss is None}
    levels = np.full(len(x), np.inf)
    kept = [p for p in points if np.log2(p.value) not in diverged]
    if not kept:
        return levels
    inside = np.array([value not in diverged for value in x])
    by_value = np.array([x[inside] == np.log2(p.value) for p in kept], dtype=float)
    by_seed = _seed_columns(kept)
    centred = by_seed - 1 / by_seed.shape[1]  # levels are those of the mean seed, however many trials each has
    loss = np.array([p.loss for p in kept], dtype=float)
    solution = np.linalg.lstsq(np.hstack([by_value, centred]), loss, rcond=None)[0]
    levels[inside] = solution[: by_value.shape[1]]
    return levels


def _seed_columns(points: Sequence[Point]) -> np.ndarray:
    seeds = sorted({p.seed for p in points})
    return np.array([[p.seed == seed for seed in seeds] for p in points], dtype=float)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Of loss = c[seed] + b1 d + b2 d^2, d = x - centre. ``root``: a square root of the coefficients' covariance at noise 1."""

    centre: float
    level: float  # mean of c over the seeds
    b1: float
    b2: float
    root: np.ndarray
    first: float  # log2 values that were fitted
    last: float
    rss: float
    dof: int


def _fit_near_lowest(curve: _Curve) -> _Fit | None:
    """Over the values within NEAR octaves of the lowest, as far as nothing in between diverged; None below three of them."""
    if not np.isfinite(curve.levels).any():
        return None
    centre = curve.x[curve.lowest]
    near = [place for place in _finite_run(curve) if abs(curve.x[place] - centre) <= NEAR + 1e-9]
    if len(near) < 3:
        return None
    inside = set(curve.x[near])
    points = [p for p in curve.points if np.log2(p.value) in inside]
    d = np.log2([p.value for p in points]) - centre
    loss = np.array([p.loss for p in points], dtype=float)
    design = np.column_stack([d, d**2, _seed_columns(points)])
    solution, _, rank, _ = np.linalg.lstsq(design, loss, rcond=None)
    residuals = loss - design @ solution
    covariance = np.linalg.pinv(design.T @ design)[:2, :2]
    values, vectors = np.linalg.eigh(covariance)
    return _Fit(
        centre=float(centre),
        level=float(solution[2:].mean()),
        b1=float(solution[0]),
        b2=float(solution[1]),
        root=vectors * np.sqrt(np.clip(values, 0, None)),
        first=float(curve.x[near[0]]),
        last=float(curve.x[near[-1]]),
        rss=float(residuals @ residuals),
        dof=len(loss) - int(rank),
    )


def _finite_run(curve: _Curve) -> range:
    """Places around the lowest one up to the first that diverged on either side."""
    finite = np.isfinite(curve.levels)
    first = last = curve.lowest
    while first > 0 and finite[first - 1]:
        first -= 1
    while last + 1 < len(finite) and finite[last + 1]:
        last += 1
    return range(first, last + 1)


# --- where nothing brackets it ------------------------------------------------------------------------------------------


def _outside(curve: _Curve, noise: Noise | None) -> dict[str, Any] | None:
    """Why the sweep does not enclose the optimum; None where it does."""
    if not np.isfinite(curve.levels).any():
        return {"state": "all diverged", "value": None, "low": None, "high": None, "reason": "every trial diverged"}
    best = curve.value_at(curve.lowest)
    if len(curve.x) < 3:
        reason = f"{len(curve.x)} values: three or more enclose an optimum"
        return {"state": "too few values", "value": best, "low": None, "high": None, "reason": reason}
    if 0 < curve.lowest < len(curve.x) - 1:
        return None
    at_lower = curve.lowest == 0
    bound = _first_worse(curve, range(1, len(curve.x)) if at_lower else range(len(curve.x) - 2, -1, -1), noise)
    end, further = ("lower", "lower") if at_lower else ("upper", "higher")
    return {
        "state": f"at the {end} end",
        "value": best,
        "low": None if at_lower else bound,
        "high": bound if at_lower else None,
        "reason": f"the lowest loss is at the {end} end of what was swept, {best:g}: sweep {further} values",
    }


def _first_worse(curve: _Curve, places: Sequence[int], noise: Noise | None) -> float | None:
    """The nearest value that is worse than the lowest one by more than noise."""
    margin = BEYOND_NOISE * np.sqrt(2) * noise.sigma if noise else 0.0
    for place in places:
        if curve.levels[place] - curve.levels[curve.lowest] > margin:
            return curve.value_at(place)
    return None


def _between_neighbours(curve: _Curve, reason: str, fit: _Fit | None = None) -> dict[str, Any]:
    """Where no noise is known: somewhere between the values beside the lowest, any place as likely as another."""
    low, high = curve.x[curve.lowest - 1], curve.x[curve.lowest + 1]
    x = curve.x[curve.lowest] if fit is None else np.clip(fit.centre - fit.b1 / (2 * fit.b2), low, high)
    if fit is not None and x == high and not np.isfinite(curve.levels[curve.lowest + 1]):
        x = curve.x[curve.lowest]
    return {
        "state": BRACKETED,
        "value": float(2.0**x),
        "low": curve.value_at(curve.lowest - 1),
        "high": curve.value_at(curve.lowest + 1),
        "reason": reason,
        "loss": float(curve.levels[curve.lowest]) if fit is None else _fitted(fit, x),
        "curvature": None if fit is None else fit.b2,
        "draws": np.random.default_rng(SEED).uniform(low, high, DRAWS),
    }


# --- the interval -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reach:
    """log2 values between which the optimum is sought: ends of what was swept, or the nearest values that diverged."""

    first: float
    last: float
    first_diverges: bool
    last_diverges: bool

    @staticmethod
    def of(curve: _Curve) -> _Reach:
        run = _finite_run(curve)
        lower, upper = run.start > 0, run.stop < len(curve.x)
        first, last = curve.x[run.start - lower], curve.x[run.stop - 1 + upper]
        return _Reach(float(first), float(last), lower, upper)

    def inside(self, x: float, centre: float) -> float:
        """``x`` within the reach; never a value that diverged."""
        if (self.last_diverges and x >= self.last) or (self.first_diverges and x <= self.first):
            return centre
        return float(np.clip(x, self.first, self.last))


def _from_draws(curve: _Curve, fit: _Fit, noise: Noise) -> dict[str, Any]:
    """The parabola's optimum, with the interval that holds CONFIDENCE of the optima drawn."""
    reach = _Reach.of(curve)
    draws, bent = _drawn_optima(fit, noise, reach)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    vertex = fit.centre - fit.b1 / (2 * fit.b2)
    x = reach.inside(vertex, fit.centre)
    known: dict[str, Any] = {"value": float(2.0**x), "loss": _fitted(fit, x), "curvature": fit.b2, "low": None, "high": None}
    if bent < 1 - tail:
        reason = f"flat within the noise of {noise.sigma:.2g} nats: {1 - bent:.0%} of the parabolas drawn do not bend upwards"
        return known | {"state": "flat within noise", "reason": reason}
    at_first = not reach.first_diverges and min(low, vertex) <= reach.first
    at_last = not reach.last_diverges and max(high, vertex) >= reach.last
    known |= {"low": None if at_first else float(2.0**low), "high": None if at_last else float(2.0**high)}
    if at_first or at_last:
        return known | {"state": "reaches an end", "reason": "the interval reaches an end of what was swept: sweep farther"}
    reason = f"trials diverge at {2.0**reach.last:.3g} and above" if reach.last_diverges else ""
    return known | {"state": BRACKETED, "reason": reason, "draws": draws}


def _fitted(fit: _Fit, x: float) -> float:
    d = x - fit.centre
    return float(fit.level + fit.b1 * d + fit.b2 * d**2)


def _drawn_optima(fit: _Fit, noise: Noise, reach: _Reach) -> tuple[np.ndarray, float]:
    """log2 optima of drawn coefficients, and the share of their parabolas that bend upwards.

    Coefficients are Student-t: normal with the noise, whose own size is known from ``dof`` residuals only. A parabola that
    bends downwards has its lowest point at the end that it falls towards. Between the lowest value and one that diverged
    beside it there is no data: any place there is as likely as another.
    """
    generator = np.random.default_rng(SEED)
    scale = noise.sigma * np.sqrt(noise.dof / generator.chisquare(noise.dof, DRAWS))
    b1, b2 = np.array([[fit.b1], [fit.b2]]) + (fit.root @ generator.standard_normal((2, DRAWS))) * scale
    up = b2 > 0
    towards = np.where(b1 < 0, reach.last, reach.first)
    drawn = np.where(up, fit.centre - b1 / (2 * np.where(up, b2, 1.0)), towards)
    drawn = np.clip(drawn, reach.first, reach.last)
    if reach.last_diverges and fit.last <= fit.centre:
        drawn = np.where(drawn > fit.centre, generator.uniform(fit.centre, reach.last, DRAWS), drawn)
    if reach.first_diverges and fit.first >= fit.centre:
        drawn = np.where(drawn < fit.centre, generator.uniform(reach.first, fit.centre, DRAWS), drawn)
    return drawn, float(up.mean())
