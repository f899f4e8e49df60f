"""Step time: what any true model of it obeys, and its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.chips import find_chip
from headway.formulas.flops import Convention, flops_per_token
from headway.plan.memory.model import pass_bytes
from headway.plan.memory.stages import stages
from headway.plan.step.communication import Axis, collectives
from headway.plan.step.compute import HOST_BYTES_PER_SECOND, achievable, block_seconds, head_seconds, seen_tokens
from headway.plan.step.network import collective_seconds
from headway.plan.step.step_time import PARTS, step_time
from headway.plan.work import Cluster, Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe.offload import Offload
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec


def decoder(**others) -> ModelSpec:
    plain = {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_width": 128,
        "ffn_width": 14_336,
        "vocabulary": 128_256,
        "rope_base": 5e5,
        "norm_epsilon": 1e-5,
        "qk_norm": False,
        "tied_embeddings": False,
        "init_std": 0.02,
    }
    return ModelSpec(**(plain | others))


LLAMA = decoder()
H100, A100 = find_chip("H100-SXM"), find_chip("A100-SXM-80GB")


def cluster(chips: int, chip=H100) -> Cluster:
    assert chip.network_bandwidth is not None
    return Cluster(chip=chip, chips=chips, domain=chip.domain, network=chip.network_bandwidth)


def work(**others) -> Work:
    return Work(**({"model": LLAMA, "sequence": 8192, "batch": 256} | others))


LAYOUTS = st.builds(
    Layout,
    pp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 8]),
    cp=st.sampled_from([1, 2]),
    dp_shard=st.sampled_from([1, 4, 8]),
    dp_replicate=st.sampled_from([1, 2]),
    micro_batch=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2, 3]),
    recompute=st.sampled_from(list(Recompute)),
    sequence_parallel=st.booleans(),
)


def seconds(layout: Layout, one: Work | None = None, chip=H100) -> float:
    return step_time(one or work(), layout, cluster(layout.world, chip)).seconds


@settings(max_examples=60, deadline=None)
@given(layout=LAYOUTS)
def test_parts_add_up_and_none_is_negative(layout):
    found = step_time(work(), layout, cluster(layout.world))
    assert set(found.parts) == set(PARTS)
    assert all(part >= 0 for part in found.parts.values()), found.parts
    assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert found.low < found.seconds < found.high


@settings(max_examples=60, deadline=None)
@given(layout=LAYOUTS)
def test_no_step_beats_the_peak(layout):
    """MFU stays below one on any layout (G2)."""
    one = work()
    flops = one.tokens * flops_per_token(one.model, one.sequence, Convention.CAUSAL)
    assert seconds(layout) > flops / (layout.world * H100.peaks["bfloat16"])


@settings(max_examples=40, deadline=None)
@given(layout=LAYOUTS)
def test_computing_again_is_never_free(layout):
    kept, again = (seconds(replace(layout, recompute=how)) for how in (Recompute.NONE, Recompute.FULL))
    assert kept < again < 1.7 * kept


@settings(max_examples=40, deadline=None)
@given(layout=LAYOUTS)
def test_a_larger_batch_takes_longer_per_step_and_not_per_token(layout):
    small, large = seconds(layout, work(batch=256)), seconds(layout, work(batch=512))
    assert small < large <= 2 * small * (1 + 1e-9)


def test_a_bubble_is_its_closed_form():
    """1F1B with p = m: (p - 1) / m of a stage's work, less with chunks."""
    plain = Layout(pp=4, dp_shard=1, micro_batch=1, zero=1)
    one = work(batch=4, model=decoder(vocabulary=1024))
    found = step_time(one, plain, cluster(4)).parts
    busy = sum(value for name, value in found.items() if name not in ("bubble", "update", "stragglers"))
    assert found["bubble"] / busy == pytest.approx(3 / 4, rel=0.02)
    chunked = step_time(one, replace(plain, virtual=2, pipeline=Pipeline.INTERLEAVED), cluster(4)).parts
    assert chunked["bubble"] / found["bubble"] == pytest.approx(1 / 2, rel=0.05)


def test_padded_replicas_cost_their_padding():
    """1,953 sequences over 128 replicas take as long as 2,048: each replica passes 16."""
    layout = Layout(dp_shard=128)
    assert seconds(layout, work(batch=1953)) == pytest.approx(seconds(layout, work(batch=2048)), rel=1e-9)


def test_a_tensor_group_across_nodes_costs_more_than_within():
    inside, across = seconds(Layout(tp=8, dp_shard=8)), seconds(Layout(tp=16, dp_shard=4))
    assert across > 1.3 * inside


def test_hidden_collectives_cost_less_than_bare_ones():
    layout = Layout(dp_shard=64)
    bare = work(implementation=Implementation(overlap=False))
    assert step_time(work(), layout, cluster(64)).parts["dp"] < 0.7 * step_time(bare, layout, cluster(64)).parts["dp"]


