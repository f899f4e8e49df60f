"""Dry runs: what follows from few layers and passes is what all of them do, and the plan agrees line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_cases import described

from headway.base.errors import ConfigError
from headway.parallel.mesh import Axes
from headway.plan import departures as departing
from headway.plan.departures import PADDING
from headway.plan.held import stage_run
from headway.plan.host_link import refuse_uncounted
from headway.plan.reconcile import Line, engine_work, reconcile
from headway.plan.work import Layout, Pipeline, Recompute
from headway.recipe.offload import Offload
from headway.recipe.spec import PrecisionSpec, Spec
from headway.train.dryrun import run as dryrun_run
from headway.train.dryrun.run import Request, dry_run

pytestmark = pytest.mark.layouts

BFLOAT16 = PrecisionSpec("bfloat16")
SPEC = replace(described("proxy", ("model.kv_heads=4",)), precision=BFLOAT16)
ROUTED = replace(described("mixtral-8x7b"), precision=BFLOAT16)
LATENT = replace(described("deepseek-v3"), precision=BFLOAT16)
"""With a layer without experts, shared experts, a head for one more token."""
COUNTS = ("exchanges", "flops", "attention_flops", "host_bytes", "parameters")


def deep(layers: int = 7, **changes) -> Spec:
    return replace(SPEC, model=replace(SPEC.model, layers=layers, **changes))


def deep_routed(layers: int, base: Spec = ROUTED) -> Spec:
    return replace(base, model=replace(base.model, layers=layers))


def seen(spec: Spec, passes: int, **axes) -> dict:
    return dry_run(Request(spec=spec, axes=Axes(**axes), passes=passes))


def counted(found: dict) -> dict:
    return {name: sorted(found[name], key=str) if name == "exchanges" else found[name] for name in COUNTS}


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (deep(), {"dp_shard": 3, "tp": 2}),
        (deep(window=12, full_attention_every=2), {"dp_shard": 3, "tp": 2}),
        (deep(window=12, full_attention_every=2), {"cp": 2, "tp": 2}),
        (deep_routed(5), {"dp_shard": 2, "cp": 2, "ep": 2}),
        (deep_routed(5, LATENT), {"dp_shard": 4, "ep": 2, "tp": 2}),
        (deep_routed(5), {"cp": 2, "recompute": "full"}),
        (deep(), {"dp_shard": 2, "tp": 2, "offload": Offload.ALL}),
    ],
    ids=[
        "uniform",
        "every other layer",
        "cp",
        "experts",
        "latents, experts from the second layer on",
        "computed again",
        "offload",
    ],
)
def test_few_layers_say_what_all_do(monkeypatch, spec, axes):
    few = seen(spec, 2, **axes)
    monkeypatch.setattr(dryrun_run, "RUN_WHOLE_LAYERS", 100)
    whole = seen(spec, 2, **axes)
    assert few["layers_run"] != whole["layers_run"] == [spec.model.layers]
    assert counted(few) == counted(whole)


def test_few_passes_say_what_all_do(monkeypatch):
    few = seen(deep(2), 5, dp_shard=2, tp=2)
    monkeypatch.setattr(dryrun_run, "_passes", lambda count: [(at == count - 1, 1) for at in range(count)])
    whole = seen(deep(2), 5, dp_shard=2, tp=2)
    assert (few["passes_run"], few["passes"]) == ([3], 5)
    assert counted(few) == counted(whole)


LAYOUTS = [
    {"dp_shard": 4},
    {"dp_shard": 2, "zero": 2},
    {"dp_shard": 2, "tp": 2, "zero": 1},
    {"tp": 4},
    {"dp_shard": 2, "tp": 2},
    {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    {"cp": 2},
    {"cp": 2, "zero": 2},
    {"dp_shard": 2, "cp": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2},
]
ROUTED_LAYOUTS = [
    {"dp_shard": 2},
    {"dp_shard": 16},  # more than experts: they are cut behind that axis
    {"tp": 2},
    {"cp": 2, "tp": 2},
    {"dp_shard": 2, "ep": 2},
    {"dp_shard": 4, "ep": 2},
    {"dp_shard": 2, "ep": 2, "tp": 2},
    {"cp": 2, "ep": 2},
    {"dp_shard": 2, "cp": 2, "ep": 2, "zero": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2, "ep": 4},
]


def layout_with(axes: dict) -> Layout:
    kinds = {"recompute": Recompute(axes.get("recompute", "none")), "pipeline": Pipeline(axes.get("pipeline", "1f1b"))}
    return Layout(**axes | kinds)


def lines(spec: Spec, passes: int, axes: dict) -> list[Line]:
    layout = layout_with(axes)
    work = engine_work(spec.model, spec.precision, spec.stages[0].sequence_length, passes * layout.dp)
    request = Request(spec=spec, axes=Axes(**axes), passes=passes, pipeline_stage=stage_run(spec.model, layout))
    return reconcile(work, layout, dry_run(request))


@pytest.mark.parametrize(("axes", "passes"), [*((axes, 3) for axes in LAYOUTS), (LAYOUTS[3], 1)], ids=str)
def test_the_plan_agrees(axes, passes):
    found = lines(deep(2), passes, axes)
    assert [line for line in found if not line.agrees] == []
    assert sum(line.seen_calls is not None for line in found) >= 2


@pytest.mark.parametrize(
    ("spec", "axes"),
    [*((deep_routed(1), axes) for axes in ROUTED_LAYOUTS), *((deep_routed(2, LATENT), axes) for axes in ROUTED_LAYOUTS[-3:])],
    ids=[*map(str, ROUTED_LAYOUTS), *(f"latents {axes}" for axes in ROUTED_LAYOUTS[-3:])],
)
def test_the_plan_agrees_on_experts(spec, axes):
    found = lines(spec, 2, axes)
    assert [line for line in found if not line.agrees] == []
    assert sum(line.what.startswith("ep, all-to-all") for line in found) == 2 * (axes.get("ep", 1) > 1)


def long(spec: Spec, tokens: int = 2048) -> Spec:
    """Rows of which every tensor is worth a copy."""
    return replace(spec, stages=(replace(spec.stages[0], sequence_length=tokens),))


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (deep(3), {"dp_shard": 2}),
        (deep(3, block="post", norm="layernorm", ffn="gelu"), {"dp_shard": 2, "tp": 2}),
        (deep(3), {"dp_shard": 2, "tp": 2, "recompute": "full"}),
        (deep(4), {"pp": 2, "dp_shard": 2}),
        (deep_routed(2), {"dp_shard": 2, "ep": 2}),
        (deep_routed(3, LATENT), {"dp_shard": 2, "ep": 2, "recompute": "full"}),
        (deep(3, window=12, full_attention_every=2), {"cp": 2, "recompute": "full"}),
    ],
    ids=[
        "fsdp",
        "other modules over tp",
        "computed again",
        "pipeline",
        "experts",
        "latents, computed again",
        "windows over cp, computed again",
    ],
)
def test_the_plan_agrees_on_what_goes_over_the_host_s_link(spec, axes):
    spec, axes = long(spec), axes | {"offload": Offload.ALL}
    refuse_uncounted(engine_work(spec.model, spec.precision, 2048, 1), layout_with(axes))
    found = {line.what: line for line in lines(spec, 2, axes)}
    assert [line.what for line in found.values() if not line.agrees] == []
    assert found["bytes of moments, each way"].seen == 8 * found["parameters of a rank"].seen
    assert found["bytes of activations to host memory"].seen == found["bytes of activations back"].seen > 0


@pytest.mark.parametrize(
    ("spec", "axes", "said"),
    [
        (deep(2), {"cp": 2}, "cp 2"),
        (deep(2), {"recompute": "selective"}, "recompute selective"),
        (deep(2, window=12), {}, "a window"),
        (deep(2, attention_softcap=30.0), {}, "capped scores"),
        (deep_routed(2, LATENT), {}, "latents"),
        (deep_routed(2), {"tp": 2}, "tp 2 with experts"),
    ],
)
def test_activations_that_are_not_counted_are_refused_by_what_they_are(spec, axes, said):
    with pytest.raises(ConfigError, match=f"offload=activations with {said}"):
        refuse_uncounted(engine_work(spec.model, BFLOAT16, 256, 1), layout_with(axes | {"offload": Offload.ACTIVATIONS}))


def test_counts_of_rows_are_exchanged_before_them():
    """Of one layer, forward: counts as 64-bit integers, rows there, rows back."""
    found = seen(deep_routed(1), 1, dp_shard=2, ep=2)
    sent = [one for one in found["exchanges"] if one["kind"] == "all_to_all" and one["phase"] == "forward"]
    rows = ROUTED.stages[0].sequence_length * 2 * 48 * 2  # top 2, width 48, bfloat16
    assert sorted((one["payload_bytes"], one["calls"]) for one in sent) == [(8 * 8, 1), (rows, 2)]
    assert found["assumed"] == ["every expert gets as many tokens"]


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (deep(2, window=12, full_attention_every=2), {"cp": 2}),
        (deep(2, attention_softcap=30.0), {"tp": 2}),
        (deep(2, block="parallel"), {"tp": 2, "cp": 2}),
    ],
    ids=["windows", "capped scores", "parallel block"],
)
def test_layers_of_other_kinds_agree(spec, axes):
    found = lines(spec, 1, axes)
    assert [line for line in found if not line.agrees] == []


BOTH = {"cp": 2, "tp": 2}
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (deep(1), {"dp_shard": 2} | FULL),
        (deep(1), BOTH | FULL),
        (deep(1), BOTH | SELECTIVE),
        (deep(1, block="sandwich"), BOTH | FULL),
        (deep(1, block="parallel"), BOTH | FULL),
        (deep(1, window=12), {"cp": 2, "zero": 2} | SELECTIVE),
        (deep(1, window=12, attention_softcap=30.0), BOTH | FULL),
        (deep_routed(1), {"dp_shard": 4, "ep": 2} | FULL),
        (deep_routed(2, LATENT), {"dp_shard": 2, "cp": 2, "tp": 2, "ep": 2} | FULL),
        (deep_routed(2, LATENT), {"dp_shard": 2, "ep": 2} | SELECTIVE),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else value.model.block,
)
def test_the_plan_agrees_on_what_is_computed_again(spec, axes):
    found = lines(spec, 2, axes)
    assert [line for line in found if not line.agrees] == []


INTERLEAVED, ZERO_BUBBLE = {"virtual": 2, "pipeline": "interleaved"}, {"virtual": 2, "pipeline": "zero-bubble"}
TIED = deep(3, tied_embeddings=True)
PIPELINES = {
    "first stage": (deep(2), {"pp": 2}, 3),
    "last stage": (deep(3), {"pp": 2, "dp_shard": 2, "tp": 2}, 3),
    "between": (deep(4), {"pp": 3, "cp": 2, "dp_replicate": 2}, 4),
    "fewer than ranks": (deep(4), {"pp": 3, "tp": 2}, 1),
    "gpipe": (deep(2), {"pp": 2, "pipeline": "gpipe", "dp_shard": 2}, 3),
    "interleaved": (deep(4), {"pp": 2, "dp_shard": 2, "tp": 2} | INTERLEAVED, 4),
    "zero-bubble": (deep(4), {"pp": 2, "dp_shard": 2, "tp": 2} | ZERO_BUBBLE, 4),
    "computed again": (deep(2), {"pp": 2, "tp": 2, "cp": 2} | FULL, 3),
    "tied, last": (TIED, {"pp": 2, "dp_shard": 2, "tp": 2}, 2),
    "tied, first": (deep(2, tied_embeddings=True), {"pp": 2, "dp_replicate": 2}, 2),
    "experts": (deep_routed(2), {"pp": 2, "dp_shard": 2, "ep": 2}, 2),
    "further tokens": (deep_routed(2, LATENT), {"pp": 2, "dp_shard": 2, "cp": 2, "ep": 2, "tp": 2}, 2),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_the_plan_agrees_on_pipelines(case):
    spec, axes, passes = PIPELINES[case]
    found = lines(spec, passes, axes)
    assert [line for line in found if not line.agrees] == []
    assert sum(line.what.startswith("pp, ") for line in found) >= 4


def test_two_numbers_of_micro_batches_say_what_all_do(monkeypatch):
    few = seen(deep(4), 8, pp=2, tp=2, **INTERLEAVED)
    monkeypatch.setattr(dryrun_run, "_rounds", lambda request: (request.passes,))
    whole = seen(deep(4), 8, pp=2, tp=2, **INTERLEAVED)
    assert (few["passes_run"], whole["passes_run"]) == ([2, 4], [8])
    assert counted(few) == counted(whole)


def test_every_stage_sends_what_the_next_receives():
    """Of three stages with two micro-batches: streams forward, their gradients back."""

    def messages(stage: int) -> dict[tuple[str, str], int]:
        found = dry_run(Request(spec=deep(3), axes=Axes(pp=3), passes=2, pipeline_stage=stage))
        assert found["rank"] == stage
        return {(one["kind"], one["phase"]): one["calls"] for one in found["exchanges"] if one["axis"] == "pp"}

    assert messages(0) == {("send", "forward"): 2, ("recv", "backward"): 2}
    assert messages(1) == {(kind, phase): 2 for kind in ("send", "recv") for phase in ("forward", "backward")}
    assert messages(2) == {("recv", "forward"): 2, ("send", "backward"): 2}


def test_micro_batches_that_a_pipeline_fills_up_are_refused():
    with pytest.raises(ConfigError, match="a batch of 6 micro-batches"):
        seen(deep(4), 5, pp=2, **INTERLEAVED)


def test_a_block_is_computed_again_but_for_its_last_product():
    none, full = (seen(deep(2), 1, recompute=kind) for kind in ("none", "full"))
    tokens, model = SPEC.stages[0].sequence_length, deep(2).model
    block = 4 * model.width * model.heads * model.head_width + 2 * model.width * model.ffn_width  # of three matrices two
    assert full["flops"]["backward"] - none["flops"]["backward"] == 2 * 2 * tokens * block
    again = full["attention_flops"]["backward"] - none["attention_flops"]["backward"]
    assert again == none["attention_flops"]["forward"] == full["attention_flops"]["forward"]


def test_an_early_chunk_and_a_late_one_have_half_of_all_scores():
    alone, half = (seen(deep(2), 1, **axes)["attention_flops"] for axes in ({}, {"cp": 2}))
    assert half == {phase: flops // 2 for phase, flops in alone.items()}


def test_experts_of_one_rank_alone_are_in_its_gradients():
    """They are not scattered, and stay whole like the rest until the last micro-batch."""
    alone, shared = (seen(deep_routed(2), 2, **axes) for axes in ({}, {"dp_shard": 2, "ep": 2, "zero": 1}))
    experts = 2 * 8 * 3 * 48 * 32
    whole = alone["parameters"] - experts // 2
    held = shared["state_bytes"]["gradients until they are scattered"]
    assert held == pytest.approx(4 * whole, rel=0.01)


def test_norms_of_heads_and_tied_embeddings_agree_too():
    assert all(
        line.agrees for line in lines(deep(2, qk_norm=True, tied_embeddings=True, vocabulary=256), 2, {"dp_shard": 2, "tp": 2})
    )


def test_an_exchange_that_nobody_planned_does_not_agree(monkeypatch):
    found = {line.what: line for line in lines(deep(2), 1, {"dp_shard": 2, "tp": 2})}
    assert found["tp, all-reduce, forward"].reasons
    for part in ("_tensor", "_ends"):
        monkeypatch.setattr(departing, part, lambda work, layout: iter(()))
    without = {line.what: line for line in lines(deep(2), 1, {"dp_shard": 2, "tp": 2})}
    assert not without["tp, all-reduce, forward"].agrees
    assert not without["tp, all-gather, backward"].agrees
    assert without["tp, all-gather, forward"].agrees


@pytest.mark.parametrize(("spec", "axes"), [(deep(2), {"dp_shard": 48, "tp": 2}), (deep_routed(2), {"dp_shard": 80, "ep": 2})])
def test_rows_that_are_padded_to_the_ranks_are_counted(spec, axes):
    """More ranks than rows of keys and values: what travels grows, and so does what the first ranks hold."""
    found = {line.what: line for line in lines(spec, 1, axes)}
    assert all(line.agrees for line in found.values()), [line for line in found.values() if not line.agrees]
    rank = found["parameters of a rank"]
    assert rank.seen > 1.02 * rank.planned
    assert PADDING in rank.reasons


def test_a_layout_that_the_engine_refuses_is_refused_here_too():
    with pytest.raises(ConfigError, match="tp 3 for 4 heads"):
        seen(deep(2), 1, tp=3)
