"""What the optimizer and the initialisation do to each parameter, at any width and depth: one table.

n = width / base_width, l = layers / base_layers, a = depth_alpha; both factors are 1 without ``model.mup``.
eta, lambda, epsilon, sigma: rate, decay, epsilon and standard deviation as the recipe gives them.

    role                   init            rate               decay        epsilon             forward
    embedding, positions   sigma           eta                0            epsilon / n
    norms, biases outside  1, 0            eta                0            epsilon / n
    norms, biases inside   1, 0            eta l^(a-1)        0            epsilon / (n l^a)
    matrix                 sigma / sqrt n  eta l^(a-1) / n    lambda n     epsilon / (n l^a)
    residual               sigma / sqrt n  eta l^(a-1) / n    lambda n     epsilon / (n l^a)   what a block adds: x l^-a
    router                 sigma           eta l^(a-1)        lambda       epsilon / (n l^a)   scores of experts: x 1 / n
    head (or tied)         sigma           eta                0            epsilon / n         logits: x 1 / n
    balance                0               by loads, never by a gradient

    attention  scores are q k' attention_multiplier / head width; 1 / sqrt(head width) in the standard parametrisation

Sources: Yang et al. 2022 (arXiv 2203.03466, table 8) in width; Dey et al. 2025 (CompleteP, arXiv 2505.01618, table 1) in depth.

What those tables leave open, and the rule here:
- Tied embeddings: embedding and head have one row here already, so one matrix follows both; logits x 1 / n.
- Grouped queries: k and v read the whole width, as q does. Key and value heads are taken to grow with the query heads: of a fixed
  number each would gather the gradients of ever more queries.
- Routers: from the width to a fixed number of experts, as a head does, inside a block. Experts: matrices with a leading axis.
- Latent ranks, heads x head width, ffn and expert widths are taken to grow with the width.
- Muon: an update has one singular value in all directions and moves outputs by its spectral norm. Under the spectral scale
  that is as much at every width: eta l^(a-1) and lambda stay. Under the rms scale it is sqrt(n) times as much: / sqrt n where
  AdamW's row, whose updates add up along the input, has / n. Routers are matrices to Muon too: under the rms scale their row
  stays, under the spectral one eta grows with sqrt n, against the 1 / n in front (``WIDTH_POWERS``).
- Decay grows as the rate falls with n: rate x decay, which is what a weight feels, is the same at every width.
- With ``init = "fan-in"`` a matrix's columns are the width already; depth-scaled residual outputs count base_layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.recipe.roles import ParameterShape, Role, decays
from headway.recipe.spec import ModelSpec, OptimizerSpec

HIDDEN = (Role.MATRIX, Role.RESIDUAL)

WIDTH_POWERS = {"adamw": (1.0, 0.0), "rms": (0.5, 0.0), "spectral": (0.0, -0.5)}
"""By the size of an update, of hidden matrices and of routers: an update moves their outputs by n^p at one rate."""


@dataclass(frozen=True)
class Rule:
    """What becomes of one parameter."""

    std: float | None  # of initial values; None: ones, 0: zeros
    rate: float  # factor of the learning rate
    decay: float  # weight decay, times the learning rate
    epsilon: float  # of AdamW


@dataclass(frozen=True)
class Multipliers:
    """Of the forward pass."""

    residual: float  # what attention and feed-forward add to the stream
    logits: float
    router: float  # a router's output
    attention: float  # scores: q k' times this


def ratios(model: ModelSpec) -> tuple[float, float]:
    """n and l: how many times wider and deeper than the base."""
    if model.mup is None:
        return 1.0, 1.0
    return model.width / model.mup.base_width, model.layers / model.mup.base_layers


def multipliers(model: ModelSpec) -> Multipliers:
    n, l = ratios(model)
    if model.mup is None:
        return Multipliers(residual=1.0, logits=1.0, router=1.0, attention=model.head_width**-0.5)
    attention = model.mup.attention_multiplier / model.head_width
    return Multipliers(residual=l**-model.mup.depth_alpha, logits=1 / n, router=1 / n, attention=attention)


def init_std(shape: ParameterShape, model: ModelSpec) -> float | None:
    """Standard deviation of the initial values; None: ones (gains), 0: zeros (biases)."""
    role, (n, _) = shape.role, ratios(model)
    if role is Role.GAIN:
        return None
    if role in (Role.BIAS, Role.BALANCE):
        return 0.0
    std = model.init_std
    if model.init == "fan-in" and role is not Role.EMBEDDING:
        std = math.sqrt(n / shape.shape[-1])  # of the base model's columns
    elif model.init == "depth-scaled" and role is Role.RESIDUAL:
        std /= math.sqrt(2 * (model.mup.base_layers if model.mup else model.layers))
    return std / math.sqrt(n) if role in HIDDEN else std


def rule(shape: ParameterShape, model: ModelSpec, optimizer: OptimizerSpec) -> Rule:
    """The row of ``shape``."""
    n, l = ratios(model)
    alpha = model.mup.depth_alpha if model.mup else 1.0
    rate, epsilon = (l ** (alpha - 1), l**alpha) if shape.in_block else (1.0, 1.0)
    decay = optimizer.weight_decay if decays(shape.role) else 0.0
    width = n ** width_power(shape, optimizer)
    own = _own_rate(shape, optimizer)
    return Rule(init_std(shape, model), rate / width * own, decay * width, optimizer.epsilon / (n * epsilon))


def is_muon(shape: ParameterShape, optimizer: OptimizerSpec) -> bool:
    """Muon takes the matrices of the blocks, experts one by one; AdamW all the rest."""
    return optimizer.kind == "muon" and shape.in_block and shape.role in (*HIDDEN, Role.ROUTER)


def width_power(shape: ParameterShape, optimizer: OptimizerSpec) -> float:
    """p: the rate falls with n^-p, and decay grows with n^p."""
    update = optimizer.muon_scale if is_muon(shape, optimizer) else "adamw"
    hidden, router = WIDTH_POWERS[update]
    return hidden if shape.role in HIDDEN else router if shape.role is Role.ROUTER else 0.0


def _own_rate(shape: ParameterShape, optimizer: OptimizerSpec) -> float:
    own = optimizer.matrix_rate
    return own / optimizer.peak_rate if is_muon(shape, optimizer) and own is not None else 1.0