def test_eight_bits_are_faster_but_not_twice():
    layout = Layout(dp_shard=8)
    ratio = seconds(layout) / seconds(layout, work(precision="float8"))
    assert 1.1 < ratio < 1.9


def test_windows_shorten_attention():
    windowed = work(model=decoder(window=1024, full_attention_every=4))
    assert seen_tokens(work()) == 8192
    assert seen_tokens(windowed) == pytest.approx(0.25 * 8192 + 0.75 * (2 * 1024 - 1024**2 / 8192))
    base, less = (block_seconds(one, Layout(), H100, False).forward for one in (work(), windowed))
    assert less < base


def test_experts_cost_what_is_active():
    """Eight of 64 experts of an eighth of the width: the arithmetic of the dense block, and a router."""
    experts = ExpertsSpec(experts=64, top_k=8, width=LLAMA.ffn_width // 8)
    routed = block_seconds(work(model=decoder(experts=experts), batch=8), Layout(micro_batch=8), H100, True).forward
    dense = block_seconds(work(batch=8), Layout(micro_batch=8), H100, False).forward
    assert dense < routed < 1.6 * dense


def test_latent_attention_has_its_own_widths():
    latent = LatentSpec(query_rank=1536, kv_rank=512, nope_width=128, rope_width=64, value_width=128)
    wide = decoder(heads=128, kv_heads=128, head_width=192, latent=latent)
    narrow = decoder(heads=64, kv_heads=64, head_width=192, latent=latent)
    assert (
        block_seconds(work(model=wide), Layout(), H100, False).forward
        > block_seconds(work(model=narrow), Layout(), H100, False).forward
    )


def test_a_chip_without_a_measured_product_gets_a_share_of_its_peak():
    chip = replace(H100, name="unmeasured", achievable={})
    assert achievable(chip, "bfloat16") == pytest.approx(0.8 * 989e12)
    assert achievable(H100, "float16") == H100.achievable["bfloat16"]


def test_the_head_is_split_over_tensor_ranks():
    whole, split = (sum(head_seconds(work(), Layout(tp=tp), H100)) for tp in (1, 8))
    assert split == pytest.approx(whole / 8, rel=0.3)


def test_offload_is_paid_at_the_host_s_link():
    """Moments there and back, bare; activations as far as computation does not hide them, one way in each pass."""
    here, moved = (step_time(work(), Layout(dp_shard=8, offload=kind), cluster(8)).parts for kind in (Offload.NONE, Offload.ALL))
    held = stages(work().model, 1, 1, 1, 1)[0]
    moments = 8 * (held.plain + held.experts) / 8
    assert moved["update"] - here["update"] == pytest.approx(2 * moments / HOST_BYTES_PER_SECOND)
    assert here["host"] == 0
    layout = Layout(dp_shard=8, micro_batch=2)
    there = pass_bytes(work(), layout, held) / HOST_BYTES_PER_SECOND
    chip = replace(H100, peaks={"bfloat16": 1e18}, achievable={"bfloat16": 1e18}, memory_bandwidth=1e16)
    quick = replace(cluster(8), chip=chip)
    seconds = step_time(work(), replace(layout, offload=Offload.ACTIVATIONS), quick).parts["host"]
    assert 0 < seconds < 2 * there * layout.micro_batches(work().batch)
    slow = replace(quick, chip=replace(chip, achievable={"bfloat16": 1e12}))
    assert step_time(work(), replace(layout, offload=Offload.ACTIVATIONS), slow).parts["host"] == 0


def test_what_cannot_hide_is_paid_in_full():
    """Tensor groups over slow networks take longer than the computation that they run beside: the rest is exposed."""
    slow = replace(cluster(64), network=1e9)
    layout = Layout(tp=64, zero=0)
    bare, hidden = (
        step_time(work(implementation=Implementation(overlap_tp=overlap)), layout, slow).parts for overlap in (False, True)
    )
    assert hidden["tp"] > bare["tp"] - hidden["compute"]
    assert hidden["tp"] > 0.8 * bare["tp"]


def test_one_rank_that_is_both_ends_pays_for_both():
    """With one stage, the embedding's collectives and the head's are those of the same rank."""
    found = collectives(work(), Layout(tp=8))
    ends = [one for one in found if one.axis is Axis.TP and one.stage in ("first", "last")]
    priced = sum(one.calls * collective_seconds(one, cluster(8)) for one in ends)
    with_head = step_time(work(), Layout(tp=8), cluster(8)).parts["head"]
    alone = work().batch * sum(head_seconds(work(), Layout(tp=8), H100))
    assert with_head == pytest.approx(alone + priced, rel=1e-6)


def test_a_chip_without_the_precision_is_refused():
    with pytest.raises(ConfigError, match="float8"):
        step_time(work(precision="float8"), Layout(), cluster(1, A100))
