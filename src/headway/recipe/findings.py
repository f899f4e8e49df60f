"""What a check of a recipe finds: where, and what is wrong with it."""

from __future__ import annotations

import math

from headway.base.errors import Problem
from headway.recipe.lines import KeyPath

Finding = tuple[KeyPath, Problem]


def found(path: KeyPath, seen: str, rule: str, way_out: str = "") -> Finding:
    return path, Problem(seen, rule, way_out)


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
