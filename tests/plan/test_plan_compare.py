"""Two plans side by side."""

from __future__ import annotations

import json

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.plan.compare import compare_plans, comparison_lines, comparison_markdown
from headway.plan.plan import make_plan


@pytest.fixture(scope="module")
def two():
    spec = draft(*GPT)
    plans = [make_plan(spec, where(*CHIP)), make_plan(draft(*GPT, "model.layers=24"), where(*CHIP))]
    return compare_plans(("small", "deep"), plans), plans


def test_ratios_are_right_over_left(two):
    comparison, plans = two
    rows = {row.name: row for row in comparison.rows}
    left, right = (plan.quantity("parameters").number() for plan in plans)
    assert rows["parameters"].ratio == pytest.approx(right / left)
    assert rows["parameters"].is_clear
    assert not rows["tokens"].differs
    assert rows["step_seconds_main"].differs, "cells of tables are compared too"


def test_a_difference_within_the_ranges_is_marked(two):
    comparison, _ = two
    rows = {row.name: row for row in comparison.rows}
    loss = rows["forecast_loss"] if rows["forecast_loss"].left.value is not None else None
    mfu = rows["mfu_causal"]
    assert not mfu.is_clear
    text = "\n".join(comparison_lines(comparison, 120))
    assert f"~{mfu.ratio:.3g}" in text
    assert loss is None or not loss.is_clear


def test_equal_quantities_are_counted_not_listed(two):
    comparison, _ = two
    text, whole = ("\n".join(comparison_lines(comparison, 120, everything=everything)) for everything in (False, True))
    assert "quantities are equal; --all shows them" in text
    assert "vocabulary" not in text
    assert "vocabulary" in whole


def test_risks_of_one_side_alone():
    plans = [make_plan(draft(*GPT), where(*CHIP)), make_plan(draft(*GPT, "optimizer.beta2=0.999"), where(*CHIP))]
    comparison = compare_plans(("a", "b"), plans)
    assert [risk.rule for risk in comparison.only[1]] == ["beta2 is high"]
    assert comparison.only[0] == ()
    assert "risk of b alone: beta2 is high" in "\n".join(comparison_lines(comparison, 120))


def test_json_and_markdown(two):
    comparison, _ = two
    plain = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert plain["plans"] == ["small", "deep"]
    assert {row["name"] for row in plain["rows"]} >= {"parameters", "step_seconds_main"}
    text = comparison_markdown(comparison)
    assert text.startswith("# small against deep")
    assert "| parameters |" in text


def test_what_only_one_side_has_is_shown_as_absent():
    comparison = compare_plans(("demo", "beacon"), [preset("demo"), preset("beacon")])
    rows = {row.name: row for row in comparison.rows}
    assert rows["memory_bytes"].right is None
    assert rows["rank_memory"].left is None
    assert rows["memory_bytes"].ratio is None


@pytest.mark.parametrize("width", [90, 120])
def test_lines_fit(two, width):
    assert max(map(len, comparison_lines(two[0], width))) <= width
