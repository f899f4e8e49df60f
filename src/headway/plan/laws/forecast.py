"""The loss that the run should end at, by several published laws, and the curve on the way there.

Two things that a forecast here is not. It is of the data and tokenizer of each fit, not of your held-out web: other text has
another floor, and nats per token change with the tokenizer. And a law speaks of finished runs, their rate decayed: in the
middle of a run at a high rate the loss stands a few hundredths of a nat above the curve.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.formulas.flops import Convention
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.facts import PlanFacts
from headway.plan.laws.repetition import run_effective_tokens
from headway.plan.laws.scaling_laws import LossLaw, SumLaw
from headway.plan.laws.scaling_sets import FORECAST_LAWS, LOSS_LAWS, REFIT
from headway.plan.plan import Column, Table

WEB_SPREAD = (0.96, 1.05)
"""One finished 1 B model on four general web sets (C4, Common Crawl, Reddit, international English): 3.06 to 3.30 nats, mean
3.16. Source: OLMo ladder, 1B-1xC, last evaluation. A finished model differs by as much from one web set to the next."""

OF_FITTED_DATA = "of the data and tokenizers of the fits, not of your held-out text; finished runs only"
LOSS_FORMULA = "E + A / N^alpha + B / D^beta"
NATS = "nats/token"


def run_parameters(facts: PlanFacts) -> Quantity:
    """N of 6 N D: as the recipe calls it, else counted; of experts, those that a token passes."""
    return facts.parameters["in_6n"]


def run_exposure(facts: PlanFacts) -> Quantity:
    """Tokens per parameter, by N of 6 N D."""
    parameters = run_parameters(facts)
    inputs: dict[str, Input] = {"tokens": facts.tokens, "N": parameters}
    ratio = facts.tokens.number() / parameters.number()
    return Quantity("tokens_per_parameter", ratio, "", "tokens / N", inputs, "N as in 6 N D")


def run_flops(facts: PlanFacts) -> Quantity:
    """6 N D of the whole run: the compute that scaling laws speak of."""
    return facts.total_flops(Convention.SIX_N)


def in_reach(facts: PlanFacts) -> bool:
    """Whether the run is no smaller than the smallest that any loss law was fitted on. Beyond the largest all are, so what
    is said there is an extrapolation, and the tables say how far."""
    return run_flops(facts).number() >= REFIT.least_flops


def out_of_reach(facts: PlanFacts) -> str:
    """Why nothing is said."""
    own = run_flops(facts).number()
    return f"no law reaches down here: the smallest fitted run took {REFIT.least_flops:.2g} FLOP, this one {own:.2g}"


def predicted_loss(tokens: float, parameters: float, law: LossLaw = REFIT) -> float:
    """Loss of a model of ``parameters`` after ``tokens`` new tokens, were it finished there."""
    return law.loss(parameters, tokens)


def seen_tokens(facts: PlanFacts) -> Quantity:
    """D of the laws: repeated tokens at what they are worth, where the sizes of the sources are known."""
    return run_effective_tokens(facts) or facts.tokens


def loss_by_law(law: SumLaw, parameters: Quantity, tokens: Quantity) -> Quantity:
    """One set's answer, with its own interval where one was published, and that of what repeated tokens are worth."""
    n, d = parameters.number(), tokens.number()
    inputs: dict[str, Input] = {
        "N": parameters,
        "D": tokens,
        "E": law.floor,
        "A": law.a,
        "B": law.b,
        "alpha": law.alpha,
        "beta": law.beta,
    }
    name, source = f"forecast_loss_{law.name}", f"{law.source}; {law.data}; interval: {law.interval}"
    low, high = law.loss_span(n, tokens.at("high")).low, law.loss_span(n, tokens.at("low")).high
    ends = (low, high) if low < high else (None, None)
    return Quantity(name, law.loss(n, d), NATS, LOSS_FORMULA, inputs, source, *ends)


def _ends(law: LossLaw, parameters: float, tokens: float) -> tuple[float, float] | tuple[None, None]:
    """Low and high; nothing where the set has no interval."""
    span = law.loss_span(parameters, tokens)
    return (span.low, span.high) if span.low < span.high else (None, None)


def forecast_quantities(facts: PlanFacts) -> tuple[Quantity, ...]:
    """The final loss by each set, and the band over all of them and over data sets."""
    if not in_reach(facts):
        return (unknown("forecast_loss", NATS, out_of_reach(facts)),)
    parameters, tokens = run_parameters(facts), seen_tokens(facts)
    by_law = tuple(loss_by_law(law, parameters, tokens) for law in FORECAST_LAWS)
    return (_band(by_law), *by_law)


def _band(by_law: Sequence[Quantity]) -> Quantity:
    """The refit in the middle: the one set whose fit is documented well enough to have honest errors."""
    middle = next(q for q in by_law if q.name == f"forecast_loss_{REFIT.name}")
    low = WEB_SPREAD[0] * min(q.at("low") for q in by_law)
    high = WEB_SPREAD[1] * max(q.at("high") for q in by_law)
    formula = f"refit; from {WEB_SPREAD[0]:g} x the lowest to {WEB_SPREAD[1]:g} x the highest over all sets"
    inputs: dict[str, Input] = {q.name.removeprefix("forecast_loss_"): q for q in by_law}
    return Quantity("forecast_loss", middle.value, NATS, formula, inputs, OF_FITTED_DATA, low, high)


def forecast_table(facts: PlanFacts) -> Table | None:
    """Every set with a loss, the superseded one too, and how far beyond its own runs this one lies."""
    if not in_reach(facts):
        return None
    n, d, flops = run_parameters(facts).number(), seen_tokens(facts).number(), run_flops(facts).number()
    rows = [(law.title, law.loss(n, d), *_ends(law, n, d), law.data, law.reach(flops)) for law in LOSS_LAWS]
    columns = (
        Column("set"),
        Column("final loss, nats"),
        Column("low"),
        Column("high"),
        Column("loss is of"),
        Column("compute against its runs"),
    )
    return Table("Final loss by published laws", columns, tuple(rows))
