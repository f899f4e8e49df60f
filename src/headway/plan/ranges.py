"""Arithmetic of quantities with ranges, where all inputs may err the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.formulas.quantity import Input, Quantity, unknown

Bound = float | None


def product(name: str, unit: str, formula: str, factors: Mapping[str, Input], scale: float = 1.0, source: str = "") -> Quantity:
    """``scale`` times all factors, which are not negative, with its range; unknown where a factor is."""
    missing = next((q for q in factors.values() if isinstance(q, Quantity) and q.value is None), None)
    if missing is not None:
        return unknown(name, unit, missing.formula)

    def multiplied(*numbers: float) -> float:
        value = scale
        for number in numbers:
            value *= number
        return value

    given = [factor if isinstance(factor, Quantity) else Quantity("", factor, "", "") for factor in factors.values()]
    value, low, high = rising(multiplied, *given)
    return Quantity(name, value, unit, formula, factors, source, low, high)


def rising(compute: Callable[..., float], *given: Quantity) -> tuple[float, Bound, Bound]:
    """Value, low and high of what grows with each of ``given``: exact where all are, open above where one is."""
    value = compute(*(one.number() for one in given))
    if not any(one.is_estimate for one in given):
        return value, None, None
    low, high = compute(*(one.at("low") for one in given)), compute(*(one.at("high") for one in given))
    return value, low, None if any(one.is_estimate and one.high is None for one in given) else high
