"""FLOPs per token: published figures, and what must hold of windows, packed documents and conversions for any architecture."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from architectures import models
from formula_text import computed
from hypothesis import given
from hypothesis import strategies as st
from known_models import DEEPSEEK_V3, KNOWN, QWEN3_30B_A3B
from test_parameter_counts import WITH_MTP, golden

from headway.formulas.flops import (
    Convention,
    attention_flops_per_token,
    attention_layers,
    convert_mfu,
    flops_per_token,
    flops_quantity,
    mean_keys,
)
from headway.formulas.megatron import megatron_model_flops
from headway.formulas.parameters import count_parameters
from headway.recipe.spec import ModelSpec

LLAMA_8B = KNOWN["Llama-3-8B"]
CONVENTIONS = st.sampled_from(Convention)
MATRIX_CONVENTIONS = st.sampled_from((Convention.CAUSAL, Convention.FULL))
LENGTHS = st.integers(1, 1 << 17)

# --- published figures


def test_deepseek_v3_latent_attention(reference):
    row = golden(reference, "DeepSeek-V3")
    assert flops_per_token(DEEPSEEK_V3, 4096, Convention.CAUSAL) == pytest.approx(row["flops_tok_causal_s4096"], rel=2e-5)
    assert flops_per_token(DEEPSEEK_V3, 4096, Convention.FULL) == pytest.approx(row["flops_tok_full_s4096"], rel=2e-5)


def test_deepseek_v3_against_rates_that_others_publish(reference):
    """What another project's tables imply, from rounded rates: 2.491e11 to 2.497e11 without further tokens, 2.596e11 to
    2.606e11 with them. Its count is not documented to the unit: within 0.6 %."""
    row = golden(reference, "DeepSeek-V3")
    for model, name in ((DEEPSEEK_V3, "megatron_bridge_implied_noMTP"), (WITH_MTP, "megatron_bridge_with_MTP")):
        low, high = (float(bound) for bound in row[name].split(".."))
        assert low * 0.994 < flops_per_token(model, 4096, Convention.CAUSAL) < high * 1.006
    further = flops_per_token(WITH_MTP, 4096, Convention.CAUSAL) - flops_per_token(DEEPSEEK_V3, 4096, Convention.CAUSAL)
    assert further == pytest.approx(0.5 * (2.596e11 + 2.606e11) - 0.5 * (2.491e11 + 2.497e11), rel=0.06)


def test_nemotron_per_sequence(reference):
    row, model = golden(reference, "Nemotron-4"), KNOWN["Nemotron-4-340B"]
    assert 4096 * flops_per_token(model, 4096, Convention.CAUSAL) == pytest.approx(row["causal"], rel=2e-5)
    assert 4096 * flops_per_token(model, 4096, Convention.FULL) == pytest.approx(row["full"], rel=2e-6)
    assert row["full"] == row["nvidia_new"] == 8.62124e15
    assert megatron_model_flops(model, 4096) == pytest.approx(row["nvidia_old_ignores_GQA"], rel=2e-3)


def test_qwen_experts_in_products_only(reference):
    """Another trainer counts the gains of norms as if they were matrices: 6 x 210,944 more."""
    row, count = golden(reference, "Qwen3-30B-A3B"), count_parameters(QWEN3_30B_A3B)
    ours = flops_per_token(QWEN3_30B_A3B, 8192, Convention.FULL)
    assert ours == row["formula_matmul_only"] == 37_577_293_824
    assert ours + 6 * count.gains == row["torchtitan"]


def test_llama_3_8b_by_two_tables(reference):
    row = golden(reference, "Llama3-8B")
    causal, full = (flops_per_token(LLAMA_8B, 8192, c) for c in (Convention.CAUSAL, Convention.FULL))
    assert causal == pytest.approx(row["causal"], rel=1e-4)
    assert full == pytest.approx(row["full"], rel=1e-4)
    low, high = (float(bound) for bound in row["megatron_bridge_implied"].removesuffix(" (causal)").split(".."))
    assert low <= causal <= high
    assert full == pytest.approx(row["megatron_lm_readme_implied"], rel=2e-4)


# --- 6N


def test_what_6n_counts():
    tied = replace(LLAMA_8B, tied_embeddings=True)
    assert flops_per_token(LLAMA_8B, 8192, Convention.SIX_N) == 6 * 8_030_261_248
    assert flops_per_token(tied, 8192, Convention.SIX_N) == 6 * (8_030_261_248 - 128256 * 4096)
    assert flops_per_token(tied, 8192, Convention.FULL) == flops_per_token(LLAMA_8B, 8192, Convention.FULL)  # the head remains
    assert flops_per_token(DEEPSEEK_V3, 4096, Convention.SIX_N) == 6 * 37_552_297_472
    assert flops_per_token(WITH_MTP, 4096, Convention.SIX_N) == 6 * 37_552_297_472
    called = replace(LLAMA_8B, nominal_parameters=8_000_000_000)
    assert flops_per_token(called, 8192, Convention.SIX_N) == 48e9
    assert flops_per_token(called, 8192, Convention.FULL) == flops_per_token(LLAMA_8B, 8192, Convention.FULL)


# --- attention


def brute_force_keys(length: int, window: int | None) -> float:
    """Pairs that a causal mask with a window leaves, per query; the diagonal counts half, as s / 2 has it."""
    seen = window or length
    return sum(min(i, seen) - 0.5 for i in range(1, length + 1)) / length


@given(st.integers(1, 400), st.one_of(st.none(), st.integers(1, 400)))
def test_mean_keys_under_a_window_are_those_of_the_mask(length: int, window: int | None):
    """A window drops the far edge, and there its own half of a diagonal: at most half a key below the count."""
    keys, counted = mean_keys(length, window, Convention.CAUSAL), brute_force_keys(length, window)
    inside = window is None or window >= length
    assert keys == pytest.approx(counted) if inside else counted - 1e-9 <= keys <= counted + 0.5


@given(models(), LENGTHS, MATRIX_CONVENTIONS)
def test_a_window_as_long_as_the_sequence_is_none(model: ModelSpec, length: int, convention: Convention):
    whole = flops_per_token(replace(model, window=None), length, convention)
    for window in (length, length + 1, 10 * length):
        assert flops_per_token(replace(model, window=window), length, convention) == pytest.approx(whole)


@given(models(), LENGTHS, LENGTHS, LENGTHS, MATRIX_CONVENTIONS)
def test_attention_grows_with_window_and_length(model, length, first, second, convention):
    narrow, wide = sorted((first, second))
    less, more = (attention_flops_per_token(replace(model, window=w), length, convention) for w in (narrow, wide))
    assert less <= more * (1 + 1e-12)
    assert more <= attention_flops_per_token(model, length, Convention.FULL) * (1 + 1e-12) or model.window is not None
    less, more = (attention_flops_per_token(model, s, convention) for s in (narrow, wide))
    assert less <= more * (1 + 1e-12)


@given(models(), LENGTHS)
def test_the_causal_half_is_a_half_where_there_is_no_window(model: ModelSpec, length: int):
    model = replace(model, window=None)
    full = attention_flops_per_token(model, length, Convention.FULL)
    assert attention_flops_per_token(model, length, Convention.CAUSAL) == pytest.approx(full / 2)
    assert attention_flops_per_token(model, length, Convention.SIX_N) == 0


def test_layers_with_windows():
    every_sixth = replace(LLAMA_8B, layers=12, window=1024, full_attention_every=6)
    assert attention_layers(every_sixth) == (2, 10)
    assert attention_layers(replace(every_sixth, mtp_layers=2)) == (4, 10)  # like the last layer
    assert attention_layers(replace(every_sixth, full_attention_every=0, mtp_layers=1)) == (0, 13)
    full = 12 * 32 * 128 * (2 * 8192 + 10 * 1024)
    assert attention_flops_per_token(every_sixth, 8192, Convention.FULL) == full


def test_grouped_queries_do_not_shrink_scores():
    ungrouped = replace(LLAMA_8B, kv_heads=32)
    for convention in Convention:
        same = [attention_flops_per_token(model, 8192, convention) for model in (LLAMA_8B, ungrouped)]
        assert same[0] == same[1]


def test_latent_attention_has_two_widths():
    """6 L H (192 + 128) s of the whole square."""
    assert attention_flops_per_token(DEEPSEEK_V3, 4096, Convention.FULL) == 6 * 61 * 128 * 320 * 4096


def mean_context(lengths: list[int]) -> float:
    """E[l^2] / E[l]: what stands for s where documents of these lengths are packed and do not see each other."""
    return sum(length * length for length in lengths) / sum(lengths)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30))
def test_packed_documents_cost_the_sum_of_their_squares(lengths):
    """Attention of the documents one by one, over their tokens, is that of their mean context."""
    each = [length * attention_flops_per_token(LLAMA_8B, length, Convention.CAUSAL) for length in lengths]
    packed = sum(lengths) * attention_flops_per_token(LLAMA_8B, mean_context(lengths), Convention.CAUSAL)
    assert packed == pytest.approx(sum(each))
    assert min(lengths) - 1e-6 <= mean_context(lengths) <= max(lengths) + 1e-6
    random.Random(1).shuffle(lengths)
    assert mean_context(lengths) == pytest.approx(packed / sum(lengths) / (6 * 32 * 4096))


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30), st.integers(1, 6_000))
def test_with_a_window_the_mean_context_is_an_upper_bound(lengths, window):
    model = replace(LLAMA_8B, window=window)
    each = sum(length * attention_flops_per_token(model, length, Convention.CAUSAL) for length in lengths) / sum(lengths)
    assert attention_flops_per_token(model, mean_context(lengths), Convention.CAUSAL) >= each * (1 - 1e-12)


# --- conventions


@given(models(), LENGTHS, CONVENTIONS, CONVENTIONS)
def test_G3_there_and_back(model: ModelSpec, length: int, of: Convention, to: Convention):
    there = convert_mfu(0.4, model, length, of=of, to=to)
    assert convert_mfu(there, model, length, of=to, to=of) == pytest.approx(0.4)
    assert there == pytest.approx(0.4 * flops_per_token(model, length, to) / flops_per_token(model, length, of))


@given(models(), LENGTHS, CONVENTIONS)
def test_the_formula_beside_the_number_gives_it(model: ModelSpec, length: int, convention: Convention):
    quantity = flops_quantity(model, length, convention)
    assert computed(quantity) == pytest.approx(quantity.value)
    assert quantity.value == flops_per_token(model, length, convention)


def test_a_gated_feed_forward_has_three_matrices():
    plain = replace(LLAMA_8B, ffn="gelu")
    gates = 32 * 4096 * 14336
    assert flops_per_token(LLAMA_8B, 8192, Convention.FULL) - flops_per_token(plain, 8192, Convention.FULL) == 6 * gates


def test_norms_and_biases_are_in_no_product():
    biased = replace(LLAMA_8B, bias="all", norm="layernorm", block="sandwich", qk_norm=True, embedding_norm=True)
    assert flops_per_token(biased, 8192, Convention.FULL) == flops_per_token(LLAMA_8B, 8192, Convention.FULL)
    assert flops_per_token(biased, 8192, Convention.SIX_N) > flops_per_token(LLAMA_8B, 8192, Convention.SIX_N)
