"""How the compute could be spent otherwise: larger or smaller models, repeated data, the model's life after training.

    one budget C = 6 N D       N smaller, D larger  ------------------>  cheaper to serve for its whole life
                               the laws' optimum     somewhere between, and each law puts it elsewhere
                               N larger, D smaller  ------------------>  fewer tokens needed

Lifecycle (Sardana et al. 2024): the cheapest N, D for a wanted loss when I tokens will be served, min 6 N D + 2 N I.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.formulas.quantity import Input, Quantity, unknown
from headway.formulas.repetition import effective_tokens as effective_tokens
from headway.formulas.repetition import most_effective_tokens
from headway.plan.facts import PlanFacts
from headway.plan.laws.forecast import (
    in_reach,
    loss_by_law,
    out_of_reach,
    run_exposure,
    run_flops,
    run_parameters,
    seen_tokens,
)
from headway.plan.laws.repetition import exposures, run_effective_parameters, run_effective_tokens, source_quantities
from headway.plan.laws.scaling_laws import Allocation, ScalingLaw, Span, SumLaw, iso_compute_pairs
from headway.plan.laws.scaling_sets import FORECAST_LAWS, HOFFMANN3, OPTIMUM_LAWS, REFIT
from headway.plan.plan import Cell, Column, Section, Table

SIZES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Models beside the run's own in the table of equal compute."""
SERVED = (0.0, 0.1, 1.0, 10.0)
"""Tokens served over the model's life, as multiples of those it is trained on: nobody knows, so several."""
LIFECYCLE_LAWS = (HOFFMANN3, REFIT)
LIFECYCLE_SOURCE = "Sardana et al. 2024, arXiv 2401.00448: 6 N per trained token, 2 N per served one"
FAR = "the largest runs behind any of these laws took 1.3e22 FLOP: beyond that they are extrapolated, and part from each other"
UNKNOWN_SOURCES = "needs the unique tokens of every source: build the data, or declare their inventory"
FARTHEST = math.log(1e6)
"""The cheapest model is sought within this distance of the smallest that can reach the loss at all, in log N."""


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """A way to a loss, with what it costs to train and then to serve."""

    allocation: Allocation
    served_tokens: float

    @property
    def training_flops(self) -> float:
        return self.allocation.flops

    @property
    def serving_flops(self) -> float:
        return 2 * self.allocation.parameters * self.served_tokens

    @property
    def total_flops(self) -> float:
        return self.training_flops + self.serving_flops


def tokens_per_parameter(tokens: float, parameters: float) -> float:
    """Exposure. Of a mixture of experts it is usually told of the active parameters: 30 T on 35 B active are 857."""
    return tokens / parameters


def cheapest(loss: float, served_tokens: float, law: SumLaw) -> Lifecycle:
    """The N and D that reach ``loss`` at the least compute over training and ``served_tokens``."""
    if loss <= law.floor or served_tokens < 0:
        seen = f"a loss of {loss:g} nats with {served_tokens:g} served tokens"
        rule = f"by {law.title} no model gets below {law.floor:g} nats; tokens are not below zero"
        raise ConfigError(seen, rule, "ask for a loss above that")
    smallest = math.log((law.a / (loss - law.floor)) ** (1 / law.alpha))  # below it no number of tokens suffices
    low, high = smallest, smallest + FARTHEST
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _should_grow(math.exp(middle), loss, served_tokens, law) else (low, middle)
    parameters = math.exp(high)
    best = Allocation(parameters=parameters, tokens=law.tokens_for(loss, parameters))
    return Lifecycle(allocation=best, served_tokens=served_tokens)


def _should_grow(parameters: float, loss: float, served_tokens: float, law: SumLaw) -> bool:
    """Whether a larger model is cheaper: a per cent more N takes ``saved`` per cent off D, and costs 6 N D + 2 N I a per cent."""
    tokens = law.tokens_for(loss, parameters)
    if math.isinf(tokens):
        return True
    saved = law.alpha * law.parameter_term(parameters) / (law.beta * law.token_term(tokens))
    return saved > 1 + served_tokens / (3 * tokens)


def optimum_span(laws: Sequence[ScalingLaw], flops: float) -> Span:
    """Of the best N, over all sets and their own intervals."""
    spans = [law.optimum_parameters_span(flops) for law in laws]
    return Span(low=min(span.low for span in spans), high=max(span.high for span in spans))


# --- the section -----------------------------------------------------------------------------------------------------------


