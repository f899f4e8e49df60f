"""Formulas against published models and the worked plan: figures that this project did not write."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from known_models import KNOWN

from headway.formulas.activations import Pass
from headway.formulas.checkpoint_interval import daly_interval_seconds, young_interval_seconds
from headway.formulas.failures import (
    Interruptions,
    expected_failures,
    lost_seconds_first_order,
    wall_seconds_daly,
    wall_seconds_self_consistent,
)
from headway.formulas.flops import Convention, convert_mfu, flops_per_token, flops_quantity
from headway.formulas.memory import memory_quantities, state_bytes
from headway.formulas.parameters import count_parameters, parameter_quantities

REFERENCE = Path(os.environ.get("HEADWAY_REFERENCE", Path(__file__).parents[3] / "shared" / "reference")) / "plan"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="reference figures not found; set HEADWAY_REFERENCE")

LLAMA_8B = KNOWN["Llama-3-8B"]


def reference_rows() -> list[dict[str, str]]:
    if not REFERENCE.is_dir():
        return []
    with open(REFERENCE / "golden_params_flops.csv") as file:
        return list(csv.DictReader(file))


@needs_reference
def test_the_reference_is_covered_whole():
    assert len(reference_rows()) >= 31
    assert {row["model"] for row in reference_rows()} <= set(KNOWN)


@needs_reference
@pytest.mark.parametrize("row", reference_rows(), ids=lambda row: f"{row['model']}-{row['seq_len']}")
def test_parameters_and_flops_of_published_models(row):
    model, length = KNOWN[row["model"]], int(row["seq_len"])
    count = count_parameters(model)
    assert count.total == int(row["params_formula"])
    assert count.in_products == count.active_in_products == int(row["matmul_params"])
    published, off = float(row["params_published"]), abs(float(row["rel_err"]))
    assert abs(count.total / published - 1) <= off * 1.006  # printed with three digits; 0 where it is exact
    assert flops_per_token(model, length, Convention.SIX_N) == int(row["flops_tok_6N"])
    for convention, column in ((Convention.CAUSAL, "flops_tok_causal"), (Convention.FULL, "flops_tok_full_attn")):
        printed = float(row[column])  # with seven digits
        assert flops_per_token(model, length, convention) == pytest.approx(printed, rel=5e-7)


@needs_reference
@pytest.mark.parametrize("row", reference_rows(), ids=lambda row: f"{row['model']}-{row['seq_len']}")
def test_the_specs_are_the_architectures_of_the_reference(row):
    """A spec with other sizes could hit a sum by chance."""
    model = KNOWN[row["model"]]
    sizes = (model.layers, model.width, model.ffn_width, model.vocabulary, model.heads, model.kv_heads, model.head_width)
    names = ("layers", "d_model", "ffn", "vocab", "heads", "kv_heads", "head_dim")
    assert sizes == tuple(int(row[name]) for name in names)
    assert (model.gated, model.tied_embeddings) == (row["glu"] == "True", row["tied"] == "True")


def test_llama_8b_by_component():
    count = count_parameters(LLAMA_8B)
    assert (count.total, count.embedding, count.head) == (8_030_261_248, 525_336_576, 525_336_576)
    assert count.attention == 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    parts = parameter_quantities(LLAMA_8B)
    assert sum(parts[name].number() for name in ("embedding", "attention", "ffn", "gains", "head")) == count.total
    assert flops_quantity(LLAMA_8B, 8192, Convention.CAUSAL).value == pytest.approx(5.147040e10, rel=1e-6)


def test_G3_every_convention_converts_into_every_other():
    mfu = 0.4
    for of in Convention:
        for to in Convention:
            there = convert_mfu(mfu, LLAMA_8B, 8192, of=of, to=to)
            assert convert_mfu(there, LLAMA_8B, 8192, of=to, to=of) == pytest.approx(mfu)
    assert convert_mfu(mfu, LLAMA_8B, 8192, of=Convention.CAUSAL, to=Convention.FULL) == pytest.approx(
        mfu * 5.791285 / 5.147040, rel=1e-6
    )


def test_intervals_against_published_values():
    """c = 30 s, M = 6 h: Young 1,138 s, Daly 1,118.5 s."""
    assert young_interval_seconds(30, 6 * 3600) == pytest.approx(1138.42, abs=0.01)
    assert daly_interval_seconds(30, 6 * 3600) == pytest.approx(1118.51, abs=0.01)
    assert daly_interval_seconds(100, 10) == 10  # a save that costs more than twice the time between failures


@needs_reference
def test_worked_plan_figure_by_figure():
    golden = json.loads((REFERENCE / "golden_beacon.json").read_text())
    inputs, plan, corrected = golden["inputs"], golden["plan"], golden["corrected"]
    day = 86_400
    flops = 6 * inputs["params"] * inputs["tokens"]
    rate = inputs["gpus"] * inputs["peak_flops_per_gpu"] * inputs["mfu"]
    useful = flops / rate
    assert flops == plan["flops"]
    assert rate == pytest.approx(plan["cluster_flops_per_s"], rel=1e-3)
    assert useful / day == pytest.approx(plan["days_no_failures"], abs=0.05)
    assert state_bytes(int(inputs["params"])) == plan["state_bytes"]

    half_hour = Interruptions(between=10_800, restart=360, interval=1_800)
    assert round(expected_failures(useful, 10_800)) == plan["expected_failures"]
    assert lost_seconds_first_order(useful, half_hour) / day == pytest.approx(plan["lost_days"], abs=0.001)
    assert (useful + lost_seconds_first_order(useful, half_hour)) / day == pytest.approx(plan["days_with_failures"], abs=0.05)

    with_saves = Interruptions(between=10_800, restart=360, interval=1_800, save=3)
    assert wall_seconds_self_consistent(useful, half_hour) / day == pytest.approx(corrected["self_consistent_days"], abs=0.001)
    assert wall_seconds_self_consistent(useful, with_saves) / day == pytest.approx(
        corrected["self_consistent_with_3s_writes_days"], abs=0.001
    )
    assert wall_seconds_daly(useful, with_saves) / day == pytest.approx(corrected["daly_exact_days"], abs=0.001)
    young = young_interval_seconds(3, 10_800)
    assert young == pytest.approx(corrected["young_interval_seconds"], abs=0.05)
    at_young = Interruptions(between=10_800, restart=360, interval=young, save=3)
    assert wall_seconds_self_consistent(useful, at_young) / day == pytest.approx(corrected["days_at_young_interval"], abs=0.005)


def test_failures_faster_than_saves_never_end():
    daily = Interruptions(between=3_600, restart=360, interval=86_400)
    assert wall_seconds_self_consistent(1e6, daily) is None
    assert wall_seconds_daly(1e6, Interruptions(between=60, restart=360, interval=86_400)) is None


def test_memory_is_sixteen_bytes_a_parameter_and_a_band():
    one = Pass(model=LLAMA_8B, compute="bfloat16", sequence_length=8192, rows=1)
    parts = memory_quantities(one)
    assert parts["state"].value == 16 * 8_030_261_248
    assert parts["copies"].value == 2 * 7_504_658_432
    total = parts["total"]
    assert total.low < total.value < total.high
    exact = sum(parts[name].number() for name in ("state", "copies"))
    ranged = sum(parts[name].low for name in ("activations", "working", "process", "allocator"))
    assert total.low == pytest.approx(exact + ranged)
    assert memory_quantities(replace(one, compute="float32"))["copies"].value == 0
