"""Quantities as people write them: ``"15T"``, ``"4M tokens"``, ``"30min"``, ``"64MiB"``.

One parser per dimension; a unit of another dimension is refused, never guessed.
"""

from __future__ import annotations

import re

from headway.base.errors import ConfigError

_SI = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS |= {"day": 86400.0, "days": 86400.0, "hour": 3600.0, "hours": 3600.0, "week": 604800.0, "weeks": 604800.0}
_NUMBER = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*([A-Za-z]*)\s*$")


def _split(value: str, dimension: str, example: str) -> tuple[float, str, str]:
    match = _NUMBER.match(value)
    if not match:
        raise ConfigError(f"{value!r} is not a {dimension}", f"write it like {example}")
    return float(match[1].replace("_", "").replace(",", "")), match[2], match[3]


def _whole(number: float, value: object, dimension: str) -> int:
    if not abs(number) < 2**63:
        raise ConfigError(f"{value!r} is too large for a {dimension}", "it must stay below 2^63")
    whole = round(number)
    if abs(whole - number) > 1e-6 * max(1.0, abs(number)):
        raise ConfigError(f"{value!r} is not a whole number of {dimension}", "give a whole number")
    return whole


def _not_bool(value: object, dimension: str, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{value!r} is not a {dimension}", f"write it like {example}")


def parse_count(value: int | float | str, what: str = "tokens") -> int:
    """``"15T"``, ``"4M tokens"``, ``4_000_000`` -> a count. ``what`` is the only unit word accepted."""
    example = f'"250M {what}" or "250M"'
    _not_bool(value, f"number of {what}", example)
    if not isinstance(value, str):
        return _whole(float(value) if isinstance(value, float) else value, value, what)
    number, first, second = _split(value, f"number of {what}", example)
    words = {what, what.rstrip("s"), ""}
    if first in words and not second:
        first, second = "", first
    if first not in _SI or second not in words:
        raise ConfigError(f"{value!r} is not a number of {what}", f"write it like {example}")
    return _whole(number * _SI[first], value, what)


def parse_seconds(value: int | float | str) -> float:
    """``"30min"``, ``"1.5h"`` -> seconds. A bare number is refused: minutes and seconds are mixed up too easily."""
    _not_bool(value, "duration", '"30min"')
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} has no unit of time", 'write it like "30min", "90s", "2h", "3days"')
    number, unit, rest = _split(value, "duration", '"30min", "90s", "2h", "3days"')
    if unit not in _SECONDS or rest:
        raise ConfigError(f"{value!r} is not a duration", f"units of time are {', '.join(_SECONDS)}")
    return number * _SECONDS[unit]


def parse_bytes(value: int | float | str) -> int:
    """``"64MiB"``, ``"80GB"`` -> bytes. A bare integer is bytes."""
    _not_bool(value, "size in bytes", '"64MiB" or "80GB"')
    if not isinstance(value, str):
        return _whole(value, value, "bytes")
    number, unit, rest = _split(value, "size in bytes", '"64MiB" or "80GB"')
    if unit not in _BYTES or rest:
        raise ConfigError(f"{value!r} is not a size in bytes", f"units are {', '.join(_BYTES)}")
    return _whole(number * _BYTES[unit], value, "bytes")


_PERCENT = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*$")
_RATE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)(?:FLOP/s|FLOPS)\s*$")


def parse_percent(value: int | float | str) -> float:
    """``"8 %"`` -> .08. A bare number is refused: 8 and .08 are mixed up too easily."""
    match = _PERCENT.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{value!r} is not a share in per cent", 'write it like "8 %"')
    return float(match[1]) / 100


def parse_flop_rate(value: int | float | str) -> float:
    """``"180 TFLOP/s"`` -> 1.8e14. A bare number is refused: it could be in TFLOP/s or in FLOP/s."""
    match = _RATE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{value!r} is not a rate", 'write it like "180 TFLOP/s"')
    return float(match[1]) * _SI[match[2]]


def format_count(number: float, unit: str = "") -> str:
    """1_234_567 -> ``"1.23M"``; exact below 10,000."""
    tail = f" {unit}" if unit else ""
    if abs(number) < 10_000 and float(number).is_integer():
        return f"{int(number):,}{tail}"
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size * 0.9995:
            return f"{number / size:.3g}{letter}{tail}"
    return f"{number:.3g}{tail}"


def format_bytes(number: float) -> str:
    """Binary units, three significant figures."""
    for size, unit in ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def format_storage(number: float) -> str:
    """Decimal units, three significant figures, as storage is sold: 6.4 TB."""
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if abs(number) >= size * 0.9995:
            return f"{number / size:.3g} {unit}"
    return format_bytes(number)


def format_seconds(seconds: float) -> str:
    """``0.0042 -> "4.2 ms"``, ``75 -> "1 min 15 s"``, ``1e6 -> "11.6 days"``."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if seconds < 2 * 86400:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest} min"
    return f"{seconds / 86400:.3g} days"
