"""What a plan says of muP and Muon: the golden values of the table, and the rate that laws are held against."""

from __future__ import annotations

import pytest
from plan_cases import draft, where

from headway.plan.facts import PlanFacts
from headway.plan.laws.hyperparameters import outside_bands
from headway.plan.plan import Plan, make_plan

SHAPE = "model={layers=8, width=256, heads=4, init='fixed', mup={base_width=64, base_layers=2, depth_alpha=%s}}"
GOLDEN = ("optimizer={peak_rate=1e-3, weight_decay=0.1, epsilon=1e-8}",)


def plan(alpha: float, *sets: str) -> Plan:
    return make_plan(draft(SHAPE % alpha, *GOLDEN, *sets), where())


def rows(made: Plan) -> dict[tuple[str, str], list[str]]:
    (table,) = (table for section in made.sections if section.title == "Parametrisation" for table in section.tables)
    return {(role, place): values for role, place, *values in table.shown()}


def test_golden_rows_at_width_and_depth_times_four():
    """Half of alpha: hidden rate 1.25e-4, norms 5e-4, decay .4, epsilon 1.25e-9; alpha 1: 2.5e-4, 6.25e-10."""
    half, whole = rows(plan(0.5)), rows(plan(1.0))
    assert half["matrix", "block"] == half["residual", "block"] == ["0.01", "0.000125", "0.4", "1.25e-09"]
    assert half["gain", "block"] == ["ones", "0.0005", "0", "1.25e-09"]
    assert half["gain", "in, out"] == ["ones", "0.001", "0", "2.5e-09"]
    assert whole["matrix", "block"] == ["0.01", "0.00025", "0.4", "6.25e-10"]
    assert whole["embedding", "in, out"] == ["0.02", "0.001", "0", "2.5e-09"]


def test_golden_factors():
    for alpha, residual in ((1.0, 0.25), (0.5, 0.5)):
        made = plan(alpha)
        names = ("width_ratio", "depth_ratio", "residual_multiplier", "logit_multiplier", "score_multiplier")
        assert [made.quantity(name).value for name in names] == [4, 4, residual, 0.25, 1 / 64]
    assert "router_multiplier" not in plan(1.0).known()
    routed = plan(1.0, "model.experts={experts=4, top_k=2, width=64, router_bias=true}")
    assert routed.quantity("router_multiplier").value == 0.25
    assert rows(routed)["router", "block"] == ["0.02", "0.001", "0.1", "6.25e-10"]
    assert not any(role == "balance" for role, _ in rows(routed))


def test_initial_values_by_columns_are_a_range():
    shown = rows(plan(1.0, "model.init=fan-in", "model.ffn_width=1024"))
    assert shown["residual", "block"][0] == "0.0312 to 0.0625"  # 1,024 and 256 columns


def test_the_standard_parametrisation_has_no_section():
    made = make_plan(draft(), where())
    assert all(section.title != "Parametrisation" for section in made.sections)
    assert "matrix_peak_rate" not in made.known()


def test_laws_are_held_against_the_rate_of_the_matrices():
    """Tuned at a quarter of the width: the matrices train at a quarter of the recipe's rate."""
    made = plan(1.0)
    assert made.quantity("peak_rate").value == 1e-3
    assert made.quantity("matrix_peak_rate").value == pytest.approx(2.5e-4)
    own = made.quantity("peak_rate_beyond_band").inputs["own"]
    assert own is made.quantity("matrix_peak_rate")


def test_muon_is_named_and_its_spectral_rates_are_held_against_no_law():
    muon = ("optimizer.kind=muon", "optimizer.matrix_rate=0.9")
    made = make_plan(draft(*muon), where())
    assert str(made.quantity("optimizer").value).startswith("Muon (rms) on matrices, momentum 0.95; on the rest AdamW")
    assert made.quantity("matrix_peak_rate").value == pytest.approx(0.9)
    large = ("stages.0.tokens=1T", *muon)
    for scale, said in (("rms", True), ("spectral", False)):
        facts = PlanFacts(draft(*large, f"optimizer.muon_scale={scale}"), where(), None)
        assert any("peak rate" in risk.rule for risk in outside_bands(facts)) == said, scale
