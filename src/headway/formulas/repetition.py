"""What repeated tokens are worth, and parameters beyond what the unique tokens can teach: Muennighoff et al. 2023.

    D' = U + U R* (1 - exp(-R / R*))        U unique tokens, R = D / U - 1 repetitions, R* how many pass before value fades
    N' = the same of parameters             U_N = min(N, .051 U): the best size for the unique tokens alone

    passes      1      2      4      8      16     40
    worth       1     1.97   3.73   6.63   10.6   15.2   x U, with R* = 15.4

An estimate, and weakly identified: the two R* were fitted together on 182 runs of 7 M to 9 B parameters over C4, with dropout
and weight decay of .1, each run repeating all the text it had; with the decay of data alone the same runs give 2.92. Here the law
stands for each source by itself, which nobody has fitted; other text, and repetition of a part of the mixture, may fade sooner or
later.
"""

from __future__ import annotations

import math

from headway.base.errors import ConfigError

REPETITION_SCALE = 15.387756
"""R* of data, fitted with R* of parameters. Muennighoff et al. 2023, arXiv 2305.16264, appendix A."""
REPETITION_SCALE_ALONE = 2.9157
"""R* where only data decay: the same paper's comparison of fits, which prefers the other by R^2 .77 against .74."""
PARAMETER_SCALE = 5.309743
"""R* of parameters, fitted with that of data; the same appendix."""
BEST_PARAMETERS_PER_TOKEN = 0.051
"""U_N / U: the best size for so many unique tokens by the paper's own C4 law, equation 17."""
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264: R* 15.39; 2.92 where only the value of data decays"
WEAKNESS = (
    "an estimate: R* was fitted on 182 runs of 7 M to 9 B parameters, each repeating all its text, of C4; with the decay of data "
    "alone the same runs give 2.92 (the lower end); for one source of a mixture nobody has fitted it"
)


def effective_tokens(tokens: float, unique_tokens: float, scale: float = REPETITION_SCALE) -> float:
    """New tokens that ``tokens`` drawn from ``unique_tokens`` are worth."""
    if not unique_tokens > 0 or tokens < 0 or not scale > 0:
        seen = f"{tokens:g} tokens drawn from {unique_tokens:g} unique ones with R* {scale:g}"
        raise ConfigError(seen, "unique tokens and R* are above zero, tokens not below", "give the tokens that there are")
    return _faded(tokens, unique_tokens, scale)


def most_effective_tokens(unique_tokens: float, scale: float = REPETITION_SCALE) -> float:
    """What endless repetition tends to."""
    return unique_tokens * (1 + scale)


def effective_parameters(parameters: float, unique_tokens: float, scale: float = PARAMETER_SCALE) -> float:
    """Parameters that ``parameters`` are worth where there are ``unique_tokens`` to learn from."""
    if not (unique_tokens > 0 and parameters > 0 and scale > 0):
        seen = f"{parameters:g} parameters on {unique_tokens:g} unique tokens with R* {scale:g}"
        raise ConfigError(seen, "all three are above zero", "give the tokens that there are")
    return _faded(parameters, min(parameters, BEST_PARAMETERS_PER_TOKEN * unique_tokens), scale)


def _faded(amount: float, unique: float, scale: float) -> float:
    repetitions = max(0.0, amount / unique - 1)
    return min(amount, unique) + unique * scale * -math.expm1(-repetitions / scale)
