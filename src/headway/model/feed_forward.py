"""The feed-forward: down(act(gate x) * up x) with a gate, down(act(up x)) without.

Shapes: B batch, T time, D width, F inner width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headway.model.kernels import geglu, gelu, relu2, swiglu
from headway.model.ranks import Ranks
from headway.model.weight import Weight
from headway.recipe.spec import ModelSpec

GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"swiglu": swiglu, "geglu": geglu}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "relu2": relu2}


class FeedForward(nn.Module):
    """Gate and up stay separate: fused they are no rectangles when they are sharded."""

    def __init__(self, spec: ModelSpec, width: int):
        super().__init__()
        D, biased = spec.width, spec.bias == "all"
        self.kind = spec.ffn
        if spec.gated:
            self.gate = Weight(width, D, biased=biased)
        self.up, self.down = Weight(width, D, biased=biased), Weight(D, width, biased=biased)

    def forward(self, x_BTD: Tensor, ranks: Ranks) -> Tensor:
        x_BTD = ranks.all(x_BTD)
        up_BTF = self.up(x_BTD)
        inner_BTF = GATES[self.kind](self.gate(x_BTD), up_BTF) if self.kind in GATES else PLAIN[self.kind](up_BTF)
        return self.down.into_stream(inner_BTF, ranks)
