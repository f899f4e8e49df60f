"""Clipping by the norm of the whole gradient, on the gradient's device: the host is told afterwards, in one transfer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.optim.parts import WHOLE, Parts


@dataclass(frozen=True)
class ClipReading:
    """Numbers of one update for the record."""

    norm: float  # of the whole gradient before clipping
    clipped: bool
    applied: bool  # False: weights and moments were left alone

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)


@dataclass(frozen=True)
class ClipResult:
    """On the device. A norm that is not finite: gradients were left alone, the update must be skipped."""

    norm: Tensor  # float64, of the whole gradient before clipping
    clipped: Tensor  # boolean

    def read(self, bad: Tensor | None = None) -> ClipReading:
        """Waits for the device. ``bad``: as the optimizer's step was given it; None: a norm that is not finite."""
        skipped = ~torch.isfinite(self.norm) if bad is None else bad
        norm, clipped, left = torch.stack([self.norm, self.clipped.double(), skipped.double()]).tolist()
        return ClipReading(norm=norm, clipped=bool(clipped), applied=not left)


@torch.no_grad()
def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """L2 norm over all gradients, float64, always in the order given.

    Squares of a finite gradient can leave float32, whose sums are far faster on a CPU: there, where a look costs nothing, it
    is measured again in float64 if need be. A look would stall another device, which sums in float64 at once.
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    if gradients[0].device.type == "cpu":
        norm = _norm(gradients, torch.float32)
        if not torch.isinf(norm):
            return norm
    return _norm(gradients, torch.float64)


def _norm(gradients: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Per tensor in ``dtype``, across them in float64."""
    norms = torch._foreach_norm(gradients) if dtype == torch.float32 else torch._foreach_norm(gradients, 2, dtype=dtype)
    return torch.linalg.vector_norm(torch.stack(norms).double())


@torch.no_grad()
def clip_by_norm(parameters: Iterable[Tensor], limit: float | None, parts: Parts = WHOLE) -> ClipResult:
    """Scale all gradients by limit / norm where the norm exceeds ``limit`` (None: only measure), else by 1.

    ``parts``: how the parameters lie on ranks; the norm is that of the whole gradient, the same on all.

    A norm that is not finite scales nothing: it would spread NaN into every gradient (0 x inf), and the update is skipped, so
    that it never reaches weights or moments.
    """
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = parts.norm(gradient_norm([p.grad for p in parts.counted(parameters) if p.grad is not None]))
    if limit is None or not gradients:
        return ClipResult(norm, torch.zeros_like(norm, dtype=torch.bool))
    clipped = torch.isfinite(norm) & (norm > limit)
    torch._foreach_mul_(gradients, torch.where(clipped, limit / norm, 1.0).float())
    return ClipResult(norm, clipped)
