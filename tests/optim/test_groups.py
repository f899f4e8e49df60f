"""The table of recipe/mup.py as groups: golden values, and who is together with whom."""

import dataclasses

import pytest
import torch
from optim_cases import ADAMW, MODEL, MUON, ROUTED, WIDER, mup, stand_in

from headway.optim.build import build_optimizer
from headway.optim.groups import Terms

HIDDEN = ["layers.0.attention.q.weight", "layers.3.attention.o.weight", "layers.1.ffn.up.weight", "layers.2.ffn.down.weight"]
GAINS = ["layers.0.attention_norm.weight", "layers.2.ffn_norm.bias", "layers.1.attention.q_norm.weight", "layers.3.ffn.up.bias"]
OUTSIDE = ["embed.weight", "head.weight", "norm.weight", "norm.bias"]
ETA = 1e-3


def terms(optimizer, model, name):
    """Of the group of ``name``, which must be in exactly one; rate as it is used at ETA."""
    parameter = dict(model.named_parameters())[name]
    (found,) = [group.terms for group in optimizer.groups if any(p is parameter for p in group.parameters)]
    return dataclasses.replace(found, rate=found.rate * ETA)


@pytest.mark.parametrize(
    ("depth_alpha", "names", "rate", "decay", "epsilon"),
    [
        (1.0, HIDDEN, 2.5e-4, 0.4, 6.25e-10),
        (1.0, GAINS, 1e-3, 0.0, 6.25e-10),
        (1.0, OUTSIDE, 1e-3, 0.0, 2.5e-9),
        (0.5, HIDDEN, 1.25e-4, 0.4, 1.25e-9),
        (0.5, GAINS, 5e-4, 0.0, 1.25e-9),
        (0.5, OUTSIDE, 1e-3, 0.0, 2.5e-9),
    ],
)
def test_golden_values_at_width_and_depth_factor_4(depth_alpha, names, rate, decay, epsilon):
    """eta 1e-3, decay .1, epsilon 1e-8."""
    model = stand_in(mup(depth_alpha))
    optimizer = build_optimizer(model, ADAMW)
    for name in names:
        found = terms(optimizer, model, name)
        assert found.update == "adamw"
        assert [found.rate, found.decay, found.epsilon] == pytest.approx([rate, decay, epsilon], rel=1e-12), name


def test_the_golden_rates_are_what_weights_feel():
    """A first step of AdamW moves every element by the rate."""
    model = stand_in(mup(0.5))
    optimizer = build_optimizer(model, dataclasses.replace(ADAMW, weight_decay=0.0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.set_rate(ETA)
    optimizer.step()
    for names, rate in ((HIDDEN, 1.25e-4), (GAINS, 5e-4), (OUTSIDE, 1e-3)):
        for name in names:
            moved = (before[name] - dict(model.named_parameters())[name]).double()
            torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-3, atol=0)  # float32 weights of about 0.1


def test_the_standard_parametrisation_has_two_groups():
    groups = build_optimizer(stand_in(WIDER), ADAMW).groups
    assert {group.terms for group in groups} == {Terms("adamw", 1.0, 0.1, 1e-8), Terms("adamw", 1.0, 0.0, 1e-8)}


@pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("model_spec", [MODEL, ROUTED, mup(0.5)], ids=["standard", "experts", "mup"])
def test_every_parameter_that_learns_is_in_one_group(model_spec, spec):
    model = stand_in(model_spec)
    grouped = [id(p) for group in build_optimizer(model, spec).groups for p in group.parameters]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_muon_has_the_matrices_of_the_blocks_with_their_own_rate():
    model = stand_in(ROUTED)
    optimizer = build_optimizer(model, dataclasses.replace(MUON, matrix_rate=2e-2))  # twice the peak
    matrices = {n for n, p in model.named_parameters() if terms_or_none(optimizer, p) == "muon"}
    assert matrices == {n for n, p in model.named_parameters() if p.ndim > 1 and n != "embed.weight"}
    assert terms(optimizer, model, "layers.1.experts.up.weight") == Terms("muon", 2 * ETA, 0.1, 1e-8)
    assert terms(optimizer, model, "embed.weight") == Terms("adamw", ETA, 0.0, 1e-8)


def terms_or_none(optimizer, parameter):
    return next((group.terms.update for group in optimizer.groups if any(p is parameter for p in group.parameters)), None)


@pytest.mark.parametrize(("scale", "rate", "decay"), [("rms", 2.5e-4, 0.2), ("spectral", 5e-4, 0.1)])
def test_muon_follows_the_width_by_its_scale(scale, rate, decay):
    model = stand_in(mup(0.5))
    optimizer = build_optimizer(model, dataclasses.replace(MUON, muon_scale=scale))
    found = terms(optimizer, model, HIDDEN[0])
    assert (found.update, found.rate, found.decay) == ("muon", pytest.approx(rate), pytest.approx(decay))


def test_a_parameter_without_a_role_is_our_own_fault():
    model = stand_in(MODEL)
    model.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(AssertionError, match="extra"):
        build_optimizer(model, ADAMW)
