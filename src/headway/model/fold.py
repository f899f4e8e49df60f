"""Multipliers folded into weights: the same function as a model of the standard parametrisation, for export.

    multiplier                        goes into
    residual                          the last thing before the addition: o and down, or the norms behind them
    logits                            the head; where it is the embedding, the final norms
    router                            the router
    attention, against 1 / sqrt E     q, or its norm

Exact up to rounding; bit for bit where the factors are powers of two. One exception: with tied embeddings a head for further
tokens reads what the final norm gives, norms it again, and so feels the factor through that norm's epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from headway.recipe.mup import multipliers
from headway.recipe.spec import ModelSpec

ADDED_LAST = {"post": ("attention_norm", "ffn_norm"), "sandwich": ("attention_out_norm", "ffn_out_norm")}
"""By block: the norms behind attention and feed-forward; in other blocks o and down come last."""
DOWN = ("attention.o", "ffn.down", "experts.down", "shared.down")


def fold_multipliers(tensors: Mapping[str, Tensor], spec: ModelSpec) -> tuple[dict[str, Tensor], ModelSpec]:
    """Parameters by name, as ``recipe/roles.py`` names them -> the same without ``spec.mup``. Nothing is changed in place."""
    if spec.mup is None:
        return dict(tensors), spec
    factors = {name: fold_factor(name, spec) for name in tensors}
    folded = {name: tensor if factors[name] == 1.0 else tensor * factors[name] for name, tensor in tensors.items()}
    return folded, replace(spec, mup=None)


def fold_factor(name: str, spec: ModelSpec) -> float:
    """What the parameter ``name`` is multiplied by."""
    here, standard = multipliers(spec), multipliers(replace(spec, mup=None))
    module = name.rpartition(".")[0]
    is_last_norm = module == "norm" or (module.startswith("mtp.") and module.count(".") == 2 and module.endswith(".norm"))
    if is_last_norm if spec.tied_embeddings else module == "head":
        return here.logits
    in_block = module.startswith(("layers.", "mtp."))
    if in_block and module.endswith("." + ("attention.q_norm" if spec.qk_norm else "attention.q")):
        return here.attention / standard.attention
    if in_block and module.endswith(".router") and not (name.endswith(".bias") and spec.experts and spec.experts.router_bias):
        return here.router  # a bias of balancing is added to scores, behind the multiplier
    if in_block and module.endswith(tuple("." + last for last in ADDED_LAST.get(spec.block, DOWN))):
        return here.residual
    return 1.0
