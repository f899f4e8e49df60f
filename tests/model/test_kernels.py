"""Written-out gradients against autograd and finite differences, in float64."""

import pytest
import torch
import torch.nn.functional as F

from headway.model.kernels import geglu, gelu, layer_norm, norm_rotate, relu2, rms_norm, rotate, swiglu


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def angles(n, half):
    angle = randn(n, 1, half, seed=9)
    return angle.cos(), angle.sin()


def test_rms_norm_gradients_by_finite_differences():
    x, gain = randn(3, 4, 6).requires_grad_(), randn(6, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, g: rms_norm(x, g, 1e-5), (x, gain))


@pytest.mark.parametrize("with_norm", [True, False])
def test_norm_rotate_gradients_by_finite_differences(with_norm):
    x, gain = randn(5, 3, 8).requires_grad_(), randn(8, seed=1).requires_grad_()
    cos, sin = angles(5, 4)
    if with_norm:
        assert torch.autograd.gradcheck(lambda x, g: norm_rotate(x, g, cos, sin, 1e-5), (x, gain))
    else:
        assert torch.autograd.gradcheck(lambda x: norm_rotate(x, None, cos, sin, 1e-5), (x,))


def test_swiglu_gradients_by_finite_differences():
    assert torch.autograd.gradcheck(swiglu, (randn(4, 6).requires_grad_(), randn(4, 6, seed=1).requires_grad_()))


def test_values_equal_torch():
    x, gain, up = randn(4, 6), randn(6, seed=1), randn(4, 6, seed=2)
    torch.testing.assert_close(rms_norm(x, gain, 1e-5), F.rms_norm(x, (6,), gain, 1e-5))
    torch.testing.assert_close(swiglu(x, up), F.silu(x) * up)


def test_rotation_keeps_length_and_is_undone_by_the_negative_angle():
    x, (cos, sin) = randn(5, 3, 8), angles(5, 4)
    turned = rotate(x, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(turned, cos, -sin), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_and_upstream_gradients_are_left_alone(dtype):
    """In-place passes work on copies only, also where a cast to float32 would be none."""
    x, gain, (cos, sin) = randn(5, 3, 8).to(dtype), randn(8, seed=1).to(dtype), angles(5, 4)
    x.requires_grad_(), gain.requires_grad_()
    for f in (
        lambda: rms_norm(x, gain, 1e-5),
        lambda: norm_rotate(x, gain, cos.float(), sin.float(), 1e-5),
        lambda: swiglu(x, x),
    ):
        before, grad = x.detach().clone(), randn(5, 3, 8, seed=4).to(dtype)
        kept = grad.clone()
        f().backward(grad)
        assert torch.equal(x.detach(), before)
        assert torch.equal(grad, kept)


def test_bfloat16_computes_in_float32_inside():
    """One rounding at the end: within half a unit in the last place of the float32 result."""
    x, gain = randn(64, 32).bfloat16(), randn(32, seed=1).bfloat16()
    wide = rms_norm(x.float(), gain.float(), 1e-5)
    assert torch.equal(rms_norm(x, gain, 1e-5), wide.bfloat16())


# --- activations and layer norm


@pytest.mark.parametrize("f", [geglu, swiglu])
def test_gated_gradients_by_finite_differences(f):
    assert torch.autograd.gradcheck(f, (randn(4, 6).requires_grad_(), randn(4, 6, seed=1).requires_grad_()))


@pytest.mark.parametrize("f", [gelu, relu2])
def test_plain_gradients_by_finite_differences(f):
    assert torch.autograd.gradcheck(f, (randn(4, 6).requires_grad_(),))


def test_activations_by_their_definitions():
    x, up = randn(4, 6), randn(4, 6, seed=1)
    tanh_gelu = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(gelu(x), tanh_gelu)
    torch.testing.assert_close(geglu(x, up), tanh_gelu * up)
    torch.testing.assert_close(relu2(x), torch.where(x > 0, x * x, 0))


@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm_gradients_by_finite_differences(with_bias):
    x, gain, bias = randn(3, 4, 6).requires_grad_(), randn(6, seed=1).requires_grad_(), randn(6, seed=2).requires_grad_()
    if with_bias:
        assert torch.autograd.gradcheck(lambda *inputs: layer_norm(*inputs, 1e-5), (x, gain, bias))
    else:
        assert torch.autograd.gradcheck(lambda *inputs: layer_norm(*inputs, None, 1e-5), (x, gain))


@pytest.mark.parametrize("gains", [torch.float32, torch.bfloat16])
def test_layer_norm_in_bfloat16_is_rounded_once(gains):
    """Output and all gradients over 4,096 tokens. torch alone sums gradients of gain and bias in bfloat16: 5 % off."""
    x, gain, bias = (randn(4096, 32) * 3 + 1).bfloat16(), (1 + randn(32, seed=1) / 5).to(gains), randn(32, seed=2).to(gains)
    grad = randn(4096, 32, seed=3).bfloat16()

    def results(*inputs):
        inputs = [i.requires_grad_() for i in inputs]
        out = layer_norm(*inputs, 1e-5)
        return [out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))]

    exact = results(x.double(), gain.double(), bias.double())
    for found, truth in zip(results(x, gain, bias), exact, strict=True):
        rounding = 1e-6 if found.dtype == torch.float32 else 2**-8
        assert (found.double() - truth).norm() < rounding * truth.norm()


@pytest.mark.parametrize("f", [geglu, swiglu, lambda x, _: gelu(x), lambda x, _: relu2(x)])
def test_activations_keep_their_inputs_alone(f):
    x, up, kept = randn(4, 6).requires_grad_(), randn(4, 6, seed=1).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        f(x, up)
    assert {t.data_ptr() for t in kept} <= {x.data_ptr(), up.data_ptr()}
