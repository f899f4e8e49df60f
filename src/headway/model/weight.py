"""Parameters as modules: a matrix with or without a bias, a norm. Their names are those of ``recipe/roles.py``.

Memory is left as it comes; ``init.initialise`` fills it. Every product runs in the type of its own weight and comes back in
the type of its input, so that single modules can compute more precisely than the rest.

Shapes: N tokens (any leading axes), I inputs, O outputs, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.model.float8 import Product
from headway.model.kernels import layer_norm, rms_norm
from headway.recipe.spec import ModelSpec


class Weight(nn.Module):
    """One tensor as ``weight`` and, where ``biased``, ``bias``: without the axis that a product sums over.

    ``float8``: what ``project`` multiplies with in place of torch; ``precision.ComputeModel`` sets it on its copies.
    """

    def __init__(self, *shape: int, biased: bool = False):
        super().__init__()
        self.float8: Product | None = None
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[:-1])) if biased else None


def project(x_NI: Tensor, module: Weight) -> Tensor:
    """x W' + b -> N O."""
    dtype = module.weight.dtype
    if module.float8 is None:
        return F.linear(x_NI.to(dtype), module.weight, module.bias).to(x_NI.dtype)
    y_NO = module.float8(x_NI.to(dtype), module.weight)
    return (y_NO if module.bias is None else y_NO + module.bias).to(x_NI.dtype)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last axis, as the model has it; ``plain``: RMSNorm without a bias in any case."""

    def __init__(self, spec: ModelSpec, width: int, *, plain: bool = False):
        super().__init__()
        self.epsilon = spec.norm_epsilon
        self.centred = spec.norm == "layernorm" and not plain
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if self.centred and spec.bias in ("norm", "all") else None

    def forward(self, x_ND: Tensor) -> Tensor:
        if not self.centred:
            return rms_norm(x_ND, self.weight, self.epsilon)
        return layer_norm(x_ND, self.weight, self.bias, self.epsilon)
