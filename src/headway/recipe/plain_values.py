"""What no recipe may hold, whatever its schema says: asked before anything compares, prints or copies the values.

nested more than 32 deep          what walks the values would run out of stack
whole numbers beyond 64 bits      TOML's own limit; longer ones cannot even be printed
NUL, lone surrogates              no path and no UTF-8 text can hold them
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.base.errors import Problem
from headway.recipe.lines import KeyPath

DEEPEST = 32


def unfit_values(data: dict) -> Iterator[tuple[KeyPath, Problem]]:
    """Every such value with its key path. Never recurses: the nesting is what is in doubt."""
    todo: list[tuple[KeyPath, Any]] = [((), data)]
    while todo:
        path, value = todo.pop()
        problem = _problem(path, value)
        if problem:
            yield path, problem
        elif isinstance(value, dict):
            todo += [((*path, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            todo += [((*path, place), inner) for place, inner in enumerate(value)]


def _problem(path: KeyPath, value: Any) -> Problem | None:
    if len(path) > DEEPEST:
        return Problem(f"{_head(path)}... is nested too deep", f"values are nested at most {DEEPEST} deep")
    if path and isinstance(path[-1], str) and not _is_text(path[-1]):
        return Problem(f"the key {path[-1]!r} is not text", "a key holds no NUL and is UTF-8", "write it anew")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Problem(f"{_head(path)} is a whole number beyond 64 bits", "whole numbers lie between -2^63 and 2^63", "check it")
    if isinstance(value, str) and not _is_text(value):
        return Problem(f"{_head(path)} is not text", "a text holds no NUL and is UTF-8", "write it anew")
    return None


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _head(path: KeyPath) -> str:
    return printable(".".join(map(str, path[:4])))


def printable(text: str, length: int = 100) -> str:
    """``text`` for a message: not longer than that, and UTF-8 whatever was typed."""
    cut = text if len(text) <= length else f"{text[: length - 3]}..."
    return cut.encode("utf-8", "backslashreplace").decode()
