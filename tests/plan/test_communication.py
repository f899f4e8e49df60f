"""Volumes of the collectives of a step, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import LLAMA_405B

from headway.formulas.parameters import count_parameters
from headway.plan.step.communication import Axis, Collective, Kind, Phase, collectives
from headway.plan.step.shares import model_parts, rank_parameters, routed_blocks, stage_blocks
from headway.plan.work import Layout, Pipeline, Recompute, Work
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec

SMALL = replace(LLAMA_405B, layers=4, width=64, heads=8, kv_heads=4, head_width=8, ffn_width=256, vocabulary=512)
ROUTED = replace(SMALL, experts=ExpertsSpec(experts=16, top_k=2, width=32, shared=1, dense_layers=1))
WORK = Work(model=SMALL, sequence=128, batch=32)


def named(work: Work, layout: Layout) -> dict[str, Collective]:
    found = collectives(work, layout)
    assert len({c.name for c in found}) == len(found), "two collectives of one name"
    return {c.name: c for c in found}


def volume(work: Work, layout: Layout, *axes: Axis) -> float:
    return sum(c.step_bytes_per_rank for c in collectives(work, layout) if c.axis in axes and c.phase is not Phase.STEP)


def test_one_device_says_nothing() -> None:
    assert collectives(WORK, Layout(zero=0)) == ()


def test_tensor_parallelism_is_four_sums_per_layer() -> None:
    """2 sums forward and 2 backward of 2 s b d bytes: formulas.md, section 6; arXiv 2205.05198, section 4.2.1."""
    layout = Layout(tp=4, zero=0, micro_batch=2, sequence_parallel=False)
    found = named(WORK, layout)
    passes, layers, stream = 16, 4, 2 * 128 * 2 * 64
    assert found["sum of outputs"].payload_bytes == stream
    assert found["sum of outputs"].calls == found["sum of input gradients"].calls == passes * layers * 2
    blocks = found["sum of outputs"].step_bytes_per_rank + found["sum of input gradients"].step_bytes_per_rank
    assert blocks == passes * layers * 4 * 2 * 3 / 4 * stream


def test_sequence_parallelism_moves_as_much_and_gathers_inputs_again() -> None:
    layout = Layout(tp=4, zero=0, micro_batch=2)
    plain = named(WORK, replace(layout, sequence_parallel=False))
    split = named(WORK, layout)
    sums = plain["sum of outputs"].step_bytes_per_rank + plain["sum of input gradients"].step_bytes_per_rank
    names = ("gather of inputs", "scatter of outputs", "gather of output gradients", "scatter of input gradients")
    assert sum(split[name].step_bytes_per_rank for name in names) == sums
    assert split["gather of inputs again"].step_bytes_per_rank == sums / 4
    assert split["gather of inputs again"].overlaps


def test_full_recomputation_repeats_the_forward_messages() -> None:
    layout = Layout(tp=2, cp=2, dp_shard=2, ep=4, zero=1)
    work = replace(WORK, model=ROUTED)
    kept, again = named(work, layout), named(work, replace(layout, recompute=Recompute.FULL))
    repeated = set(again) - set(kept)
    assert repeated == {f"{name}, recomputed" for name in kept if _within_a_block(kept[name])}
    for name in repeated:
        assert again[name].step_bytes_per_rank == kept[name.removesuffix(", recomputed")].step_bytes_per_rank
        assert again[name].phase is Phase.BACKWARD


def _within_a_block(one: Collective) -> bool:
    return one.phase is Phase.FORWARD and one.axis in (Axis.TP, Axis.CP, Axis.EP) and not one.stage


def test_a_parallel_block_sums_once() -> None:
    layout = Layout(tp=4, zero=0)
    two = named(WORK, layout)["gather of inputs"].calls
    assert named(replace(WORK, model=replace(SMALL, block="parallel")), layout)["gather of inputs"].calls == two / 2


def test_a_parallel_block_with_two_norms_reads_twice_and_sums_once() -> None:
    """Attention and feed-forward read differently normed inputs, and their outputs are added before they are summed."""
    layout = Layout(tp=4, zero=0)
    plain, found = named(WORK, layout), named(replace(WORK, model=replace(SMALL, block="parallel-two-norms")), layout)
    assert found["gather of inputs"].calls == plain["gather of inputs"].calls
    assert found["scatter of outputs"].calls == plain["scatter of outputs"].calls / 2
    assert found["gather of output gradients"].calls == plain["gather of output gradients"].calls / 2
    assert found["scatter of input gradients"].calls == plain["scatter of input gradients"].calls


def test_data_parallelism_by_zero() -> None:
    """2 (n-1)/n P for 0, 1 and 2, in bytes of what is moved; 3 gathers twice for each micro-batch."""
    layout, in_units = Layout(dp_shard=8, micro_batch=1), count_parameters(SMALL).total
    share, passes = 7 / 8, 4
    sums = [volume(WORK, replace(layout, zero=zero), Axis.DP_SHARD, Axis.DP_REPLICATE) for zero in range(4)]
    assert sums[0] == pytest.approx(2 * share * 4 * in_units)
    assert sums[1] == pytest.approx(share * (4 + 2) * in_units)
    assert sums[2] == pytest.approx(share * (4 * passes + 2) * in_units)
    assert sums[3] == pytest.approx(share * passes * (4 + 2 + 2) * in_units)


def test_a_pipeline_communicates_once_a_step_whatever_zero_says() -> None:
    """It holds the stage's weights and sums its gradients through the step (arXiv 2407.21783, section 3.3.2)."""
    layout = Layout(pp=2, dp_shard=8)
    first, second, third = (named(WORK, replace(layout, zero=zero)) for zero in (1, 2, 3))
    assert first == second == third
    assert not any(c.every_pass for c in first.values() if c.axis is Axis.DP_SHARD)


