"""Long context when it is needed, and not before: staged against always-long.

    cost = sum over lengths of T q (a + b L)

T tokens, q share of them trained at length L, a FLOPs per token without attention, b attention FLOPs per token and token of
context (Beacon: a 2.4e12, b 1.2e7 causal). The tokens are the same either way, so nothing is quadratic: a token at 128K costs
16 times the attention of a token at 8K, and only that part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.formulas.parameters import count_parameters
from headway.formulas.quantity import Input, Quantity
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.spec import ModelSpec

SHORT, LONG = 8_192, 131_072
"""Lengths that every plan is compared at, whatever its own."""
SOURCE = "matrices 6 P, attention by convention"


@dataclass(frozen=True, kw_only=True)
class LengthCost:
    """Tokens at one length: ``share`` of all, what a token costs without attention and what attention adds there."""

    length: int
    share: float
    base: float  # a
    attention: float  # b L

    @property
    def each(self) -> float:
        return self.base + self.attention

    @property
    def weighted(self) -> float:
        return self.share * self.each


@dataclass(frozen=True, kw_only=True)
class ContextCost:
    """Mean cost of a token over all lengths, in the unit of ``a``."""

    parts: tuple[LengthCost, ...]

    @property
    def staged(self) -> float:
        return math.fsum(part.weighted for part in self.parts)

    @property
    def always_long(self) -> float:
        """Every token at the longest length."""
        return max(self.parts, key=lambda part: part.length).each

    @property
    def slower(self) -> float:
        return self.always_long / self.staged

    def compute_share(self, part: LengthCost) -> float:
        return part.weighted / self.staged


def context_cost(base: float, parts: Sequence[tuple[int, float, float]]) -> ContextCost:
    """From a = ``base`` and (length, share of the tokens, b L) per length. Shares sum to one."""
    total = math.fsum(share for _, share, _ in parts)
    if not parts or any(share < 0 for _, share, _ in parts) or abs(total - 1) > 1e-9:
        raise ConfigError(
            f"shares of the tokens by length sum to {total:g}", "they are not negative and sum to 1", "give one per length"
        )
    made = tuple(LengthCost(length=length, share=share, base=base, attention=b) for length, share, b in parts)
    return ContextCost(parts=made)


def model_cost(model: ModelSpec, tokens_by_length: dict[int, float], convention: Convention) -> ContextCost:
    """a and b L of ``model``. Under a window b L stops growing at the window, so it is asked for at each length."""
    base = flops_per_token(model, 0, convention)
    total = math.fsum(tokens_by_length.values())
    parts = [(n, t / total, attention_flops_per_token(model, n, convention)) for n, t in sorted(tokens_by_length.items())]
    return context_cost(base, parts)


def attention_extra(model: ModelSpec, length: int, convention: Convention = Convention.CAUSAL) -> float:
    """How much more a token costs at ``length`` than 6 x the counted parameters, as a share: 405 B: .0365 at 8K, .66 at 128K."""
    return flops_per_token(model, length, convention) / (6 * count_parameters(model).active) - 1


def slow_down(model: ModelSpec, long: int, short: int, convention: Convention = Convention.CAUSAL) -> float:
    """Compute of a token at ``long`` over one at ``short``."""
    return flops_per_token(model, long, convention) / flops_per_token(model, short, convention)


def tokens_by_length(facts: PlanFacts) -> dict[int, float]:
    lengths: dict[int, float] = {}
    for stage in facts.spec.stages:
        lengths[stage.sequence_length] = lengths.get(stage.sequence_length, 0.0) + stage.sequences * stage.sequence_length
    return lengths


def context_section(facts: PlanFacts) -> Section:
    model = facts.spec.model
    cost = model_cost(model, tokens_by_length(facts), Convention.CAUSAL)
    flops = facts.total_flops(Convention.CAUSAL)
    whole: dict[str, Input] = {"flops": flops, "tokens": facts.tokens}
    mean = flops.number() / facts.tokens.number()
    staged = Quantity("context_flops_per_token", mean, "FLOP/token", "flops / tokens; causal", whole, SOURCE)
    longest = cost.parts[-1]
    inputs: dict[str, Input] = {"a": longest.base, "b": longest.attention / longest.length, "L": longest.length}
    words = "a + b L; every token at the longest length, causal"
    always = Quantity("always_long_flops_per_token", cost.always_long, "FLOP/token", words, inputs, SOURCE)
    pair: dict[str, Input] = {"always long": always, "staged": staged}
    slower = Quantity("always_long_over_staged", cost.slower, "times", "always long / staged", pair, SOURCE)
    return Section("Context", (staged, always, slower, *_at_128k(model)), (length_table(facts), convention_table(model)))


def _at_128k(model: ModelSpec) -> tuple[Quantity, Quantity]:
    """What training at 128K from step one would do to a run at 8K."""
    short, long = (attention_flops_per_token(model, length, Convention.CAUSAL) for length in (SHORT, LONG))
    inputs: dict[str, Input] = {"short": short, "long": long, "a": flops_per_token(model, 0, Convention.CAUSAL)}
    words = "long / short; attention of a token at 128K and 8K, causal"
    more = Quantity("attention_128k_over_8k", long / short, "times", words, inputs, SOURCE)
    words = "(a + long) / (a + short); all of a token at 128K and 8K, causal"
    whole = Quantity("compute_128k_over_8k", slow_down(model, LONG, SHORT), "times", words, inputs, SOURCE)
    return more, whole


def length_table(facts: PlanFacts) -> Table:
    """Share of tokens against share of compute, per length."""
    by_length = tokens_by_length(facts)
    cost = model_cost(facts.spec.model, by_length, Convention.CAUSAL)
    rows = tuple(
        (p.length, by_length[p.length], p.share, p.each, p.attention / p.each, cost.compute_share(p)) for p in cost.parts
    )
    titles = (("sequence", ""), ("tokens", "tokens"), ("of the tokens", "share"), ("a + b L, causal", "FLOP/token"))
    columns = (*(Column(*pair) for pair in titles), Column("attention of it", "share"), Column("of the compute", "share"))
    return Table("Compute by length", columns, rows)


def convention_table(model: ModelSpec) -> Table:
    """a, b and what attention adds at 8K and 128K under each convention that counts it."""
    rows: list[tuple[Cell, ...]] = []
    for convention in (Convention.CAUSAL, Convention.FULL):
        base, slope = flops_per_token(model, 0, convention), attention_flops_per_token(model, SHORT, convention) / SHORT
        extras = (attention_extra(model, length, convention) for length in (SHORT, LONG))
        rows.append((convention.value, base, slope, *extras, slow_down(model, LONG, SHORT, convention)))
    columns = (
        Column("convention"),
        Column("a", "FLOP/token"),
        Column("b at 8K", "FLOP/token"),
        Column("over 6 N at 8K", "share"),
        Column("over 6 N at 128K", "share"),
        Column("128K over 8K", "times"),
    )
    return Table("Attention by convention", columns, tuple(rows))
