"""Definitions beside each other, MFU and HFU with their conventions and peaks, attempts: all from one ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from any_history import Teller
from tiny_run import tiny_spec

from headway.formulas.flops import Convention, convert_mfu, flops_per_token
from headway.formulas.recompute import Recompute, recompute_factor
from headway.monitor.account import Account, account_of
from headway.monitor.goodput import PENDING, View
from headway.monitor.ledger import build_ledger
from headway.monitor.utilisation import peak_of
from headway.recipe.schedules import Schedule
from headway.recipe.spec import PrecisionSpec
from headway.rundir.segments import Segment

MS = 10**6
SPEC = replace(tiny_spec(steps=400), precision=PrecisionSpec("bfloat16"))
H100: dict[str, Any] = {"accelerator": {"kind": "H100-SXM", "peak_flops": None}, "checkpoints": {"every_steps": 10}}


def history() -> Teller:
    """100 in the queue, provision 10, init 7, 10 steps of 10 + 90, save at 8 (20), hang 30, restart 40, steps 9 and 10 again,
    save at 10, step 11. All in ms."""
    told = Teller()
    told.event("open", epoch=1, previous=None, queued_ns=100 * MS)
    told.launches(None, 0, (), 10 * MS)
    told.row("start", {"init": 7 * MS}, pid=1)
    for number in range(1, 11):
        told.step(number, 10 * MS, 90 * MS)
        if number == 8:
            told.row("save", {"blocking_save": 20 * MS}, step=8, checkpoint="c", blocking_ns=20 * MS)
    told.closes("hang", "hang", 30 * MS)
    told.event("exit", segment=1, closes="detection_to_stop", reason="no progress", code=None, signal=9)
    told.launches(1, 8, (), 40 * MS)
    for number in (9, 10):
        told.step(number, 10 * MS, 90 * MS)
    told.row("save", {"blocking_save": 20 * MS}, step=10, checkpoint="d", blocking_ns=20 * MS)
    told.step(11, 10 * MS, 90 * MS)
    return told


def account(told: Teller, deployment: dict = H100, **changes: Any) -> Account:
    segments = [replace(one, layout={"world": 1, "axes": {}}) for one in told.segments]
    ledger = build_ledger(told.events, told.rows, told.chain, Schedule(SPEC), segments=segments)
    facts = {"name": "x", "events": told.events, "steps": told.rows, "segments": segments, "spec": SPEC}
    return account_of(ledger, **facts, stated=deployment, in_force=deployment, **changes)


def value(found: Account, name: str) -> float | None:
    return by_name(found)[name].value


def by_name(found: Account) -> dict[str, View]:
    return {view.name: view for view in found.views}


TOTAL = 100 + 10 + 7 + 1000 + 20 + 30 + 40 + 200 + 20 + 100


def test_each_definition_by_hand():
    found = account(history())
    assert found.ledger.total_ns == TOTAL * MS
    assert value(found, "goodput (Headway)") == pytest.approx(10 * 90 / TOTAL)
    assert value(found, "scheduling goodput (Google)") == pytest.approx((TOTAL - 100) / TOTAL)
    assert value(found, "runtime goodput (Google)") == pytest.approx(10 * 90 / (TOTAL - 100))
    lost = 100 + 10 + 7 + 30 + 40 + 200
    assert value(found, "ETTR (Meta)") == pytest.approx((TOTAL - lost) / TOTAL)
    assert value(found, "effective training time rate (MegaScale)") == pytest.approx(10 * 100 / (TOTAL - 100))


def test_every_view_says_where_it_is_from_and_what_it_counts():
    for view in account(history()).views:
        assert all((view.formula, view.source, view.otherwise)), view


def test_G4_a_replay_raises_no_definition():
    found, clean = account(history()), history()
    for step in (9, 10):  # the same history, had those steps been lost twice
        clean.rows[1] += [dict(clean.rows[1][-1], step=step)]
    again = account(clean)
    assert value(again, "goodput (Headway)") <= value(found, "goodput (Headway)")
    assert again.ledger.attempted.steps == found.ledger.attempted.steps + 2
    assert again.ledger.committed == found.ledger.committed


def test_the_waterfall_ends_at_what_is_committed():
    found = account(history())
    assert found.waterfall[-1].name == PENDING
    assert (found.waterfall[-1].ns, found.waterfall[-1].left_ns) == (90 * MS, 900 * MS)
    assert sum(fall.ns for fall in found.waterfall) + 900 * MS == found.ledger.total_ns


def test_a_pause_is_in_no_denominator_but_ours():
    told = history()
    told.closes("exit", "detection_to_stop", 0)
    told.event("finish", state="stopped", reason="", closes="reconfigure")
    before, ours = account(told), "goodput (Headway)"
    told.opens("planned_pause", 500 * MS, boot=told.boot, skew_ns=0)
    after = account(told)
    assert value(after, ours) == pytest.approx(900 / (TOTAL + 500))
    for name in by_name(before).keys() - {ours}:
        assert value(after, name) == pytest.approx(value(before, name)), name


def test_G3_mfu_under_each_convention_can_be_converted():
    used = account(history()).utilisation
    assert used is not None
    assert used.peak.flops == 989e12
    shares = {one.convention: one for one in used.shares}
    length = SPEC.stages[0].sequence_length
    for convention, one in shares.items():
        tokens = 11 * 8 * length
        expected = tokens * flops_per_token(SPEC.model, length, convention) / (1.1 * 989e12)
        assert one.mfu == pytest.approx(expected)
        assert convert_mfu(one.mfu, SPEC.model, length, of=convention, to=Convention.FULL) == pytest.approx(
            shares[Convention.FULL].mfu
        )
        assert one.hfu == pytest.approx(one.mfu), "nothing is recomputed"
        assert 0 < one.mfu_end_to_end < one.mfu


def test_recomputation_raises_hfu_alone():
    plain, full = account(history()), account(history(), H100 | {"layouts": {"default": {"recompute": "full"}}})
    for one, other in zip(plain.utilisation.shares, full.utilisation.shares, strict=True):
        assert other.mfu == one.mfu
        factor = recompute_factor(SPEC.model, SPEC.stages[0].sequence_length, one.convention, Recompute.FULL)
        assert other.hfu == pytest.approx(other.mfu * factor)
        assert factor > 1.1


@pytest.mark.parametrize("kind", ["cpu", "a chip of tomorrow", "A100", None])
def test_G2_an_unknown_device_has_no_peak(kind):
    """``A100`` is several parts; none is guessed."""
    peak = peak_of({"accelerator": {"kind": kind, "peak_flops": None}}, "bfloat16")
    assert peak.flops is None
    assert peak.words


def test_G2_a_precision_that_the_table_has_not_is_unknown():
    assert peak_of(H100, "float32").flops is None


def test_G2_a_peak_without_sparsity():
    assert peak_of(H100, "bfloat16").flops == 989e12, "not the 1,979 of the headline"


def test_G2_above_all_of_the_peak_is_an_alarm():
    low = account(history(), H100 | {"accelerator": {"kind": "x", "peak_flops": 1.0}})
    assert "impossible" in low.utilisation.alarm
    assert account(history()).utilisation.alarm == ""


def test_attempts():
    first, second = account(history()).attempts
    assert (first.segment, first.first_step, first.last_step, first.end) == (1, 1, 10, "no progress")
    assert (first.productive_ns, first.lost_ns) == (8 * 90 * MS, 200 * MS)
    assert first.ns == first.productive_ns + first.lost_ns + first.overhead_ns
    assert (second.first_step, second.last_step, second.productive_ns) == (9, 11, 270 * MS)


def test_the_interval_in_force_and_what_another_would_cost():
    report = account(history()).interval
    assert not report.adaptive
    assert report.in_force_seconds == pytest.approx(10 * 0.1)
    assert "every_steps = 10" in report.reason
    assert report.save_seconds == pytest.approx(0.02)
    assert {cost.what for cost in report.costs} == {"", "in force", "best"}
    assert min(report.costs, key=lambda cost: cost.total).what == "best"
    assert [place.name for place in report.places] == ["host memory", "run directory"]


def test_an_adaptive_interval_says_why():
    told = history()
    told.row("interval", {}, step=11, seconds=55.0, reason="a save costs 20 ms")
    adaptive = {"every_steps": 10, "adaptive": {"least": 1.0, "most": 100.0}, "mirror": "file:///x", "mirror_every": 4}
    report = account(told, H100 | {"checkpoints": adaptive}).interval
    assert (report.in_force_seconds, report.reason, report.changes) == (55.0, "a save costs 20 ms", 1)
    assert report.places[-1].every_seconds == 220.0


def test_nothing_has_happened():
    empty = account_of(
        build_ledger([], {}, []), name="x", events=[], steps={}, segments=[], spec=SPEC, stated={}, in_force={}
    )  # fmt: skip
    assert empty.interval is None
    assert value(empty, "goodput (Headway)") is None


def test_a_shrunk_phase_is_unscheduled_time_for_google():
    told = history()
    layouts = [{"world": 2, "axes": {}}, {"world": 1, "axes": {}}]
    segments = [replace(one, layout=layout) for one, layout in zip(told.segments, layouts, strict=True)]
    ledger = build_ledger(told.events, told.rows, told.chain, Schedule(SPEC), segments=segments)
    stated = H100 | {"nodes": 2}
    found = account_of(
        ledger, name="x", events=told.events, steps=told.rows, segments=segments, spec=SPEC, stated=stated, in_force=stated
    )
    shrunk = 40 + 200 + 20 + 100
    assert value(found, "scheduling goodput (Google)") == pytest.approx((TOTAL - 100 - shrunk) / TOTAL)


def test_rows_of_segments_that_nobody_knows_do_not_break_the_account():
    told = history()
    told.segments[:] = [Segment(2, None, 8, None, "", "automatic", 1, {})]
    assert account(told).capacity.total > 0
