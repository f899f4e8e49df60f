"""Layouts that cannot be, the nearest that can, and what a layout wastes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import LLAMA_405B

from headway.base.errors import ConfigError
from headway.formulas.chips import find_chip
from headway.plan.layout.feasible import (
    SIZES,
    batch_warning,
    broken_rules,
    check_layout,
    divisors,
    is_feasible,
    nearest_layout,
    problems,
    product_problem,
    warnings,
)
from headway.plan.work import Cluster, Layout, Pipeline, Work
from headway.recipe.spec import ExpertsSpec, ModelSpec

CLUSTER = Cluster(chip=find_chip("H100-SXM"), chips=16384, domain=8, network=50e9)
WORK = Work(model=LLAMA_405B, sequence=8192, batch=2048)
LAYOUT = Layout(tp=8, pp=16, dp_shard=128)
ROUTED = replace(LLAMA_405B, experts=ExpertsSpec(experts=64, top_k=8, width=2048))


def rules(work: Work, layout: Layout, cluster: Cluster = CLUSTER) -> list[str]:
    return [problem.seen for problem in broken_rules(work, layout, cluster)]


def test_the_published_layout_can_be() -> None:
    assert problems(WORK, LAYOUT, CLUSTER) == []
    check_layout(WORK, LAYOUT, CLUSTER)


def test_a_product_that_is_half_of_the_chips_names_both_numbers_and_the_axis() -> None:
    """Llama 3 405B at 128K as printed: 8 x 16 x 16 x 4 = 8,192 devices for 16,384 chips (arXiv 2407.21783v1, table 4)."""
    work = Work(model=LLAMA_405B, sequence=131072, batch=128)
    printed = Layout(tp=8, cp=16, pp=16, dp_shard=4)
    (found,) = problems(work, printed, CLUSTER)
    assert "8,192 devices" in found.seen
    assert "16,384 chips: 2 times more" in found.seen
    assert found.way_out.startswith("dp_shard 8 or")
    assert nearest_layout(work, printed, CLUSTER) == replace(printed, dp_shard=8)
    with pytest.raises(ConfigError, match="2 times more"):
        check_layout(work, printed, CLUSTER)


@pytest.mark.parametrize(
    ("chips", "said"),
    [(12288, "1.5 times more"), (4096, "2 times fewer"), (8000, "1.02 times fewer")],
)
def test_the_factor_of_a_wrong_product(chips: int, said: str) -> None:
    found = product_problem(Layout(tp=8, cp=16, pp=16, dp_shard=4), chips)
    assert found is not None
    assert said in found.seen


def test_a_product_that_no_axis_mends() -> None:
    found = product_problem(Layout(tp=8, pp=16, dp_shard=4), 500)
    assert found is not None
    assert found.way_out == "no single axis mends it"


@pytest.mark.parametrize(
    ("work", "layout", "said"),
    [
        (replace(WORK, model=replace(LLAMA_405B, heads=40)), replace(LAYOUT, tp=16, dp_shard=64), "tp 16 for 40 heads"),
        (replace(WORK, model=replace(LLAMA_405B, kv_heads=6)), LAYOUT, "tp 8 for 6 key-value heads"),
        (replace(WORK, model=replace(LLAMA_405B, ffn_width=53252)), LAYOUT, "tp 8 for an ffn width of 53,252"),
        (WORK, replace(LAYOUT, pp=256, dp_shard=8), "126 layers for pp 256 x virtual 1 = 256 chunks"),
        (WORK, replace(LAYOUT, virtual=7), "virtual 7 with pp 16 and pipeline 1f1b"),
        (
            replace(WORK, batch=33 * 128),
            replace(LAYOUT, virtual=7, pipeline=Pipeline.INTERLEAVED),
            "33 micro-batches a replica over pp 16, interleaved: 2 rounds",
        ),
        (WORK, replace(LAYOUT, ep=8), "ep 8 for a model without experts"),
        (replace(WORK, model=ROUTED), replace(LAYOUT, ep=128), "ep 128 for 64 experts"),
        (replace(WORK, model=ROUTED), replace(LAYOUT, dp_replicate=16, dp_shard=8, ep=16), "ep 16 over dp_shard 8 x cp 1 = 8"),
        (replace(WORK, sequence=8196), replace(LAYOUT, tp=1, cp=4, dp_shard=256), "cp 4 for sequences of 8,196 tokens"),
        (replace(WORK, sequence=8196), LAYOUT, "tp 8 for 8,196 tokens of a sequence per context rank"),
        (replace(WORK, batch=100), LAYOUT, "128 replicas for a batch of 100 sequences"),
        (WORK, replace(LAYOUT, micro_batch=32), "micro-batch 32 where a replica has 16 of 2,048 sequences"),
        (WORK, replace(LAYOUT, zero=4), "zero 4"),
        (WORK, replace(LAYOUT, tp=0), "tp 0"),
    ],
)
def test_every_rule_is_said_once_and_the_nearest_can_be(work: Work, layout: Layout, said: str) -> None:
    found = rules(work, layout)
    assert len(found) == 1, found
    assert said in found[0]
    nearest = nearest_layout(work, layout, CLUSTER)
    assert nearest is not None
    assert is_feasible(work, nearest, CLUSTER)
    assert nearest.shown() in problems(work, layout, CLUSTER)[0].way_out


def test_the_ends_of_a_pipeline_may_hold_embedding_and_head_alone() -> None:
    """Llama 3: 16 stages of 8 chunks for 126 layers (arXiv 2407.21783, section 3.3.2)."""
    chunked = replace(LAYOUT, virtual=8, pipeline=Pipeline.INTERLEAVED)
    assert rules(WORK, chunked) == []
    assert rules(replace(WORK, model=replace(LLAMA_405B, layers=125)), chunked) != []


@pytest.mark.parametrize("passes", [4, 16, 20, 32, 48])
def test_rounds_that_come_out_even(passes: int) -> None:
    layout = replace(LAYOUT, virtual=7, pipeline=Pipeline.INTERLEAVED)
    assert rules(replace(WORK, batch=passes * 128), layout) == []


def test_nothing_can_be_where_chips_outnumber_what_can_be_cut() -> None:
    tiny = Work(model=replace(LLAMA_405B, layers=1, heads=1, kv_heads=1), sequence=3, batch=2)
    (found,) = problems(tiny, Layout(dp_shard=7), replace(CLUSTER, chips=7))
    assert "no layout of these chips can hold this work" in found.way_out


@given(
    sizes=st.fixed_dictionaries({axis: st.integers(1, 12) for axis in SIZES}),
    chips=st.sampled_from([1, 6, 8, 24, 64, 96]),
    batch=st.integers(1, 70),
    model=st.sampled_from([replace(LLAMA_405B, layers=12, heads=24), replace(ROUTED, layers=12, heads=24)]),
)
def test_the_nearest_can_be_and_what_can_be_is_its_own_nearest(
    sizes: dict[str, int], chips: int, batch: int, model: ModelSpec
) -> None:
    work, cluster = Work(model=model, sequence=96, batch=batch), replace(CLUSTER, chips=chips)
    asked = Layout(**sizes, pipeline=Pipeline.INTERLEAVED)
    nearest = nearest_layout(work, asked, cluster)
    if nearest is None:
        assert not is_feasible(work, asked, cluster)
        return
    assert is_feasible(work, nearest, cluster)
    if is_feasible(work, asked, cluster):
        assert nearest == asked


def test_a_batch_that_does_not_divide_is_priced() -> None:
    """1,953 sequences over 128 replicas: 16 each are 2,048 slots, 4.9 % extra (golden_beacon.json, inconsistencies)."""
    found = batch_warning(replace(WORK, batch=1953), LAYOUT)
    assert found is not None
    assert found.number() == pytest.approx(2048 / 1953 - 1)
    assert found.shown() == "4.86 %"
    assert "2,048 sequences" in found.formula
    assert batch_warning(WORK, LAYOUT) is None


def test_stages_vocabulary_copies_and_domains_are_priced() -> None:
    shown = {q.name: q.shown() for q in warnings(WORK, LAYOUT, CLUSTER)}
    assert shown == {"stage_imbalance": "1.59 %"}
    wide = Layout(tp=16, pp=1, dp_shard=1024)
    shown = {q.name: q.shown() for q in warnings(replace(WORK, model=replace(LLAMA_405B, vocabulary=128250)), wide, CLUSTER)}
    assert shown == {"vocabulary_padding": "0.00468 %", "kv_copies": "100 %", "tp_across_domains": "800 %"}


@given(batch=st.integers(1, 5000), dp=st.integers(1, 64), micro_batch=st.integers(1, 8))
def test_padding_is_what_replicas_compute_beyond_the_batch(batch: int, dp: int, micro_batch: int) -> None:
    layout = Layout(dp_shard=dp, micro_batch=micro_batch)
    found = batch_warning(Work(model=LLAMA_405B, sequence=8, batch=batch), layout)
    extra = (-batch) % (dp * micro_batch)
    assert (found.number() if found else 0.0) == pytest.approx(extra / batch)


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
    assert math.prod(divisors(number)) ** 2 == number ** len(divisors(number))
