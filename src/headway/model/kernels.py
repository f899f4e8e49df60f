"""Elementwise parts of a block with their gradients written out.

Each is a handful of passes over memory where autograd would make three times as many, and each computes in float32
(or wider) whatever it is given: between GEMMs the CPU is bound by these passes. The gradients are tested against
autograd in float64.

Shapes: N tokens (any leading axes), D width, H heads, E head width, F ffn.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.wide import wide


def _inverse_rms(x_ND: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(mean x^2 + epsilon) over the last axis, kept."""
    square_N1 = torch.linalg.vector_norm(x_ND, dim=-1, keepdim=True).square_()
    return square_N1.div_(x_ND.shape[-1]).add_(epsilon).rsqrt_()


def _norm_gradient(grad_ND: Tensor, unit_ND: Tensor, gain_D: Tensor, inverse_N1: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of unit * gain by x and by gain, where unit = x * inverse. ``grad_ND`` is overwritten.

    dx = inverse * (gain g - unit * mean(gain g unit))
    """
    product_ND = grad_ND * unit_ND
    mean_N1 = (product_ND @ gain_D).unsqueeze(-1).div_(-gain_D.shape[0])
    grad_gain_D = product_ND.flatten(0, -2).sum(0)
    grad_x_ND = grad_ND.mul_(gain_D).addcmul_(unit_ND, mean_N1).mul_(inverse_N1)
    return grad_x_ND, grad_gain_D


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, gain_D: Tensor, epsilon: float) -> Tensor:
        wide_ND = wide(x_ND)
        inverse_N1 = _inverse_rms(wide_ND, epsilon)
        ctx.save_for_backward(x_ND, gain_D, inverse_N1)
        return (wide_ND * inverse_N1).mul_(wide(gain_D)).to(x_ND.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, gain_D, inverse_N1 = ctx.saved_tensors
        unit_ND = wide(x_ND) * inverse_N1
        grad = wide(grad_ND) if grad_ND.dtype != inverse_N1.dtype else grad_ND.clone()
        grad_x_ND, grad_gain_D = _norm_gradient(grad, unit_ND, wide(gain_D), inverse_N1)
        return grad_x_ND.to(x_ND.dtype), grad_gain_D.to(gain_D.dtype), None


def rms_norm(x_ND: Tensor, gain_D: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * gain over the last axis."""
    return _RmsNorm.apply(x_ND, gain_D, epsilon)


class _LayerNorm(Function):
    """torch's kernels, with float32 around the backward: in bfloat16 they sum the gradients of gain and bias in bfloat16,
    which is off by 5 % over 4,096 tokens."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, gain_D: Tensor, bias_D: Tensor | None, epsilon: float) -> Tensor:
        wide_bias_D = None if bias_D is None else wide(bias_D)
        out_ND, mean_N1, inverse_N1 = torch.native_layer_norm(x_ND, gain_D.shape, wide(gain_D), wide_bias_D, epsilon)
        ctx.save_for_backward(x_ND, gain_D, bias_D, mean_N1, inverse_N1)
        return out_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, gain_D, bias_D, *moments = ctx.saved_tensors
        biased, wide_bias_D = bias_D is not None, None if bias_D is None else wide(bias_D)
        grad_x_ND, grad_gain_D, grad_bias_D = torch.ops.aten.native_layer_norm_backward(
            wide(grad_ND), wide(x_ND), gain_D.shape, *moments, wide(gain_D), wide_bias_D, [True, True, biased]
        )
        return grad_x_ND.to(x_ND.dtype), grad_gain_D.to(gain_D.dtype), grad_bias_D.to(bias_D.dtype) if biased else None, None


def layer_norm(x_ND: Tensor, gain_D: Tensor, bias_D: Tensor | None, epsilon: float) -> Tensor:
    """(x - mean x) / sqrt(var x + epsilon) * gain + bias over the last axis."""
    if x_ND.device.type != "cpu":  # there, torch sums in float32
        bias_D = None if bias_D is None else bias_D.to(x_ND.dtype)
        return F.layer_norm(x_ND, gain_D.shape, gain_D.to(x_ND.dtype), bias_D, epsilon)
    return _LayerNorm.apply(x_ND, gain_D, bias_D, epsilon)


def rotate(x_NHE: Tensor, cos_N1R: Tensor, sin_N1R: Tensor) -> Tensor:
    """Rotate pairs (i, i + R) of the first 2 R values by their angles; the rest stays. The inverse is the rotation with -sin."""
    half = cos_N1R.shape[-1]
    first, second, rest = x_NHE.split([half, half, x_NHE.shape[-1] - 2 * half], -1)
    out_NHE = torch.empty_like(x_NHE)
    torch.mul(first, cos_N1R, out=out_NHE[..., :half]).addcmul_(second, sin_N1R, value=-1)
    torch.mul(second, cos_N1R, out=out_NHE[..., half : 2 * half]).addcmul_(first, sin_N1R)
    out_NHE[..., 2 * half :] = rest
    return out_NHE


def _rotate_or_not(x_NHE: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    return x_NHE if cos is None or sin is None else rotate(x_NHE, cos, sin)


def _turned_back(grad_NHE: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """The gradient before the rotation, in float32 or wider: always a copy."""
    wide_NHE = wide(grad_NHE)
    if cos is None or sin is None:
        return wide_NHE.clone() if wide_NHE is grad_NHE else wide_NHE
    return rotate(wide_NHE, cos, -sin)


class _NormRotate(Function):
    @staticmethod
    def forward(
        ctx: Any, x_NHE: Tensor, gain_E: Tensor, cos: Tensor | None, sin: Tensor | None, epsilon: float, scale: float
    ) -> Tensor:
        wide_NHE = wide(x_NHE)
        inverse_NH1 = _inverse_rms(wide_NHE, epsilon)
        ctx.save_for_backward(x_NHE, gain_E, inverse_NH1, cos, sin)
        ctx.scale = scale
        return _rotate_or_not((wide_NHE * inverse_NH1).mul_(wide(gain_E) * scale), cos, sin).to(x_NHE.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHE: Tensor) -> tuple[Tensor | None, ...]:
        x_NHE, gain_E, inverse_NH1, cos, sin = ctx.saved_tensors
        unit_NHE = wide(x_NHE) * inverse_NH1
        grad = _turned_back(grad_NHE, cos, sin)
        grad_x_NHE, grad_gain_E = _norm_gradient(grad, unit_NHE, wide(gain_E) * ctx.scale, inverse_NH1)
        return grad_x_NHE.to(x_NHE.dtype), (grad_gain_E * ctx.scale).to(gain_E.dtype), None, None, None, None


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x_NHE: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.scale = scale
        return rotate(wide(x_NHE), cos, sin).mul_(scale).to(x_NHE.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHE: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return rotate(wide(grad_NHE), cos, -sin).mul_(ctx.scale).to(grad_NHE.dtype), None, None, None


def norm_rotate(
    x_NHE: Tensor, gain_E: Tensor | None, cos: Tensor | None, sin: Tensor | None, epsilon: float, scale: float = 1.0
) -> Tensor:
    """QK-norm (none when ``gain_E`` is None), the rotary embedding of every head (none when ``cos`` is None), and ``scale``.

    The first 2 * cos.shape[-1] values of a head turn. The scale of attention is applied here, before the one rounding,
    because 1 / sqrt(E) is not exact in bfloat16.
    """
    if gain_E is not None:
        return _NormRotate.apply(x_NHE, gain_E, cos, sin, epsilon, scale)
    if cos is None:
        return x_NHE if scale == 1.0 else x_NHE * scale
    return _Rotate.apply(x_NHE, cos, sin, scale)


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NF, up_NF)
        return F.silu(gate_NF).mul_(up_NF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
        gate_NF, up_NF = ctx.saved_tensors
        grad_up_NF = F.silu(gate_NF).mul_(grad_NF)
        return torch.ops.aten.silu_backward(grad_NF * up_NF, gate_NF), grad_up_NF


def swiglu(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """silu(gate) * up. Saves its two inputs only; silu is computed again in backward."""
    return _SwiGlu.apply(gate_NF, up_NF)


class _GeGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NF, up_NF)
        return gelu(gate_NF).mul_(up_NF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
        gate_NF, up_NF = ctx.saved_tensors
        grad_up_NF = gelu(gate_NF).mul_(grad_NF)
        return torch.ops.aten.gelu_backward(grad_NF * up_NF, gate_NF, approximate="tanh"), grad_up_NF


def geglu(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """gelu(gate) * up, as Gemma. Saves its two inputs only, as ``swiglu``."""
    return _GeGlu.apply(gate_NF, up_NF)


def gelu(x_NF: Tensor) -> Tensor:
    """x times the normal distribution function of x, by its tanh approximation, as GPT-2. torch's own saves its input only."""
    return F.gelu(x_NF, approximate="tanh")


class _Relu2(Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor) -> Tensor:
        ctx.save_for_backward(x_NF)
        return F.relu(x_NF).square_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> Tensor:
        (x_NF,) = ctx.saved_tensors
        return F.relu(x_NF).mul_(grad_NF).mul_(2)


def relu2(x_NF: Tensor) -> Tensor:
    """max(x, 0)^2 (arXiv 2109.08668)."""
    return _Relu2.apply(x_NF)
