"""How parameters lie on the ranks, as updates and clipping see them. Alone, every parameter is whole.

``parallel/state.py`` has the parts of a mesh: an update changes this rank's part of each parameter, and asks here for what it
needs of the others'.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Parts:
    """Alone."""

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """The whole matrices of which ``part`` is this rank's part, as ``parameter`` is."""
        return part

    def cut(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """The way back."""
        return whole

    def logical(self, name: str, part: Tensor) -> Tensor:
        """``part``, which lies as parameter ``name`` does, as a tensor of the whole, for checkpoints."""
        return part

    def saves(self, name: str) -> bool:
        """Whether what belongs to parameter ``name`` is written to checkpoints from here; else another rank writes the same."""
        return True

    def counted(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Those that this rank counts in a sum over all parameters, so that nothing is counted twice."""
        return list(parameters)

    def norm(self, norm: Tensor) -> Tensor:
        """From the norm of what is counted here to that of the whole."""
        return norm


WHOLE = Parts()
