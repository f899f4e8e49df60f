"""AdamW against a reference in float64, moments before the first step, resuming, balance parameters."""

import pytest
import torch
from optim_cases import ADAMW, MODEL, MUON, RATES, ROUTED, give_gradients, mup, stand_in

from headway.base.errors import ConfigError, RunError
from headway.optim.build import build_optimizer
from headway.recipe.mup import rule
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import OptimizerSpec

KINDS = pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])


def ready(model_spec=MODEL, spec=ADAMW):
    model = stand_in(model_spec)
    return model, build_optimizer(model, spec)


def run(model, optimizer, steps):
    for step in steps:
        give_gradients(model, step)
        optimizer.set_rate(RATES[step])
        optimizer.step()


@pytest.mark.parametrize("scale", [1.0, 1e-8])
@pytest.mark.parametrize("model_spec", [MODEL, mup(1.0), mup(0.5)], ids=["standard", "width", "complete"])
def test_updates_equal_the_definition_in_float64(model_spec, scale):
    """Gradients of the size of epsilon show which epsilon it is."""
    model, optimizer = ready(model_spec)
    rules = {shape.name: rule(shape, model_spec, ADAMW) for shape in parameter_shapes(model_spec)}
    expected = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    m = {n: torch.zeros_like(w) for n, w in expected.items()}
    v = {n: torch.zeros_like(w) for n, w in expected.items()}
    for step, rate in enumerate(RATES):
        give_gradients(model, step, scale)
        for name, p in model.named_parameters():
            g, w, own = p.grad.double(), expected[name], rules[name]
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g * g
            w -= rate * own.rate * own.decay * w
            m_hat, v_hat = m[name] / (1 - 0.9 ** (step + 1)), v[name] / (1 - 0.95 ** (step + 1))
            w -= rate * own.rate * m_hat / (v_hat.sqrt() + own.epsilon)
        optimizer.set_rate(rate)
        optimizer.step()
    flat = optimizer.state_tensors()
    for name, w in expected.items():
        torch.testing.assert_close(flat[f"param/{name}"].double(), w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(flat[f"m/{name}"].double(), m[name], rtol=1e-5, atol=1e-6 * scale)
        torch.testing.assert_close(flat[f"v/{name}"].double(), v[name], rtol=1e-5, atol=1e-6 * scale**2)


@KINDS
def test_gains_and_embeddings_are_not_decayed(spec):
    model, optimizer = ready(spec=spec)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.set_rate(0.5)
    optimizer.step()
    for name, p in model.named_parameters():
        still = "norm" in name or name == "embed.weight"
        torch.testing.assert_close(p.detach(), before[name] * (1.0 if still else 0.95))


@pytest.mark.parametrize("model_spec", [MODEL, ROUTED], ids=["dense", "experts"])
@KINDS
def test_C11_state_has_all_its_keys_before_the_first_step(model_spec, spec):
    model, optimizer = ready(model_spec, spec)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    twice = [n for n in names if spec is ADAMW or "norm" in n or n == "embed.weight"]
    fresh = optimizer.state_tensors()
    wanted = [f"param/{n}" for n, _ in model.named_parameters()] + [f"m/{n}" for n in names] + [f"v/{n}" for n in twice]
    assert list(fresh) == wanted
    assert all(t.dtype == torch.float32 for t in fresh.values())
    run(model, optimizer, [0])
    later = optimizer.state_tensors()
    assert {k: t.data_ptr() for k, t in fresh.items()} == {k: t.data_ptr() for k, t in later.items()}
    assert optimizer.step_counts() == [1]


@KINDS
def test_restored_in_place_it_goes_on_bit_for_bit(spec):
    straight, optimizer = ready(ROUTED, spec)
    run(straight, optimizer, range(3))
    saved = {k: t.clone() for k, t in optimizer.state_tensors().items()}
    run(straight, optimizer, range(3, 6))
    resumed, other = ready(ROUTED, spec)
    for key, tensor in other.state_tensors().items():
        tensor.copy_(saved[key])
    other.restore_step(3)
    run(resumed, other, range(3, 6))
    for a, b in zip(optimizer.state_tensors().values(), other.state_tensors().values(), strict=True):
        assert torch.equal(a, b)
    assert other.step_counts() == [6]


@pytest.mark.parametrize("lost", ["m/", "v/", "step"])
@KINDS
def test_forgetting_moments_or_step_count_is_noticed(lost, spec):
    """The test above can fail: each part of the state matters."""
    straight, optimizer = ready(spec=spec)
    run(straight, optimizer, range(3))
    resumed, other = ready(spec=spec)
    for key, tensor in other.state_tensors().items():
        if not key.startswith(lost):
            tensor.copy_(optimizer.state_tensors()[key])
    other.restore_step(0 if lost == "step" else 3)
    for model, opt in ((straight, optimizer), (resumed, other)):
        run(model, opt, [3])
    assert any(not torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_a_negative_step_is_refused():
    with pytest.raises(RunError, match="-1"):
        ready()[1].restore_step(-1)


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="lion"):
        build_optimizer(stand_in(MODEL), OptimizerSpec("lion", 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0))


@KINDS
def test_a_balance_parameter_is_in_the_state_and_nothing_updates_it(spec):
    model, optimizer = ready(ROUTED, spec)
    name = "layers.1.router.bias"
    before = dict(model.named_parameters())[name].detach().clone()
    run(model, optimizer, range(2))
    assert [key for key in optimizer.state_tensors() if key.endswith(name)] == [f"param/{name}"]
    assert torch.equal(optimizer.state_tensors()[f"param/{name}"], before)


def test_a_balance_parameter_with_a_gradient_is_our_own_fault():
    model = stand_in(ROUTED).requires_grad_(True)
    with pytest.raises(AssertionError, match="is moved by loads"):
        build_optimizer(model, ADAMW)


def test_gradients_are_let_go():
    model, optimizer = ready()
    give_gradients(model, 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
