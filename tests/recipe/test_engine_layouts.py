"""Layouts that the engine refuses: both numbers, the rule, and the nearest layout of as many processes that works (P1, P6)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.recipe.deployment import Deployment
from headway.recipe.engine_layouts import Sizes, Task, check_layouts, nearest, refused, runs
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spec import ExpertsSpec, PrecisionSpec

SPEC = resolve(load_recipe("proxy", ("model.kv_heads=4",)), None)
TASK = replace(Task.of(SPEC)[0], precision=PrecisionSpec("bfloat16"))
MODEL = TASK.model  # 4 heads
ROUTED = replace(MODEL, experts=ExpertsSpec(experts=8, top_k=2, width=32))
FLOAT8 = PrecisionSpec("bfloat16", {"layers": "float8"})
OVER_ALL = replace(MODEL, qk_norm=True, qk_norm_over="all")


def with_model(**changes) -> Task:
    return replace(TASK, model=replace(MODEL, **changes))


REFUSED = [
    (TASK, Sizes(tp=3), "tp 3 for 4 heads"),
    (with_model(kv_heads=2), Sizes(tp=4), "tp 4 for 2 key-value heads"),
    (with_model(ffn_width=98), Sizes(tp=4), "tp 4 for an ffn width of 98"),
    (with_model(vocabulary=5), Sizes(tp=4), "tp 4 for a vocabulary of 5"),
    (replace(TASK, model=OVER_ALL), Sizes(tp=2), "tp 2 for norms over all 4 heads"),
    (replace(TASK, precision=FLOAT8), Sizes(tp=2), "tp 2 with"),
    (replace(TASK, sequence=126), Sizes(tp=4), "tp 4 for 126 tokens of a sequence"),
    (TASK, Sizes(dp_shard=2, zero=0), "zero 0 over 2 ranks"),
    (TASK, Sizes(tp=0), "tp 0"),
    (TASK, Sizes(pp=16), "3 layers for pp 16 x virtual 1 = 16 chunks"),
    (TASK, Sizes(pp=2, virtual=2), "virtual 2 with pp 2 and pipeline 1f1b"),
    (TASK, Sizes(recompute="light"), "recompute light"),
    (TASK, Sizes(pp=2, pipeline="zero-bubble", recompute="selective"), "recompute selective with pipeline zero-bubble"),
    (replace(TASK, sequence=100), Sizes(cp=4), "cp 4 for sequences of 100 tokens"),
    (TASK, Sizes(dp_shard=2, ep=2), "ep 2 for a model without experts"),
    (replace(TASK, model=ROUTED), Sizes(dp_shard=16, ep=16), "ep 16 for 8 experts"),
    (replace(TASK, model=ROUTED), Sizes(dp_shard=2, ep=4), "ep 4 over dp_shard 2 x cp 1 = 2 ranks"),
    (
        replace(TASK, model=replace(ROUTED, experts=replace(ROUTED.experts, width=30))),
        Sizes(tp=4),
        "tp 4 for an expert width of 30",
    ),
]


@pytest.mark.parametrize(("task", "sizes", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_P1_what_does_not_divide_is_refused_with_the_nearest_that_works(task, sizes, said):
    problem = refused(task, sizes)[0]
    assert problem.seen.startswith(said)
    assert problem.rule
    found = nearest(task, sizes)
    assert str(found) in problem.way_out
    assert runs(task, found)
    assert found.world == max(1, sizes.world)


def test_a_batch_smaller_than_the_replicas_is_filled_not_refused():
    assert runs(replace(TASK, batch=1), Sizes(dp_shard=8))


def test_whole_copies_need_no_zero():
    assert runs(TASK, Sizes(dp_replicate=4, zero=0))


def test_rows_of_a_vocabulary_need_not_divide():
    assert runs(with_model(vocabulary=255), Sizes(tp=4))


def test_every_stage_of_a_deployment_is_checked():
    deployment = Deployment.model_validate(
        {"processes_per_node": 4, "layouts": {"default": {"dp_shard": 4}, SPEC.stages[0].name: {"tp": 4}}}
    )
    check_layouts(deployment, SPEC)
    with pytest.raises(ConfigError, match="tp 4 for 2 key-value heads") as raised:
        check_layouts(deployment, replace(SPEC, model=replace(MODEL, kv_heads=2)))
    assert raised.value.problems[0].where == f"layout of stage {SPEC.stages[0].name}"


sizes = st.integers(1, 6)


@given(
    st.builds(Sizes, pp=sizes, dp_replicate=sizes, dp_shard=sizes, cp=sizes, tp=sizes, ep=sizes, virtual=sizes),
    st.booleans(),
)
def test_the_nearest_runs_on_as_many_processes(wanted, routed):
    task = replace(TASK, model=ROUTED) if routed else TASK
    found = nearest(task, wanted)
    assert runs(task, found)
    assert found.world == wanted.world
    assert runs(task, wanted) is (found == wanted)
    assert math.prod((found.pp, found.dp_replicate, found.dp_shard, found.cp, found.tp)) == found.world
