"""AdamW against a reference in float64, groups by role, moments before the first step, clipping."""

import math

import pytest
import torch

from headway.base.errors import ConfigError
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.optim.adamw import build_optimizer, restore_step, set_rate, state_tensors, step_counts
from headway.optim.clip import clip_by_norm
from headway.recipe.roles import decays, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec

MODEL = ModelSpec(
    layers=1, width=8, heads=2, kv_heads=1, head_width=4, ffn_width=12, vocabulary=11,
    rope_base=1e4, norm_epsilon=1e-5, qk_norm=True, tied_embeddings=True, init_std=0.1,
)  # fmt: skip
ADAMW = OptimizerSpec("adamw", 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0)
RATES = [1e-3, 1e-2, 5e-3, 5e-3, 1e-4, 1e-2]


def ready():
    model = Decoder(MODEL)
    initialise(model, MODEL, 1)
    return model, build_optimizer(model, ADAMW)


def give_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def run(model, optimizer, steps):
    for step in steps:
        give_gradients(model, step)
        set_rate(optimizer, RATES[step])
        optimizer.step()


def test_updates_equal_the_definition_in_float64():
    model, optimizer = ready()
    roles = {p.name: p.role for p in parameter_shapes(MODEL)}
    expected = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    m = {n: torch.zeros_like(w) for n, w in expected.items()}
    v = {n: torch.zeros_like(w) for n, w in expected.items()}
    for step, rate in enumerate(RATES):
        give_gradients(model, step)
        for name, p in model.named_parameters():
            g, w = p.grad.double(), expected[name]
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g * g
            w -= rate * (0.1 if decays(roles[name]) else 0.0) * w
            m_hat, v_hat = m[name] / (1 - 0.9 ** (step + 1)), v[name] / (1 - 0.95 ** (step + 1))
            w -= rate * m_hat / (v_hat.sqrt() + 1e-8)
        run(model, optimizer, [step])
    flat = state_tensors(model, optimizer)
    for name, w in expected.items():
        torch.testing.assert_close(flat[f"param/{name}"].double(), w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(flat[f"m/{name}"].double(), m[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(flat[f"v/{name}"].double(), v[name], rtol=1e-5, atol=1e-6)


def test_gains_and_embeddings_are_not_decayed():
    model, optimizer = ready()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    set_rate(optimizer, 0.5)
    optimizer.step()
    for name, p in model.named_parameters():
        still = "norm" in name or name == "embed.weight"
        torch.testing.assert_close(p.detach(), before[name] * (1.0 if still else 0.95))


def test_C11_state_has_all_its_keys_before_the_first_step():
    model, optimizer = ready()
    names = [n for n, _ in model.named_parameters()]
    fresh = state_tensors(model, optimizer)
    assert set(fresh) == {f"{kind}/{n}" for kind in ("param", "m", "v") for n in names}
    assert all(t.dtype == torch.float32 for t in fresh.values())
    run(model, optimizer, [0])
    later = state_tensors(model, optimizer)
    assert {k: t.data_ptr() for k, t in fresh.items()} == {k: t.data_ptr() for k, t in later.items()}
    assert step_counts(optimizer) == [1]


def test_restored_in_place_it_goes_on_bit_for_bit():
    straight, optimizer = ready()
    run(straight, optimizer, range(3))
    saved = {k: t.clone() for k, t in state_tensors(straight, optimizer).items()}
    run(straight, optimizer, range(3, 6))
    resumed, other = ready()
    for key, tensor in state_tensors(resumed, other).items():
        tensor.copy_(saved[key])
    restore_step(other, 3)
    run(resumed, other, range(3, 6))
    for a, b in zip(state_tensors(straight, optimizer).values(), state_tensors(resumed, other).values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lost", ["m/", "v/", "step"])
def test_forgetting_moments_or_step_count_is_noticed(lost):
    """The test above can fail: each part of the state matters."""
    straight, optimizer = ready()
    run(straight, optimizer, range(3))
    resumed, other = ready()
    for key, tensor in state_tensors(resumed, other).items():
        if not key.startswith(lost):
            tensor.copy_(state_tensors(straight, optimizer)[key])
    restore_step(other, 0 if lost == "step" else 3)
    for model, opt in ((straight, optimizer), (resumed, other)):
        run(model, opt, [3])
    assert any(not torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="lion"):
        build_optimizer(ready()[0], OptimizerSpec("lion", 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0))


def test_clip_scales_the_whole_gradient_to_the_limit():
    model, _ = ready()
    give_gradients(model, 0)
    whole = torch.cat([p.grad.double().flatten() for p in model.parameters()])
    result = clip_by_norm(model.parameters(), 0.5)
    assert result.clipped
    assert result.norm == pytest.approx(float(whole.norm()), rel=1e-6)
    after = torch.cat([p.grad.double().flatten() for p in model.parameters()])
    torch.testing.assert_close(after, whole * 0.5 / result.norm, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("limit", [None, 1e9])
def test_a_norm_within_the_limit_leaves_gradients_alone(limit):
    model, _ = ready()
    give_gradients(model, 0)
    before = [p.grad.clone() for p in model.parameters()]
    result = clip_by_norm(model.parameters(), limit)
    assert not result.clipped
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_L9_a_gradient_that_is_not_finite_is_reported_and_nothing_else_touched(bad):
    model, _ = ready()
    give_gradients(model, 0)
    model.layers[0].ffn.up.weight.grad[3, 2] = bad
    before = [p.grad.clone() for p in model.parameters()]
    result = clip_by_norm(model.parameters(), 1.0)
    assert not result.finite
    assert not result.clipped
    assert all(torch.equal(a, p.grad) or "nan" in str(a) for a, p in zip(before, model.parameters(), strict=True))


def test_a_huge_but_finite_gradient_is_clipped_not_called_infinite():
    """Its square leaves float32: the norm must not."""
    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = torch.full((4,), 1e30)
    result = clip_by_norm([p], 1.0)
    assert result.norm == pytest.approx(2e30)
    torch.testing.assert_close(p.grad, torch.full((4,), 0.5))
