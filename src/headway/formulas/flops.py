"""FLOPs of training, per token. Three conventions, always named, convertible into each other.

    6N        6 N: every parameter, embeddings included, no attention             (Kaplan et al. 2020, GPU-hour estimates)
    causal    6 P + 6 L H E s: parameters in matrix products, half the scores     (what is computed under a causal mask)
    full      6 P + 12 L H E s: the whole square of scores                        (PaLM, Megatron, most published MFU)

P leaves out the look-up of an untied embedding and the gains. Under a document mask the mean context is E[l^2] / E[l] of
the documents instead of s. Grouped queries shrink the projections, not the scores.
"""

from __future__ import annotations

from enum import StrEnum

from headway.formulas.parameters import count_parameters, parameter_quantities
from headway.formulas.quantity import Quantity
from headway.recipe.spec import ModelSpec


class Convention(StrEnum):
    SIX_N = "6N"
    CAUSAL = "causal"
    FULL = "full"


FORMULAS = {Convention.SIX_N: "6 N", Convention.CAUSAL: "6 P + 6 L H E s", Convention.FULL: "6 P + 12 L H E s"}
SOURCE = "Kaplan et al. 2020 (6N); Chowdhery et al. 2022, appendix B (attention)"


def attention_flops_per_token(model: ModelSpec, context_tokens: float, convention: Convention) -> float:
    """Scores and their product with the values, forward and backward."""
    if convention is Convention.SIX_N:
        return 0.0
    factor = 6 if convention is Convention.CAUSAL else 12
    return factor * model.layers * model.heads * model.head_width * context_tokens


def flops_per_token(model: ModelSpec, context_tokens: float, convention: Convention) -> float:
    """Training FLOPs per token at sequence length (or mean context) ``context_tokens``."""
    count = count_parameters(model)
    matrices = count.total if convention is Convention.SIX_N else count.in_products
    return 6 * matrices + attention_flops_per_token(model, context_tokens, convention)


def convert_mfu(mfu: float, model: ModelSpec, context_tokens: float, *, of: Convention, to: Convention) -> float:
    """The same throughput under another convention."""
    return mfu * flops_per_token(model, context_tokens, to) / flops_per_token(model, context_tokens, of)


def flops_quantity(model: ModelSpec, sequence_length: int, convention: Convention) -> Quantity:
    """FLOPs per token as a quantity, with what it stands on."""
    parameters = parameter_quantities(model)
    inputs: dict[str, Quantity | int] = {"N": parameters["total"]}
    if convention is not Convention.SIX_N:
        sizes = {"L": model.layers, "H": model.heads, "E": model.head_width, "s": sequence_length}
        inputs = {"P": parameters["products"], **sizes}
    value = flops_per_token(model, sequence_length, convention)
    name = f"flops_per_token_{'6n' if convention is Convention.SIX_N else convention.value}"
    return Quantity(name, value, "FLOP/token", FORMULAS[convention], inputs, SOURCE)