def capacity_section(facts: PlanFacts) -> Section:
    """Exposure always; what the compute could do otherwise where the laws reach down to it."""
    parameters = run_parameters(facts)
    quantities = [parameters, run_exposure(facts), *expert_exposures(facts), *repetition_quantities(facts)]
    tables = [repetition_table(facts)] if any(entry.unique is not None for entry in exposures(facts)) else []
    if not in_reach(facts):
        return Section("Capacity and exposure", tuple(quantities), tuple(tables), (out_of_reach(facts),))
    flops = run_flops(facts)
    quantities += [flops, *optimum_quantities(flops), overspent(facts), lifecycle_quantity(parameters, facts.tokens)]
    tables = [iso_compute_table(parameters, flops), optimum_table(flops), lifecycle_table(parameters, facts.tokens), *tables]
    return Section("Capacity and exposure", tuple(quantities), tuple(tables), (FAR,))


def expert_exposures(facts: PlanFacts) -> list[Quantity]:
    """Of a mixture of experts the denominator decides: what a token passes, or all that is stored. Of others both are one."""
    if facts.spec.model.experts is None:
        return []
    made = []
    for kind in ("active", "stored"):
        parameters = facts.parameters[kind]
        ratio = tokens_per_parameter(facts.tokens.number(), parameters.number())
        inputs: dict[str, Input] = {"tokens": facts.tokens, "parameters": parameters}
        made.append(Quantity(f"tokens_per_{kind}_parameter", ratio, "", f"tokens / {kind} parameters", inputs, "exact counts"))
    return made


def optimum_quantities(flops: Quantity) -> list[Quantity]:
    """What the budget would best buy, if training compute were all that counted."""
    budget, law = flops.number(), REFIT
    best, span = law.optimum(budget), optimum_span(OPTIMUM_LAWS, budget)
    inputs: dict[str, Input] = {"C": flops, "A": law.a, "B": law.b, "alpha": law.alpha, "beta": law.beta}
    inputs |= {f"by {other.name}": other.optimum(budget).parameters for other in OPTIMUM_LAWS}
    words = "(alpha A / (beta B))^(1 / (alpha + beta)) (C / 6)^(beta / (alpha + beta)); the refit; range over all sets"
    source = "; ".join(other.source for other in OPTIMUM_LAWS)
    size = Quantity("optimal_parameters", best.parameters, "parameters", words, inputs, source, span.low, span.high)
    pair: dict[str, Input] = {"C": flops, "N": size}
    low, high = budget / 6 / span.high, budget / 6 / span.low
    return [size, Quantity("optimal_tokens", best.tokens, "tokens", "C / (6 N)", pair, source, low, high)]


def overspent(facts: PlanFacts) -> Quantity:
    """How much more compute this pair takes than the optimum of the same loss: the price of a smaller or larger model."""
    flops, n, d = run_flops(facts), run_parameters(facts).number(), facts.tokens.number()
    factors = {law.name: _factor(law, n, d) for law in FORECAST_LAWS}
    value, source = factors[REFIT.name], "; ".join(law.source for law in FORECAST_LAWS)
    inputs: dict[str, Input] = {"C": flops, "least": flops.number() / value, **{f"by {law}": f for law, f in factors.items()}}
    words = "C / least; the least 6 N D that reaches the same loss, by the refit; range over the sets"
    return Quantity("compute_over_optimal", value, "times", words, inputs, source, min(factors.values()), max(factors.values()))


def _factor(law: SumLaw, parameters: float, tokens: float) -> float:
    least = cheapest(law.loss(parameters, tokens), 0.0, law).training_flops
    return 6 * parameters * tokens / least


def lifecycle_quantity(parameters: Quantity, tokens: Quantity) -> Quantity:
    """Training, and serving as many tokens as were trained on; from nothing served to ten times that."""
    training, serving = 6 * parameters.number() * tokens.number(), 2 * parameters.number() * tokens.number()
    inputs: dict[str, Input] = {"N": parameters, "D": tokens, "I": tokens}
    words, high = (
        "6 N D + 2 N I; as many tokens served as trained on, from none to ten times as many",
        training + SERVED[-1] * serving,
    )
    return Quantity("lifecycle_flops", training + serving, "FLOP", words, inputs, LIFECYCLE_SOURCE, training, high)


def iso_compute_table(parameters: Quantity, flops: Quantity) -> Table:
    """Pairs of equal compute, the run's own among them, with the loss by every set."""
    pairs = iso_compute_pairs(flops.number(), [factor * parameters.number() for factor in SIZES])
    rows: list[tuple[Cell, ...]] = []
    for factor, pair in zip(SIZES, pairs, strict=True):
        losses = tuple(law.loss(pair.parameters, pair.tokens) for law in FORECAST_LAWS)
        share = "as planned" if factor == 1 else f"{factor:g} x N"
        rows.append((share, pair.parameters, pair.tokens, pair.tokens_per_parameter, *losses, 2 * pair.parameters))
    columns = [Column("model"), Column("N", "parameters"), Column("D", "tokens"), Column("D / N")]
    columns += [Column(f"loss by {law.name}, nats") for law in FORECAST_LAWS]
    columns.append(Column("to serve", "FLOP/token"))
    return Table("Pairs of equal compute", tuple(columns), tuple(rows))


