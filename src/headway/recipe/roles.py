"""Parameter roles: the table that says how each kind of parameter is initialised and decayed.

    role        what it is                                     init                         weight decay
    embedding   token embedding (and the head when tied)       normal(init_std)             no
    head        output projection, untied                      normal(init_std)             no
    matrix      projections into attention and feed-forward    normal(init_std)             yes
    residual    projections back into the residual stream      normal(init_std / sqrt 2L)   yes
    gain        norm weights                                   one                          no
    router      scores of experts                              normal(init_std)             yes
    bias        of projections and norms                       zero                         no
    balance     of routers, moved by loads and not by gradients zero                        no

How that changes with ``model.init``, width and depth stands in ``mup.py``. Residual outputs are scaled down with depth so that
the stream's variance does not grow with the number of layers (Radford et al. 2019). No decay on gains and embeddings (OLMo 2,
arXiv 2501.00656).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headway.recipe.spec import ModelSpec


class Role(StrEnum):
    EMBEDDING = "embedding"
    HEAD = "head"
    MATRIX = "matrix"
    RESIDUAL = "residual"
    GAIN = "gain"
    ROUTER = "router"
    BIAS = "bias"
    BALANCE = "balance"


AROUND_BLOCK = ("hidden_norm", "embed_norm", "project", "norm")
"""Of a head for further tokens: what stands before and behind its block."""


@dataclass(frozen=True)
class ParameterShape:
    """One logical parameter: name as in checkpoints (without "param/"), full shape, role."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def in_block(self) -> bool:
        """Of what a block computes, in a layer or in a head for further tokens; else of a way in or out."""
        kind, _, rest = self.name.partition(".")
        return kind == "layers" or (kind == "mtp" and rest.split(".")[1] not in AROUND_BLOCK)


def decays(role: Role) -> bool:
    return role in (Role.MATRIX, Role.RESIDUAL, Role.ROUTER)


NORMS = {
    "pre": (2, 2, 2),
    "post": (2, 2, 2),
    "post-add": (2, 2, 2),
    "sandwich": (4, 4, 2),
    "parallel": (1, 1, 1),
    "parallel-two-norms": (2, 1, 2),
}
"""By ``block``: norms of a block, values that they read (two may read one), inputs of attention and feed-forward."""


def count_norms(model: ModelSpec) -> int:
    """Of a block, over its width: each has a gain and makes a value of its own."""
    return NORMS[model.block][0]


def norms_of_block(model: ModelSpec) -> tuple[int, int]:
    """Values of the model's width in a block: (norm inputs, product inputs)."""
    _, read, products = NORMS[model.block]
    return read, products


def parameter_shapes(model: ModelSpec) -> list[ParameterShape]:
    """Every parameter of the decoder, in order. Planner and model both stand on this list.

    Experts of a layer stand in one parameter with a leading axis of experts.
    """
    shapes = input_shapes(model)
    for layer in range(model.layers):
        shapes += block_shapes(model, f"layers.{layer}.", model.has_experts(layer))
    shapes += output_shapes(model)
    for depth in range(model.mtp_layers):
        shapes += mtp_shapes(model, f"mtp.{depth}.")
    return shapes


def input_shapes(model: ModelSpec) -> list[ParameterShape]:
    """What stands before the first block."""
    shapes = [ParameterShape("embed.weight", (model.vocabulary, model.width), Role.EMBEDDING)]
    if model.position == "learned":
        shapes.append(ParameterShape("positions.weight", (model.positions, model.width), Role.EMBEDDING))
    return shapes + (_norm(model, "embed_norm") if model.embedding_norm else [])


def output_shapes(model: ModelSpec) -> list[ParameterShape]:
    """What stands behind the last block."""
    head = [] if model.tied_embeddings else [ParameterShape("head.weight", (model.vocabulary, model.width), Role.HEAD)]
    return [*_norm(model, "norm"), *head]


def mtp_shapes(model: ModelSpec, at: str) -> list[ParameterShape]:
    """A head for one more token: both inputs normed, projected together, one block, a norm. It shares embedding and head."""
    D = model.width
    project = ParameterShape(at + "project.weight", (D, 2 * D), Role.MATRIX)
    block = block_shapes(model, at, model.has_experts(model.layers - 1))
    return [*_norm(model, at + "hidden_norm"), *_norm(model, at + "embed_norm"), project, *block, *_norm(model, at + "norm")]


