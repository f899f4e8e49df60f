"""Host memory of a dry run: nothing is moved, but what would be is counted."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.model.host_memory import HostMemory


class CountedMemory(HostMemory):
    """``put_bytes`` and ``fetched_bytes``: since it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.put_bytes = self.fetched_bytes = 0

    def put(self, x: Tensor, kept: Tensor) -> None:
        self.put_bytes += x.numel() * x.element_size()

    def fetch(self, kept: Tensor, device: torch.device) -> Tensor:
        self.fetched_bytes += kept.numel() * kept.element_size()
        return super().fetch(kept, device)
