"""AdamW over float32 master weights, by torch's fused kernel: w <- w - rate * decay * w, then Adam with bias correction.

The kernel is called as torch's own optimizer calls it, and not through that: building one imports torch's compiler, which takes
as long as torch itself, at every restart.

Moments exist, as zeros, before the first step, so that a checkpoint has the same tensors at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.optim.groups import Group
from headway.optim.parts import WHOLE, Parts
from headway.recipe.spec import OptimizerSpec


class FusedAdamW:
    """The update of the groups that are given; nothing else touches their moments and counts."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts = WHOLE):
        """``parts``: none are needed, each element is updated by itself."""
        self._groups, self._betas, self._rate = tuple(groups), (spec.beta1, spec.beta2), spec.peak_rate
        parameters = [parameter for group in groups for parameter in group.parameters]
        self._m = {parameter: torch.zeros_like(parameter) for parameter in parameters}
        self._v = {parameter: torch.zeros_like(parameter) for parameter in parameters}
        self._counts = {p: torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters}

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    @torch.no_grad()
    def step(self, bad: Tensor | None) -> None:
        """``bad``: a boolean on the device; where it holds, the kernel leaves everything and the counts are taken back.

        It goes the way that torch's gradient scaler uses (``found_inf``), which knows 0 and 1 only.
        """
        found_inf = None if bad is None else bad.to(torch.float32)
        for group in self._groups:
            gradients = {parameter: parameter.grad for parameter in group.parameters if parameter.grad is not None}
            if gradients:
                self._update(group, gradients, found_inf)

    def _update(self, group: Group, gradients: dict[nn.Parameter, Tensor], found_inf: Tensor | None) -> None:
        parameters: list[Tensor] = [*gradients]
        counts = [self._counts[parameter] for parameter in gradients]
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(
            parameters,
            list(gradients.values()),
            [self._m[parameter] for parameter in gradients],
            [self._v[parameter] for parameter in gradients],
            [],
            counts,
            lr=self._rate * group.terms.rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=group.terms.decay,
            eps=group.terms.epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )
        if found_inf is not None:
            torch._foreach_sub_(counts, [found_inf] * len(counts))

    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]:
        """By their letters in checkpoints."""
        return {"m": self._m, "v": self._v}

    def counts(self) -> list[Tensor]:
        """Of updates applied, one of each parameter: bias correction depends on them."""
        return list(self._counts.values())
