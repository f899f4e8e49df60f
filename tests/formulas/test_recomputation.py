"""MFU and HFU: recomputation by first principles, Megatron's closed forms, the published figures of Korthikanti et al. 2022."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from architectures import models
from hypothesis import given
from hypothesis import strategies as st
from known_models import DEEPSEEK_V3, KNOWN, gpt
from test_flops_conventions import CONVENTIONS, LENGTHS, LLAMA_8B
from test_parameter_counts import WITH_MTP, golden

from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.formulas.megatron import korthikanti_hardware_flops, megatron_hardware_flops, megatron_model_flops
from headway.formulas.parameters import count_parameters
from headway.formulas.recompute import (
    Recompute,
    hardware_flops_per_token,
    mfu,
    recompute_factor,
)
from headway.plan.work import Recompute as RecomputeOfPlans
from headway.recipe.spec import ModelSpec

FULL, CAUSAL, SIX_N = Convention.FULL, Convention.CAUSAL, Convention.SIX_N
A100_PEAK = 312e12

KORTHIKANTI = {
    "22B": (gpt(48, 6144, 64, 51200), 4, 8, 1.10),
    "175B": (gpt(96, 12288, 96, 51200), 64, 64, 13.75),
    "530B": (gpt(105, 20480, 128, 51200), 280, 280, 37.83),
    "1T": (gpt(128, 25600, 160, 51200), 512, 512, 71.49),
}
"""Model, sequences of 2,048, GPUs, seconds of a step with sequence parallelism and selective recomputation: tables 3 and 5."""


def published(reference) -> dict[str, dict]:
    rows = json.loads((reference / "plan/golden_exact.json").read_text())
    return {row["model"]: row for row in rows if "mfu_formula" in row}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_korthikanti_mfu_and_hfu(reference, name):
    row = published(reference)[name]
    model, batch, chips, seconds = KORTHIKANTI[name]
    rate = batch * 2048 / seconds / chips
    needed = flops_per_token(model, 2048, FULL)
    computed = hardware_flops_per_token(model, 2048, FULL, Recompute.SELECTIVE, flash=False)
    assert 100 * mfu(rate, flops_per_token=needed, peak_flops_per_second=A100_PEAK) == pytest.approx(row["mfu_formula"])
    assert 100 * mfu(rate, flops_per_token=computed, peak_flops_per_second=A100_PEAK) == pytest.approx(row["hfu_formula"])
    assert row["mfu_formula"] == pytest.approx(row["mfu_paper"], abs=0.2)
    as_published = korthikanti_hardware_flops(model, 2048, batch) / (chips * seconds * A100_PEAK)
    assert 100 * as_published == pytest.approx(row["hfu_paper"], abs=0.15)


def test_the_step_times_are_those_of_the_reference(reference):
    with open(reference / "plan/golden_korthikanti.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "tab5 step s SP+selective"]
    assert {row["model"]: float(row["paper"]) for row in rows} == {name: one[-1] for name, one in KORTHIKANTI.items()}


@pytest.mark.parametrize("name", ["GPT-3-175B(Megatron V=51200)", "MT-NLG-530B", "Megatron-1T"])
@pytest.mark.parametrize("sequence", [2048, 8192])
def test_megatrons_closed_forms_are_first_principles(name, sequence):
    """For a feed-forward of 4 h without grouped queries the closed forms are exact."""
    model = KNOWN[name]
    tokens = 3 * sequence
    assert megatron_model_flops(model, sequence, 3) == pytest.approx(tokens * flops_per_token(model, sequence, FULL))
    computed = hardware_flops_per_token(model, sequence, FULL, Recompute.FULL)
    assert megatron_hardware_flops(model, sequence, 3) == pytest.approx(tokens * computed)
    selective = hardware_flops_per_token(model, sequence, FULL, Recompute.SELECTIVE, flash=False)
    width = model.width
    ratio = 1 + sequence / (4.5 * width) + model.vocabulary / (12 * model.layers * width)
    assert tokens * selective == pytest.approx(72 * tokens * model.layers * width**2 * ratio)
    assert korthikanti_hardware_flops(model, sequence, 3) > tokens * selective


def test_full_recomputation_is_8_n_d():
    assert hardware_flops_per_token(LLAMA_8B, 8192, SIX_N, Recompute.FULL) == 8 * 8_030_261_248
    assert hardware_flops_per_token(LLAMA_8B, 8192, SIX_N, Recompute.OPS) == 7 * 8_030_261_248
    assert hardware_flops_per_token(LLAMA_8B, 8192, SIX_N, Recompute.SELECTIVE, flash=False) == 6 * 8_030_261_248


@pytest.mark.parametrize("model", [LLAMA_8B, WITH_MTP], ids=["dense", "experts and further tokens"])
def test_heads_are_not_recomputed(model: ModelSpec):
    extra = hardware_flops_per_token(model, 4096, CAUSAL, Recompute.FULL) - flops_per_token(model, 4096, CAUSAL)
    heads = 2 * model.vocabulary * model.width * (1 + model.mtp_layers)
    assert extra == pytest.approx(flops_per_token(model, 4096, CAUSAL) / 3 - heads)
    assert extra > 2 * 0.8 * count_parameters(model).active_in_products


def test_light_repeats_what_comes_up_from_latents_in_every_block():
    """DeepSeek-V3: 61 layers and one head for a further token, whose block is one more."""
    latent, heads = DEEPSEEK_V3.latent, DEEPSEEK_V3.heads
    each = latent.query_rank * heads * 192 + latent.kv_rank * heads * (latent.nope_width + latent.value_width)
    for further in (0, 1, 2):
        model = replace(DEEPSEEK_V3, mtp_layers=further)
        extra = hardware_flops_per_token(model, 4096, CAUSAL, Recompute.LIGHT) - flops_per_token(model, 4096, CAUSAL)
        assert extra == pytest.approx(2 * (61 + further) * each)


@given(models(), LENGTHS, CONVENTIONS, st.sampled_from(Recompute), st.booleans())
def test_hfu_is_mfu_and_at_most_a_third_more(model, length, convention, recompute, flash):
    assert 1 - 1e-12 <= recompute_factor(model, length, convention, recompute, flash=flash) <= 4 / 3 + 1e-12


@given(models(), LENGTHS, CONVENTIONS)
def test_more_is_recomputed_in_order(model, length, convention):
    none, flash, selective, full = (
        recompute_factor(model, length, convention, what, flash=fused)
        for what, fused in (
            (Recompute.NONE, False),
            (Recompute.SELECTIVE, True),
            (Recompute.SELECTIVE, False),
            (Recompute.FULL, False),
        )
    )
    assert none == flash == 1
    assert flash <= selective <= full
    assert none < recompute_factor(model, length, convention, Recompute.OPS) < full + 1e-12


def test_selective_repeats_the_scores_only_where_the_kernel_does_not():
    plain = flops_per_token(LLAMA_8B, 8192, FULL)
    assert hardware_flops_per_token(LLAMA_8B, 8192, FULL, Recompute.SELECTIVE) == plain
    repeated = hardware_flops_per_token(LLAMA_8B, 8192, FULL, Recompute.SELECTIVE, flash=False) - plain
    assert repeated == attention_flops_per_token(LLAMA_8B, 8192, FULL) / 3


def test_a_published_utilisation_from_flops_and_seconds(reference):
    """A whole run on eight chips: its FLOPs over its seconds are one token's over one second's."""
    row = golden(reference, "nanochat")
    share = mfu(1 / row["seconds"] / row["gpus"], flops_per_token=row["flops"], peak_flops_per_second=989e12)
    assert share == pytest.approx(row["mfu_at_989"], rel=1e-9)


def test_plans_use_the_same_names():
    assert RecomputeOfPlans is Recompute