def block_shapes(model: ModelSpec, at: str, routed: bool) -> list[ParameterShape]:
    """One layer; ``routed``: with experts in place of its feed-forward."""
    attention = _latent(model, at) if model.latent else _attention(model, at)
    ffn = _experts(model, at) if routed else _ffn(model, at + "ffn.", model.ffn_width)
    shapes = [*_norm(model, at + "attention_norm"), *attention]
    if model.block != "parallel":  # there one norm feeds both
        shapes += _norm(model, at + "ffn_norm")
    shapes += ffn
    if model.block == "sandwich":
        shapes += [*_norm(model, at + "attention_out_norm"), *_norm(model, at + "ffn_out_norm")]
    return shapes


def _attention(model: ModelSpec, at: str) -> list[ParameterShape]:
    D, HE, KE = model.width, model.heads * model.head_width, model.kv_heads * model.head_width
    biased = model.bias in ("qkv", "all")
    shapes = [
        *_linear(at + "attention.q", (HE, D), Role.MATRIX, biased),
        *_linear(at + "attention.k", (KE, D), Role.MATRIX, biased),
        *_linear(at + "attention.v", (KE, D), Role.MATRIX, biased),
        *_linear(at + "attention.o", (D, HE), Role.RESIDUAL, model.bias == "all"),
    ]
    if model.qk_norm:
        q, k = (model.head_width, model.head_width) if model.qk_norm_over == "head" else (HE, KE)
        shapes += [
            ParameterShape(at + "attention.q_norm.weight", (q,), Role.GAIN),
            ParameterShape(at + "attention.k_norm.weight", (k,), Role.GAIN),
        ]
    return shapes


def _latent(model: ModelSpec, at: str) -> list[ParameterShape]:
    """Down to the ranks, a norm, up to the heads (arXiv 2405.04434, section 2.1)."""
    latent, D, H = model.latent, model.width, model.heads
    assert latent is not None
    query = H * (latent.nope_width + latent.rope_width)
    at += "attention."
    shapes = [ParameterShape(at + "q.weight", (query, latent.query_rank or D), Role.MATRIX)]
    if latent.query_rank is not None:
        shapes.insert(0, ParameterShape(at + "q_down.weight", (latent.query_rank, D), Role.MATRIX))
        shapes.insert(1, ParameterShape(at + "q_down_norm.weight", (latent.query_rank,), Role.GAIN))
    return [
        *shapes,
        ParameterShape(at + "kv_down.weight", (latent.kv_rank + latent.rope_width, D), Role.MATRIX),
        ParameterShape(at + "kv_down_norm.weight", (latent.kv_rank,), Role.GAIN),
        ParameterShape(at + "kv.weight", (H * (latent.nope_width + latent.value_width), latent.kv_rank), Role.MATRIX),
        ParameterShape(at + "o.weight", (D, H * latent.value_width), Role.RESIDUAL),
    ]


def _ffn(model: ModelSpec, at: str, width: int) -> list[ParameterShape]:
    D, biased = model.width, model.bias == "all"
    gate = _linear(at + "gate", (width, D), Role.MATRIX, biased) if model.gated else []
    return [*gate, *_linear(at + "up", (width, D), Role.MATRIX, biased), *_linear(at + "down", (D, width), Role.RESIDUAL, biased)]


def _experts(model: ModelSpec, at: str) -> list[ParameterShape]:
    experts, D = model.experts, model.width
    assert experts is not None
    X, F = experts.experts, experts.width
    shapes = _linear(at + "router", (X, D), Role.ROUTER, model.bias == "all" and not experts.router_bias)
    if experts.router_bias:
        shapes.append(ParameterShape(at + "router.bias", (X,), Role.BALANCE))
    for name, shape in (("gate", (X, F, D)), ("up", (X, F, D)), ("down", (X, D, F))):
        if name != "gate" or model.gated:
            role = Role.RESIDUAL if name == "down" else Role.MATRIX
            shapes += _linear(f"{at}experts.{name}", shape, role, model.bias == "all")
    return shapes + (_ffn(model, at + "shared.", experts.shared * F) if experts.shared else [])


def _linear(name: str, shape: tuple[int, ...], role: Role, biased: bool) -> list[ParameterShape]:
    """A bias has the shape without the axis that the product sums over."""
    weight = ParameterShape(name + ".weight", shape, role)
    return [weight, ParameterShape(name + ".bias", shape[:-1], Role.BIAS)] if biased else [weight]


def _norm(model: ModelSpec, name: str) -> list[ParameterShape]:
    gain = ParameterShape(name + ".weight", (model.width,), Role.GAIN)
    biased = model.norm == "layernorm" and model.bias in ("norm", "all")
    return [gain, ParameterShape(name + ".bias", (model.width,), Role.BIAS)] if biased else [gain]
