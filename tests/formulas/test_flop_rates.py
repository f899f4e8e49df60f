"""A rate says what it counts and over what time; each factor is charged once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.flop_rates import Counts, Rate, Window, convert, model_end_to_end

KINDS = list(itertools.product(Counts, Window))
FACTORS = {"recompute": st.floats(1, 4), "goodput": st.floats(0.05, 1)}


def needed(a, b, recompute, goodput):
    return {"recompute": recompute if a[0] is not b[0] else None, "goodput": goodput if a[1] is not b[1] else None}


@given(st.floats(1e9, 1e16), st.sampled_from(KINDS), st.sampled_from(KINDS), FACTORS["recompute"], FACTORS["goodput"])
def test_there_and_back_is_the_same_rate(flops, a, b, recompute, goodput):
    rate = Rate(flops_per_second=flops, counts=a[0], window=a[1])
    there = convert(rate, counts=b[0], window=b[1], **needed(a, b, recompute, goodput))
    back = convert(there, counts=a[0], window=a[1], **needed(a, b, recompute, goodput))
    assert back.flops_per_second == pytest.approx(flops, rel=1e-12)
    assert (there.counts, there.window) == b


def test_the_four_kinds_by_hand():
    healthy_hardware = Rate(flops_per_second=240e12, counts=Counts.HARDWARE, window=Window.HEALTHY)
    assert model_end_to_end(healthy_hardware, recompute=8 / 6, goodput=0.9).flops_per_second == pytest.approx(162e12)
    model = Rate(flops_per_second=180e12, counts=Counts.MODEL, window=Window.END_TO_END)
    assert model_end_to_end(model) == model
    assert convert(model, counts=Counts.HARDWARE, window=Window.END_TO_END, recompute=8 / 6).flops_per_second == 240e12


@pytest.mark.parametrize(
    ("kind", "factors", "message"),
    [
        ((Counts.MODEL, Window.HEALTHY), {"recompute": 1.33, "goodput": 0.9}, "recomputation is charged on a model rate"),
        ((Counts.MODEL, Window.END_TO_END), {"goodput": 0.9}, "failures are discounted from an end-to-end rate"),
        ((Counts.MODEL, Window.HEALTHY), {}, "a healthy rate cannot become end-to-end"),
        ((Counts.HARDWARE, Window.END_TO_END), {}, "a hardware rate cannot become a model rate"),
        ((Counts.HARDWARE, Window.END_TO_END), {"recompute": 0.9}, "a recompute factor of 0.9"),
        ((Counts.MODEL, Window.HEALTHY), {"goodput": 1.2}, "a goodput of 1.2"),
    ],
)
def test_factors_that_count_twice_or_are_missing_are_refused(kind, factors, message):
    with pytest.raises(ConfigError, match=message):
        model_end_to_end(Rate(flops_per_second=1e14, counts=kind[0], window=kind[1]), **factors)


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_positive_and_finite(flops):
    with pytest.raises(ConfigError, match="a rate is above zero"):
        Rate(flops_per_second=flops, counts=Counts.MODEL, window=Window.HEALTHY)
