"""The plan's memory against the model: tensors saved for backward counted one by one, and the allocator's own peak."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_cases import plain_context
from test_family import BASE, EXPERTS, FAMILY, LATENT, built
from torch.profiler import ProfilerActivity, profile

from headway.formulas import activations
from headway.formulas.activations import (
    Pass,
    block_backward_bytes,
    kept_bytes,
    kept_scores,
    layer_bytes_per_token,
    logit_bytes,
    saved_bytes_per_token,
    score_elements,
)
from headway.formulas.memory import block_spread, copied_parameters, memory_quantities
from headway.model import attention
from headway.model.context import make_context
from headway.model.decoder import Decoder
from headway.model.dropout import DropoutKey
from headway.model.init import initialise
from headway.model.loss import loss_sums
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.optim.build import build_optimizer
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec, OptimizerSpec, PrecisionSpec

MODEL = ModelSpec(2, 48, 4, 2, 16, 80, 300, 1e4, 1e-5, True, True, 0.02)
T, ROWS = 160, 3  # longer than a block of queries

MORE = {
    "dropout, further tokens": {"dropout": 0.1, "mtp_layers": 1, "experts": EXPERTS},
    "LayerNorm of the embedding, dropout": {"embedding_norm": True, "norm": "layernorm", "dropout": 0.1},
    "window of a part of a block": {"window": 40, "full_attention_every": 2},
    "windows and further tokens": {"window": 140, "full_attention_every": 3, "mtp_layers": 2},
    "latent without positions": {**LATENT, "position": "none", "latent": LatentSpec(24, 16, 12, 0, 6)},
    "experts of a relu2, as scored": {"experts": replace(EXPERTS, normalise=False), "ffn": "relu2"},
    "caps, further tokens": {"logit_softcap": 30.0, "attention_softcap": 50.0, "mtp_layers": 1},
} | {
    f"experts alone, {block}": {"block": block, "experts": ExpertsSpec(4, 2, 24, dense_layers=1)}
    for block in ("post", "post-add", "sandwich", "parallel", "parallel-two-norms")
}  # fmt: skip
CASES = {**FAMILY, **MORE}


def spec_of(name: str) -> ModelSpec:
    spec = replace(BASE, **CASES[name])
    return replace(spec, positions=T) if spec.positions else spec


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


def forward_in_training(model: ComputeModel) -> torch.Tensor:
    """The same of any architecture, with tallies, dropout and heads for further tokens."""
    spec, position = model.spec, torch.arange(T).repeat(ROWS, 1)
    context = make_context(position, torch.zeros_like(position), spec, spec.rope, model.dtype)
    key = DropoutKey(1, 1, tuple(range(ROWS)), spec.dropout) if spec.dropout else None
    tokens = (position * 7) % spec.vocabulary
    return training_sums(model, tokens, tokens, replace(context, dropout=key), 1e-4).objective_sum


def saved_bytes(model: ComputeModel, forward=forward_and_loss) -> int:
    """Storages that autograd keeps, each once; weights are no activations."""
    own = {t.untyped_storage().data_ptr() for t in (*model.decoder.parameters(), *model._copies)}
    seen: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)  # so that no address is used twice
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward(model)
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


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_every_architecture_keeps_what_is_planned(name, compute):
    """To the byte. Beside it stand only the head's gradients, and of each layer of experts their ends and balance."""
    spec = spec_of(name)
    one = Pass(model=spec, compute=compute, sequence_length=T, rows=ROWS)
    planned = one.tokens * saved_bytes_per_token(spec, compute) + one.element_bytes * kept_scores(one)[1]
    planned += 4 * spec.vocabulary * spec.width * (1 + spec.mtp_layers)
    if spec.experts is not None:
        layers = sum(map(spec.has_experts, range(spec.layers))) + spec.mtp_layers * spec.has_experts(spec.layers - 1)
        planned += layers * spec.experts.experts * (4 + 8 * ROWS)
    assert saved_bytes(built(spec, compute), forward_in_training) == planned


