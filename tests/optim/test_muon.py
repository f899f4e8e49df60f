"""Muon against torch.optim.Muon step by step, by hand where one can, and the shape of its update."""

import dataclasses
import math

import pytest
import torch
from optim_cases import MUON, RATES
from torch import nn

from headway.optim.groups import Group, Terms
from headway.optim.muon import QUINTIC, TURNS, Muon, orthogonal

BFLOAT16_TURNS = 0.05
"""Of an update's norm: what five turns make of a rounding in bfloat16, which both sides place differently."""

TERMS = Terms("muon", 1.0, 0.1, 1e-8)
SHAPES = [(16, 16), (48, 16), (16, 48), (1, 8)]


def ours(*parameters, scale="rms", terms=TERMS):
    return Muon([Group(terms, parameters)], dataclasses.replace(MUON, muon_scale=scale))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("scale", "theirs"), [("rms", "match_rms_adamw"), ("spectral", "original")])
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_torch_step_by_step(shape, scale, theirs):
    w = nn.Parameter(normal(*shape))
    other = nn.Parameter(w.detach().clone())
    mine, reference = ours(w, scale=scale), torch.optim.Muon([other], momentum=0.95, weight_decay=0.1, adjust_lr_fn=theirs)
    for step, rate in enumerate(RATES):
        before = w.detach().clone()
        with torch.no_grad():
            other.copy_(w)  # each step from the same weights: errors do not add up
        w.grad = normal(*shape, seed=step)
        other.grad = w.grad.clone()
        mine.set_rate(rate)
        mine.step(None)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        moved, expected = w.detach() - before, other.detach() - before
        assert (moved - expected).norm() < BFLOAT16_TURNS * expected.norm(), step
        torch.testing.assert_close(mine.moments()["m"][w], reference.state[other]["momentum_buffer"])


def test_decay_is_decoupled_and_follows_the_groups_rate():
    """Without a gradient: w (1 - rate factor decay), and nothing else."""
    w = nn.Parameter(normal(4, 6))
    before = w.detach().clone()
    muon = ours(w, terms=Terms("muon", 0.5, 0.4, 1e-8))
    w.grad = torch.zeros(4, 6)
    muon.set_rate(0.1)
    muon.step(None)
    torch.testing.assert_close(w.detach(), before * (1 - 0.1 * 0.5 * 0.4))


@pytest.mark.parametrize("shape", [(32, 32), (96, 24), (24, 96), (3, 24, 40)])
def test_singular_values_of_an_update_are_near_one(shape):
    values = torch.linalg.svdvals(orthogonal(normal(1, *shape)[0].reshape(-1, *shape[-2:])).double())
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.3
    assert float(values.mean()) == pytest.approx(0.9, abs=0.15)


def test_an_update_turns_where_the_gradient_turns():
    """Signs of U V': the update is nearly that of an exact decomposition."""
    u = normal(1, 24, 40)
    left, _, right = torch.linalg.svd(u[0], full_matrices=False)
    exact, found = left @ right, orthogonal(u)[0].float()
    assert float((exact * found).sum() / (exact.norm() * found.norm())) > 0.97


def quintic(value):
    """The turns on one singular value, in float64."""
    a, b, c = QUINTIC
    for _ in range(TURNS):
        value = a * value + b * value**3 + c * value**5
    return value


@pytest.mark.parametrize("gradient", [3.0, -1e-3, 1e20])
def test_by_hand_one_by_one(gradient):
    """The update of a number is its sign, as far as the turns leave 1 a 1: p(1) = .7010, ... p^5(1) = .6970."""
    value = orthogonal(torch.full((1, 1, 1), gradient))
    assert quintic(1.0) == pytest.approx(0.6970, abs=1e-3)
    assert float(value) == pytest.approx(math.copysign(quintic(1.0), gradient), abs=BFLOAT16_TURNS)


def test_by_hand_diagonal():
    """diag(3, -4) has norm 5: singular values .6 and .8, each turned by itself."""
    found = orthogonal(torch.diag(torch.tensor([3.0, -4.0]))[None])[0].double()
    torch.testing.assert_close(
        found, torch.diag(torch.tensor([quintic(0.6), -quintic(0.8)])).double(), rtol=0, atol=BFLOAT16_TURNS
    )


def test_by_hand_nesterov_and_scale():
    """1 x 1, momentum .95, scale .2: there, and back."""
    w = nn.Parameter(torch.zeros(1, 1))
    muon = ours(w, terms=dataclasses.replace(TERMS, decay=0.0))
    w.grad = torch.full((1, 1), 1.0)
    muon.set_rate(1.0)
    muon.step(None)
    assert w.item() == pytest.approx(-0.2 * quintic(1.0), abs=0.01)
    w.grad = torch.full((1, 1), -1.0)
    muon.step(None)  # m = .95 * .05 - .05 = -.0025, u = -.05 - .95 * .0025 < 0: back up
    assert float(muon.moments()["m"][w]) == pytest.approx(-0.0025, abs=1e-6)
    assert w.item() == pytest.approx(0.0, abs=0.01)


def test_nesterov_decides_where_momentum_still_points_back():
    """m = .05 g1 (g1 = 1), g2 = -.5: m = .0225 > 0, u = -.025 + .95 * .0225 = -.0036: the update follows u."""
    w = nn.Parameter(torch.zeros(1, 1))
    muon = ours(w, terms=dataclasses.replace(TERMS, decay=0.0))
    for gradient in (1.0, -0.5):
        before = w.item()
        w.grad = torch.full((1, 1), gradient)
        muon.step(None)
    assert float(muon.moments()["m"][w]) == pytest.approx(0.0225)
    assert w.item() > before


@pytest.mark.parametrize("scale", ["rms", "spectral"])
def test_each_expert_is_a_matrix_of_its_own(scale):
    """One parameter [X, out, in] moves as X parameters [out, in]."""
    together = nn.Parameter(normal(3, 10, 6))
    apart = [nn.Parameter(matrix.clone()) for matrix in together.detach()]
    one, many = ours(together, scale=scale), ours(*apart, scale=scale)
    for step in range(3):
        together.grad = normal(3, 10, 6, seed=step) * torch.tensor([1.0, 0.0, 1e-3]).view(3, 1, 1)  # one expert idle, one shy
        for p, g in zip(apart, together.grad, strict=True):
            p.grad = g.clone()
        one.step(None)
        many.step(None)
    for matrix, p in zip(together.detach(), apart, strict=True):
        torch.testing.assert_close(matrix, p.detach(), rtol=0, atol=1e-4)


def test_the_rms_scale_gives_updates_of_adamws_size():
    for shape in ((32, 32), (96, 24), (24, 96)):
        w = nn.Parameter(torch.zeros(shape))
        w.grad = normal(*shape)
        muon = ours(w)
        muon.set_rate(1.0)
        muon.step(None)
        assert float(w.detach().square().mean().sqrt()) == pytest.approx(0.2, abs=0.04)


def test_bitwise_repeatable():
    results = []
    for _ in range(2):
        w = nn.Parameter(normal(2, 24, 40))
        muon = ours(w)
        for step in range(3):
            w.grad = normal(2, 24, 40, seed=step)
            muon.step(None)
        results.append(w.detach())
    assert torch.equal(*results)
