"""Peak rate and batch size by published laws: always a band. The laws contradict each other by up to eight times.

    law                   peak rate                    batch, tokens            fitted on
    DeepSeek LLM (2024)   .3118 C^-.1250               .2920 C^.3271            1e17 to 2e19 FLOP
    Step Law (2025)       1.79 N^-.713 D^.307          .58 D^.571               N to 1 B, D to 100 B
    critical batch (2020)                              2.1e8 / L^(1 / .21)      WebText2, where it pays half

C is non-embedding FLOPs, N non-embedding parameters, D tokens, L the loss reached. A larger batch than the critical one buys
few steps for many tokens: (S / Smin - 1)(E / Emin - 1) = 1 with S steps and E tokens, both twice the least at B = Bcrit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.formulas.flops import Convention, attention_flops_per_token
from headway.formulas.parameters import count_parameters
from headway.formulas.quantity import Input, Quantity, show_number, unknown
from headway.plan.facts import PlanFacts
from headway.plan.laws.forecast import forecast_quantities, run_parameters
from headway.plan.plan import Column, Risk, Section, Table
from headway.recipe.mup import rule
from headway.recipe.roles import Role, block_shapes
from headway.recipe.schedules import spans

DEEPSEEK_RATE = (0.3118, -0.1250)
DEEPSEEK_BATCH = (0.2920, 0.3271)
DEEPSEEK_SOURCE = "Bi et al. 2024, arXiv 2401.02954, eq. 1: fitted from 1e17 to 2e19 FLOP"
STEP_RATE = (1.79, -0.713, 0.307)
STEP_BATCH = (0.58, 0.571)
STEP_SOURCE = "Li et al. 2025, arXiv 2503.04715: fitted up to 1 B parameters and 100 B tokens"
CRITICAL_TOKENS, CRITICAL_EXPONENT = 2.1e8, 0.21
CRITICAL_SOURCE = "Kaplan et al. 2020, arXiv 2001.08361, eq. 5.3: WebText2"
TRADE_SOURCE = "McCandlish et al. 2018, arXiv 1812.06162"

OUTSIDE = 2.0
"""A factor beyond the band's end that is a risk: within the band the laws themselves differ by more."""
LEAST_FLOPS = 1e17
"""Below the smallest budget of any fit nobody has looked: no risk is called there."""
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Trade:
    """What a batch size costs, as multiples of the least possible."""

    steps: float
    examples: float

    @property
    def efficiency(self) -> float:
        """Share of the tokens that a small batch would have needed."""
        return 1 / self.examples


def deepseek_rate(flops: float) -> float:
    factor, exponent = DEEPSEEK_RATE
    return factor * flops**exponent


def deepseek_batch_tokens(flops: float) -> float:
    factor, exponent = DEEPSEEK_BATCH
    return factor * flops**exponent


def step_law_rate(parameters: float, tokens: float) -> float:
    factor, of_parameters, of_tokens = STEP_RATE
    return factor * parameters**of_parameters * tokens**of_tokens


def step_law_batch_tokens(tokens: float) -> float:
    factor, exponent = STEP_BATCH
    return factor * tokens**exponent


def critical_batch_tokens(loss: float) -> float:
    """Where twice the fewest steps take twice the fewest tokens."""
    return CRITICAL_TOKENS / loss ** (1 / CRITICAL_EXPONENT)


def trade(batch_tokens: float, critical_tokens: float) -> Trade:
    """Steps and tokens of a batch: (steps - 1)(examples - 1) = 1."""
    return Trade(steps=1 + critical_tokens / batch_tokens, examples=1 + batch_tokens / critical_tokens)


# --- the run against the laws ----------------------------------------------------------------------------------------------


def law_parameters(facts: PlanFacts) -> Quantity:
    """N of both laws: without embeddings; of experts those that a token passes; as the recipe calls it where it does."""
    model = facts.spec.model
    if model.nominal_parameters is not None:
        return run_parameters(facts)
    count = count_parameters(model)
    value = count.active - (count.total - count.non_embedding)
    inputs: dict[str, Input] = {"non-embedding": facts.parameters["non_embedding"]}
    return Quantity(
        "law_parameters", value, "parameters", "that a token passes, without embeddings and head", inputs, "the model, by role"
    )


