"""What the stages take of each source against what is declared to exist, times the passes that are allowed.

A stage whose weights follow from a rule takes what the rule gives on the declared inventories; where they, or scores, are not
declared, nobody knows what it takes, and only the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError
from headway.base.units import format_count
from headway.recipe.findings import Finding, found
from headway.recipe.mixture_checks import check_rule
from headway.recipe.mixture_rules import ROUNDING, Known, sources_of, weights_of
from headway.recipe.spec import SourceSpec

if TYPE_CHECKING:
    from headway.recipe.schema import Data, Source, Stage


def check_inventory(data: Data, stages: Mapping[int, Stage]) -> Iterator[Finding]:
    if data.beyond_cap == "rebalance":
        return
    taken, some_unknown = _taken(data, stages)
    for index, source in enumerate(data.sources):
        if source.inventory is None or source.cap_epochs is None:
            continue
        whole = sum(by_stage[index] for by_stage in taken.values())
        allowed = source.inventory * source.cap_epochs
        if whole > allowed * (1 + ROUNDING):
            largest = max(taken, key=lambda place: taken[place][index])
            yield found(
                ("data", "sources", index, "inventory"),
                f"tokens above data x caps: the stages take {'at least ' if some_unknown else ''}{format_count(whole)} of source "
                f"{source.name!r}, which has {format_count(source.inventory)}: {whole / source.inventory:.3g} passes",
                f"cap_epochs allows {source.cap_epochs:g} passes, {format_count(allowed)} tokens",
                f"{allowed / whole:.3g} of its weight would fit, or as much of the stages' tokens; most goes to stage "
                f"{stages[largest].name!r}. Or raise cap_epochs to {whole / source.inventory:.3g}",
            )


def _taken(data: Data, stages: Mapping[int, Stage]) -> tuple[dict[int, list[float]], bool]:
    """Tokens per stage and source, and whether some stage takes what is not known, which is not counted."""
    before, taken, some_unknown = [0.0] * len(data.sources), dict[int, list[float]](), False
    for place, stage in stages.items():
        shares = _shares(stage, data.sources, None if some_unknown else before)
        some_unknown |= shares is None
        taken[place] = [stage.tokens * share for share in shares or [0.0] * len(before)]
        before = [a + b for a, b in zip(before, taken[place], strict=True)]
    return taken, some_unknown


def _shares(stage: Stage, sources: Sequence[Source], before: Sequence[float] | None) -> list[float] | None:
    """Per source, of the stage's tokens; None: not known. ``before``: what earlier stages take, None: not known."""
    if stage.mixture_rule is None:
        weights = [stage.mixture.get(source.name, 0.0) for source in sources]
    else:
        weights = _by_rule(stage, sources, before)
    return [weight / sum(weights) for weight in weights] if sum(weights) > 0 else None


def _by_rule(stage: Stage, sources: Sequence[Source], before: Sequence[float] | None) -> list[float]:
    """Empty: not known."""
    rule = stage.mixture_rule
    assert rule is not None
    names = sources_of(stage, [source.name for source in sources])
    sized = all(source.inventory for source in sources if source.name in names)
    scored = rule.kind != "quality" or all(name in rule.scores for name in names)
    counted = rule.kind != "unimax" or before is not None
    if not (names and sized and scored and counted) or any(check_rule((), stage)):
        return []
    declared = [SourceSpec(s.name, s.inventory or 0, 0, 1.0, None, s.cap_epochs, s.licence) for s in sources]
    known = Known(sources=declared, shares=[1.0] * len(declared), taken=before or (), quality={})
    try:
        return weights_of(stage, known, "")[0]
    except ConfigError:  # it does not hold on what is declared, which is said where the mixture is resolved
        return []
