"""Matrix products in float8, through torchao: which numbers are rounded to 8 bits, and by which scale.

    y  = x W'      x e4m3, a scale per token            W e4m3, a scale per output      -> bfloat16
    dx = dy W      dy e4m3, a scale per token           W e4m3, one scale               -> bfloat16
    dW = dy' x     in bfloat16, as everywhere

A scale is the power of two that brings the largest value of its group just under 448, the end of e4m3. No group spans two
tokens: with one scale per tensor (torchao's default and its fastest), or with dW in 8 bits, a token would change with the later
ones and with what else is in its micro-batch, and the loss of a step with how its batch was cut. Here it is the same as in
bfloat16, and tests hold that bit for bit. The price is a third of a projection's products without the rate of float8.

Scales come from the values at hand (dynamic scaling). torchao had delayed scaling, with a history of largest values, until 0.9
and deleted it in 0.10 (pytorch/ao, issue 1680); of 0.18, which this was written with, nothing is left but dynamic scales. So
there is no scaling state, a checkpoint needs none, and masters and moments alone go on bit for bit.

On a CPU products are emulated: operands are rounded to e4m3 and multiplied in float32. That is slower than bfloat16, and meant
for tests and rehearsals. Weights are rounded from their bfloat16 copy in each product, not once per step.

Shapes: N tokens (any leading axes), I inputs, O outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headway.base.errors import EnvironmentFault
from headway.recipe.trainable import without_torchao

Product = Callable[[Tensor, Tensor], Tensor]
"""x N I, weight O I, both bfloat16 -> x W', N O, bfloat16; with gradients of both."""

SCALING = "rowwise_with_gw_hp"
"""torchao's name for the scales above."""
LEAST_CAPABILITY = (8, 9)
"""Of CUDA devices that multiply in float8: Ada and Hopper."""


def make_product(device: torch.device) -> Product:
    """A product for tensors on ``device``. EnvironmentFault where it, or the environment, has none."""
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of libraries for other devices, which nothing here calls
    try:
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
        from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig
    except ImportError as error:
        raise EnvironmentFault([without_torchao("precision", f"cannot be imported as this version does it: {error}")]) from error
    _refuse_device(device)
    config = replace(Float8LinearConfig.from_recipe_name(SCALING), emulate=device.type != "cuda")
    gemms = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
    options = LinearMMConfig(*(ScaledMMConfig(config.emulate, g.use_fast_accum, False, config.pad_inner_dim) for g in gemms))

    def product(x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        return matmul_with_hp_or_float8_args.apply(x_NI, weight_OI.t(), options, config)

    return product


def _refuse_device(device: torch.device) -> None:
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        raise EnvironmentFault(
            f"this GPU does not multiply in float8: its compute capability is {'.'.join(map(str, found))}",
            f"float8 needs {'.'.join(map(str, LEAST_CAPABILITY))} or more: Ada, Hopper and later",
            'train in "bfloat16", or on another device',
        )
