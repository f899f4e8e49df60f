"""AdamW over float32 master weights, by torch's fused kernel: w <- w - rate * decay * w, then Adam with bias correction.

The kernel is called as torch's own optimizer calls it, and not through that: building one imports torch's compiler, which takes
as long as torch itself, at every restart.

Moments exist, as zeros, before the first step, so that a checkpoint has the same tensors at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.optim.groups import Group, Terms
from headway.optim.home import BESIDE, Home
from headway.optim.parts import WHOLE, Parts
from headway.recipe.spec import OptimizerSpec

MOMENTS = ("m", "v")


class FusedAdamW:
    """The update of the groups that are given; nothing else touches their moments and counts."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts = WHOLE, home: Home = BESIDE):
        """``parts``: none are needed, each element is updated by itself. ``home``: of the moments."""
        terms = {parameter: group.terms for group in groups for parameter in group.parameters}
        self._terms, self._home = terms, home
        self._betas, self._rate = (spec.beta1, spec.beta2), spec.peak_rate
        self._moments = {letter: {p: home.zeros(p) for p in terms} for letter in MOMENTS}
        self._counts = {p: torch.zeros((), dtype=torch.float32, device=p.device) for p in terms}
        self._portions = home.portions(list(terms), len(MOMENTS))

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    @torch.no_grad()
    def step(self, bad: Tensor | None) -> None:
        """``bad``: a boolean on the device; where it holds, the kernel leaves everything and the counts are taken back.

        It goes the way that torch's gradient scaler uses (``found_inf``), which knows 0 and 1 only.
        """
        found_inf = None if bad is None else bad.to(torch.float32)
        for portion in self._portions:
            groups: dict[Terms, list[nn.Parameter]] = {}
            for parameter in portion:
                if parameter.grad is not None:
                    groups.setdefault(self._terms[parameter], []).append(parameter)
            for terms, parameters in groups.items():
                self._update(terms, parameters, found_inf)

    def _update(self, terms: Terms, parameters: list[nn.Parameter], found_inf: Tensor | None) -> None:
        counts = [self._counts[parameter] for parameter in parameters]
        m, v = ([self._home.bring(self._moments[letter][p], p) for p in parameters] for letter in MOMENTS)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(
            list[Tensor](parameters),
            gradients,
            m,
            v,
            [],
            counts,
            lr=self._rate * terms.rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=terms.decay,
            eps=terms.epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )
        if found_inf is not None:
            torch._foreach_sub_(counts, [found_inf] * len(counts))
        for letter, here in zip(MOMENTS, (m, v), strict=True):
            for parameter, moment in zip(parameters, here, strict=True):
                self._home.take(moment, self._moments[letter][parameter])

    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]:
        """By their letters in checkpoints."""
        return dict(self._moments)

    def counts(self) -> list[Tensor]:
        """Of updates applied, one of each parameter: bias correction depends on them."""
        return list(self._counts.values())
