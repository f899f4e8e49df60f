"""Muon: the momentum of a matrix, made nearly orthogonal, is its update (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    m <- mu m + (1 - mu) g          u = mu m + (1 - mu) g (Nesterov)          O = U V' of u = U S V', roughly
    w <- w - rate decay w - rate scale O

    scale   rms        0.2 sqrt(max(rows, columns)): elements of about 0.2, as AdamW's are (Moonlight, arXiv 2502.16982, eq. 4)
            spectral   sqrt(max(1, rows / columns)): outputs move alike at every width (Jordan)

A matrix is what a product uses: parameters with a leading axis (experts) are so many matrices, each orthogonal by itself. Where
ranks have parts of a matrix, it is made whole first: the update of a part alone would be another one.

Shapes: X matrices of a parameter (1 of a plain one), R rows (outputs), C columns (inputs), S the shorter side, L the longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headway.optim.groups import Group
from headway.optim.home import BESIDE, Home
from headway.optim.parts import WHOLE, Parts
from headway.recipe.spec import OptimizerSpec

SCALES: dict[str, Callable[[int, int], float]] = {
    "rms": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
}
"""What O is multiplied by, of (rows, columns)."""

QUINTIC = (3.4445, -4.7750, 2.0315)
"""p(s) = a s + b s^3 + c s^5 is steep at 0: five turns bring singular values from about 0.01 up into [0.68, 1.13] (Jordan)."""

TURNS = 5
LEAST_NORM = 1e-7
"""A matrix of a smaller norm is divided by this instead: the update of no gradient is none."""


def orthogonal(u_XRC: Tensor) -> Tensor:
    """U V' of each matrix, singular values in about [0.7, 1.2], in bfloat16.

    The iteration lives with bfloat16's rounding, which takes half of float32's time (measured on a CPU with bfloat16 products
    too, from 256 columns on). The norm is taken before: it may leave nothing but zeros of a matrix that is far too small.
    """
    a, b, c = QUINTIC
    norm_X11 = torch.linalg.vector_norm(u_XRC, dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)
    tall = u_XRC.shape[-2] > u_XRC.shape[-1]
    x_XSL = (u_XRC / norm_X11).to(torch.bfloat16)
    x_XSL = x_XSL.mT if tall else x_XSL
    for _ in range(TURNS):
        gram_XSS = torch.bmm(x_XSL, x_XSL.mT)
        poly_XSS = torch.baddbmm(gram_XSS, gram_XSS, gram_XSS, beta=b, alpha=c)
        x_XSL = torch.baddbmm(x_XSL, poly_XSS, x_XSL, beta=a)
    return x_XSL.mT if tall else x_XSL


class Muon:
    """The update of the groups that are given. It has no second moments and counts nothing."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts = WHOLE, home: Home = BESIDE):
        """``home``: of the momentum; it comes matrix by matrix."""
        self._groups, self._parts, self._home = groups, parts, home
        self._momentum, self._scale = spec.momentum, SCALES[spec.muon_scale]
        self._m = {p: home.zeros(p) for group in groups for p in group.parameters}
        self.set_rate(spec.peak_rate)

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    @torch.no_grad()
    def step(self, bad: Tensor | None) -> None:
        """``bad``: a boolean on the device; where it holds, weights and momentum keep their bits."""
        for group in self._groups:
            rate = self._rate * group.terms.rate
            for parameter in group.parameters:
                if parameter.grad is not None:
                    self._update(parameter, rate, rate * group.terms.decay, bad)

    def _update(self, parameter: nn.Parameter, rate: float, shrink: float, bad: Tensor | None) -> None:
        assert parameter.grad is not None
        g, m, w = parameter.grad, self._home.bring(self._m[parameter], parameter), parameter.detach()
        new_m = m.lerp(g, 1 - self._momentum)
        u = g.lerp(new_m, self._momentum)
        whole = self._parts.gather(parameter, u)
        o = self._parts.cut(parameter, orthogonal(whole.reshape(-1, *whole.shape[-2:])).view(whole.shape))
        new_w = (w * (1 - shrink)).add_(o, alpha=-rate * self._scale(*whole.shape[-2:]))
        _put(new_m, m, bad)
        _put(new_w, w, bad)
        self._home.take(m, self._m[parameter])

    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]:
        """By their letters in checkpoints."""
        return {"m": self._m}

    def counts(self) -> list[Tensor]:
        return []


def _put(new: Tensor, old: Tensor, bad: Tensor | None) -> None:
    """Select, never multiply: 0 x NaN is NaN, and -0 + 0 is another zero."""
    if bad is None:
        old.copy_(new)
    else:
        torch.where(bad, old, new, out=old)
