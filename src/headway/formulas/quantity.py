"""A number that can say why: name, value, unit, formula, inputs, source. Estimates carry the range they lie in (law 10)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from headway.base.units import format_bytes, format_count, format_seconds, format_storage

Input = Union["Quantity", float, int, str, None]

Spread = tuple[float, float]
"""Range of an estimate as factors of its value: (0.5, 2) is within a factor of two."""

EXACT_UNITS = {"tokens", "parameters", "sequences", "steps", "times"}


@dataclass(frozen=True)
class Quantity:
    """``value`` None: unknown, and ``formula`` says what is missing. ``low`` and ``high`` None: exact."""

    name: str
    value: float | int | str | None
    unit: str
    formula: str
    inputs: Mapping[str, Input] = field(default_factory=dict)
    source: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(f"{self.name} is {self.value}: a quantity is finite or unknown")
        if not self.is_estimate:
            return
        if not isinstance(self.value, int | float):
            raise ValueError(f"{self.name} has a range around {self.value!r}: only numbers have one")
        if not self.at("low") <= self.value <= self.at("high"):
            raise ValueError(f"{self.name} is {self.value}, outside its range {self.low} to {self.high}")

    @property
    def is_estimate(self) -> bool:
        return self.low is not None or self.high is not None

    def number(self) -> float:
        """The value as a number; for unknown or worded ones a bug of the caller."""
        assert isinstance(self.value, int | float), self.name
        return float(self.value)

    def at(self, end: Literal["low", "high"]) -> float:
        """That end of the range; the value where there is none. A bound of zero is one."""
        bound = self.low if end == "low" else self.high
        return self.number() if bound is None else bound

    def shown(self) -> str:
        """Value and unit for people, with the range of an estimate."""
        if self.value is None:
            return "unknown"
        if isinstance(self.value, str):
            return self.value
        text = show_number(self.value, self.unit)
        if self.low is not None and self.high is not None:
            low, high = (show_number(bound, self.unit).removesuffix(f" {self.unit}") for bound in (self.low, self.high))
            return f"{text} ({low} to {high})"
        return text

    def __str__(self) -> str:
        return f"{self.name}: {self.shown()}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; an input that is a quantity stands by its value, and can be looked up by its name."""
        plain = {"name": self.name, "value": self.value, "unit": self.unit, "shown": self.shown(), "formula": self.formula}
        inputs = {key: _plain(value) for key, value in self.inputs.items()}
        return plain | {"inputs": inputs, "source": self.source, "low": self.low, "high": self.high}


def show_number(value: float, unit: str) -> str:
    """By dimension: bytes as memory or storage are measured, durations in words, shares in per cent, counts with their size."""
    if unit == "bytes":
        return format_storage(value) if abs(value) >= STORAGE_BYTES else format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit in EXACT_UNITS and float(value).is_integer():
        return f"{show_whole(int(value))} {unit}"
    if unit == "" and isinstance(value, int):
        return f"{value:,}"
    if unit in ("", "rate"):
        return f"{value:.4g}"
    if abs(value) >= 1e18:
        return f"{value:.3g} {unit}"
    return format_count(value, unit)


def show_whole(value: int) -> str:
    """A count, once: to the last digit while a person reads it at a glance, then by its size: 1,156,250; 405.9B."""
    if abs(value) < READ_AT_A_GLANCE:
        return f"{value:,}"
    size, letter = next(entry for entry in SIZES if abs(value) >= entry[0] * 0.99995)
    return f"{value / size:.4g}{letter}"


STORAGE_BYTES = 5e11
"""From here on sizes are of storage, which is counted in powers of ten (6.4 TB); no device's memory is as large."""
READ_AT_A_GLANCE = 10**7
SIZES = ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"))


def estimate(
    name: str, value: float, unit: str, formula: str, inputs: Mapping[str, Input], source: str, spread: Spread
) -> Quantity:
    """A quantity whose range is its value times ``spread``."""
    low, high = spread
    return Quantity(name, value, unit, formula, inputs, source, value * low, value * high)


def unknown(name: str, unit: str, missing: str) -> Quantity:
    """A quantity that cannot be computed yet; ``missing`` says what it needs."""
    return Quantity(name, None, unit, missing)


def _plain(value: Input) -> Any:
    if isinstance(value, Quantity):
        return {"quantity": value.name, "value": value.value, "unit": value.unit}
    return value
