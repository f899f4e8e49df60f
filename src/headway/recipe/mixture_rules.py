"""Weights of a stage's sources by a rule over their tokens. All weights are shares of target tokens.

    temperature   w ~ n^(1 / T)                 T = 1: in proportion to size, T -> inf: all alike
    quality       w ~ n^a exp(score / T)        T -> inf: by size alone, T -> 0: the best source alone
    unimax        equal shares; a source that they would take beyond N passes gets N passes, the others share what is left

n is the target tokens of one pass. Temperature: Arivazhagan et al. 2019 (arXiv 1907.05019). Quality: what QuRating (Wettig et al.
2024, arXiv 2402.09739) does to documents, for sources, which hold n of them alike. UniMax: Chung et al. 2023 (arXiv 2304.09151),
algorithm 1; passes of earlier stages count here.

With N = 4, a stage of 90 and sources of 2, 10 and 100 tokens:   8 (of 30), 40 (of 41), 42: weights .09 .44 .47
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError, Problem
from headway.base.units import format_count
from headway.recipe.lines import KeyPath
from headway.recipe.spec import QUANTA, MixtureRuleSpec, SourceSpec, Spec, StageSpec

if TYPE_CHECKING:
    from headway.recipe.mixture_section import MixtureRule
    from headway.recipe.schema import Stage

ROUNDING = 1e-9
"""Shares of a mixture are floats: a source that is taken exactly as often as allowed is not refused."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a rule is computed on. ``quality``: of a source by axis, as its manifest entry says."""

    sources: Sequence[SourceSpec]
    shares: Sequence[float]  # target tokens per token of this stage's windows, by source
    taken: Sequence[float]  # target tokens that stages before this one take, by source
    quality: Mapping[str, Mapping[str, float]]


def apportion(wanted: Sequence[Fraction], total: int) -> tuple[int, ...]:
    """``total`` parts in proportion to ``wanted`` by largest remainder; whatever is wanted at all gets one at least."""
    ideal = [value * total / sum(wanted) for value in wanted]
    parts = [max(int(value), 1) if value else 0 for value in ideal]
    order = sorted((i for i, value in enumerate(ideal) if value), key=lambda i: (parts[i] - ideal[i], i))
    for place in range(total - sum(parts)):
        parts[order[place % len(order)]] += 1
    while sum(parts) > total:  # many were lifted to one: the largest gives
        parts[parts.index(max(parts))] -= 1
    return tuple(parts)


def mixture_quanta(weights: Sequence[float], target_shares: Sequence[float]) -> tuple[int, ...]:
    """Quanta per source: proportional to weight / target share, sum 65,536, none lost that has weight."""
    return apportion([Fraction(w) / Fraction(tau) for w, tau in zip(weights, target_shares, strict=True)], QUANTA)


