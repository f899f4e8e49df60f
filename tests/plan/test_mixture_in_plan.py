"""What a plan says of mixtures: what was asked beside what caps made of it, rules with their sizes, repeats at their worth."""

from __future__ import annotations

import pytest
from plan_cases import built, draft, where
from scaling_cases import named

from headway.formulas.repetition import WEAKNESS, effective_parameters, effective_tokens
from headway.plan.facts import PlanFacts
from headway.plan.laws.capacity import capacity_section
from headway.plan.outlook import data_section
from headway.plan.plan import Table
from headway.recipe.spec import Spec

SIZES = ("data.sources.0.inventory=3M", "data.sources.1.inventory=20k", "data.sources.1.cap_epochs=2")


def tables(spec: Spec) -> dict[str, Table]:
    return {table.title: table for table in data_section(PlanFacts(spec, where(), None)).tables}


def test_what_was_asked_stands_beside_what_caps_made_of_it():
    spec = draft(*SIZES, "data.beyond_cap=rebalance")
    found = tables(spec)
    rows = {row[0]: row[1:] for row in found["Mixture"].rows}
    assert rows["main, as asked"] == pytest.approx((0.93, 0.07), abs=1e-4)
    assert rows["main"][1] < 0.07
    assert sum(rows["main"]) == pytest.approx(1)
    assert ("main", "weights as given; rebalanced to keep within caps", "declared inventory") in found["Weights that follow"].rows


def test_a_rule_is_told_with_the_sizes_it_stands_on():
    rule = "stages.0.mixture_rule={kind='temperature', temperature=2.0}"
    spec = built("stages.0.mixture={}", rule)
    row = next(row for row in tables(spec)["Weights that follow"].rows)
    assert row == ("main", "weights by tokens^(1/2)", "built data")
    assert "Weights that follow" not in tables(built())
    assert not [name for name in (row[0] for row in tables(built())["Mixture"].rows) if "asked" in name]


def test_every_source_that_is_read_again_has_its_worth_with_its_range_and_weakness():
    spec = draft("data.sources.0.inventory=3M", "data.sources.1.inventory=50k", "data.sources.1.cap_epochs=20")
    known = named(capacity_section(PlanFacts(spec, where(), None)).quantities)
    names = [source.name for source in spec.sources]
    assert f"effective_tokens_{names[0]}" not in known, "it is read less than once"
    worth = known[f"effective_tokens_{names[1]}"]
    read = worth.inputs["D"]
    assert worth.value == pytest.approx(effective_tokens(read, 50_000))
    assert worth.low == pytest.approx(effective_tokens(read, 50_000, 2.9157))
    assert worth.high == read
    assert WEAKNESS in worth.formula


def test_parameters_beyond_what_the_text_can_teach_are_told():
    few = [f"data.sources.{k}.{key}" for k in range(2) for key in ("inventory=20k", "cap_epochs=100")]
    facts = PlanFacts(draft(*few), where(), None)
    known = named(capacity_section(facts).quantities)
    size = facts.parameters["in_6n"].number()
    assert known["effective_parameters"].value == pytest.approx(effective_parameters(size, 40_000))
    enough = PlanFacts(draft("data.sources.0.inventory=30T", "data.sources.1.inventory=30T"), where(), None)
    assert "effective_parameters" in named(capacity_section(enough).quantities), "only what is read counts"
