"""Every architecture that a recipe can describe: built as it is counted, and exact however a batch is cut and packed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_decoder import documents

from headway.formulas.parameters import count_parameters
from headway.model.context import make_context
from headway.model.decoder import Decoder
from headway.model.fold import fold_multipliers
from headway.model.init import initialise
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.recipe.load import load_recipe, preset_names
from headway.recipe.resolve import resolve_model
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec, MupSpec, PrecisionSpec, YarnSpec

FP32_SUM_ORDER = 2e-5
"""Of sums over some hundred tokens in another order, relative to the largest gradient of a parameter."""

BASE = ModelSpec(
    layers=4, width=32, heads=4, kv_heads=2, head_width=8, ffn_width=48, vocabulary=61, rope_base=1e4, norm_epsilon=1e-5,
    qk_norm=True, tied_embeddings=False, init_std=0.1,
)  # fmt: skip
LATENT = {"latent": LatentSpec(24, 16, 8, 4, 6), "kv_heads": 4, "head_width": 12, "qk_norm": False}
EXPERTS = ExpertsSpec(
    8, 2, 24, shared=1, dense_layers=1, router_bias=True, score="sigmoid", scale=2.5, balance_loss=1e-2, z_loss=1e-3
)

FAMILY = {
    "plain": {},
    "tied, no qk norm": {"tied_embeddings": True, "qk_norm": False},
    "qk norm over all heads, reordered": {"qk_norm_over": "all", "block": "post"},
    "post-add": {"block": "post-add"},
    "sandwich with softcaps": {"block": "sandwich", "ffn": "geglu", "logit_softcap": 30.0, "attention_softcap": 50.0},
    "parallel": {"block": "parallel", "norm": "layernorm", "bias": "norm", "ffn": "gelu"},
    "parallel, two norms": {"block": "parallel-two-norms", "rotary_width": 4, "bias": "qkv"},
    "learned positions, biases": {
        "position": "learned", "positions": 64, "norm": "layernorm", "bias": "all", "ffn": "gelu", "qk_norm": False,
    },
    "no positions": {"position": "none", "ffn": "relu2"},
    "window and nope": {"window": 5, "full_attention_every": 2, "nope_every": 2},
    "yarn": {"yarn": YarnSpec(4.0, 16), "embedding_norm": True},
    "latent": LATENT,
    "latent without query rank": {**LATENT, "latent": LatentSpec(None, 16, 8, 4, 6)},
    "experts": {"experts": EXPERTS},
    "experts with softmax": {"experts": ExpertsSpec(4, 2, 24, every=2, balance_loss=0.1), "bias": "all", "norm": "layernorm"},
    "latent, experts, further tokens": {**LATENT, "experts": EXPERTS, "mtp_layers": 2, "tied_embeddings": True},
    "mup": {"mup": MupSpec(8, 2, 0.5, 2.0), "experts": EXPERTS},
}  # fmt: skip


def spec_of(name: str) -> ModelSpec:
    return replace(BASE, **FAMILY[name])


def built(spec: ModelSpec, compute: str = "float32") -> ComputeModel:
    """With gains and biases that are not what they begin as: else nothing would show that they are used."""
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.to_empty(device="cpu")
    initialise(decoder, spec, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return ComputeModel(decoder, PrecisionSpec(compute))


def batch(rows: int = 4, time: int = 24) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(0, BASE.vocabulary, (rows, time + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:], *documents(*([[time], [9, time - 9]] * rows)[:rows])


def backward(model: ComputeModel, tokens, targets, position, document, count: int):
    context = make_context(position, document, model.spec, model.spec.rope, model.dtype)
    sums = training_sums(model, tokens, targets, context, 1e-3)
    (sums.objective_sum / count).backward()
    return float(sums.objective_sum.detach())


@pytest.mark.parametrize("name", FAMILY)
def test_parameters_are_exactly_the_table_of_roles(name):
    spec = spec_of(name)
    with torch.device("meta"):
        decoder = Decoder(spec)
    found = [(name, tuple(p.shape)) for name, p in decoder.named_parameters()]
    assert found == [(p.name, p.shape) for p in parameter_shapes(spec)]
    assert sum(p.numel() for p in decoder.parameters()) == count_parameters(spec).stored


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_built_with_the_planners_count(name):
    recipe = load_recipe(name).recipe
    spec = resolve_model(recipe.model, recipe.tokenizer.vocabulary)
    with torch.device("meta"):
        decoder = Decoder(spec)
    assert sum(p.numel() for p in decoder.parameters()) == count_parameters(spec).stored


@pytest.mark.parametrize("name", FAMILY)
def test_L1_L7_micro_batches_only_split_the_sum(name):
    whole, cut = built(spec_of(name)), built(spec_of(name))
    data, count = batch(), 4 * 24
    total = backward(whole, *data, count)
    parts = sum(backward(cut, *(x[rows] for x in data), count) for rows in (slice(0, 1), slice(1, 4)))
    assert parts == pytest.approx(total, rel=FP32_SUM_ORDER)
    found = dict(cut.decoder.named_parameters())
    for name_, parameter in whole.decoder.named_parameters():
        if parameter.requires_grad:
            scale = float(parameter.grad.abs().max())
            if name_.endswith("k.bias") and spec_of(name).position != "rope":
                continue  # without RoPE it moves all scores of a query alike: what is left of its gradient is rounding
            assert scale > 0, f"{name_} has no gradient"
            assert float((found[name_].grad - parameter.grad).abs().max()) <= FP32_SUM_ORDER * scale, name_
        else:
            assert parameter.grad is None, name_


@pytest.mark.parametrize("name", FAMILY)
def test_packed_documents_are_what_they_are_alone(name):
    model, (tokens, _, position, document) = built(spec_of(name)), batch(rows=2)
    spec = model.spec
    packed = model.forward(tokens, make_context(position, document, spec, spec.rope, torch.float32))
    for start, length in ((0, 9), (9, 15)):
        at = slice(start, start + length)
        alone = make_context(position[1:, at], torch.zeros(1, length), spec, spec.rope, torch.float32)
        assert torch.allclose(packed[1:, at], model.forward(tokens[1:, at], alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_bfloat16_stays_near_float32(name):
    """A router's choice may flip where scores are close, so models with experts are held to the mean alone."""
    wide, narrow = built(spec_of(name)), built(spec_of(name), "bfloat16")
    data = batch()
    losses = [backward(model, *data, 96) / 96 for model in (wide, narrow)]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert {p.grad.dtype for p in narrow.decoder.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("block", ["pre", "post", "sandwich", "parallel", "parallel-two-norms"])
@pytest.mark.parametrize(
    "changes",
    [
        {"experts": EXPERTS},
        {"experts": EXPERTS, "mtp_layers": 1, "tied_embeddings": True, "qk_norm": False},
        {"qk_norm_over": "all", "logit_softcap": 5.0},
        {**LATENT, "mtp_layers": 1},
        {"bias": "all", "norm": "layernorm", "ffn": "gelu", "experts": ExpertsSpec(4, 2, 24, every=2)},
    ],
)
def test_folded_multipliers_give_the_same_logits(block, changes):
    spec = replace(BASE, mup=MupSpec(8, 2, 0.5, 3.0), block=block, **changes)
    model, (tokens, _, position, document) = built(spec).decoder, batch()
    tensors, plain_spec = fold_multipliers(dict(model.named_parameters()), spec)
    assert plain_spec.mup is None
    with torch.device("meta"):
        plain = Decoder(plain_spec)
    plain.load_state_dict(tensors, assign=True)
    context = make_context(position, document, spec, spec.rope, torch.float32)
    expected, found = model.hidden(tokens, context), plain.hidden(tokens, context)
    pairs = zip([expected.next_BTD, *expected.further_BTD], [found.next_BTD, *found.further_BTD], strict=True)
    for depth, (before, after) in enumerate(pairs):
        tolerance = 1e-3 if depth and spec.tied_embeddings else 1e-5  # a norm's epsilon feels the factor (fold.py)
        assert torch.allclose(plain.logits(after), model.logits(before), atol=tolerance, rtol=tolerance)


def test_modules_compute_in_the_type_that_the_recipe_names():
    spec = replace(BASE, experts=EXPERTS, tied_embeddings=True)
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.to_empty(device="cpu")
    initialise(decoder, spec, 3)
    model = ComputeModel(
        decoder, PrecisionSpec("bfloat16", {"head": "float32", "layers.0": "float32", "layers.0.ffn": "bfloat16"})
    )
    dtypes = {name: p.dtype for name, p in model._model.named_parameters(remove_duplicate=False)}
    assert dtypes["head.weight"] == dtypes["layers.0.attention.q.weight"] == dtypes["layers.1.router.weight"] == torch.float32
    assert dtypes["layers.0.ffn.up.weight"] == dtypes["layers.1.attention.q.weight"] == torch.bfloat16
    backward(model, *batch(), 96)
    assert all(p.grad is not None for p in decoder.parameters() if p.requires_grad)
