"""Parameter roles: the table that says how each kind of parameter is initialised and decayed.

    role        what it is                                     init                         weight decay
    embedding   token embedding (and the head when tied)       normal(init_std)             no
    head        output projection, untied                      normal(init_std)             no
    matrix      projections into attention and feed-forward    normal(init_std)             yes
    residual    projections back into the residual stream      normal(init_std / sqrt 2L)   yes
    gain        norm weights                                   one                          no

Residual outputs are scaled down with depth so that the stream's variance does not grow with the number of layers
(Radford et al. 2019). No decay on gains and embeddings (OLMo 2, arXiv 2501.00656).
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


@dataclass(frozen=True)
class ParameterShape:
    """One logical parameter: name as in checkpoints (without "param/"), full shape, role."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def init_std(role: Role, model: ModelSpec) -> float | None:
    """Standard deviation of the initial values; None: ones."""
    if role is Role.GAIN:
        return None
    if role is Role.RESIDUAL:
        return model.init_std / math.sqrt(2 * model.layers)
    return model.init_std


def decays(role: Role) -> bool:
    return role in (Role.MATRIX, Role.RESIDUAL)


def parameter_shapes(model: ModelSpec) -> list[ParameterShape]:
    """Every parameter of the decoder, in order. Planner and model both stand on this list."""
    D, F, V = model.width, model.ffn_width, model.vocabulary
    HE, KE = model.heads * model.head_width, model.kv_heads * model.head_width
    shapes = [ParameterShape("embed.weight", (V, D), Role.EMBEDDING)]
    for layer in range(model.layers):
        at = f"layers.{layer}."
        shapes += [
            ParameterShape(at + "attention_norm.weight", (D,), Role.GAIN),
            ParameterShape(at + "attention.q.weight", (HE, D), Role.MATRIX),
            ParameterShape(at + "attention.k.weight", (KE, D), Role.MATRIX),
            ParameterShape(at + "attention.v.weight", (KE, D), Role.MATRIX),
            ParameterShape(at + "attention.o.weight", (D, HE), Role.RESIDUAL),
        ]
        if model.qk_norm:
            shapes += [
                ParameterShape(at + "attention.q_norm.weight", (model.head_width,), Role.GAIN),
                ParameterShape(at + "attention.k_norm.weight", (model.head_width,), Role.GAIN),
            ]
        shapes += [
            ParameterShape(at + "ffn_norm.weight", (D,), Role.GAIN),
            ParameterShape(at + "ffn.gate.weight", (F, D), Role.MATRIX),
            ParameterShape(at + "ffn.up.weight", (F, D), Role.MATRIX),
            ParameterShape(at + "ffn.down.weight", (D, F), Role.RESIDUAL),
        ]
    shapes.append(ParameterShape("norm.weight", (D,), Role.GAIN))
    if not model.tied_embeddings:
        shapes.append(ParameterShape("head.weight", (V, D), Role.HEAD))
    return shapes
