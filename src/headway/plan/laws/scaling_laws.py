"""Published scaling laws side by side, each with its interval, its data and where it was fitted.

    with a loss     L(N, D) = E + A / N^alpha + B / D^beta     Hoffmann approach 3, its refit, Muennighoff (C4)
                    L(N, D) = ((Nc/N)^(aN/aD) + Dc/D)^aD       Kaplan: no floor, for history only
    path alone      N = k C^a, D = C / 6 N                     Hoffmann approach 1, Llama 3, DeepSeek LLM, Porian

N parameters, D tokens, C = 6 N D FLOP, losses in nats per token of each law's own data and tokenizer. They contradict each
other by more than their intervals say: no single one is shown alone.

An exponent and its coefficient are known together, not apart (their correlation in the refit is above .99): what data fix
is the value at their own centre. So an interval here is the standard error of the exponent turned about the geometric mean
of the fitted runs, and it opens with the distance from there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from headway.base.errors import ConfigError

TWO_SIDED_95 = 1.96
"""Standard errors on each side of a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A way to spend compute."""

    parameters: float
    tokens: float

    @property
    def flops(self) -> float:
        return 6 * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


@dataclass(frozen=True, kw_only=True)
class Span:
    """An interval. ``low == high``: none was published."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ScalingLaw(ABC):
    """What all sets share."""

    name: str  # short, for tables and names of quantities
    title: str
    source: str
    data: str  # corpus and tokenizer that its losses are of
    least_flops: float  # of the smallest run it was fitted on
    most_flops: float  # of the largest
    centre_flops: float  # geometric mean of the fitted budgets
    interval: str  # what its interval is, in words

    @abstractmethod
    def optimum(self, flops: float) -> Allocation:
        """The best N and D of a budget."""

    @abstractmethod
    def optimum_parameters_span(self, flops: float) -> Span:
        """95 % interval of the best N; that of D is C / 6 N."""

    def reach(self, flops: float) -> str:
        """Where ``flops`` stands against the runs it was fitted on, in words."""
        if flops < self.least_flops:
            return f"{self.least_flops / flops:,.2g} x below"
        return "inside" if flops <= self.most_flops else f"{flops / self.most_flops:,.2g} x beyond"


@dataclass(frozen=True, kw_only=True)
class LossLaw(ScalingLaw):
    """A law that also says which loss."""

    @abstractmethod
    def loss(self, parameters: float, tokens: float) -> float: ...

    @abstractmethod
    def loss_span(self, parameters: float, tokens: float) -> Span: ...


@dataclass(frozen=True, kw_only=True)
class SumLaw(LossLaw):
    """E + A / N^alpha + B / D^beta. Errors are standard errors, ``rounding`` half a printed digit; 0: not known."""

    floor: float
    a: float
    b: float
    alpha: float
    beta: float
    floor_error: float = 0.0
    alpha_error: float = 0.0
    beta_error: float = 0.0
    path_error: float = 0.0  # of the exponent beta / (alpha + beta)
    rounding: float = 0.0  # of E, alpha and beta as printed
    centre_parameters: float = 1e9
    centre_tokens: float = 2e10

    def parameter_term(self, parameters: float) -> float:
        return self.a / parameters**self.alpha

    def token_term(self, tokens: float) -> float:
        return self.b / tokens**self.beta

    def loss(self, parameters: float, tokens: float) -> float:
        return self.floor + self.parameter_term(parameters) + self.token_term(tokens)

    def loss_span(self, parameters: float, tokens: float) -> Span:
        """Errors of floor and terms in squares (the floor rises with the exponents: their sum is known better), and rounding."""
        by_parameters = self.parameter_term(parameters) * self.alpha_error * math.log(parameters / self.centre_parameters)
        by_tokens = self.token_term(tokens) * self.beta_error * math.log(tokens / self.centre_tokens)
        half = TWO_SIDED_95 * math.hypot(self.floor_error, by_parameters, by_tokens)
        ends = [self._rounded(parameters, tokens, sign * self.rounding) for sign in (1, -1)]
        return Span(low=min(ends) - half, high=max(ends) + half)

    def _rounded(self, parameters: float, tokens: float, by: float) -> float:
        """With every printed digit as much off as rounding allows, all in one direction."""
        return self.floor - by + self.parameter_term(parameters) / parameters**by + self.token_term(tokens) / tokens**by

    def tokens_for(self, loss: float, parameters: float) -> float:
        """Tokens at which a model of this size reaches ``loss``; infinite where it never does."""
        left = loss - self.floor - self.parameter_term(parameters)
        return math.inf if left <= 0 else (self.b / left) ** (1 / self.beta)

    def optimum(self, flops: float) -> Allocation:
        exponent = self.beta / (self.alpha + self.beta)
        factor = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = factor * (flops / 6) ** exponent
        return Allocation(parameters=parameters, tokens=flops / (6 * parameters))

    def optimum_parameters_span(self, flops: float) -> Span:
        return _turned(self.optimum(flops).parameters, self.path_error, flops / self.centre_flops)