def sources_of(stage: Stage, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that take part in ``stage``."""
    rule = stage.mixture_rule
    if rule is None:
        return [name for name in names if stage.mixture.get(name)]
    return [name for name in names if not rule.sources or name in rule.sources]


def weights_of(stage: Stage, known: Known, where: str) -> tuple[list[float], MixtureRuleSpec | None]:
    """Per source, and the rule as it was applied. ConfigError where the rule cannot hold.

    In a draft whose sources have no declared size all count alike, and the record says so by tokens of 0.
    """
    rule = stage.mixture_rule
    if rule is None:
        return [stage.mixture.get(source.name, 0.0) for source in known.sources], None
    taking_part = sources_of(stage, [s.name for s in known.sources])
    chosen = [s for s in known.sources if s.name in taking_part]
    passes = [s.tokens * s.target_share for s in chosen]
    scores = _scores(stage, rule, [s.name for s in chosen], known, where) if rule.kind == "quality" else []
    if not all(passes):
        weights, passes, scores = [1.0] * len(chosen), [0.0] * len(chosen), []
    elif rule.kind == "unimax":
        weights = _unimax(stage, rule, chosen, known, where)
    else:
        assert rule.temperature is not None
        weights = by_temperature(passes, rule.temperature)
        if rule.kind == "quality":
            weights = by_quality(passes, scores, temperature=rule.temperature, size_power=rule.size_power)
    weights = [w / math.fsum(weights) for w in weights]
    by_name = {source.name: weight for source, weight in zip(chosen, weights, strict=True)}
    applied = MixtureRuleSpec(
        kind=rule.kind,
        sources=tuple(by_name),
        tokens=tuple(round(n) for n in passes),
        weights=tuple(weights),
        temperature=None if rule.temperature is None else float(rule.temperature),
        size_power=float(rule.size_power),
        epochs=None if rule.epochs is None else float(rule.epochs),
        scores=tuple(scores),
    )
    return [by_name.get(source.name, 0.0) for source in known.sources], applied


def refuse_unsized(spec: Spec, locate: Callable[[KeyPath], str]) -> None:
    """ConfigError where a rule was applied to sources whose sizes nobody knows: what follows would be made up."""
    problems = []
    for index, stage in enumerate(spec.stages):
        rule = stage.mixture_rule
        if rule is not None and not all(rule.tokens):
            missing = [s.name for s in spec.sources if s.name in rule.sources and not s.tokens]
            problems.append(
                Problem(
                    f"stage {stage.name}: its mixture follows from the sizes of its sources, and nobody knows that of "
                    f"{', '.join(missing)}",
                    f"{rule.kind} weighs sources by their tokens: those of the built data, before that those that are declared",
                    "build the data (headway data build RECIPE), or declare data.sources.inventory",
                    locate(("stages", index, "mixture_rule")),
                )
            )
    if problems:
        raise ConfigError(problems)


def by_temperature(tokens: Sequence[float], temperature: float) -> list[float]:
    """n^(1 / T), against the largest so that no power overflows."""
    return [(n / max(tokens)) ** (1 / temperature) for n in tokens]


def by_quality(tokens: Sequence[float], scores: Sequence[float], *, temperature: float, size_power: float) -> list[float]:
    """n^a exp(score / T), against the best so that nothing overflows; what is worse than any float is nothing."""
    logs = [size_power * math.log(n) + score / temperature for n, score in zip(tokens, scores, strict=True)]
    return [math.exp(value - max(logs)) for value in logs]


def unimax(budget: float, allowed: Sequence[float]) -> list[float]:
    """Tokens per source: equal parts of ``budget``, none beyond ``allowed``; what one cannot take the others share.

    Sums to ``budget``, or to what is allowed where that is less.
    """
    given = [0.0] * len(allowed)
    left, sources = budget, sorted(range(len(allowed)), key=lambda k: allowed[k])
    for place, k in enumerate(sources):
        given[k] = min(allowed[k], left / (len(sources) - place))
        left -= given[k]
    return given


def _unimax(stage: Stage, rule: MixtureRule, chosen: Sequence[SourceSpec], known: Known, where: str) -> list[float]:
    assert rule.epochs is not None
    places = [list(known.sources).index(source) for source in chosen]
    taken = [known.taken[place] for place in places]
    passes = [rule.epochs * source.tokens * source.target_share for source in chosen]
    allowed = [max(0.0, whole - used) for whole, used in zip(passes, taken, strict=True)]
    budget, there_is = stage.tokens * math.fsum(known.shares[place] for place in places) / len(places), math.fsum(allowed)
    if there_is < budget * (1 - ROUNDING):
        rest = ", ".join(f"{s.name} {format_count(round(n))}" for s, n in zip(chosen, allowed, strict=True))
        raise ConfigError(
            f"stage {stage.name}: unimax with epochs = {rule.epochs:g} has {format_count(round(there_is))} tokens left for a "
            f"stage of {format_count(stage.tokens)} ({rest})",
            "no source is read beyond epochs passes; what stages before have read counts",
            f"raise epochs to {_epochs_that_fit(budget, taken, chosen):.3g}, shorten the stage, or add text",
            where,
        )
    return unimax(budget, allowed)


def _epochs_that_fit(budget: float, taken: Sequence[float], chosen: Sequence[SourceSpec]) -> float:
    """Rounded up in the third figure; what earlier stages took beyond an even share makes it an upper bound."""
    one_pass = math.fsum(s.tokens * s.target_share for s in chosen)
    exact = (budget + math.fsum(taken)) / one_pass
    step = 10.0 ** (math.floor(math.log10(exact)) - 2)
    return math.ceil(exact / step) * step


def rule_words(stage: StageSpec) -> str:
    """Where the weights of ``stage`` come from, and whether caps moved them."""
    rule, moved = stage.mixture_rule, "; rebalanced to keep within caps" if stage.asked_quanta else ""
    if rule is None:
        return f"weights as given{moved}"
    unknown = ", sizes unknown: all alike" if not all(rule.tokens) else ""
    words = {
        "temperature": f"tokens^(1/{rule.temperature or 1:g})",
        "quality": f"tokens^{rule.size_power:g} exp(score / {rule.temperature or 1:g})",
        "unimax": f"UniMax, {rule.epochs or 0:g} epochs",
    }
    return f"weights by {words[rule.kind]}{unknown}{moved}"


def target_tokens(stages: Sequence[StageSpec], sources: Sequence[SourceSpec], place: int) -> float:
    """What ``stages`` take of the source at ``place``, by its share of their sequences."""
    each = (s.sequences * s.sequence_length * s.quanta[place] * s.target_share(place, sources) for s in stages)
    return math.fsum(each) / QUANTA


def _scores(stage: Stage, rule: MixtureRule, names: Sequence[str], known: Known, where: str) -> list[float]:
    """As stated, else of the axis in the manifest; all that are missing are told at once. A draft knows only stated ones."""
    draft = all(source.digest is None for source in known.sources)
    found = {name: rule.scores.get(name, known.quality.get(name, {}).get(rule.axis)) for name in names}
    missing = [name for name, score in found.items() if score is None]
    if missing and not draft:
        axes = sorted({axis for by_axis in known.quality.values() for axis in by_axis})
        raise ConfigError(
            f"stage {stage.name}: no score is known of {', '.join(missing)}",
            f"quality weighs every source by its score; axes in the data: {', '.join(axes) or 'none'}",
            "state it in mixture_rule.scores, or name an axis that the data has",
            where,
        )
    return [0.0 if score is None else float(score) for score in found.values()]
