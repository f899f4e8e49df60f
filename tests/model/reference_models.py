"""Toy models of every family, our decoder and theirs with the same weights, and the way between them in memory.

Every weight is random, gains and biases too, so that none can hide behind a one or a zero.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.checkpoint.convert.architectures import PARAM, Chosen, choose, configuration
from headway.checkpoint.convert.architectures.steps import Affine
from headway.checkpoint.convert.contents import About, Kind
from headway.checkpoint.convert.format_huggingface import bring_back, export_views
from headway.checkpoint.convert.views import Stored
from headway.checkpoint.tensors import DTYPES
from headway.model.context import make_context
from headway.model.decoder import Decoder
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec, YarnSpec

LENGTH = 40
"""Tokens of a row: more than the windows, and than one block of a kernel's keys."""

PLAIN = ModelSpec(
    layers=3,
    width=64,
    heads=4,
    kv_heads=2,
    head_width=16,
    ffn_width=96,
    vocabulary=97,
    rope_base=10_000.0,
    norm_epsilon=1e-5,
    qk_norm=False,
    tied_embeddings=False,
    init_std=0.02,
)
YARN = YarnSpec(factor=4.0, original=1024, fast=4.0, slow=0.5)
"""Of the pairs of a head of 16 the first 4 stay, and two are mixed; 32 and 1 turns, the common ones, would move both ends."""
LATENT = LatentSpec(query_rank=24, kv_rank=32, nope_width=12, rope_width=8, value_width=10)
EXPERTS = ExpertsSpec(experts=8, top_k=2, width=32)
SIGMOID = dataclasses.replace(
    EXPERTS, shared=2, dense_layers=1, router_bias=True, groups=4, groups_per_token=2, score="sigmoid", scale=2.5
)
UNNORMALISED = dataclasses.replace(EXPERTS, normalise=False)
ONE_GROUP = dataclasses.replace(SIGMOID, groups=1, groups_per_token=0, normalise=False)


def toy(**fields: Any) -> ModelSpec:
    return dataclasses.replace(PLAIN, **fields)


def deepseek(**fields: Any) -> ModelSpec:
    options = {"kv_heads": 4, "head_width": LATENT.key_width, "latent": LATENT, "norm_epsilon": 1e-6, "experts": SIGMOID}
    return toy(**options | fields)


_GELU = {"ffn": "gelu", "norm": "layernorm", "bias": "all"}
_POST = {"block": "post", "qk_norm": True, "qk_norm_over": "all"}
_GEMMA = {"ffn": "geglu", "block": "sandwich", "window": 16, "logit_softcap": 5.0, "attention_softcap": 2.0}

