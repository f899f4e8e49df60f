"""FLOPs of training, per token. Three conventions, always named, convertible into each other.

    6N        6 N: no attention                                                   (Kaplan et al. 2020, GPU-hour estimates)
    causal    6 P + 6 L H E s: parameters in matrix products, half the scores     (what is computed under a causal mask)
    full      6 P + 12 L H E s: the whole square of scores                        (PaLM, Megatron, most published MFU)

A forward pass is a third, the backward pass two. What stands for the letters:

    N    every parameter with both embeddings (tied: there is one), norms and biases; of a mixture those that a token passes,
         without heads for further tokens; or the number that people call the model by (``nominal_parameters``)
    P    matrices that a token is multiplied with: the head (or the tied embedding as one), chosen and shared experts, the
         router, heads for further tokens. No look-up of an embedding, no norms and biases. A gated feed-forward has three
    E    width of a head; latent attention has Ek for scores and Ev for values: 6 L H (Ek + Ev) s {1/2}. Grouped queries
         shrink the projections (P), not the scores
    s    keys of a query: the sequence, or E[l^2] / E[l] of documents under a mask (with a window an upper bound). A layer with
         a window of w has min(s, w) in full and, causal, v - v^2 / 2s with v = min(s, w) instead of s / 2: as many as the mask
         leaves, to the convention's own half of the diagonal
"""

from __future__ import annotations

from enum import StrEnum

from headway.formulas.parameters import count_parameters, parameter_quantities, parameters_in_6n
from headway.formulas.quantity import Input, Quantity
from headway.recipe.spec import ModelSpec


class Convention(StrEnum):
    SIX_N = "6N"
    CAUSAL = "causal"
    FULL = "full"


SOURCE = "Kaplan et al. 2020 (6N); Chowdhery et al. 2022, appendix B (attention)"


def mean_keys(context_tokens: float, window: int | None, convention: Convention) -> float:
    """Keys that a query meets on average: 0 under 6N, which has no attention."""
    if convention is Convention.SIX_N:
        return 0.0
    seen = context_tokens if window is None else min(context_tokens, window)
    if convention is Convention.FULL or not context_tokens:
        return seen
    return seen - seen * seen / (2 * context_tokens)


def attention_layers(model: ModelSpec) -> tuple[int, int]:
    """Layers that see all before a token, and layers with a window; those of heads for further tokens are like the last."""
    windowed = sum(model.is_windowed(layer) for layer in range(model.layers)) if model.window is not None else 0
    further = model.mtp_layers
    if model.is_windowed(model.layers - 1):
        return model.layers - windowed, windowed + further
    return model.layers - windowed + further, windowed


def attention_flops_per_token(model: ModelSpec, context_tokens: float, convention: Convention) -> float:
    """Scores and their product with the values, forward and backward."""
    full, windowed = attention_layers(model)
    keys = full * mean_keys(context_tokens, None, convention)
    if windowed:
        keys += windowed * mean_keys(context_tokens, model.window, convention)
    return 6 * model.heads * (model.head_width + model.value_width) * keys


def flops_per_token(model: ModelSpec, context_tokens: float, convention: Convention) -> float:
    """Training FLOPs per token at sequence length (or mean context) ``context_tokens``."""
    if convention is Convention.SIX_N:
        return 6.0 * parameters_in_6n(model)
    return 6 * count_parameters(model).active_in_products + attention_flops_per_token(model, context_tokens, convention)


def convert_mfu(mfu: float, model: ModelSpec, context_tokens: float, *, of: Convention, to: Convention) -> float:
    """The same throughput under another convention."""
    return mfu * flops_per_token(model, context_tokens, to) / flops_per_token(model, context_tokens, of)


# --- in words -----------------------------------------------------------------------------------------------------------


def flops_formula(model: ModelSpec, convention: Convention) -> str:
    """The formula of this architecture: windows and latent attention have their own. ``flops_quantity`` has the letters."""
    if convention is Convention.SIX_N:
        return "6 N"
    causal = convention is Convention.CAUSAL
    widths = "(Ek + Ev)" if model.latent else "E"
    factor = (3 if causal else 6) * (1 if model.latent else 2)
    if model.window is None:
        return f"6 P + {factor} L H {widths} s"
    keys = "2 v - v v / s" if causal else "v"
    return f"6 P + {factor} H {widths} (Lf s + Lw ({keys}))"


def flops_quantity(model: ModelSpec, sequence_length: int, convention: Convention) -> Quantity:
    """FLOPs per token as a quantity, with what it stands on."""
    parameters = parameter_quantities(model)
    if convention is Convention.SIX_N:
        inputs: dict[str, Input] = {"N": parameters["in_6n"]}
    else:
        inputs = {"P": parameters["products"], **_attention_inputs(model, sequence_length)}
    value = flops_per_token(model, sequence_length, convention)
    name = f"flops_per_token_{'6n' if convention is Convention.SIX_N else convention.value}"
    return Quantity(name, value, "FLOP/token", flops_formula(model, convention), inputs, SOURCE)


def _attention_inputs(model: ModelSpec, sequence_length: int) -> dict[str, Input]:
    full, windowed = attention_layers(model)
    widths = {"Ek": model.head_width, "Ev": model.value_width} if model.latent else {"E": model.head_width}
    if model.window is None:
        return {"L": full, "H": model.heads, **widths, "s": sequence_length}
    layers = {"Lf": full, "Lw": windowed, "v": min(model.window, sequence_length)}
    return {"H": model.heads, **widths, **layers, "s": sequence_length}