def test_a_layer_of_experts_by_hand():
    """D 32, HE 32, KE 16, k 2, X 8, F 24, one shared, float32, with QK-norm:

    4 D, 3 (HE + KE), inverses 2 + 4 + 2, rows 2 x 2 D, inner 3 x (2 + 1) F, scores and logits 2 X, weights 4 + 1, 2 sums, 1 mask;
    choice, token, place 3 x 2 of 8 bytes."""
    numbers = 4 * 32 + 3 * 48 + 8 + 4 * 32 + 9 * 24 + 16 + 5 + 2
    assert layer_bytes_per_token(replace(BASE, experts=EXPERTS), "float32", routed=True) == 4 * numbers + 6 * 8 + 1


def test_windows_keep_fewer_scores():
    """Blocks of 128: the second one, queries 128 to 159, begins at key 128 - 39 = 89, by steps of 32 at 64."""
    assert score_elements(160, 40) == (128**2 + 32**2, 128**2 + 32 * 96)
    assert score_elements(160, 160) == score_elements(160, 1000) == score_elements(160)


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


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("chunk_logits", [1 << 15, 1 << 22])
@pytest.mark.parametrize("name", ["sandwich with softcaps", "latent, experts, further tokens", "caps, further tokens"])
def test_the_allocators_peak_of_other_architectures(compute, chunk_logits, name, monkeypatch):
    monkeypatch.setattr(activations, "CHUNK_LOGITS", chunk_logits)
    spec = replace(spec_of(name), vocabulary=4_000)
    one = Pass(model=spec, compute=compute, sequence_length=T, rows=ROWS)
    mask = one.element_bytes * one.tokens * T
    planned = kept_bytes(one)[1] - mask + logit_bytes(one)
    assert training_peak_bytes(built(spec, compute)) == pytest.approx(planned, rel=0.01)


def training_peak_bytes(model: ComputeModel) -> int:
    """Of a later micro-batch: gradients and tables are there already."""
    forward_in_training(model).backward()
    return peak_bytes(lambda: forward_in_training(model).backward())


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "change",
    [
        {"block": "post"},
        {"block": "parallel"},
        {"ffn": "gelu", "norm": "layernorm", "bias": "all"},
        {"attention_softcap": 50.0},
        {**LATENT, "head_width": 32, "latent": LatentSpec(96, 64, 16, 16, 16), "kv_heads": 8},
        {"experts": ExpertsSpec(8, 2, 448)},
        {"experts": ExpertsSpec(32, 6, 96, shared=2)},
    ],
)
def test_a_blocks_backward_lies_in_its_measured_spread(compute, change):
    shape = {"width": 128, "heads": 8, "kv_heads": 4, "head_width": 16, "ffn_width": 512, "layers": 2}
    spec = replace(BASE, **{**shape, **change})
    one = Pass(model=spec, compute=compute, sequence_length=T, rows=ROWS)
    working = training_peak_bytes(built(spec, compute)) - (kept_bytes(one)[1] - one.element_bytes * one.tokens * T)
    low, high = (factor * block_backward_bytes(one) for factor in block_spread(spec))
    assert working > logit_bytes(one)  # it is a block that is measured
    assert low <= working <= high


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", FAMILY)
def test_state_is_what_training_holds(name, kind):
    """Weights, gradients and moments as they are once a step was taken."""
    spec, options = spec_of(name), OptimizerSpec(kind, 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0)
    model = built(spec)
    optimizer = build_optimizer(model.decoder, options)
    forward_in_training(model).backward()
    optimizer.step()
    gradients = sum(p.grad.nbytes for p in model.decoder.parameters() if p.grad is not None)
    held = gradients + sum(tensor.nbytes for tensor in optimizer.state_tensors().values())
    state = memory_quantities(Pass(model=spec, compute="float32", sequence_length=T, rows=ROWS), options)["state"]
    assert state.value == held


@pytest.mark.parametrize("name", FAMILY)
def test_copies_are_those_of_the_matrices(name):
    """Tied, the head has a copy of its own."""
    found = built(spec_of(name), "bfloat16")._model.named_parameters()
    copies = [(name, p) for name, p in found if p.dtype == torch.bfloat16 and p.dim() > 1 and name.endswith(".weight")]
    assert copied_parameters(spec_of(name)) == sum(copy.numel() for _, copy in copies)
