"""Clipping by the norm of the whole gradient, and the verdict whether an update may happen at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClipResult:
    """``norm``: of the whole gradient before clipping. Not finite: gradients were left alone, the update must be skipped."""

    norm: float
    clipped: bool

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)


@torch.no_grad()
def gradient_norm(gradients: list[Tensor]) -> float:
    """L2 norm over all gradients: float32 per tensor, float64 across them, always in the order given.

    Squares of a finite gradient can leave float32; only then is it measured again in float64.
    """
    if not gradients:
        return 0.0
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).double()))
    if math.isinf(norm):
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in gradients])))
    return norm


@torch.no_grad()
def clip_by_norm(parameters: Iterable[Tensor], limit: float | None) -> ClipResult:
    """Scale all gradients by limit / norm where the norm exceeds ``limit`` (None: only measure).

    A norm that is not finite is returned untouched: scaling by it would spread NaN into every gradient (0 x inf), and the
    caller skips the update, so that it never reaches weights or moments.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = gradient_norm(gradients)
    clipped = limit is not None and math.isfinite(norm) and norm > limit
    if clipped:
        assert limit is not None
        torch._foreach_mul_(gradients, limit / norm)
    return ClipResult(norm=norm, clipped=clipped)
