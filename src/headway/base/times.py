"""Times that documents carry, as seconds: ISO 8601 dates and times (UTC where no zone is given), or seconds or milliseconds
since 1970 as a number. What is neither is not known.

    2024-05-01, 20240501, 20240501T120000Z, 20240501120000     a date, a date and a time
    1714521600, 1714521600000                                  since 1970
    2019, 202405                                               not known: a year, a month, or the first day of 1970
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

_EARLIEST, _LATEST = -(2**36), 2**36  # two thousand years either way
_MILLISECONDS_FROM = 10**11
"""As seconds it would be the year 5138."""
_LEAST = 10**8
"""Seconds either side of 1970, 1973 and 1966: what is less is rather a year, a month or a serial number."""

_DAY, _DAY_AND_TIME = 8, 14
"""Digits of a date and a time that are written without signs."""


def seconds_of(text: str) -> int | None:
    """Whole seconds since 1970, rounded down; None: no time that is known here."""
    text = text.strip()
    number = _of_calendar(text)
    if math.isnan(number):
        number = _of_number(text)
    return math.floor(number) if _EARLIEST < number < _LATEST else None


def _of_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    if number >= _MILLISECONDS_FROM:
        number /= 1000
    return number if abs(number) >= _LEAST else math.nan


def _of_calendar(text: str) -> float:
    if text.isdecimal():
        if len(text) not in (_DAY, _DAY_AND_TIME):
            return math.nan  # the library takes any sign between day and time: a digit too
        text = "T".join(filter(None, (text[:_DAY], text[_DAY:])))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def iso_time(seconds: int) -> str:
    """In UTC, as ``seconds_of`` reads it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