@pytest.mark.parametrize(("zero", "each"), [(0, set()), (1, set()), (2, {Phase.BACKWARD}), (3, {Phase.FORWARD, Phase.BACKWARD})])
def test_what_is_repeated_for_each_micro_batch_says_so(zero: int, each: set[Phase]) -> None:
    found = [c for c in collectives(WORK, Layout(dp_shard=8, zero=zero)) if c.axis in (Axis.DP_SHARD, Axis.DP_REPLICATE)]
    assert {c.phase for c in found if c.every_pass} == each


def test_hybrid_sharding_sums_shards_between_replicas() -> None:
    layout = Layout(dp_replicate=4, dp_shard=8, tp=2, zero=3)
    found = named(WORK, layout)
    block = model_parts(SMALL).dense.dense(SMALL, layout)
    inside, between = found["scatter of gradients, blocks"], found["sum of gradient shards, blocks"]
    assert (inside.group, inside.stride, between.group, between.stride) == (8, 2, 4, 16)
    assert inside.payload_bytes == 4 * block
    assert between.payload_bytes == 4 * block / 8
    assert between.bytes_per_rank == pytest.approx(2 * 3 / 4 * 4 * block / 8)


def test_context_parallelism_gathers_keys_and_values() -> None:
    """2 s b K E elements, forward once, backward gathered again and scattered (formulas.md, section 6: backward is twice)."""
    layout = Layout(cp=4, tp=2, zero=0, micro_batch=2)
    found = [c for c in collectives(WORK, layout) if c.axis is Axis.CP]
    payload = 2 * 128 * 2 * (4 // 2) * 8 * 2
    assert {c.payload_bytes for c in found} == {payload}
    assert [c.kind for c in found] == [Kind.ALL_GATHER, Kind.ALL_GATHER, Kind.REDUCE_SCATTER]
    assert {(c.group, c.stride, c.calls) for c in found} == {(4, 2, 16 * 4)}


def test_copies_of_keys_and_values_do_not_shrink_further() -> None:
    sizes = [named(WORK, Layout(cp=2, tp=tp, zero=0))["gather of keys and values"].payload_bytes for tp in (2, 4, 8)]
    assert sizes[0] == 2 * sizes[1] == 2 * sizes[2]


def test_latent_attention_gathers_latents() -> None:
    latent = LatentSpec(query_rank=None, kv_rank=32, nope_width=8, rope_width=4, value_width=8)
    model = replace(SMALL, latent=latent)
    found = named(replace(WORK, model=model), Layout(cp=2, zero=0))["gather of keys and values"]
    assert found.payload_bytes == 128 * (32 + 4) * 2


def test_experts_take_four_exchanges_a_layer() -> None:
    """Tokens x top_k x d, dispatch and combine, forward and backward (formulas.md, section 6)."""
    layout = Layout(dp_shard=4, cp=2, tp=2, ep=4, zero=1)
    found = [c for c in collectives(replace(WORK, model=ROUTED), layout) if c.axis is Axis.EP and c.name != "tokens per expert"]
    assert len(found) == 4
    for one in found:
        assert one.payload_bytes == 128 / 2 / 2 * 2 * 64 * 2
        assert one.bytes_per_rank == 3 / 4 * one.payload_bytes
        assert (one.group, one.stride, one.calls) == (4, 2, 8 * 3)


def test_experts_are_reduced_over_the_ranks_that_hold_copies() -> None:
    layout = Layout(dp_replicate=2, dp_shard=4, cp=2, tp=2, ep=4, zero=1)
    found = named(replace(WORK, model=ROUTED), layout)
    scatter, between = found["scatter of gradients, experts"], found["sum of gradient shards, experts"]
    assert (scatter.group, scatter.stride) == (8 // 4, 2 * 4)
    assert scatter.payload_bytes == 4 * 16 * 3 * 64 * 32 / (4 * 2)
    assert (between.group, between.stride) == (2, 2 * 8)


def test_experts_that_lie_once_are_not_reduced() -> None:
    found = named(replace(WORK, model=ROUTED), Layout(dp_shard=8, ep=8, zero=1))
    assert "scatter of gradients, experts" not in found
    assert found["scatter of gradients, blocks with experts"].group == 8


def test_a_stage_sends_its_part_of_the_stream() -> None:
    layout = Layout(pp=4, tp=2, cp=2, zero=0, virtual=1, micro_batch=2)
    found = named(WORK, layout)
    forward = found["activations to the next stage"]
    assert forward.payload_bytes == 2 * 128 / 2 * 64 * 2 / 2
    assert forward.bytes_per_rank == forward.payload_bytes
    assert (forward.group, forward.stride, forward.calls) == (2, 4, 16)
    chunked = named(WORK, replace(layout, pp=2, virtual=2, pipeline=Pipeline.INTERLEAVED))["activations to the next stage"]
    assert chunked.calls == 2 * forward.calls
    assert chunked.overlaps
    assert not forward.overlaps


def test_a_tied_embedding_is_summed_between_the_ends() -> None:
    work = replace(WORK, model=replace(SMALL, tied_embeddings=True))
    found = named(work, Layout(pp=4, tp=2, zero=0))["gradients of the tied embedding"]
    assert (found.payload_bytes, found.stride, found.stage) == (4 * 512 * 64 / 2, 6, "ends")
    assert "gradients of the tied embedding" not in named(work, Layout(tp=2, zero=0))


def test_the_405b_layout_of_the_beacon_plan() -> None:
    """One layer's forward and backward under tp 8: 8 x 7/8 x 2 s d = 1.9 GB; the shard of a rank: 405.9e9 / 128."""
    work = Work(model=LLAMA_405B, sequence=8192, batch=2048)
    layout = Layout(pp=16, dp_shard=128, tp=8, zero=2)
    found = named(work, layout)
    assert found["gather of inputs"].payload_bytes == 2 * 8192 * 16384
    assert found["gather of inputs"].calls == 16 * 8 * 2
    assert sum(rank_parameters(LLAMA_405B, layout)) == pytest.approx(405.853e9 / 128, rel=0.01)
    assert found["gradient norm"].group == 16384


def test_layers_that_do_not_divide_are_taken_from_the_ends() -> None:
    """Llama 3: 126 layers over 16 stages, one fewer on the first and on the last (arXiv 2407.21783, section 3.3.2)."""
    assert stage_blocks(LLAMA_405B, Layout(pp=16)) == (7, *[8] * 14, 7)


@given(layers=st.integers(1, 130), pp=st.integers(1, 20), virtual=st.integers(1, 4))
def test_stages_hold_every_layer_once(layers: int, pp: int, virtual: int) -> None:
    sizes = stage_blocks(replace(SMALL, layers=layers), Layout(pp=pp, virtual=virtual))
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= virtual


LEARNED = replace(SMALL, position="learned", positions=128)


@given(tp=st.sampled_from([1, 2, 4]), ep=st.sampled_from([1, 2, 4]), model=st.sampled_from([SMALL, ROUTED, LEARNED]))
def test_parts_of_the_ranks_add_up_to_the_model(tp: int, ep: int, model: ModelSpec) -> None:
    """Of everything that is split: tp x dense + ep x tp x experts; what lies on every rank is counted tp times."""
    layout = Layout(tp=tp, ep=ep, dp_shard=4)
    parts = model_parts(model)
    dense, experts = rank_parameters(model, layout)
    whole = (
        parts.ends
        + parts.positions
        + sum((parts.routed if model.has_experts(layer) else parts.dense).whole for layer in range(model.layers))
    )
    assert tp * dense - (tp - 1) * whole + ep * tp * experts == pytest.approx(count_parameters(model).total)


def test_blocks_with_experts_are_those_of_the_stage_with_most_blocks() -> None:
    """Of 8 layers the first 3 are without: over two stages the second has 4 with, over four the last has 2."""
    model = replace(SMALL, layers=8, experts=replace(ROUTED.experts, dense_layers=3, every=1))
    assert [routed_blocks(model, Layout(pp=pp)) for pp in (1, 2, 4)] == [5, 4, 2]


def test_keys_and_values_are_copied_beyond_their_heads() -> None:
    """4 heads over 8 ranks: each rank has one, as with 4 ranks; everything else is halved."""
    four, eight = (model_parts(SMALL).dense.dense(SMALL, Layout(tp=tp)) for tp in (4, 8))
    parts = model_parts(SMALL).dense
    assert parts.kv == 2 * 64 * 4 * 8
    assert four - eight == parts.split / 8


@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    shard=st.sampled_from([1, 2, 4]),
    replicate=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
)
def test_groups_lie_within_the_world(tp: int, cp: int, pp: int, shard: int, replicate: int, zero: int) -> None:
    layout = Layout(tp=tp, cp=cp, pp=pp, dp_shard=shard, dp_replicate=replicate, zero=zero, ep=min(shard, 2))
    for one in collectives(replace(WORK, model=ROUTED), layout):
        assert one.group > 1
        assert (one.group - 1) * one.stride < layout.world
        assert one.payload_bytes > 0
        assert one.calls > 0
