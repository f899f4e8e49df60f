"""Weights that keep every source within its cap, made from those that were asked.

    asked            a .5   b .3   c .2        a may be read for .2 of the run
    a is limited     a .2   b .48  c .32       what it frees goes to b and c as 3 : 2
    b is now beyond  a .2   b .40  c .40       b is limited too, and so on until all fit

A source is limited by one factor over all stages, the greatest that fits. A stage whose sources are all limited has nothing to
give to, and stays as it was asked. Everything is in quanta, and ``beyond`` judges whole mixtures: in a frozen run by the chunks
that its last sequence reaches (CONTRACTS section 1), in a draft by declared tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial

from headway.recipe.mixture_rules import apportion
from headway.recipe.spec import QUANTA

Mixtures = tuple[tuple[int, ...], ...]
"""Quanta per stage and source."""
Beyond = Callable[[Mixtures], frozenset[int]]
"""Which sources are read beyond their caps."""

STEPS = 2**16
"""Of the factor: a quantum is no finer."""


class NothingFits(Exception):
    """``source`` is beyond its cap even where every other stage does without it."""

    def __init__(self, source: int):
        self.source = source


def rebalance(asked: Mixtures, beyond: Beyond) -> Mixtures:
    """The mixtures nearest to ``asked`` by the rule above; the same where nothing is beyond. NothingFits where there are none."""
    whole: dict[int, tuple[int, ...]] = {}  # a limited source's quanta per stage before it was limited
    factor: dict[int, int] = {}
    quanta = asked

    def mixtures(changed: Mapping[int, int]) -> Mixtures:
        limits = {k: [q * f // STEPS for q in whole[k]] for k, f in {**factor, **changed}.items()}
        return tuple(_shared_out(stage, {k: limit[s] for k, limit in limits.items()}) for s, stage in enumerate(asked))

    def fits(k: int, f: int) -> bool:
        return k not in beyond(mixtures({k: f}))

    while over := beyond(quanta):
        for k in sorted(over):
            whole.setdefault(k, tuple(stage[k] for stage in quanta))
            factor[k] = _greatest(factor.get(k, STEPS), partial(fits, k), k)
        quanta = mixtures({})
    return quanta


def _greatest(end: int, fits: Callable[[int], bool], source: int) -> int:
    """The greatest factor below ``end`` that fits."""
    if end == 0 or not fits(0):
        raise NothingFits(source)
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _shared_out(asked: Sequence[int], limits: Mapping[int, int]) -> tuple[int, ...]:
    """One stage: limited sources at their limits, the others share the rest as they were asked."""
    free = [Fraction(0 if k in limits else q) for k, q in enumerate(asked)]
    if not any(free):
        return tuple(asked)
    fixed = [limits[k] if k in limits and q else 0 for k, q in enumerate(asked)]
    return tuple(a + b for a, b in zip(fixed, apportion(free, QUANTA - sum(fixed)), strict=True))
