"""One name has one answer, and what stands on an estimate is one: over all shipped recipes and kinds of deployments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, by_name, make_plan
from headway.plan.ranges import product, rising
from headway.recipe.load import preset_names

LIVE = {"tokens_per_second": 1_000.0, "low": 800.0, "high": 1_250.0, "seconds_per_save": 0.5, "digest_seconds": 0.1}

EXACT = {
    "stored_checkpoints": "as many stay as are kept, however many are written",
}
"""Numbers that stand on an estimate and have no range, and why that is honest."""


def everything(plan: Plan) -> Iterator[Quantity]:
    """Every object once, those that go by one name too."""
    waiting, seen = [*plan.quantities(), *(q for s in plan.sections for t in s.tables for q in t.quantities())], set()
    for quantity in waiting:
        if id(quantity) not in seen:
            seen.add(id(quantity))
            yield quantity
            waiting += [value for value in quantity.inputs.values() if isinstance(value, Quantity)]


def without_range(plan: Plan) -> set[str]:
    """Numbers that stand on an estimate as if it were exact."""
    return {
        quantity.name
        for quantity in everything(plan)
        if isinstance(quantity.value, int | float)
        and not quantity.is_estimate
        and any(isinstance(given, Quantity) and given.is_estimate for given in quantity.inputs.values())
    }


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_one_answer_by_each_name_and_a_range_where_an_input_has_one(name):
    plan = preset(name)
    assert plan.known()
    assert without_range(plan) <= set(EXACT)


PRICE = ("price_per_hour=2.5", "storage.price_per_tb_month=20.0")
FAILURES = ("failures.every=3h", "failures.detection=30s", "checkpoints.every=5min", "checkpoints.permanent_every=8")
SHRINKING = ("failures.repair=12h", "failures.elastic={reconfigure='1min'}")
WIDE = ("accelerator.peak_flops=100T", "accelerator.utilisation=0.4")
DEPLOYMENTS = [
    (*chip, *price, *failures)
    for chip, price, failures in itertools.product(((), CHIP, WIDE), ((), PRICE), ((), FAILURES, FAILURES[:2]))
]


@pytest.mark.parametrize("sets", DEPLOYMENTS, ids=lambda sets: " ".join(sets) or "nothing")
def test_every_kind_of_deployment_too(sets):
    for calibration in (None, LIVE):
        plan = make_plan(draft(*GPT), where(*sets), calibration)
        assert plan.known()
        assert without_range(plan) <= set(EXACT)


def test_what_is_made_on_demand_too():
    extras = frozenset({"search", "sheet", "simulate"})
    plan = make_plan(draft(*GPT), where(*CHIP, "nodes=2", "layouts.default={dp_shard=16}", *FAILURES, *SHRINKING), extras=extras)
    assert plan.quantity("gain_of_shrinking_by_formula").is_estimate
    assert without_range(plan) <= set(EXACT)


def test_two_answers_by_one_name_are_a_bug_and_no_plan():
    one, same, other = (Quantity("x", value, "seconds", "") for value in (1.0, 1.0 + 1e-12, 2.0))
    assert by_name([one, same]) == {"x": one}
    with pytest.raises(AssertionError, match="two quantities are named 'x'"):
        by_name([one, Quantity("y", 2.0, "seconds", "2 x", {"x": other})])
    with pytest.raises(AssertionError):
        by_name([one, Quantity("x", 1.0, "seconds", "", {}, "", 0.5, 2.0)])


@pytest.mark.parametrize("names", [("a b", "A-b"), ("main", "main phase 1")])
def test_stages_that_a_plan_cannot_tell_apart_are_refused_by_name(names):
    ramp = "stages.0.ramp=[{from=0,batch=4096},{from='500k',batch=16384}]"
    spec = draft(ramp, *(f"stages.{place}.name={name}" for place, name in enumerate(names)))
    with pytest.raises(ConfigError, match=names[1]):
        make_plan(spec, where())


def test_products_and_what_rises():
    exact, ranged = Quantity("a", 2, "", ""), Quantity("b", 3, "", "", {}, "", 0, 4)
    open_above = Quantity("c", 5, "", "", {}, "", 1)
    assert product("p", "", "", {"a": exact, "n": 7}).is_estimate is False
    made = product("p", "", "a b", {"a": exact, "b": ranged})
    assert (made.low, made.value, made.high) == (0, 6, 8)
    assert rising(lambda b, c: b + c, ranged, open_above) == (8, 1, None)
