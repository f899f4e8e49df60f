"""The plan's memory against the model: tensors saved for backward counted one by one, and the allocator's own peak."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_cases import plain_context
from torch.profiler import ProfilerActivity, profile

from headway.formulas import activations
from headway.formulas.activations import (
    Pass,
    kept_bytes,
    layer_bytes_per_token,
    logit_bytes,
    saved_bytes_per_token,
    score_elements,
)
from headway.model import attention
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.loss import loss_sums
from headway.model.precision import ComputeModel
from headway.recipe.spec import ModelSpec, PrecisionSpec

MODEL = ModelSpec(2, 48, 4, 2, 16, 80, 300, 1e4, 1e-5, True, True, 0.02)
T, ROWS = 160, 3  # longer than a block of queries


def compute_model(model: ModelSpec, compute: str) -> ComputeModel:
    with torch.device("meta"):
        decoder = Decoder(model)
    decoder.to_empty(device="cpu")
    initialise(decoder, model, 1)
    return ComputeModel(decoder, PrecisionSpec(compute))


def forward_and_loss(model: ComputeModel, rows: int = ROWS, length: int = T) -> torch.Tensor:
    """Every row is one document; what is alive at the end is what the backward pass needs."""
    position = torch.arange(length).repeat(rows, 1)
    context = plain_context(position, torch.zeros_like(position), 1e4, model.spec.head_width, model.dtype)
    tokens = (position * 7) % model.spec.vocabulary
    hidden = model.forward(tokens, context)
    return loss_sums(hidden, model.head_weight, tokens, None, 1e-4).objective_sum


def saved_bytes(model: ComputeModel) -> int:
    """Storages that autograd keeps, each once; weights are no activations."""
    own = {t.untyped_storage().data_ptr() for t in (*model.decoder.parameters(), *model._copies)}
    seen: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)  # so that no address is used twice
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward_and_loss(model)
    assert loss.requires_grad
    return sum(size for address, size in seen.items() if address not in own)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "change", [{}, {"qk_norm": False}, {"kv_heads": 1}, {"kv_heads": 4}, {"tied_embeddings": False}, {"layers": 5}]
)
def test_saved_tensors_are_counted_exactly(compute, change):
    model = replace(MODEL, **change)
    one = Pass(model=model, compute=compute, sequence_length=T, rows=ROWS)
    scores = one.element_bytes * model.layers * model.heads * ROWS * score_elements(T)[1]
    expected = one.tokens * saved_bytes_per_token(model, compute) + scores
    head_gradient = 4 * model.vocabulary * model.width
    rest = saved_bytes(compute_model(model, compute)) - expected - head_gradient
    gains = 4 * model.layers * 2 * (model.width + model.head_width) + 4 * model.width + 4096  # copies of norm weights, scalars
    assert 0 <= rest <= gains


def test_scores_beyond_the_limit_are_not_kept(monkeypatch):
    one = Pass(model=MODEL, compute="float32", sequence_length=T, rows=ROWS)
    before, model = kept_bytes(one)[0], compute_model(MODEL, "float32")
    counted = saved_bytes(model)
    for module in (activations, attention):
        monkeypatch.setattr(module, "KEPT_SCORES", one.rows * T * T * MODEL.heads // 2 - 1)
    fewest, most = score_elements(T)
    assert before - kept_bytes(one)[0] == 4 * MODEL.layers * MODEL.heads * ROWS * fewest
    assert counted - saved_bytes(model) == 4 * MODEL.layers * MODEL.heads * ROWS * most


def test_a_layer_by_hand():
    """D 48, HE 64, KE 32, F 80: bfloat16 2 x (192 + 3 x 96 + 240) + 4 x (2 + 4 + 2)."""
    assert layer_bytes_per_token(MODEL, "bfloat16") == 2 * (192 + 288 + 240) + 32


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("chunk_logits", [1 << 15, 1 << 22])  # several chunks, one chunk
def test_the_allocators_peak_is_what_is_kept_and_the_losss_buffers(compute, chunk_logits, monkeypatch):
    monkeypatch.setattr(activations, "CHUNK_LOGITS", chunk_logits)
    spec = replace(MODEL, vocabulary=2_000, width=16)  # the loss is the largest part, as with any real vocabulary
    model = compute_model(spec, compute)
    one = Pass(model=spec, compute=compute, sequence_length=T, rows=ROWS)
    forward_and_loss(model)  # tables that are made once
    mask = one.element_bytes * one.tokens * T  # none: each row is one document
    planned = kept_bytes(one)[1] - mask + logit_bytes(one)
    assert peak_bytes(lambda: forward_and_loss(model).backward()) == pytest.approx(planned, rel=0.03)


def peak_bytes(work) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    now = most = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most
