"""AdamW over float32 master weights, by torch's fused kernel: w <- w - rate * decay * w, then Adam with bias correction.

Moments exist, as zeros, before the first step, so that a checkpoint has the same tensors at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from headway.optim.groups import Group
from headway.optim.home import BESIDE, Home
from headway.optim.parts import WHOLE, Parts
from headway.recipe.spec import OptimizerSpec

MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""By their letters in checkpoints: torch's names."""


class FusedAdamW:
    """The update of the groups that are given; nothing else touches their moments and counts."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts = WHOLE, home: Home = BESIDE):
        """``parts``: none are needed, each element is updated by itself. ``home``: of the moments."""
        parameters = [parameter for group in groups for parameter in group.parameters]
        self._home = home
        self._moments = {letter: {p: home.zeros(p) for p in parameters} for letter in MOMENTS}
        self._portions = [_Portion(groups, portion, spec) for portion in home.portions(parameters, len(MOMENTS)) if portion]
        self.set_rate(spec.peak_rate)

    def set_rate(self, rate: float) -> None:
        for portion in self._portions:
            for group, factor in zip(portion.torch.param_groups, portion.factors, strict=True):
                group["lr"] = rate * factor

    def step(self, bad: Tensor | None) -> None:
        """``bad``: a boolean on the device; where it holds, the kernel leaves everything and the counts are taken back.

        It goes the way that torch's gradient scaler uses (``found_inf``), which knows 0 and 1 only.
        """
        found_inf = None if bad is None else bad.to(torch.float32)
        for portion in self._portions:
            for letter, name in MOMENTS.items():
                for parameter in portion.parameters:
                    portion.torch.state[parameter][name] = self._home.bring(self._moments[letter][parameter], parameter)
            portion.torch.found_inf = found_inf  # type: ignore[attr-defined]
            portion.torch.step()
            for letter, name in MOMENTS.items():
                for parameter in portion.parameters:
                    self._home.take(portion.torch.state[parameter].pop(name), self._moments[letter][parameter])

    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]:
        """By their letters in checkpoints."""
        return self._moments

    def counts(self) -> list[Tensor]:
        """Of updates applied, one of each parameter: bias correction depends on them."""
        return [state["step"] for portion in self._portions for state in portion.torch.state.values()]


class _Portion:
    """What one call of torch's updates: ``parameters``, in their groups. Its state has counts, and moments during an update."""

    def __init__(self, groups: Sequence[Group], parameters: Sequence[nn.Parameter], spec: OptimizerSpec):
        self.parameters, chosen = parameters, set(parameters)
        members = [(group.terms, [p for p in group.parameters if p in chosen]) for group in groups]
        members = [(terms, own) for terms, own in members if own]
        self.factors = [terms.rate for terms, _ in members]
        self.torch = AdamW(
            [{"params": own, "weight_decay": terms.decay, "eps": terms.epsilon} for terms, own in members],
            betas=(spec.beta1, spec.beta2),
            fused=True,
        )
        for parameter in parameters:
            self.torch.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device)}
