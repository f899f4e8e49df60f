"""Plain JSON -> frozen dataclasses: the one strict reader of everything that was saved.

    {"step": 40, "blocks": ["ab"]}   ->   Chunk(step=40, blocks=("ab",))
    {"step": "40"}, {"step": true}, {"step": 40.0}, {"stepp": 40}, {}   ->   RunError that says where

A saved object has the keys and the types of its class: no conversion is guessed. Two things are let through, since JSON itself
blurs them: a whole number where a float belongs, and the absence of a field that has a default. The class is given by the
caller; nothing is imported by name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from headway.base.errors import RunError

_RULE = "a saved object has exactly the keys and types of its schema"


def from_plain(cls: Any, value: Any, where: str = "") -> Any:
    """``value`` as ``cls``: a dataclass, a scalar type, Any, tuple[X, ...], dict[str, X] or ``X | None``, nested at will.

    ``where``: how errors call the object (default: the name of ``cls``).
    """
    where = where or getattr(cls, "__name__", str(cls))
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in args if arg is not type(None))
        return None if value is None else from_plain(inner, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(from_plain(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {from_plain(args[0], key, where): from_plain(args[1], item, f"{where}[{key}]") for key, item in value.items()}
    if dataclasses.is_dataclass(cls) and isinstance(value, dict):
        return _object(cls, value, where)
    return value if cls is Any else _scalar(cls, value, where)


def _object(cls: Any, value: dict, where: str) -> Any:
    hints, required = _schema(cls)
    if unknown := sorted(set(value) - set(hints), key=str):
        raise RunError(f"{where}: unknown or missing keys: {unknown} are unknown", _RULE)
    if missing := sorted(required - set(value)):
        raise RunError(f"{where}: unknown or missing keys: {missing} are missing", _RULE)
    return cls(**{name: from_plain(hints[name], item, f"{where}.{name}") for name, item in value.items()})


@cache
def _schema(cls: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Types by field, and the fields without a default."""
    fields = dataclasses.fields(cls)
    required = (f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
    return typing.get_type_hints(cls), frozenset(required)


def _scalar(cls: Any, value: Any, where: str) -> Any:
    """``type`` and not ``isinstance``: True is an int to Python, but never a count to us."""
    if type(value) is cls:
        return value
    if cls is float and type(value) is int and abs(value) < 2**1023:  # beyond: no float holds it
        return float(value)
    raise RunError(f"{where}: {value!r} is of another type than {getattr(cls, '__name__', cls)}", _RULE)
