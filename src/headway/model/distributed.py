"""Distributed tensors, recognised without an import: that takes half as long as torch itself, and one process has none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_distributed(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether it is this rank's part of a tensor that lies on several: where nobody imported such tensors, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
