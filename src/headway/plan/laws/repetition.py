"""What repeated tokens are worth in a run, source by source. The law and its constants: ``formulas/repetition.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.formulas.quantity import Input, Quantity
from headway.formulas.repetition import (
    BEST_PARAMETERS_PER_TOKEN,
    PARAMETER_SCALE,
    REPETITION_SCALE,
    REPETITION_SCALE_ALONE,
    SOURCE,
    WEAKNESS,
    effective_parameters,
    effective_tokens,
)
from headway.plan.facts import PlanFacts
from headway.plan.rates import plain
from headway.recipe.spec import QUANTA, SourceSpec


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """One source in the run: ``unique`` None: nobody said how much there is."""

    source: str
    tokens: float
    unique: int | None
    cap_epochs: float | None

    @property
    def passes(self) -> float | None:
        return None if self.unique is None else self.tokens / self.unique

    @property
    def effective(self) -> float | None:
        return None if self.unique is None else effective_tokens(self.tokens, self.unique)

    @property
    def effective_at_least(self) -> float | None:
        return None if self.unique is None else effective_tokens(self.tokens, self.unique, REPETITION_SCALE_ALONE)

    @property
    def most_tokens(self) -> float | None:
        """What inventory and cap allow; None: no bound is known."""
        return None if self.unique is None or self.cap_epochs is None else self.unique * self.cap_epochs


def unique_tokens(source: SourceSpec) -> int | None:
    """Built tokens, in a draft those that the recipe declares; None: not known."""
    return source.tokens or None


def exposures(facts: PlanFacts) -> list[Exposure]:
    """Every source with the tokens that its share of the run's sequences comes to."""
    stages = facts.spec.stages
    entries = []
    for place, source in enumerate(facts.spec.sources):
        tokens = sum(stage.sequences * stage.sequence_length * stage.quanta[place] for stage in stages) / QUANTA
        unique = unique_tokens(source)
        entries.append(Exposure(source=source.name, tokens=tokens, unique=unique, cap_epochs=source.cap_epochs))
    return entries


def run_effective_tokens(facts: PlanFacts) -> Quantity | None:
    """The run's tokens as new ones; None where some source's size is not known."""
    entries = exposures(facts)
    worth = [(e.effective, e.effective_at_least) for e in entries]
    if any(value is None for value, _ in worth):
        return None
    value, low = (sum(pair[place] or 0.0 for pair in worth) for place in (0, 1))
    formula = "sum over sources of U + U R* (1 - e^(-R / R*)), R = tokens / U - 1"
    inputs = {"tokens": facts.tokens, **{f"U of {e.source}": e.unique for e in entries}, "R*": REPETITION_SCALE}
    high = max(value, min(facts.tokens.number(), sum(e.tokens for e in entries)))
    return Quantity("effective_tokens", value, "tokens", formula, inputs, SOURCE, min(low, value), high)


def source_quantities(facts: PlanFacts) -> Iterator[Quantity]:
    """What every source that is read more than once is worth."""
    for entry in exposures(facts):
        if entry.effective is None or entry.effective_at_least is None or (entry.passes or 0.0) <= 1:
            continue
        inputs: dict[str, Input] = {"D": entry.tokens, "U": entry.unique, "passes": entry.passes, "R*": REPETITION_SCALE}
        formula = f"U + U R* (1 - e^(-R / R*)), R = D / U - 1; {WEAKNESS}"
        name = f"effective_tokens_{plain(entry.source)}"
        yield Quantity(name, entry.effective, "tokens", formula, inputs, SOURCE, entry.effective_at_least, entry.tokens)


def run_effective_parameters(facts: PlanFacts, parameters: Quantity) -> Quantity | None:
    """N at what it is worth for the unique tokens that are read; None where they are not known, or enough for all of N."""
    entries = exposures(facts)
    if any(entry.unique is None for entry in entries):
        return None
    unique = sum(min(entry.tokens, entry.unique or 0) for entry in entries)
    if not unique or parameters.number() <= BEST_PARAMETERS_PER_TOKEN * unique:
        return None
    worth = effective_parameters(parameters.number(), unique)
    inputs: dict[str, Input] = {"N": parameters, "U": unique, "U_N / U": BEST_PARAMETERS_PER_TOKEN, "R*": PARAMETER_SCALE}
    formula = f"U_N + U_N R* (1 - e^(-R / R*)), U_N = .051 U, R = N / U_N - 1; {WEAKNESS.partition(';')[0]}"
    low = min(worth, BEST_PARAMETERS_PER_TOKEN * unique)
    return Quantity("effective_parameters", worth, "parameters", formula, inputs, SOURCE, low, parameters.number())
