"""Where moments lie between two updates: beside their parameters, or in host memory, from which they come portion by portion.

    host     m v | m v | m v      all of them, pinned
              |     ^
    device   m v -> update        one portion, for as long as it is updated

An update is one of elements (AdamW) or of matrices (Muon), so portions change nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.model.host_memory import HostMemory
from headway.recipe.offload import PORTION_BYTES


class Home:
    """Beside their parameters."""

    def zeros(self, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(parameter)

    def portions(self, parameters: Sequence[nn.Parameter], moments: int) -> list[list[nn.Parameter]]:
        """Those that are updated together; each has so many ``moments``."""
        return [list(parameters)]

    def bring(self, moment: Tensor, parameter: nn.Parameter) -> Tensor:
        """To the parameter, for its update."""
        return moment

    def take(self, here: Tensor, moment: Tensor) -> None:
        """Back, once it is updated."""

    def settle(self) -> None:
        """Before anybody else reads a moment."""


class InHostMemory(Home):
    """``portion_bytes``: of moments on the device at once, and those of one parameter at least."""

    def __init__(self, memory: HostMemory | None = None, portion_bytes: int = PORTION_BYTES):
        self._memory, self._portion_bytes = memory or HostMemory(), portion_bytes

    def zeros(self, parameter: nn.Parameter) -> Tensor:
        return self._memory.empty(parameter).zero_()

    def portions(self, parameters: Sequence[nn.Parameter], moments: int) -> list[list[nn.Parameter]]:
        found: list[list[nn.Parameter]] = [[]]
        room = self._portion_bytes
        for parameter in parameters:
            size = moments * parameter.numel() * parameter.element_size()
            if size > room and found[-1]:
                found.append([])
                room = self._portion_bytes
            found[-1].append(parameter)
            room -= size
        return found

    def bring(self, moment: Tensor, parameter: nn.Parameter) -> Tensor:
        return self._memory.fetch(moment, parameter.device)

    def take(self, here: Tensor, moment: Tensor) -> None:
        self._memory.put(here, moment)

    def settle(self) -> None:
        self._memory.settle()


BESIDE = Home()
