"""Names of parameters, ours and theirs, and which steps lie between: one table per family of names.

A name is scope, stem and leaf: layers.3. + attention.q + .weight. Tables map stems; an entry with a leaf goes first. ``{}``
in their stem is the number of an expert. A stem that a ``Fused`` names has no entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headway.checkpoint.convert.architectures.steps import (
    Affine,
    Join,
    JoinByHead,
    Link,
    Permute,
    PermuteTail,
    Step,
    SwapHalves,
    Transpose,
    Unstack,
    neighbours,
)
from headway.recipe.roles import ParameterShape, parameter_shapes
from headway.recipe.spec import ModelSpec

Steps = Callable[[ModelSpec, ParameterShape], tuple[Step, ...]]
"""For one of our parameters; called for weights and biases alike."""


@dataclass(frozen=True, kw_only=True)
class Fused:
    """Several of our stems that are one of theirs. ``join``: how; further steps follow it."""

    stems: tuple[str, ...]
    theirs: str
    join: Callable[[ModelSpec, tuple[ParameterShape, ...]], Step]


@dataclass(frozen=True, kw_only=True)
class Names:
    """``layers``: what stands before the number of a layer. ``steps``: by our stem, as far as it is not moved as a whole."""

    layers: str
    top: dict[str, str]
    layer: dict[str, str]
    fused: tuple[Fused, ...] = ()
    steps: dict[str, Steps] = field(default_factory=dict)
    duplicates: tuple[str, ...] = ()  # regular expressions: what files may hold besides, and we have once or derive
    aliases: dict[str, str] = field(default_factory=dict)  # whole names that files may have -> those of these tables


@dataclass(frozen=True)
class _Place:
    """One of our parameters, split."""

    shape: ParameterShape
    scope: str  # "layers.3.", "mtp.0.", ""
    stem: str
    leaf: str  # ".weight", ".bias"


def links(model: ModelSpec, names: Names) -> list[Link]:
    """All parameters of the model, each in exactly one link. A name that the table lacks is a fault of the table."""
    places = [_place(shape) for shape in parameter_shapes(model)]
    found: list[Link] = []
    joined: dict[tuple[str, str, str], tuple[Fused, list[_Place]]] = {}
    for place in places:
        fused = next((fused for fused in names.fused if place.stem in fused.stems), None)
        if fused is None:
            found.append(_link(model, names, place))
        else:
            joined.setdefault((place.scope, fused.theirs, place.leaf), (fused, []))[1].append(place)
    return found + [_fuse(model, names, fused, parts) for fused, parts in joined.values()]


def _place(shape: ParameterShape) -> _Place:
    parts = shape.name.split(".")
    depth = 2 if parts[0] in ("layers", "mtp") else 0
    scope = "".join(part + "." for part in parts[:depth])
    return _Place(shape, scope, ".".join(parts[depth:-1]), "." + parts[-1])


def _link(model: ModelSpec, names: Names, place: _Place) -> Link:
    steps = names.steps[place.stem](model, place.shape) if place.stem in names.steps else ()
    theirs = _their_name(model, names, place)
    if "{}" in theirs:
        count = place.shape.shape[0]
        return Link((place.shape.name,), tuple(theirs.format(index) for index in range(count)), (*steps, Unstack(count)))
    return Link((place.shape.name,), (theirs,), steps)


def _fuse(model: ModelSpec, names: Names, fused: Fused, parts: list[_Place]) -> Link:
    parts = sorted(parts, key=lambda place: fused.stems.index(place.stem))
    shapes = tuple(place.shape for place in parts)
    further = names.steps[fused.theirs](model, shapes[0]) if fused.theirs in names.steps else ()
    theirs = _scope(model, names, parts[0].scope) + fused.theirs + parts[0].leaf
    return Link(tuple(shape.name for shape in shapes), (theirs,), (fused.join(model, shapes), *further))


def _their_name(model: ModelSpec, names: Names, place: _Place) -> str:
    table = names.layer if place.scope else names.top
    whole = table.get(place.stem + place.leaf)
    return _scope(model, names, place.scope) + (whole if whole is not None else table[place.stem] + place.leaf)


def _scope(model: ModelSpec, names: Names, scope: str) -> str:
    """Heads for further tokens are numbered on behind the last layer."""
    if not scope:
        return ""
    kind, number = scope.split(".")[:2]
    return f"{names.layers}{int(number) + (model.layers if kind == 'mtp' else 0)}."


# --- tables -------------------------------------------------------------------------------------------------------------

_TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_ATTENTION = {f"attention.{part}": f"self_attn.{part}_proj" for part in "qkvo"} | {
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
}
_FFN = {"ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
_PRE = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_EXPERTS = {f"experts.{part}": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")} | {"router": "mlp.gate"}
_SHARED = {f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
_LATENT = {
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_down_norm": "self_attn.q_a_layernorm",
    "attention.q": "self_attn.q_b_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_down_norm": "self_attn.kv_a_layernorm",
    "attention.kv": "self_attn.kv_b_proj",
    "attention.o": "self_attn.o_proj",
}
_FURTHER = {"hidden_norm": "hnorm", "embed_norm": "enorm", "project": "eh_proj", "norm": "shared_head.norm"}


def _rows(_: ModelSpec, shapes: tuple[ParameterShape, ...]) -> Step:
    return Join(tuple(shape.shape[0] for shape in shapes))


def _by_head(model: ModelSpec, shapes: tuple[ParameterShape, ...]) -> Step:
    return JoinByHead(len(shapes), model.heads, model.head_width)


def _transpose(_: ModelSpec, shape: ParameterShape) -> tuple[Step, ...]:
    """Biases have one axis."""
    return (Transpose(),) if len(shape.shape) == 2 else ()


def _neighbours(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    return (Permute(neighbours(model.head_width)),)


def _latent_queries(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    assert model.latent is not None
    return (Permute(neighbours(model.latent.rope_width, kept=model.latent.nope_width)),)


def _latent_key(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    assert model.latent is not None
    return (PermuteTail(model.latent.kv_rank, neighbours(model.latent.rope_width)),)


def _halves(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    return (SwapHalves(model.width),)


def _less_one(_: ModelSpec, __: ParameterShape) -> tuple[Step, ...]:
    return (Affine(1.0, -1.0),)


def _grown_less_one(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    """The final norm takes on what a tied embedding, scaled down, lacks as the head."""
    return (Affine(model.width**0.5 if model.tied_embeddings else 1.0, -1.0),)


def _shrunk(model: ModelSpec, _: ParameterShape) -> tuple[Step, ...]:
    """What is looked up is multiplied by the root of the width there."""
    return (Affine(model.width**-0.5),)


LLAMA = Names(layers="model.layers.", top=_TOP, layer=_PRE | _ATTENTION | _FFN)
POST = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_ATTENTION | _FFN | {"attention_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm"},
)
MIXTRAL = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_PRE
    | _ATTENTION
    | {"router": "block_sparse_moe.gate"}
    | {f"experts.{ours}": f"block_sparse_moe.experts.{{}}.{w}" for ours, w in (("gate", "w1"), ("down", "w2"), ("up", "w3"))},
)
EXPERTS = Names(layers="model.layers.", top=_TOP, layer=_PRE | _ATTENTION | _FFN | _EXPERTS)
DEEPSEEK = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_PRE | _LATENT | _FFN | _EXPERTS | _SHARED | _FURTHER | {"router.bias": "mlp.gate.e_score_correction_bias"},
    steps={"attention.q": _latent_queries, "attention.kv_down": _latent_key, "project": _halves},
    duplicates=(r"model\.layers\.\d+\.((?:embed_tokens|shared_head\.head)\.weight)",),
)
DEEPSEEK_DIRECT = replace(DEEPSEEK, layer=DEEPSEEK.layer | {"attention.q": "self_attn.q_proj"})
"""Queries without a rank of their own."""
PHI3 = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_PRE | {"attention.o": "self_attn.o_proj", "ffn.down": "mlp.down_proj"},
    fused=(
        Fused(stems=("attention.q", "attention.k", "attention.v"), theirs="self_attn.qkv_proj", join=_rows),
        Fused(stems=("ffn.gate", "ffn.up"), theirs="mlp.gate_up_proj", join=_rows),
    ),
)
GPT2 = Names(
    layers="transformer.h.",
    top={"embed": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head"},
    layer={
        "attention_norm": "ln_1",
        "attention.o": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    },
    fused=(Fused(stems=("attention.q", "attention.k", "attention.v"), theirs="attn.c_attn", join=_rows),),
    steps=dict.fromkeys(("attn.c_attn", "attention.o", "ffn.up", "ffn.down"), _transpose),
    duplicates=(r"(?:transformer\.)?h\.\d+\.(attn\.(?:masked_)?bias)",),
)
GPT_NEOX = Names(
    layers="gpt_neox.layers.",
    top={"embed": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    layer=_PRE | {"attention.o": "attention.dense", "ffn.up": "mlp.dense_h_to_4h", "ffn.down": "mlp.dense_4h_to_h"},
    fused=(Fused(stems=("attention.q", "attention.k", "attention.v"), theirs="attention.query_key_value", join=_by_head),),
    duplicates=(r"gpt_neox\.layers\.\d+\.(attention\.(?:masked_)?bias)",),
    aliases={"lm_head.weight": "embed_out.weight"},
)
GEMMA2 = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_ATTENTION
    | _FFN
    | {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_out_norm": "post_feedforward_layernorm",
    },
    steps=dict.fromkeys(("attention_norm", "attention_out_norm", "ffn_norm", "ffn_out_norm"), _less_one)
    | {"embed": _shrunk, "norm": _grown_less_one},
)
STARCODER2 = Names(layers="model.layers.", top=_TOP, layer=_PRE | _ATTENTION | {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"})
COHERE = Names(
    layers="model.layers.",
    top=_TOP,
    layer=_PRE | _ATTENTION | _FFN,
    steps={"attention.q": _neighbours, "attention.k": _neighbours},
)


# --- names alone, where no spec is known -------------------------------------------------------------------------------


def renamed(name: str) -> str | None:
    """``layers.3.ffn.up.weight`` -> ``model.layers.3.mlp.up_proj.weight``, in the layout of Llama and Qwen3; None: no place."""
    return _renamed(name, ("layers.", "model.layers."), LLAMA.top, LLAMA.layer)


def renamed_back(name: str) -> str | None:
    """The way back."""
    top, layer = ({theirs: ours for ours, theirs in table.items()} for table in (LLAMA.top, LLAMA.layer))
    return _renamed(name, ("model.layers.", "layers."), top, layer)


def _renamed(name: str, scopes: tuple[str, str], top: dict[str, str], layer: dict[str, str]) -> str | None:
    stem, dot, leaf = name.rpartition(".")
    if leaf != "weight":
        return None
    if stem in top:
        return top[stem] + dot + leaf
    number, _, rest = stem.removeprefix(scopes[0]).partition(".")
    plain = number.isascii() and number.isdecimal() and str(int(number)) == number
    return f"{scopes[1]}{number}.{layer[rest]}.{leaf}" if name.startswith(scopes[0]) and plain and rest in layer else None