def law_flops(facts: PlanFacts, parameters: Quantity) -> Quantity:
    """C of the DeepSeek laws: 6 N and the full square of scores; 6 N alone where N is only a name."""
    inputs: dict[str, Input] = {"N": parameters, "D": facts.tokens}
    per_token, words = 6.0 * parameters.number(), "6 N D"
    if facts.spec.model.nominal_parameters is None:
        attention = attention_flops_per_token(facts.spec.model, facts.mean_sequence_length, Convention.FULL)
        per_token, words, inputs = per_token + attention, "(6 N + a) D; a: attention, full square", inputs | {"a": attention}
    return Quantity("law_flops", per_token * facts.tokens.number(), "FLOP", words, inputs, DEEPSEEK_SOURCE)


def main_batch_tokens(facts: PlanFacts) -> Quantity:
    """The batch that trains the most tokens."""
    by_batch: dict[int, int] = {}
    for stage in facts.spec.stages:
        for span in spans(stage):
            batch = span.batch_sequences * stage.sequence_length
            by_batch[batch] = by_batch.get(batch, 0) + span.sequences * stage.sequence_length
    value = max(by_batch, key=lambda batch: by_batch[batch])
    return Quantity("main_batch", value, "tokens", "the batch that trains the most tokens", {}, "recipe: stages")


def _laws(facts: PlanFacts) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
    """Rates and batches by law."""
    n, tokens = law_parameters(facts), facts.tokens
    flops = law_flops(facts, n)
    c, d = flops.number(), tokens.number()
    rates = {
        "DeepSeek LLM": Quantity("rate_deepseek", deepseek_rate(c), "rate", ".3118 C^-.1250", {"C": flops}, DEEPSEEK_SOURCE),
        "Step Law": Quantity(
            "rate_step_law", step_law_rate(n.number(), d), "rate", "1.79 N^-.713 D^.307", {"N": n, "D": tokens}, STEP_SOURCE
        ),
    }
    batches = {
        "DeepSeek LLM": Quantity(
            "batch_deepseek", deepseek_batch_tokens(c), "tokens", ".2920 C^.3271", {"C": flops}, DEEPSEEK_SOURCE
        ),
        "Step Law": Quantity("batch_step_law", step_law_batch_tokens(d), "tokens", ".58 D^.571", {"D": tokens}, STEP_SOURCE),
    }
    return rates, batches


@dataclass(frozen=True, kw_only=True)
class Band:
    """The hull of the laws: ``shown`` are the words of both ends, because no law is better than the others here."""

    shown: Quantity
    low: float
    high: float


def _band(name: str, laws: Mapping[str, Quantity]) -> Band:
    values, unit = [q.number() for q in laws.values()], next(iter(laws.values())).unit
    low, high = min(values), max(values)
    words = f"{_plain(low, unit)} to {_plain(high, unit)}" + ("" if unit == "rate" else f" {unit}")
    source = "published laws outside the range that they were fitted on: a place to begin a sweep"
    shown = Quantity(name, words, unit, f"lowest and highest of {', '.join(laws)}", dict(laws), source)
    return Band(shown=shown, low=low, high=high)


def _plain(value: float, unit: str) -> str:
    return show_number(float(f"{value:.3g}"), unit).removesuffix(f" {unit}")


def _against(name: str, own: Quantity, band: Band) -> Quantity:
    """How many times below or above the band: 1 inside."""
    value = max(1.0, band.low / own.number(), own.number() / band.high)
    inputs: dict[str, Input] = {"own": own, "low": band.low, "high": band.high, "band": band.shown}
    return Quantity(name, value, "times", "max(low / own, own / high, 1); 1 inside the band", inputs, "")


def _bands(facts: PlanFacts) -> tuple[tuple[Quantity, Band], tuple[Quantity, Band]]:
    """(the recipe's rate, its band), (the recipe's batch, its band)."""
    rates, batches = _laws(facts)
    return (_peak_rate(facts), _band("peak_rate_band", rates)), (main_batch_tokens(facts), _band("batch_band", batches))


