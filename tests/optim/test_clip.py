"""Clipping: the norm, the limit, what is not finite, and that nothing waits for a device."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_cases import MODEL, give_gradients, stand_in

from headway.optim.clip import _norm, clip_by_norm, gradient_norm

FLOAT32 = 1e-6
"""Relative: sums of float32 in another order."""

values = st.floats(-1.0, 1.0, width=32)
gradients = st.lists(st.lists(values, min_size=1, max_size=9), min_size=1, max_size=4)


def with_gradients(rows, scale=1.0):
    """Parameters and the whole gradient in float64."""
    parameters = [torch.nn.Parameter(torch.zeros(len(row))) for row in rows]
    for p, row in zip(parameters, rows, strict=True):
        p.grad = torch.tensor(row, dtype=torch.float32) * scale
    return parameters, whole(parameters)


def whole(parameters):
    return torch.cat([p.grad.double().flatten() for p in parameters])


def test_clip_scales_the_whole_gradient_to_the_limit():
    model = stand_in(MODEL)
    give_gradients(model, 0)
    before = whole(model.parameters())
    result = clip_by_norm(model.parameters(), 0.5).read()
    assert (result.clipped, result.applied, result.finite) == (True, True, True)
    assert result.norm == pytest.approx(float(before.norm()), rel=FLOAT32)
    torch.testing.assert_close(whole(model.parameters()), before * 0.5 / result.norm, rtol=FLOAT32, atol=1e-9)


@pytest.mark.parametrize("limit", [None, 1e9])
def test_a_norm_within_the_limit_leaves_gradients_alone(limit):
    model = stand_in(MODEL)
    give_gradients(model, 0)
    before = [p.grad.clone() for p in model.parameters()]
    assert not clip_by_norm(model.parameters(), limit).read().clipped
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))


@given(gradients, st.floats(1e-3, 1e3), st.integers(-12, 36))
def test_after_clipping_the_norm_is_within_the_limit_and_the_direction_is_the_same(rows, limit, exponent):
    parameters, before = with_gradients(rows, 10.0**exponent)
    norm = float(before.norm())
    result = clip_by_norm(parameters, limit).read()
    after = whole(parameters)
    assert result.norm == pytest.approx(norm, rel=FLOAT32, abs=1e-22)  # squares below that leave float32 at its lower end
    assert result.clipped == (result.norm > limit)
    assert float(after.norm()) <= limit * (1 + 2 * FLOAT32)
    expected = before * min(1.0, limit / norm) if norm else before
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-12)  # factors below 1e-38 keep fewer digits


@given(gradients, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_one_value_that_is_not_finite_is_seen_and_spreads_nowhere(rows, bad, data):
    parameters, _ = with_gradients(rows)
    where = data.draw(st.integers(0, len(rows) - 1))
    parameters[where].grad[data.draw(st.integers(0, len(rows[where]) - 1))] = bad
    before = [p.grad.clone() for p in parameters]
    result = clip_by_norm(parameters, 1e-3).read()
    assert (result.finite, result.clipped, result.applied) == (False, False, False)
    for a, p in zip(before, parameters, strict=True):
        torch.testing.assert_close(p.grad, a, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_L9_a_gradient_that_is_not_finite_is_reported_and_nothing_else_touched(bad):
    model = stand_in(MODEL)
    give_gradients(model, 0)
    model.layers.get_submodule("0.ffn.up").weight.grad[3, 2] = bad
    before = [p.grad.clone() for p in model.parameters()]
    result = clip_by_norm(model.parameters(), 1.0).read()
    assert not result.finite
    assert not result.clipped
    assert not result.applied
    for a, p in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, a, rtol=0, atol=0, equal_nan=True)


def test_a_huge_but_finite_gradient_is_clipped_not_called_infinite():
    """Its square leaves float32: the norm must not."""
    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = torch.full((4,), 1e30)
    result = clip_by_norm([p], 1.0).read()
    assert result.norm == pytest.approx(2e30)
    torch.testing.assert_close(p.grad, torch.full((4,), 0.5))


@given(gradients, st.integers(-12, 36))
def test_devices_that_may_not_be_looked_at_find_the_same_norm(rows, exponent):
    parameters, before = with_gradients(rows, 10.0**exponent)
    found = _norm([p.grad for p in parameters], torch.float64)
    assert float(found) == pytest.approx(float(before.norm()), rel=1e-12)
    assert float(gradient_norm([p.grad for p in parameters])) == pytest.approx(float(found), rel=FLOAT32, abs=1e-22)


def test_no_gradient_has_norm_zero():
    result = clip_by_norm([torch.nn.Parameter(torch.zeros(3))], 1.0).read()
    assert (result.norm, result.clipped, result.applied) == (0.0, False, True)


def test_a_reading_says_what_the_step_was_told():
    parameters, _ = with_gradients([[3.0, 4.0]])
    result = clip_by_norm(parameters, 1.0)
    assert result.read(torch.tensor(True)).applied is False
    assert result.read(torch.tensor(False)) == result.read()
    assert (result.read().norm, result.read().clipped) == (5.0, True)
