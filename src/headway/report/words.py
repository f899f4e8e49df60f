"""Numbers as the page writes them. Exact where a reader may want to check, rounded where he wants to understand."""

from __future__ import annotations

import math

from headway.base.units import format_seconds

NONE = "–"
"""Shown for what is not known or not recorded."""


def exact(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def loss(value: float | None, digits: int = 4) -> str:
    """Nats per token."""
    if value is None:
        return NONE
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def signed(value: float, digits: int = 4) -> str:
    """With its sign, and a real minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def every_digit(value: float) -> str:
    """The shortest text that gives back exactly this float."""
    return repr(value)


def duration(ns: int | float | None) -> str:
    if ns is None:
        return NONE
    return format_seconds(ns / 1e9) if ns else "0 s"


def percent(share: float | None, digits: int = 1) -> str:
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(parts: list[str]) -> str:
    """a, b and c"""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