def optimum_table(flops: Quantity) -> Table:
    """Every set's optimum beside its interval and its reach."""
    rows = []
    for law in OPTIMUM_LAWS:
        best, span = law.optimum(flops.number()), law.optimum_parameters_span(flops.number())
        ends: tuple[Cell, Cell] = (span.low, span.high) if span.low < span.high else (None, None)
        where = law.reach(flops.number())
        rows.append((law.title, best.parameters, *ends, best.tokens, best.tokens_per_parameter, where, law.interval))
    titles = (("set", ""), ("N", "parameters"), ("low", "parameters"), ("high", "parameters"), ("D", "tokens"), ("D / N", ""))
    columns = (*(Column(*pair) for pair in titles), Column("compute against its runs"), Column("interval"))
    return Table("Optimum of the same compute by published laws", columns, tuple(rows))


def lifecycle_table(parameters: Quantity, tokens: Quantity) -> Table:
    """What would reach the run's own loss at the least compute, the more is served; and what the run itself costs then."""
    n, d = parameters.number(), tokens.number()
    rows = []
    for law in LIFECYCLE_LAWS:
        for factor in SERVED:
            best = cheapest(law.loss(n, d), factor * d, law)
            own = Lifecycle(allocation=Allocation(parameters=n, tokens=d), served_tokens=factor * d)
            pair = best.allocation
            cells = (pair.parameters, pair.tokens, pair.tokens_per_parameter, best.total_flops, own.total_flops)
            rows.append((law.title, best.served_tokens, *cells, own.total_flops / best.total_flops))
    titles = (("set", ""), ("served", "tokens"), ("N", "parameters"), ("D", "tokens"), ("D / N", ""))
    columns = (*(Column(*pair) for pair in titles), Column("cheapest", "FLOP"), Column("as planned", "FLOP"), Column("times"))
    return Table("Cheapest over training and serving, for the loss of this run", columns, tuple(rows))


def repetition_quantities(facts: PlanFacts) -> list[Quantity]:
    """What repetition takes off, where the sizes of all sources are known."""
    worth = run_effective_tokens(facts)
    if worth is None:
        return [unknown("effective_tokens", "tokens", UNKNOWN_SOURCES)]
    parameters = run_parameters(facts)
    spare = run_effective_parameters(facts, parameters)
    made = [worth, *source_quantities(facts), *([spare] if spare else [])]
    if not in_reach(facts) or worth.number() >= facts.tokens.number():
        return made
    fresh, seen = loss_by_law(REFIT, parameters, facts.tokens), loss_by_law(REFIT, parameters, seen_tokens(facts))
    inputs: dict[str, Input] = {"D": facts.tokens, "D'": worth, "B": REFIT.b, "beta": REFIT.beta}
    low, high = (REFIT.token_term(d) - REFIT.token_term(facts.tokens.number()) for d in (worth.at("high"), worth.at("low")))
    value, words = seen.number() - fresh.number(), "B / D'^beta - B / D^beta; by the refit"
    return [*made, Quantity("loss_of_repetition", value, "nats/token", words, inputs, worth.source, min(low, value), high)]


def repetition_table(facts: PlanFacts) -> Table:
    """Per source: what is read, how often, what that is worth, what no repetition can exceed, and what the cap allows."""
    rows = []
    for entry in exposures(facts):
        ceiling = None if entry.unique is None else most_effective_tokens(entry.unique)
        share = None if entry.effective is None else entry.effective / entry.tokens if entry.tokens else 1.0
        passes = None if entry.passes is None else round(entry.passes, 3)
        cells = (entry.tokens, entry.unique, passes, entry.effective, entry.effective_at_least, share)
        rows.append((entry.source, *cells, ceiling, entry.most_tokens))
    titles = (("source", ""), ("read", "tokens"), ("unique", "tokens"), ("passes", ""), ("worth", "tokens"))
    columns = [Column(*pair) for pair in titles]
    columns += [Column("at least", "tokens"), Column("worth of a token", "share"), Column("never above", "tokens")]
    columns.append(Column("cap allows", "tokens"))
    return Table("Repeated data at what it is worth", tuple(columns), tuple(rows))
