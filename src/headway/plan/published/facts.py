"""What has been published about a run, as a file beside its recipe: facts to compare with, claims to check.

    recipes/llama3-405b.toml              what is planned
    recipes/llama3-405b.published.toml    [[facts]]   a number that was printed, and the plan's quantity it stands beside
                                          [[claims]]  numbers that should agree by a rule: product, sum, quotient, ...

Values may be written as elsewhere ("15T", "54 days", "2TB"); inside a claim also as the name of a fact or of a quantity.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headway.base import units
from headway.base.errors import ConfigError, Problem
from headway.plan.published.rules import FEWEST_PARTS, NEED_STATED
from headway.recipe.checks import Finding
from headway.recipe.fields import Listed, Name, Section, Share, Version
from headway.recipe.load import preset_directory, read_document, validated
from headway.recipe.schema import said

PARSERS: tuple[Callable[[Any], float], ...] = (units.parse_count, units.parse_seconds, units.parse_bytes)
"""Tried in order: a bare suffix is a count, then durations, then bytes."""

Standing = Literal["verified", "secondary", "memory", "derived"]
RuleName = Literal["product", "sum", "quotient", "same", "at least", "within", "divides", "young", "interruptions"]


def parse_number(value: Any) -> float | None:
    """A number, or a text with a unit in tokens, seconds or bytes; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    for parse in PARSERS:
        try:
            return float(parse(value))
        except ConfigError:
            continue
    return None


def _number(value: Any) -> float:
    number = parse_number(value)
    if number is None:
        raise PydanticCustomError(
            "quantity", "{seen}", {"seen": f"{value!r} is no number", "rule": 'write it like 419, "15T", "54 days" or "2TB"'}
        )
    return number


Number = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Part = float | str


class Fact(Section):
    """One printed number."""

    name: Name = said("name of the fact, used once")
    value: Number = said('the number in base units (tokens, seconds, bytes, FLOP), or a text such as "54 days"')
    unit: str = said("its unit as in quantities: tokens, seconds, bytes, share, FLOP, parameters, steps", "")
    quantity: str = said("name of the plan's quantity that it stands beside; empty: the plan has none", "")
    convention: Literal["", "6N", "causal", "full", "hardware", "not stated"] = said("of FLOPs and MFU, what they count", "")
    source: str = said("where it is printed")
    standing: Standing = said("verified in its source; secondary: in a text about it; memory: neither; derived: from others")
    note: str = said("what to know beside it", "")


class Claim(Section):
    """Numbers that should agree. ``parts``: name -> number, text with a unit, or name of a fact or quantity."""

    what: str = said("what is claimed", min_length=1)
    rule: RuleName = said("how parts and stated belong together")
    parts: dict[str, Part] = said("the numbers, in the order of the rule", min_length=1)
    stated: Part | None = said("what is said to come out; None: where the rule needs none", None)
    unit: str = said("unit of what comes out", "")
    tolerance: Share = said("relative difference that rounding explains", 0.01)
    source: str = said("who says so")
    note: str = said("what explains it, or what follows", "")


class Published(Section):
    """All that is known in print about one run."""

    kind: Literal["published"] = said("says that this file holds published figures")
    schema_version: Version = said("version of this format", 1)
    name: Name = said("name of the recipe that the figures belong to")
    facts: Listed[Fact] = said("printed numbers", ())
    claims: Listed[Claim] = said("numbers that should agree", ())


def published_path(name: str) -> Path | None:
    """The shipped file for the recipe ``name``; None where there is none."""
    path = preset_directory() / f"{name}.published.toml"
    return path if path.is_file() else None


def load_published(path: Path) -> Published:
    """Read a file of published figures; ConfigError lists every problem."""
    fast = _read_fast(path, _version(path))
    if fast is not None:
        return fast
    document, problems = read_document(path, [], kind="published")
    return validated(Published, document, problems, _findings)


def _version(path: Path) -> tuple[int, int]:
    """Changes when the file does; (0, 0) where there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=32)
def _read_fast(path: Path, version: tuple[int, int]) -> Published | None:
    """Without the line of every key, which only problems need; None: there is something to complain about."""
    try:
        published = Published.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):  # pydantic's and the parser's errors are ValueErrors
        return None
    return None if _findings(published) else published


def _findings(published: Published) -> list[Finding]:
    findings: list[Finding] = []
    names = [fact.name for fact in published.facts]
    for index, fact in enumerate(published.facts):
        if names.index(fact.name) < index:
            problem = Problem(f"two facts are named {fact.name!r}", "every name is used once", "rename one")
            findings.append((("facts", index, "name"), problem))
    for index, claim in enumerate(published.claims):
        at = ("claims", index)
        if len(claim.parts) < FEWEST_PARTS[claim.rule]:
            seen = f"the claim about {claim.what!r} has {len(claim.parts)} parts"
            rule = f"the rule {claim.rule!r} takes at least {FEWEST_PARTS[claim.rule]}"
            findings.append(((*at, "parts"), Problem(seen, rule, "add the others")))
        if (claim.stated is None) == (claim.rule in NEED_STATED):
            seen = f"the claim about {claim.what!r} has {'no' if claim.stated is None else 'a'} stated value"
            rule = f"{', '.join(sorted(NEED_STATED))} are checked against one; the other rules only compare parts"
            findings.append((at, Problem(seen, rule, "add or remove stated")))
    return findings
