"""The digest of a state in memory, equal to the one in the manifest of a checkpoint that holds it.

The trainer records it per step; two runs are the same run as long as their digests are.
"""

from __future__ import annotations

import torch

from headway.checkpoint.tensors import bytes_view, dtype_name
from headway.store.manifest import Chunk, TensorEntry, content_digest, hash_blocks, tensor_digest


def state_digest(tensors: dict[str, torch.Tensor]) -> str:
    """xxh3_128 over sorted names, dtypes, shapes and bytes."""
    return content_digest({name: _entry(name, tensor) for name, tensor in tensors.items()})


def tensor_digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """One digest per tensor, to name the one that differs."""
    return {name: tensor_digest(_entry(name, tensors[name])) for name in sorted(tensors)}


def _entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    """The whole tensor as one chunk in memory."""
    shape, data = tuple(tensor.shape), bytes_view(tensor)
    chunk = Chunk(offset=(0,) * len(shape), shape=shape, file="", at=0, nbytes=data.nbytes, blocks=hash_blocks(data))
    return TensorEntry(dtype=dtype_name(name, tensor.dtype), shape=shape, chunks=(chunk,))
