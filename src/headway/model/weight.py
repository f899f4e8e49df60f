"""Parameters as modules: a matrix with or without a bias, a norm. Their names are those of ``recipe/roles.py``.

Memory is left as it comes; ``init.initialise`` fills it. Every product runs in the type of its own weight and comes back in
the type of its input, so that single modules can compute more precisely than the rest.

A parameter may be this rank's part of a logical one (a DTensor of tensor parallelism, ``parallel/``): modules compute with the
part, and take their sizes from it.

Shapes: N tokens (any leading axes), I inputs, O outputs, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.model.distributed import is_distributed
from headway.model.float8 import Product
from headway.model.kernels import layer_norm, rms_norm
from headway.model.ranks import Ranks
from headway.recipe.spec import ModelSpec


def read(parameter: Tensor, dtype: torch.dtype | None) -> Tensor:
    """What this rank computes with: its part, in ``dtype`` (None: as it is).

    A parameter that every rank has whole is used on each one's own tokens or heads, so its gradient is a sum over ranks.
    """
    if is_distributed(parameter):
        from torch.distributed.tensor import Partial

        gradient = [Partial() if placement.is_replicate() else placement for placement in parameter.placements]
        parameter = parameter.to_local(grad_placements=gradient)
    return parameter if dtype is None else parameter.to(dtype)


class Weight(nn.Module):
    """One tensor as ``weight`` and, where ``biased``, ``bias``: without the axis that a product sums over.

    ``float8``: what multiplies in place of torch, and ``dtype``: what it multiplies in, None: the type of the weight. The
    models of ``precision.py`` and ``parallel/`` set them.
    """

    dtype: torch.dtype | None = None

    def __init__(self, *shape: int, biased: bool = False):
        super().__init__()
        self.float8: Product | None = None
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[:-1])) if biased else None

    def matrix(self) -> Tensor:
        """The weight as this rank computes with it."""
        return read(self.weight, self.dtype)

    def added(self) -> Tensor | None:
        """The bias, likewise."""
        return None if self.bias is None else read(self.bias, self.dtype)

    def forward(self, x_NI: Tensor) -> Tensor:
        """x W' + b -> N O."""
        weight_OI, bias_O = self.matrix(), self.added()
        if self.float8 is None:
            return F.linear(x_NI.to(weight_OI.dtype), weight_OI, bias_O).to(x_NI.dtype)
        y_NO = self.float8(x_NI.to(weight_OI.dtype), weight_OI)
        return (y_NO if bias_O is None else y_NO + bias_O).to(x_NI.dtype)

    def into_stream(self, x_BTI: Tensor, ranks: Ranks) -> Tensor:
        """The same for the last product of a layer, whose inputs lie on several ranks: each adds to the sum, gets its own
        tokens of it, and adds the bias to those."""
        if not ranks.divide_tokens:
            return self(x_BTI)
        weight_OI, bias_O = self.matrix(), self.added()
        y_BTO = ranks.own_sum(F.linear(x_BTI.to(weight_OI.dtype), weight_OI).to(x_BTI.dtype))
        return y_BTO if bias_O is None else y_BTO + bias_O.to(y_BTO.dtype)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last axis, as the model has it; ``plain``: RMSNorm without a bias in any case."""

    dtype: torch.dtype | None = None

    def __init__(self, spec: ModelSpec, width: int, *, plain: bool = False):
        super().__init__()
        self.epsilon = spec.norm_epsilon
        self.centred = spec.norm == "layernorm" and not plain
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if self.centred and spec.bias in ("norm", "all") else None

    def gain(self) -> Tensor:
        """As this rank computes with it."""
        return read(self.weight, self.dtype)

    def forward(self, x_ND: Tensor) -> Tensor:
        if not self.centred:
            return rms_norm(x_ND, self.gain(), self.epsilon)
        bias_D = None if self.bias is None else read(self.bias, self.dtype)
        return layer_norm(x_ND, self.gain(), bias_D, self.epsilon)
