"""HFU beside MFU: only where a layout recomputes, and by how much."""

from __future__ import annotations

import pytest
from plan_cases import CHIP, GPT, draft, where

from headway.formulas.flops import Convention
from headway.formulas.recompute import Recompute, recompute_factor
from headway.plan.plan import Plan, make_plan


def planned(recompute: str, *sets: str) -> Plan:
    layout = f"layouts.default={{dp_shard=8, zero=3, recompute='{recompute}'}}"
    return make_plan(draft(*GPT), where(*CHIP[:3], layout, *sets))


def test_full_recomputation_shows_what_the_devices_do():
    plan, model = planned("full"), draft(*GPT).model
    factor = recompute_factor(model, 1024, Convention.CAUSAL, Recompute.FULL)
    hfu, mfu = plan.quantity("hfu_causal"), plan.quantity("mfu_causal")
    assert 1.1 < factor < 4 / 3
    assert hfu.number() / mfu.number() == pytest.approx(factor)
    assert (hfu.low / mfu.low, hfu.high / mfu.high) == pytest.approx((factor, factor))


@pytest.mark.parametrize("recompute", ["none", "light", "selective"])
def test_nothing_is_shown_where_no_operation_is_done_twice(recompute):
    assert "hfu_causal" not in planned(recompute).known()


def test_selective_recomputation_counts_where_the_kernel_keeps_scores():
    plan = planned("selective", "implementation.flash=false")
    assert 1 < plan.quantity("hfu_causal").number() / plan.quantity("mfu_causal").number() < 1.1


def test_each_stage_counts_at_its_own_layout():
    """Only the second of two stages recomputes: by its share of the FLOPs."""
    layouts = ("layouts.main={dp_shard=8, zero=3}", "layouts.anneal={dp_shard=8, zero=3, recompute='full'}")
    plan = make_plan(draft(*GPT), where(*CHIP[:3], *layouts))
    factor = recompute_factor(draft(*GPT).model, 1024, Convention.CAUSAL, Recompute.FULL)
    share = 0.1 / 1.1
    ratio = plan.quantity("hfu_causal").number() / plan.quantity("mfu_causal").number()
    assert ratio == pytest.approx(1 + share * (factor - 1), rel=1e-3)
