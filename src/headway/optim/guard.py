"""Which gradients may change anything: finite ones whose norm is not far above the recent ones. Decided on the device.

    norm     1.1   0.9   1.0   ...   1.0   9.0   1.1   nan   0.9          skip_above = 4
    verdict   ok    ok    ok          ok   bad    ok   bad    ok
    history   +     +     +           +           +           +           what is bad is never learned from

The history is the mean of the norms' logarithms over about 100 accepted updates, so it is the same for any scale of norms and
one large norm moves it little. It judges nothing before it has seen 20. Where the norms rise for good, by more than skip_above
within a few steps, every update is left out from there on, and the run ends by the count of those in a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WINDOW_STEPS = 100
LEAST_STEPS = 20
KEPT = 1 - 1 / WINDOW_STEPS


class Guard:
    """``skip_above``: norms so many times the recent ones are bad; None: only those that are not finite, without a history."""

    def __init__(self, skip_above: float | None, device: torch.device | str = "cpu"):
        self._skip_above = skip_above
        self._log_norm = torch.zeros((), dtype=torch.float64, device=device)  # sum of weighted logarithms
        self._count = torch.zeros((), dtype=torch.float64, device=device)  # norms in it

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the optimizer's, live. Nothing without a history."""
        return {} if self._skip_above is None else {"guard/log_norm": self._log_norm, "guard/count": self._count}

    @torch.no_grad()
    def judge(self, norm: Tensor) -> Tensor:
        """Whether the gradient of this norm is bad, a boolean on its device. Once per update: it learns from good ones."""
        bad = ~torch.isfinite(norm)
        if self._skip_above is None:
            return bad
        bad = bad | self._is_high(norm)
        self._learn(norm, ~bad & (norm > 0))  # the logarithm of a zero would drown all others
        return bad

    def _is_high(self, norm: Tensor) -> Tensor:
        """An empty history's mean is 0 / 0, and nothing is above that."""
        assert self._skip_above is not None
        mean = self._log_norm / (1 - KEPT**self._count)
        return (self._count >= LEAST_STEPS) & (norm.log() > mean + math.log(self._skip_above))

    def _learn(self, norm: Tensor, good: Tensor) -> None:
        """Selected, not multiplied: the logarithm of a bad norm may be NaN."""
        torch.where(good, torch.lerp(norm.log(), self._log_norm, KEPT), self._log_norm, out=self._log_norm)
        self._count += good
