"""Times that documents carry, as seconds: ISO 8601 dates and times (UTC where no zone is given), or seconds or milliseconds
since 1970 as a number. What is neither is not known."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_EARLIEST, _LATEST = -(2**36), 2**36  # two thousand years either way
_MILLISECONDS_FROM = 10**11
"""As seconds it would be the year 5138."""


def seconds_of(text: str) -> int | None:
    """Whole seconds since 1970, rounded down; None: no time that is known here."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        number = _of_calendar(text)
    if not math.isfinite(number):
        return None
    if number >= _MILLISECONDS_FROM:
        number /= 1000
    return math.floor(number) if _EARLIEST < number < _LATEST else None


def _of_calendar(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def iso_time(seconds: int) -> str:
    """In UTC, as ``seconds_of`` reads it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
