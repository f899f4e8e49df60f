"""Rotary angles: how far each pair of a head's values turns at each position.

    pair i of R/2 turns by position * frequency_i,   frequency_i = base^(-2i/R):   turns over L tokens = L frequency_i / 2 pi

YaRN (arXiv 2309.00071, "NTK-by-parts") lets a model read ``factor`` times the tokens that it was trained for:

    pairs      0 ......... fast ~~~~~~~~~~~~ slow ......... R/2
    turns      many: they tell neighbours    few: they tell far places
    frequency  stays         a ramp          divided by factor

Shapes: T positions, E pairs (half of the rotated width R of a head).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from headway.recipe.spec import ModelSpec, RopeSpec, YarnSpec


def angle_table(length: int, model: ModelSpec, rope: RopeSpec) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency, each [length, R/2] in float32 on the CPU. R is ``model.turned_width``."""
    return _angle_table(length, model.turned_width, rope)


@lru_cache(maxsize=8)
def _angle_table(length: int, width: int, rope: RopeSpec) -> tuple[Tensor, Tensor]:
    """The angle in float64: float32 is off by 0.06 at 1 M."""
    angle_TE = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * frequencies(width, rope)
    return angle_TE.cos().float(), angle_TE.sin().float()


def frequencies(width: int, rope: RopeSpec) -> Tensor:
    """Radians per token of each pair, [width / 2], float64."""
    plain_E = float(rope.base) ** (-torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    if rope.yarn is None:
        return plain_E
    return torch.lerp(plain_E, plain_E / rope.yarn.factor, _ramp(width, rope.base, rope.yarn))


def _ramp(width: int, base: float, yarn: YarnSpec) -> Tensor:
    """0 for pairs that stay, 1 for pairs that are divided. It begins and ends at whole pairs, as in ``transformers``."""
    first = max(math.floor(_pair_of(yarn.fast, width, base, yarn.original)), 0)
    last = min(math.ceil(_pair_of(yarn.slow, width, base, yarn.original)), width - 1)
    pair_E = torch.arange(width // 2, dtype=torch.float64, device="cpu")
    return ((pair_E - first) / (last - first or 0.001)).clamp_(0, 1)  # 0.001: a step, where both ends are one pair


def _pair_of(turns: float, width: int, base: float, length: int) -> float:
    """The pair, a real number, that turns so many times over ``length`` tokens."""
    return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))


def attention_growth(rope: RopeSpec) -> float:
    """What YaRN multiplies scores by: (0.1 ln factor + 1)^2; 1 without it. Longer rows would flatten the softmax."""
    if rope.yarn is None or rope.yarn.factor <= 1:
        return 1.0
    return (0.1 * math.log(rope.yarn.factor) + 1) ** 2
