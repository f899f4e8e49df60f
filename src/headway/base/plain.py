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
from collections.abc import Callable
from functools import cache
from typing import Any

from headway.base.errors import RunError

_RULE = "a saved object has exactly the keys and types of its schema"
_Converter = Callable[[Any], Any]


def from_plain(cls: Any, value: Any, where: str = "") -> Any:
    """``value`` as ``cls``: a dataclass, a scalar type, Any, tuple[X, ...], dict[str, X] or ``X | None``, nested at will.

    ``where``: how errors call the object (default: the name of ``cls``).
    """
    try:
        return _converter(cls)(value)
    except _Wrong as wrong:
        raise RunError(f"{where or getattr(cls, '__name__', str(cls))}{wrong.path}: {wrong.what}", _RULE) from None


class _Wrong(Exception):
    """What is wrong; the path to it is put together on the way out, so that what is right costs nothing."""

    def __init__(self, what: str):
        self.path, self.what = "", what

    def inside(self, step: str) -> _Wrong:
        self.path = step + self.path
        return self


@cache
def _converter(cls: Any) -> _Converter:
    """Made once per type: checkpoints of thousands of ranks hold millions of such values."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (_converter(arg) for arg in args if arg is not type(None))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_of(args[0], cls)
    if origin is dict:
        return _dict_of(args[0], args[1], cls)
    if dataclasses.is_dataclass(cls):
        return _object_of(cls)
    return (lambda value: value) if cls is Any else (lambda value: _scalar(cls, value))


def _tuple_of(item: Any, cls: Any) -> _Converter:
    inner, is_plain = _converter(item), item in (int, str)

    def convert(value: Any) -> tuple:
        if not isinstance(value, list | tuple):
            raise _wrong_type(cls, value)
        if is_plain and all(type(element) is item for element in value):
            return tuple(value)
        found: list[Any] = []
        try:
            for element in value:
                found.append(inner(element))
        except _Wrong as wrong:
            raise wrong.inside(f"[{len(found)}]") from None
        return tuple(found)

    return convert


def _dict_of(key_type: Any, item: Any, cls: Any) -> _Converter:
    key_of, inner = _converter(key_type), _converter(item)

    def convert(value: Any) -> dict:
        if not isinstance(value, dict):
            raise _wrong_type(cls, value)
        found: dict[Any, Any] = {}
        for key, element in value.items():
            name = key_of(key)
            try:
                found[name] = inner(element)
            except _Wrong as wrong:
                raise wrong.inside(f"[{key}]") from None
        return found

    return convert


def _object_of(cls: Any) -> _Converter:
    fields = dataclasses.fields(cls)
    hints = typing.get_type_hints(cls)
    required = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
    converters: dict[str, _Converter] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong_type(cls, value)
        if not converters:  # not before its use: a class may hold itself
            converters.update({name: _converter(hint) for name, hint in hints.items()})
        if unknown := sorted(value.keys() - converters.keys(), key=str):
            raise _Wrong(f"unknown or missing keys: {unknown} are unknown")
        if missing := sorted(required - value.keys()):
            raise _Wrong(f"unknown or missing keys: {missing} are missing")
        found: dict[str, Any] = {}
        for name, element in value.items():
            try:
                found[name] = converters[name](element)
            except _Wrong as wrong:
                raise wrong.inside(f".{name}") from None
        return cls(**found)

    return convert


def _scalar(cls: Any, value: Any) -> Any:
    """``type`` and not ``isinstance``: True is an int to Python, but never a count to us."""
    if type(value) is cls:
        return value
    if cls is float and type(value) is int and abs(value) < 2**1023:  # beyond: no float holds it
        return float(value)
    raise _wrong_type(cls, value)


def _wrong_type(cls: Any, value: Any) -> _Wrong:
    return _Wrong(f"{value!r} is of another type than {getattr(cls, '__name__', cls)}")
