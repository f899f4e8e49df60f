"""Overrides from the command line: ``--set model.layers=8``, ``--set stages.0.tokens=2M``, applied before validation.

A value is read as TOML and, failing that, as a string, so that quantities need no quotes. A number in a path is the place
in a list.
"""

from __future__ import annotations

import tomllib
from typing import Any

from headway.base.errors import Problem
from headway.base.urls import without_credentials
from headway.recipe.lines import KeyPath
from headway.recipe.plain_values import printable


def read_value(text: str) -> Any:
    """``8`` -> 8, ``true`` -> True, ``[1, 2]`` -> a list, ``250M`` -> "250M". ValueError, RecursionError: beyond TOML."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if read.keys() == {"value"} else text


def parse_path(text: str) -> KeyPath:
    return tuple(int(part) if _is_place(part) else part for part in text.strip().split("."))


def _is_place(part: str) -> bool:
    """A place in a list: few ASCII digits. Others are digits too (superscripts), and no list is that long."""
    return part.isascii() and part.isdecimal() and len(part) <= 9


def apply_overrides(data: dict, overrides: list[str], prefix: str = "") -> tuple[dict[KeyPath, str], list[Problem]]:
    """Change ``data`` in place. Returns what was set (key path -> the override as written) and what could not be.

    ``prefix``: what keys may begin with on the command line, and do not in the file.
    """
    applied: dict[KeyPath, str] = {}
    problems = []
    for override in overrides:
        key, equals, value = override.removeprefix(prefix).partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            example = f"{prefix}nodes=2" if prefix else "model.layers=8"
            problems.append(_problem(override, "an override has no key or no value", f"write it like --set {example}"))
            continue
        path = parse_path(key)
        try:
            seen = _put(data, path, read_value(value.strip()))
        except (ValueError, RecursionError):
            rule = "numbers have at most 64 bits, lists and tables are not nested deep"
            problems.append(Problem("the value cannot be read", rule, "check the value", shown(override)))
            continue
        if seen:
            problems.append(_problem(override, seen, "check the path; places in a list count from 0"))
        else:
            applied[path] = override
    return applied, problems


def _put(data: dict, path: KeyPath, value: Any) -> str | None:
    """Set one value; a message when the path leads nowhere."""
    here: Any = data
    for position, part in enumerate(path):
        last = position + 1 == len(path)
        so_far = ".".join(map(str, path[:position]))
        if isinstance(here, list):
            if not isinstance(part, int) or part >= len(here):
                return f"{so_far} is a list of {len(here)}: it has no {part!r}"
            if last:
                here[part] = value
            here = here[part]
        elif isinstance(here, dict):
            name = str(part)
            if last:
                here[name] = value
            here = here.setdefault(name, {})
        else:
            return f"{so_far} is a value: it has no {part!r} inside"
    return None


def _problem(override: str, seen: str, way_out: str) -> Problem:
    return Problem(printable(seen, 300), "overrides have the form key.path=value", way_out, shown(override))


def shown(override: str) -> str:
    """An override as the place of a problem."""
    return f"--set {printable(without_credentials(override))}"
