"""What the hardware computes beyond the model: activations that the backward pass recomputes instead of keeping. MFU, HFU.

    what            again, per token                                          under 6N
    none            nothing                                                   6 N
    selective       the attention's forward: scores and values                6 N      nothing where the kernel does so anyway
    light           norms, activations, up from latents: no 6N arithmetic     6 N      but for latent attention
    ops             every second product of the blocks: half their forward    7 N
    full            the forward of all blocks; the head's never               8 N      "8 N D"

MFU counts what the model needs, HFU what was computed: HFU = MFU x ``recompute_factor``. What a fused attention kernel
recomputes by itself (scores, in its backward pass) is counted in neither, as publications do.
"""

from __future__ import annotations

from enum import StrEnum

from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.formulas.parameters import count_parameters, parameters_in_6n
from headway.recipe.spec import ModelSpec


class Recompute(StrEnum):
    """What is computed again in the backward pass instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"  # scores and softmax of attention (arXiv 2205.05198); nothing where the kernel does so anyway
    LIGHT = "light"  # norms, activation functions, what comes up from latents: little to compute (arXiv 2412.19437)
    OPS = "ops"  # all but every second matrix product and attention: torch's selective activation checkpointing
    FULL = "full"  # only the input of a block is kept


def hardware_flops_per_token(
    model: ModelSpec, context_tokens: float, convention: Convention, recompute: Recompute, *, flash: bool = True
) -> float:
    """What is really computed per token. ``flash``: the attention kernel never keeps scores, whatever is asked."""
    flops = flops_per_token(model, context_tokens, convention)
    attention = attention_flops_per_token(model, context_tokens, convention) / 3
    products = _block_products(model, convention)
    if recompute is Recompute.FULL:
        return flops + 2 * products + attention
    if recompute is Recompute.OPS:
        return flops + products
    if recompute is Recompute.SELECTIVE and not flash:
        return flops + attention
    if recompute is Recompute.LIGHT:
        return flops + 2 * _from_latents(model, convention)
    return flops


def _from_latents(model: ModelSpec, convention: Convention) -> float:
    """Parameters of the products that make heads from latents, in all blocks, those of heads for further tokens too. Under 6N:
    their share of whatever stands for N."""
    latent = model.latent
    if latent is None:
        return 0
    query = latent.query_rank * model.heads * model.head_width if latent.query_rank else 0
    each = query + latent.kv_rank * model.heads * (latent.nope_width + latent.value_width)
    made = (model.layers + model.mtp_layers) * each
    if convention is Convention.SIX_N:
        return made / count_parameters(model).active_in_products * parameters_in_6n(model)
    return made


def _block_products(model: ModelSpec, convention: Convention) -> int:
    """Parameters whose products a full recomputation repeats. 6N knows no parts: all of them."""
    if convention is Convention.SIX_N:
        return parameters_in_6n(model)
    heads = (1 + model.mtp_layers) * model.vocabulary * model.width
    return count_parameters(model).active_in_products - heads


def recompute_factor(
    model: ModelSpec, context_tokens: float, convention: Convention, recompute: Recompute, *, flash: bool = True
) -> float:
    """FLOPs computed over FLOPs needed, under one convention: HFU / MFU."""
    hardware = hardware_flops_per_token(model, context_tokens, convention, recompute, flash=flash)
    return hardware / flops_per_token(model, context_tokens, convention)


def mfu(tokens_per_second_per_chip: float, *, flops_per_token: float, peak_flops_per_second: float) -> float:
    """Share of a chip's dense peak. With the FLOPs that the hardware computes in place of the model's it is HFU."""
    return tokens_per_second_per_chip * flops_per_token / peak_flops_per_second