CASES: dict[str, tuple[str, ModelSpec]] = {
    "llama": ("llama", toy()),
    "llama, tied, biases": ("llama", toy(tied_embeddings=True, bias="all")),
    "llama, wide heads": ("llama", toy(head_width=24)),
    "llama, yarn": ("llama", toy(yarn=YARN)),
    "heads that do not divide the width": ("mistral", toy(width=66)),
    "mistral": ("mistral", toy(window=16)),
    "ministral": ("ministral", toy(window=16, full_attention_every=2)),
    "qwen2": ("qwen2", toy(bias="qkv", tied_embeddings=True)),
    "qwen2, windows": ("qwen2", toy(bias="qkv", window=16, full_attention_every=3)),
    "qwen3": ("qwen3", toy(qk_norm=True)),
    "qwen3, yarn, windows": ("qwen3", toy(qk_norm=True, yarn=YARN, window=8, full_attention_every=2)),
    "olmo2": ("olmo2", toy(**_POST)),
    "olmo2, yarn": ("olmo2", toy(**_POST, yarn=YARN)),
    "olmo3": ("olmo3", toy(**_POST, layers=4, window=8, full_attention_every=4)),
    "olmo3, yarn": ("olmo3", toy(**_POST, layers=4, window=8, full_attention_every=2, yarn=YARN)),
    "smollm3": ("smollm3", toy(layers=4, nope_every=2, tied_embeddings=True)),
    "smollm3, yarn": ("smollm3", toy(layers=4, nope_every=2, yarn=YARN)),
    "smollm3, windows": ("smollm3", toy(layers=4, nope_every=4, window=8, full_attention_every=2)),
    "mixtral": ("mixtral", toy(experts=EXPERTS)),
    "mixtral, windows": ("mixtral", toy(experts=EXPERTS, window=16)),
    "qwen3_moe": ("qwen3_moe", toy(layers=5, qk_norm=True, experts=dataclasses.replace(EXPERTS, dense_layers=1, every=2))),
    "qwen3_moe, scores as they are": ("qwen3_moe", toy(qk_norm=True, experts=UNNORMALISED, window=16)),
    "olmoe": ("olmoe", toy(qk_norm=True, qk_norm_over="all", experts=UNNORMALISED)),
    "deepseek_v3": ("deepseek_v3", deepseek()),
    "deepseek_v3, yarn": ("deepseek_v3", deepseek(yarn=YARN)),
    "deepseek_v3, no query rank": ("deepseek_v3", deepseek(latent=dataclasses.replace(LATENT, query_rank=None))),
    "deepseek_v3, one group": (
        "deepseek_v3",
        deepseek(experts=ONE_GROUP),
    ),
    "deepseek_v3, further tokens": ("deepseek_v3", deepseek(mtp_layers=1)),
    "phi3": ("phi3", toy(rotary_width=8)),
    "phi3, windows": ("phi3", toy(rotary_width=12, window=16)),
    "arcee": ("arcee", toy(ffn="relu2")),
    "gpt2": ("gpt2", toy(**_GELU, position="learned", positions=48, kv_heads=4, tied_embeddings=True)),
    "gpt2, untied": ("gpt2", toy(**_GELU, position="learned", positions=48, kv_heads=4)),
    "starcoder2": ("starcoder2", toy(**_GELU, window=16)),
    "gpt_neox": ("gpt_neox", toy(**_GELU, block="parallel-two-norms", rotary_width=4, kv_heads=4)),
    "gpt_neox, sequential": ("gpt_neox", toy(**_GELU, kv_heads=4, rotary_width=8)),
    "stablelm": ("stablelm", toy(norm="layernorm", bias="norm", rotary_width=4)),
    "stablelm, parallel": ("stablelm", toy(norm="layernorm", bias="norm", block="parallel")),
    "cohere": ("cohere", toy(norm="layernorm", block="parallel", tied_embeddings=True)),
    "cohere, yarn": ("cohere", toy(norm="layernorm", block="parallel", yarn=YARN)),
    "gemma2": ("gemma2", toy(**_GEMMA, full_attention_every=2, tied_embeddings=True)),
    "gemma2, untied": ("gemma2", toy(ffn="geglu", block="sandwich")),
}
"""Name -> the family that has to be chosen, and the model."""


class InMemory:
    """Tensors as a source of a conversion."""

    left_out = ()
    about = About()

    def __init__(self, tensors: Mapping[str, Tensor]):
        codes = {dtype: code for code, dtype in DTYPES.items()}
        self.values = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        self.tensors = {name: Kind(dtype=codes[t.dtype], shape=tuple(t.shape)) for name, t in self.values.items()}

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        return self.values[name][first:last].contiguous().flatten().view(torch.uint8).numpy()


def tensors_of(views: Mapping[str, Any]) -> dict[str, Tensor]:
    found = {}
    for name, view in views.items():
        kind = view.kind
        values = torch.from_numpy(view.rows(0, kind.rows).copy())
        found[name] = values.view(DTYPES[kind.dtype]).view(kind.shape)
    return found


