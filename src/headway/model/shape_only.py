"""Tensors that have sizes and no values, of dry runs: what looks at values cannot be taken there."""

from __future__ import annotations

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_shape_only(x: Tensor) -> bool:
    """Whether ``x`` is one of them; then the way of an accelerator is taken, where the host does not wait for values."""
    return isinstance(x, FakeTensor)


def even(rows: int, parts: int) -> list[int]:
    """Numbers of rows that only values would tell, such as those of each expert: as equal as they can be."""
    return [rows // parts + (part < rows % parts) for part in range(parts)]
