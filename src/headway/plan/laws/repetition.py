"""What repeated tokens are worth: a source read again and again is not as many new tokens.

    D' = U + U R* (1 - exp(-R / R*))        U unique tokens, R = D / U - 1 repetitions, R* how many pass before value fades

    passes      1      2      4      8      16     40
    worth       1     1.97   3.73   6.63   10.6   15.2   x U, with R* = 15.4

R* was fitted together with a decay of excess parameters (Muennighoff et al. 2023, appendix A); with the decay of data alone
the same 182 runs give 2.92. The two make the range. The runs repeated one whole corpus; here the law stands for each source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity
from headway.plan.facts import PlanFacts
from headway.recipe.spec import QUANTA, SourceSpec

REPETITION_SCALE = 15.387756
"""R* of data, fitted with R* of parameters 5.309743. Muennighoff et al. 2023, arXiv 2305.16264, appendix A."""
REPETITION_SCALE_ALONE = 2.9157
"""R* where only data decay: the same paper's comparison of fits, which prefers the other by R^2 .77 against .74."""
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264: R* 15.39; 2.92 where only the value of data decays"


def effective_tokens(tokens: float, unique_tokens: float, scale: float = REPETITION_SCALE) -> float:
    """New tokens that ``tokens`` drawn from ``unique_tokens`` are worth."""
    if not unique_tokens > 0 or tokens < 0 or not scale > 0:
        seen = f"{tokens:g} tokens drawn from {unique_tokens:g} unique ones with R* {scale:g}"
        raise ConfigError(seen, "unique tokens and R* are above zero, tokens not below", "give the tokens that there are")
    repetitions = max(0.0, tokens / unique_tokens - 1)
    return min(tokens, unique_tokens) + unique_tokens * scale * -math.expm1(-repetitions / scale)


def most_effective_tokens(unique_tokens: float, scale: float = REPETITION_SCALE) -> float:
    """What endless repetition tends to."""
    return unique_tokens * (1 + scale)


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
