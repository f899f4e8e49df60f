"""The type in which sums are taken: float32 for narrower values, and that of the values where it is wider (float64 in tests)."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """``x`` in it; ``x`` itself where it is so already."""
    return x.to(wide_dtype(x))
