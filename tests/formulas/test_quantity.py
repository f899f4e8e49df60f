"""Quantities: how they show themselves, and that an estimate cannot lie outside its own range."""

from __future__ import annotations

import json
import math

import pytest

from headway.formulas.quantity import Quantity, estimate, unknown


@pytest.mark.parametrize(
    ("quantity", "shown"),
    [
        (Quantity("a", 1_234_567, "tokens", ""), "1,234,567 tokens"),
        (Quantity("a", 405_853_388_800, "parameters", ""), "405.9B parameters"),
        (Quantity("a", 9_999_999_999, "tokens", ""), "10B tokens"),
        (Quantity("a", 20, "steps", ""), "20 steps"),
        (Quantity("a", 128_256, "", ""), "128,256"),
        (Quantity("a", 64 * 2**20, "bytes", ""), "64 MiB"),
        (Quantity("a", 141 * 2**30, "bytes", ""), "141 GiB"),
        (Quantity("a", 8.1e11, "bytes", ""), "810 GB"),
        (Quantity("a", 6.4e12, "bytes", ""), "6.4 TB"),
        (Quantity("a", 75.0, "seconds", ""), "1 min 15 s"),
        (Quantity("a", 0.384, "share", ""), "38.4 %"),
        (Quantity("a", 8e-5, "rate", ""), "8e-05"),
        (Quantity("a", 3.6e25, "FLOP", ""), "3.6e+25 FLOP"),
        (Quantity("a", "AdamW", "", ""), "AdamW"),
        (unknown("a", "seconds", "needs a calibration"), "unknown"),
        (estimate("a", 100.0, "seconds", "", {}, "", (0.5, 2.0)), "1 min 40 s (50 s to 3 min 20 s)"),
        (estimate("a", 1000.0, "tokens/s", "", {}, "", (0.9, 1.1)), "1,000 tokens/s (900 to 1,100)"),
    ],
)
def test_shown(quantity, shown):
    assert quantity.shown() == shown


def test_json_names_the_quantities_it_stands_on():
    base = Quantity("base", 3, "", "chosen")
    plain = Quantity("double", 6, "", "2 base", {"base": base, "two": 2}).to_json()
    assert plain["inputs"] == {"base": {"quantity": "base", "value": 3, "unit": ""}, "two": 2}
    json.dumps(plain, allow_nan=False)


def test_a_quantity_is_finite_and_inside_its_range():
    with pytest.raises(ValueError, match="finite or unknown"):
        Quantity("a", math.inf, "", "")
    for outside in ({"low": 6.0, "high": 7.0}, {"low": 6.0}, {"high": 4.0}):
        with pytest.raises(ValueError, match="outside its range"):
            Quantity("a", 5.0, "", "", **outside)
    for value in ("5 to 7", None):
        with pytest.raises(ValueError, match="only numbers"):
            Quantity("a", value, "", "", low=5.0, high=7.0)


def test_a_bound_of_zero_is_a_bound():
    quantity = Quantity("a", 5.0, "", "", low=0.0, high=7.0)
    assert (quantity.at("low"), quantity.at("high")) == (0.0, 7.0)
    assert Quantity("a", 5.0, "", "").at("low") == Quantity("a", 5, "", "", low=0.0).at("high") == 5.0