def _peak_rate(facts: PlanFacts) -> Quantity:
    """Of the matrices in blocks: under muP, or with a rate of their own, not the recipe's ``peak_rate``."""
    model, optimizer = facts.spec.model, facts.spec.optimizer
    peak = Quantity("peak_rate", optimizer.peak_rate, "rate", "chosen", {}, "recipe: optimizer")
    matrix = next(shape for shape in block_shapes(model, "layers.0.", False) if shape.role is Role.MATRIX)
    factor = rule(matrix, model, optimizer).rate
    if factor == 1:
        return peak
    inputs: dict[str, Input] = {"peak_rate": peak, "factor": factor}
    return Quantity(
        "matrix_peak_rate", peak.number() * factor, "rate", "factor peak_rate", inputs, "recipe: model.mup, optimizer"
    )


def hyperparameters_section(facts: PlanFacts) -> Section:
    (peak, rates), (batch, batches) = _bands(facts)
    quantities = [
        rates.shown,
        _against("peak_rate_beyond_band", peak, rates),
        batch,
        batches.shown,
        _against("batch_beyond_band", batch, batches),
    ]
    critical = critical_batch(facts)
    quantities.append(critical)
    tables = [_law_table(peak, rates, batch, batches)]
    if critical.value is not None:
        tables.append(trade_table(batch, critical))
    return Section("Rate and batch by published laws", tuple(quantities), tuple(tables))


def critical_batch(facts: PlanFacts) -> Quantity:
    """At the loss that the run should end at; over the range of that forecast."""
    loss = forecast_quantities(facts)[0]
    if loss.value is None:
        return unknown("critical_batch", "tokens", loss.formula)
    value, low, high = (critical_batch_tokens(nats) for nats in (loss.number(), loss.at("high"), loss.at("low")))
    return Quantity("critical_batch", value, "tokens", "2.1e8 / L^(1 / .21)", {"L": loss}, CRITICAL_SOURCE, low, high)


def _law_table(peak: Quantity, rates: Band, batch: Quantity, batches: Band) -> Table:
    """Each law beside the recipe's own values."""
    rows: list[tuple[str, float | Quantity, float | Quantity, str]] = []
    for law, rate in rates.shown.inputs.items():
        size = batches.shown.inputs[law]
        assert isinstance(rate, Quantity)
        assert isinstance(size, Quantity)
        rows.append((law, rate, size, rate.source))
    rows.append(("this recipe", peak.number(), batch.number(), "the peak; the batch that trains the most tokens"))
    columns = (Column("law"), Column("peak rate", "rate"), Column("batch", "tokens"), Column("source"))
    return Table("Peak rate and batch by law", columns, tuple(rows))


def trade_table(batch: Quantity, critical: Quantity) -> Table:
    """Steps saved against tokens spent, around the recipe's batch, late in the run."""
    rows = []
    for factor in MULTIPLES:
        tokens = factor * batch.number()
        of = trade(tokens, critical.number())
        rows.append((f"{factor:g} x", tokens, of.steps, of.examples, of.efficiency))
    titles = (("batch", ""), ("batch", "tokens"), ("steps over the fewest", ""), ("tokens over the fewest", ""))
    columns = (*(Column(*pair) for pair in titles), Column("gradient efficiency", "share"))
    return Table("What a batch costs at the final loss (McCandlish et al. 2018)", columns, tuple(rows))


def outside_bands(facts: PlanFacts) -> Iterator[Risk]:
    """Values that lie a factor beyond every law. A law may be wrong there; a sweep on a small model tells."""
    if law_flops(facts, law_parameters(facts)).number() < LEAST_FLOPS:
        return
    bands = dict(zip(("peak rate", "batch size"), _bands(facts), strict=True))
    if facts.spec.optimizer.kind == "muon" and facts.spec.optimizer.muon_scale == "spectral":
        del bands["peak rate"]  # the laws are of AdamW's updates, which these do not resemble in size
    for what, (own, band) in bands.items():
        factor = _against("factor", own, band).number()
        if factor >= OUTSIDE and not math.isclose(factor, 1.0):
            side = "below" if own.number() < band.low else "above"
            yield Risk(
                f"{what} {side} every published law",
                "a rate far too high diverges, one far too low wastes tokens; a batch far too large wastes tokens, one far too "
                "small wastes steps: sweep it on a small model first",
                f"{own.shown()} where the laws say {band.shown.shown()}: {factor:.2g} times {side}",
            )