@dataclass(frozen=True, kw_only=True)
class KaplanLaw(LossLaw):
    """Kaplan et al. 2020, eq. 1.5 and 6.1: non-embedding parameters, one-epoch runs whose rate had often not decayed."""

    parameters_scale: float
    tokens_scale: float
    parameters_exponent: float
    tokens_exponent: float
    path_parameters: float  # at one petaFLOP/s-day of compute-efficient training
    path_exponent: float

    def loss(self, parameters: float, tokens: float) -> float:
        by_parameters = (self.parameters_scale / parameters) ** (self.parameters_exponent / self.tokens_exponent)
        return (by_parameters + self.tokens_scale / tokens) ** self.tokens_exponent

    def loss_span(self, parameters: float, tokens: float) -> Span:
        value = self.loss(parameters, tokens)
        return Span(low=value, high=value)

    def optimum(self, flops: float) -> Allocation:
        """The published path is of compute at a small batch; spent at the critical batch it costs twice that."""
        petaflop_days = flops / 2 / 8.64e19
        parameters = self.path_parameters * petaflop_days**self.path_exponent
        return Allocation(parameters=parameters, tokens=flops / (6 * parameters))

    def optimum_parameters_span(self, flops: float) -> Span:
        best = self.optimum(flops).parameters
        return Span(low=best, high=best)


@dataclass(frozen=True, kw_only=True)
class PathLaw(ScalingLaw):
    """N = scale x C^exponent, and the range of the exponent where one was published."""

    scale: float
    exponent: float
    exponent_low: float
    exponent_high: float

    def optimum(self, flops: float) -> Allocation:
        parameters = self.scale * flops**self.exponent
        return Allocation(parameters=parameters, tokens=flops / (6 * parameters))

    def optimum_parameters_span(self, flops: float) -> Span:
        best, far = self.optimum(flops).parameters, flops / self.centre_flops
        ends = [best * far ** (exponent - self.exponent) for exponent in (self.exponent_low, self.exponent_high)]
        return Span(low=min(ends), high=max(ends))


def _turned(value: float, exponent_error: float, far: float) -> Span:
    """``value`` when its power law is turned about the centre, ``far`` times away."""
    factor = math.exp(TWO_SIDED_95 * exponent_error * abs(math.log(far)))
    return Span(low=value / factor, high=value * factor)


def iso_compute_pairs(flops: float, parameters: Iterable[float]) -> list[Allocation]:
    """Models of these sizes, each with the tokens that spend ``flops``."""
    if not flops > 0:
        raise ConfigError(f"a compute budget of {flops:g} FLOP", "a budget is above zero", "give 6 N D of the run")
    return [Allocation(parameters=n, tokens=flops / (6 * n)) for n in parameters]