def exported(chosen: Chosen, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, by their names on disk, by the mapping of ``convert --to huggingface``."""
    source = InMemory({PARAM + name: tensor for name, tensor in state.items()})
    return tensors_of(export_views(chosen, source))


def imported(chosen: Chosen, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours, by the mapping of ``convert --from huggingface``."""
    source = InMemory({name: tensor for name, tensor in theirs.items() if chosen.duplicate(name) is None})
    views = bring_back(chosen, {name: Stored(source, name) for name in source.tensors}, Path("theirs"))
    return {name.removeprefix(PARAM): tensor for name, tensor in tensors_of(views).items()}


def imported_gradients(chosen: Chosen, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by theirs as gradients by ours: moved like values; where theirs = a ours + b, times a."""
    found = imported(chosen, theirs)
    for link in chosen.links():
        for step in link.steps:
            if isinstance(step, Affine):
                (name,) = link.ours
                found[name] = step.factor * (step.factor * found[name] + step.offset)
    return found


def random_state(spec: ModelSpec, seed: int = 1) -> dict[str, Tensor]:
    """Weights whose logits differ by some units from token to token."""
    generator = torch.Generator().manual_seed(seed)
    return {shape.name: _random(shape, generator, spec) for shape in parameter_shapes(spec)}


def _random(shape: ParameterShape, generator: torch.Generator, spec: ModelSpec) -> Tensor:
    values = torch.randn(shape.shape, generator=generator)
    if shape.role is Role.GAIN:
        return 1 + 0.3 * values
    if shape.role in (Role.BIAS, Role.BALANCE):
        return 0.3 * values
    if shape.role is Role.EMBEDDING and not spec.tied_embeddings:
        return values
    return values * (1.5 / shape.shape[-1] ** 0.5)


def our_decoder(spec: ModelSpec, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(spec)
    missing, unexpected = decoder.load_state_dict(dict(state), strict=False)
    assert not missing, missing
    assert not unexpected, unexpected
    return decoder.to(dtype)


def our_logits(
    decoder: Decoder, tokens_BT: Tensor, document_BT: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """One document per row, unless ``document_BT`` says more; positions begin again in every document."""
    spec = decoder.spec
    document_BT = torch.zeros_like(tokens_BT) if document_BT is None else document_BT
    context = make_context(positions(document_BT), document_BT, spec, spec.rope, dtype)
    return decoder.logits(decoder(tokens_BT, context))


def positions(document_BT: Tensor) -> Tensor:
    rows = []
    for row in document_BT.tolist():
        at, found = 0, []
        for index, document in enumerate(row):
            at = at + 1 if index and document == row[index - 1] else 0
            found.append(at)
        rows.append(found)
    return torch.tensor(rows)


def their_config(chosen: Chosen) -> Any:
    """Through JSON, as a file would be read."""
    import transformers

    plain = json.loads(json.dumps(configuration(chosen, 4096)))
    config = transformers.CONFIG_MAPPING[plain["model_type"]].from_dict(plain)
    config._attn_implementation = "eager"
    return config


def their_model(chosen: Chosen, theirs: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Any:
    """The class that ``config.json`` names, with these weights; every one found its place."""
    import transformers

    cls = getattr(transformers, chosen.family.causal)
    model, info = cls.from_pretrained(
        None,
        config=their_config(chosen),
        state_dict=dict(theirs),
        output_loading_info=True,
        dtype=dtype,
        attn_implementation="eager",
    )
    further = {f"model.layers.{chosen.model.layers + depth}." for depth in range(chosen.model.mtp_layers)}
    unexpected = [key for key in info["unexpected_keys"] if not key.startswith(tuple(further))]
    wrong = {key: list(value) for key, value in info.items() if value and key != "unexpected_keys"}
    assert not wrong, wrong
    assert not unexpected, unexpected
    return model.eval()


def on_disk(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By their names in a file: transformers keeps some tensors otherwise in memory."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(tensors))


def tokens(spec: ModelSpec, rows: int = 2, seed: int = 5) -> Tensor:
    return torch.randint(0, spec.vocabulary, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def chosen_of(case: str) -> Chosen:
    return choose(CASES[case][1])
