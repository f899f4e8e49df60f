"""AdamW over float32 master weights, by torch's fused kernel: w <- w - rate * decay * w, then Adam with bias correction.

Moments exist, as zeros, before the first step, so that a checkpoint has the same tensors at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from headway.optim.groups import Group
from headway.optim.parts import WHOLE, Parts
from headway.recipe.spec import OptimizerSpec


class FusedAdamW:
    """The update of the groups that are given; nothing else touches their moments and counts."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts = WHOLE):
        """``parts``: none are needed, each element is updated by itself."""
        self._factors = [group.terms.rate for group in groups]
        self._torch = AdamW(
            [
                {"params": list(group.parameters), "weight_decay": group.terms.decay, "eps": group.terms.epsilon}
                for group in groups
            ],
            betas=(spec.beta1, spec.beta2),
            fused=True,
        )
        self._parameters = [parameter for group in groups for parameter in group.parameters]
        for parameter in self._parameters:
            self._torch.state[parameter] = _empty_state(parameter)
        self.set_rate(spec.peak_rate)

    def set_rate(self, rate: float) -> None:
        for group, factor in zip(self._torch.param_groups, self._factors, strict=True):
            group["lr"] = rate * factor

    def step(self, bad: Tensor | None) -> None:
        """``bad``: a boolean on the device; where it holds, the kernel leaves everything and the counts are taken back.

        It goes the way that torch's gradient scaler uses (``found_inf``), which knows 0 and 1 only.
        """
        self._torch.found_inf = None if bad is None else bad.to(torch.float32)  # type: ignore[attr-defined]
        self._torch.step()

    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]:
        """By their letters in checkpoints."""
        state, parameters = self._torch.state, self._parameters
        return {"m": {p: state[p]["exp_avg"] for p in parameters}, "v": {p: state[p]["exp_avg_sq"] for p in parameters}}

    def counts(self) -> list[Tensor]:
        """Of updates applied, one of each parameter: bias correction depends on them."""
        return [state["step"] for state in self._torch.state.values()]


def _empty_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    """What torch would create in the first step (same keys, same dtypes)."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
