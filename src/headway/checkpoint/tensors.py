"""Torch tensors as the store sees them: a dtype name, a shape, and bytes."""

from __future__ import annotations

import numpy as np
import torch

from headway.base.errors import RunError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
}
CARRIERS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
"""By bytes of an element: the type that carries its bits unchanged, as ``store.assemble`` wants them."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The safetensors name of ``dtype``; ``name`` is the tensor's, for the error."""
    if dtype not in _NAMES:
        raise RunError(f"{name}: {dtype} cannot be stored", f"known: {', '.join(DTYPES)}", "store real tensors of these dtypes")
    return _NAMES[dtype]


def bytes_view(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, row-major; zero-copy for a contiguous CPU tensor."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
