"""Counts of parameters: published figures to the unit, and every formula computed from its own inputs."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from architectures import models
from formula_text import computed
from hypothesis import given
from hypothesis import strategies as st
from known_models import DEEPSEEK_V3, KNOWN, QWEN3_30B_A3B

from headway.formulas.activations import Pass
from headway.formulas.memory import memory_quantities
from headway.formulas.parameters import count_parameters, parameter_quantities, parameters_in_6n
from headway.recipe.roles import Role, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec

WITH_MTP = replace(DEEPSEEK_V3, mtp_layers=1)


def golden(reference, name: str) -> dict:
    rows = json.loads((reference / "plan/golden_exact.json").read_text())
    return next(row for row in rows if row.get("name", "").startswith(name))


def test_deepseek_v3_to_the_unit(reference):
    row, count = golden(reference, "DeepSeek-V3"), count_parameters(DEEPSEEK_V3)
    assert count.total == row["total"] == 671_026_419_200
    assert count.active == row["active_incl_both_embeddings"] == 37_552_297_472
    assert count.active_without_input_embedding == row["active_minus_input_embedding"] == 36_625_618_432


def test_heads_for_further_tokens_stand_apart():
    """Published as 671 B and 14 B: the latter with a copy of embedding and head, which they share with the model."""
    count, plain = count_parameters(WITH_MTP), count_parameters(DEEPSEEK_V3)
    assert (count.total, count.active) == (plain.total, plain.active)
    assert count.stored - count.mtp == plain.stored == plain.total
    assert round((count.mtp + count.embedding + count.head) / 1e9) == 13
    block = count.mtp - 2 * 7168**2 - 3 * 7168
    assert block == 256 * 3 * 7168 * 2048 + 3 * 7168 * 2048 + 256 * 7168 + 256 + plain.attention // 61 + 2 * 7168 + 1536 + 512


def test_training_holds_heads_for_further_tokens_too():
    small = replace(KNOWN["GPT-2-124M(nanoGPT)"], mtp_layers=2)
    state = memory_quantities(Pass(model=small, compute="bfloat16", sequence_length=64, rows=1))["state"]
    assert state.value == 16 * sum(shape.count for shape in parameter_shapes(small))


@given(models(), st.sampled_from(("adamw", "muon")))
def test_the_formula_of_state_gives_its_number(model: ModelSpec, kind: str):
    optimizer = OptimizerSpec(kind, 1e-3, 0.9, 0.95, 1e-8, 0.1, None)
    state = memory_quantities(Pass(model=model, compute="bfloat16", sequence_length=64, rows=1), optimizer)["state"]
    assert computed(state) == state.value
    assert ("M" in state.inputs) == (kind == "muon")
    assert ("B" in state.inputs) == any(shape.role is Role.BALANCE for shape in parameter_shapes(model))


def test_copies_of_all_experts_and_heads_but_not_of_routers():
    copies = memory_quantities(Pass(model=WITH_MTP, compute="bfloat16", sequence_length=64, rows=1))["copies"]
    count = count_parameters(WITH_MTP)
    matrices = sum(s.count for s in parameter_shapes(WITH_MTP) if s.role in (Role.MATRIX, Role.RESIDUAL, Role.HEAD))
    assert copies.value == 2 * copies.inputs["P"] == 2 * matrices
    assert matrices > count.in_products - count.router > count.active_in_products


def test_neox_by_formula_and_as_published(reference):
    """The published count has norms and biases of two tensor-parallel ranks in it."""
    assert count_parameters(KNOWN["GPT-NeoX-20B"]).total == 20_554_567_680


def test_qwen_counts_only_chosen_experts():
    count = count_parameters(QWEN3_30B_A3B)
    assert round(count.total / 1e9, 1) == 30.5
    assert round(count.active / 1e9, 2) == 3.35
    assert count.experts == 128 * (count.experts - count.idle_experts) // 8


def test_a_table_of_positions_is_only_looked_up():
    count = count_parameters(KNOWN["GPT-2-124M(nanoGPT)"])
    assert count.positions == 1024 * 768
    assert count.active - count.active_without_input_embedding == count.positions  # the embedding is the head
    assert count.non_embedding == 12 * (12 * 768**2 + 9 * 768 + 4 * 768) + 2 * 768


@given(models())
def test_counts_are_those_of_the_shapes(model: ModelSpec):
    shapes, count = parameter_shapes(model), count_parameters(model)
    assert len({shape.name for shape in shapes}) == len(shapes)
    assert count.stored == sum(shape.count for shape in shapes)
    main = [shape for shape in shapes if not shape.name.startswith("mtp.")]
    assert count.total == sum(shape.count for shape in main)
    parts = (((Role.GAIN,), count.gains), ((Role.BIAS, Role.BALANCE), count.biases), ((Role.HEAD,), count.head))
    for roles, part in (*parts, ((Role.ROUTER,), count.router)):
        assert part == sum(shape.count for shape in main if shape.role in roles)
    products = sum(shape.count for shape in main if shape.role in (Role.MATRIX, Role.RESIDUAL, Role.ROUTER))
    assert count.in_products == products + model.vocabulary * model.width


@given(models())
def test_every_formula_gives_its_number(model: ModelSpec):
    parts = parameter_quantities(model)
    for quantity in {quantity.name: quantity for quantity in parts.values()}.values():
        if quantity.name != "nominal_parameters":
            assert computed(quantity) == quantity.value, quantity
    assert parts["in_6n"].value == parameters_in_6n(model)
    assert len({q.name for q in parts.values()}) >= len(parts) - 1  # only in_6n is one of the others


@given(models())
def test_what_a_token_passes(model: ModelSpec):
    count = count_parameters(model)
    assert count.active_without_input_embedding <= count.active <= count.total <= count.stored
    if model.experts is None or model.experts.top_k == model.experts.experts:
        assert count.active == count.total
    everyone = replace(model, experts=replace(model.experts, top_k=model.experts.experts)) if model.experts else model
    assert count_parameters(everyone).active == count.total
    assert count_parameters(everyone).active_in_products - count.active_in_products == count.idle_experts + (
        count_parameters(everyone).mtp_products - count.mtp_products
    )
    without = replace(model, mtp_layers=0)
    assert count.active_in_products - count_parameters(without).active_in_products == count.mtp_products


def test_counting_is_fast():
    """No layer is counted twice: 126 layers cost what one costs."""
    fresh = [replace(KNOWN["Llama-3.1-405B"], rope_base=float(base)) for base in range(2, 12)]
    began = time.process_time()
    for model in fresh:
        count_parameters(model)
    assert (time.process_time() - began) / len(fresh) < 0.005
