"""Small rules over rows, each with a case that fires and one that does not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from headway.monitor.alarms import Finding, find_alarms
from headway.monitor.summary import RunSummary


def step(number: int, loss: float = 2.0, grad_norm: float = 1.0, ns: int = 10**9) -> dict:
    return {"kind": "step", "step": number, "loss": loss, "grad_norm": grad_norm, "targets": 1000, "split": {"productive": ns}}


def evaluation(number: int, **loss: float) -> dict:
    return {"kind": "evaluation", "step": number, "loss": loss}


def rules(rows: list[dict]) -> list[tuple[str, int]]:
    return [(finding.rule, finding.step) for finding in find_alarms(rows)]


def test_calm_run_has_no_findings():
    assert rules([step(n, grad_norm=1 + 0.1 * (n % 7), ns=10**9 + n * 10**6) for n in range(100)]) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_non_finite_loss(loss):
    assert rules([step(1), step(2, loss=loss), step(3)]) == [("non_finite", 2)]


def test_L10_flagged_spike_does_not_raise_the_bar():
    """Ten spikes in a row: all are flagged, for none of them entered the mean; and NaN does not poison it."""
    rows = [step(n) for n in range(20)] + [step(20 + n, grad_norm=3.1) for n in range(10)]
    rows.insert(20, step(99, grad_norm=math.nan))
    found = rules(rows)
    assert [entry for entry in found if entry[0] == "gradient_spike"] == [("gradient_spike", 20 + n) for n in range(10)]


def test_gradient_just_below_the_factor_is_no_spike():
    assert rules([step(n) for n in range(20)] + [step(20, grad_norm=2.99)]) == []


def test_first_steps_are_not_judged():
    assert rules([step(0, grad_norm=0.1), *(step(n, grad_norm=5.0) for n in range(1, 10))]) == []


def test_held_out_loss_rises_twice_in_a_row():
    rows = [evaluation(n, code=loss, prose=3.0 - n / 100) for n, loss in enumerate([3.0, 2.9, 3.0, 2.95, 3.0, 3.1])]
    assert rules(rows) == [("held_out_rises", 5)]


def test_slow_end():
    fast, slow = [step(n) for n in range(700)], [step(700 + n, ns=int(1.2e9)) for n in range(500)]
    assert rules(fast + slow) == [("slow", 1199)]
    assert rules(fast + slow[:400]) == [], "less than ten minutes"
    assert rules(fast[:500] + slow) == [], "no ten minutes before them to compare with"


def test_failed_save_until_a_later_one_succeeds():
    failed = {"kind": "save_failed", "step": 4, "error": "No space left on device"}
    assert rules([failed]) == [("save_failed", 4)]
    assert rules([failed, {"kind": "save", "step": 8, "checkpoint": "c"}]) == []


def test_failed_retention_until_it_works_after_a_later_save():
    failed = {"kind": "retention_failed", "step": 4, "error": "Permission denied"}
    saves = [{"kind": "save", "step": step, "checkpoint": "c"} for step in (4, 8)]
    assert rules([failed, saves[0]]) == [("retention_failed", 4)], "the save of the same step stands"
    assert rules([failed, *saves]) == []
    assert rules([failed, *saves, {**failed, "step": 8}]) == [("retention_failed", 8)]


def test_update_that_was_not_applied():
    rows = [{**step(1), "applied": True}, {**step(2, grad_norm=math.inf), "applied": False}, step(3)]
    assert rules(rows) == [("non_finite", 2), ("not_applied", 2)]


def test_C2_rejected_checkpoint_is_said_once_and_stays_said():
    refused = [{"checkpoint": f"g0001-s000000{step}", "reason": "block 3: digest differs"} for step in (40, 50, 40)]
    (first, second) = find_alarms([{"kind": "save", "step": 90, "checkpoint": "c"}], refused)
    assert (first.rule, first.step, second.step) == ("checkpoint_rejected", 40, 50)
    assert first.message == "checkpoint g0001-s00000040 was refused: block 3: digest differs"


def test_D12_reader_that_stalls_is_named_while_it_stalls():
    stall = {"kind": "stall", "step": 4, "waited_ns": 75 * 10**9, "shard": "code/shard-00001.bin"}
    (finding,) = find_alarms([step(4), stall])
    assert finding.message == "step 5 has waited 1 min 15 s for its data, reading code/shard-00001.bin"
    assert rules([step(4), stall, step(5)]) == []


@pytest.mark.parametrize(("state", "calls"), [("running", [190, 200]), ("stopped", [190, 200]), ("complete", [])])
def test_only_new_findings_of_an_unfinished_run_are_alarms(state, calls):
    findings = tuple(Finding("gradient_spike", at, "") for at in (10, 136, 190, 200))
    summary = SimpleNamespace(state=state, step=200, findings=findings)
    assert [finding.step for finding in RunSummary.alarms.fget(summary)] == calls
