"""The coordinate check's verdict on measurements that are known to pass, to fail, or to show nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.base.errors import RunError
from headway.experiment.coordinates import BLIND, FAILS, NOISY, PASSES, judge, read_measurements

WIDTHS, MODULES = (64, 128, 256), ("embedding", "layers.0.attention", "layers.0.ffn", "head")


def arm(name: str, slopes: dict[tuple[str, str], float] | None = None, noise: float = 0.02, seed: int = 0) -> dict[str, Any]:
    """Rows over four steps and two seeds, flat but for ``slopes`` by (quantity, module), which show from step 2 on."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "width": width,
            "step": step,
            "seed": s,
            "module": module,
            "quantity": quantity,
            "value": float(
                0.7 * (width / 64) ** (step >= 2 and (slopes or {}).get((quantity, module), 0.0)) * np.exp(rng.normal(0, noise))
            ),
        }
        for width in WIDTHS
        for step in range(1, 5)
        for s in range(2)
        for module in MODULES
        for quantity in ("activation_change", "gradient", "update")
    ]
    return {"parametrization": name, "rows": rows}


BAD = {("activation_change", "layers.0.ffn"): 0.5, ("update", "head"): 1.0}


def measured(mup: dict[str, Any], standard: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "mup_coordinates", "schema_version": 1, "arms": [mup, standard]}


def verdict(mup: dict[str, Any], standard: dict[str, Any]):
    return judge(read_measurements(measured(mup, standard)))


def test_flat_coordinates_pass_beside_a_control_that_fails():
    found = verdict(arm("mup"), arm("standard", BAD, seed=1))
    assert found.verdict == PASSES, found.reason
    assert found.passed
    assert "update of head" in found.reason
    assert "slope +1.0" in found.reason
    line = next(x for x in found.lines["standard"] if (x.quantity, x.module, x.step) == ("update", "head", 4))
    assert line.slope == pytest.approx(1.0, abs=0.05)
    assert line.widths == WIDTHS


def test_a_slope_under_mup_fails_whatever_the_control_does():
    for control in (arm("standard", BAD, seed=1), arm("standard", seed=1)):
        found = verdict(arm("mup", {("gradient", "embedding"): -0.3}), control)
        assert found.verdict == FAILS
        assert "gradient of embedding" in found.reason
        assert not found.passed


def test_a_slope_that_seeds_do_not_agree_on_is_no_verdict():
    """Neither a pass nor a failure: each seed leaves the band, on its own side."""
    mup = arm("mup", noise=0.0)
    for row in mup["rows"]:
        if (row["module"], row["quantity"]) == ("layers.0.ffn", "update"):
            row["value"] *= (row["width"] / 64) ** (0.5 if row["seed"] else -0.2)
    found = verdict(mup, arm("standard", BAD, seed=1))
    assert found.verdict == NOISY
    assert not found.passed
    assert "update of layers.0.ffn at step 2 has slope +0.15 +- 0.35 over seeds: try more --seeds" in found.reason


def test_a_control_that_passes_is_no_pass():
    found = verdict(arm("mup"), arm("standard", seed=1))
    assert found.verdict == BLIND
    assert not found.passed


@pytest.mark.parametrize(("slope", "expected"), [(0.09, PASSES), (-0.09, PASSES), (0.11, FAILS), (-0.11, FAILS)])
def test_the_pass_band(slope, expected):
    found = verdict(arm("mup", {("update", "head"): slope}, noise=0.0), arm("standard", BAD, noise=0.0))
    assert found.verdict == expected


def test_the_first_step_is_not_judged():
    rows = arm("mup", noise=0.0)
    for row in rows["rows"]:
        if row["step"] == 1:
            row["value"] *= row["width"]
    found = verdict(rows, arm("standard", BAD, noise=0.0))
    assert found.verdict == PASSES
    assert not next(line for line in found.lines["mup"] if line.step == 1).judged


def test_seeds_are_averaged():
    """Opposite slopes of two seeds cancel, and their spread is told."""
    rows = arm("mup", noise=0.0)
    for row in rows["rows"]:
        row["value"] *= (row["width"] / 64) ** (0.3 if row["seed"] else -0.3)
    found = verdict(rows, arm("standard", BAD, noise=0.0))
    assert found.verdict == PASSES
    assert found.lines["mup"][0].spread == pytest.approx(0.6)


@pytest.mark.parametrize("value", [0.0, None, float("nan"), float("inf")])
def test_a_value_that_is_zero_or_no_number_fails(value):
    rows = arm("mup")
    rows["rows"][-1]["value"] = value
    found = verdict(rows, arm("standard", BAD, seed=1))
    assert found.verdict == FAILS
    assert "no slope" in found.reason


def test_a_width_that_is_missing_for_one_module_fails_rather_than_being_fitted_over_fewer():
    rows = arm("mup")
    rows["rows"] = [r for r in rows["rows"] if not (r["module"] == "head" and r["width"] == 256 and r["seed"] == 1)]
    assert verdict(rows, arm("standard", BAD, seed=1)).verdict == FAILS
    rows["rows"] = [r for r in rows["rows"] if not (r["module"] == "head" and r["width"] == 256)]
    assert verdict(rows, arm("standard", BAD, seed=1)).verdict == FAILS


def spoilt(**changes: Any) -> dict[str, Any]:
    return measured(arm("mup"), arm("standard", BAD)) | changes


@pytest.mark.parametrize(
    "value",
    [
        [],
        spoilt(kind="mup_trial"),
        spoilt(schema_version=2),
        spoilt(arms=[arm("mup")]),
        spoilt(arms=[arm("mup"), arm("mup")]),
        spoilt(arms=[arm("mup"), {"parametrization": "standard", "rows": []}]),
        spoilt(arms=[arm("mup"), {"parametrization": "standard", "rows": [r for r in arm("x")["rows"] if r["width"] == 64]}]),
        spoilt(arms=[arm("mup"), {"parametrization": "standard", "rows": [r for r in arm("x")["rows"] if r["step"] == 1]}]),
        spoilt(arms=[arm("mup"), {"parametrization": "standard", "rows": [r | {"quantity": "mood"} for r in arm("x")["rows"]]}]),
        spoilt(
            arms=[arm("mup"), {"parametrization": "standard", "rows": [r | {"width": -r["width"]} for r in arm("x")["rows"]]}]
        ),
        spoilt(extra=1),
    ],
)
def test_what_the_engine_did_not_measure_is_refused(value):
    with pytest.raises(RunError):
        read_measurements(value)


def test_the_check_as_json():
    plain = verdict(arm("mup"), arm("standard", BAD, seed=1)).to_json()
    assert plain["verdict"] == PASSES
    assert {line["judged"] for line in plain["arms"]["mup"]} == {True, False}
    assert plain["arms"]["mup"][0].keys() >= {"module", "quantity", "step", "slope", "widths", "passes"}
