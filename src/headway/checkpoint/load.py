"""Load a state in place: any layout of chunks into whole tensors or into any other rectangles.

Strict: key sets equal both ways, dtype, shape, full coverage; every byte that is used was verified. After an error the
destination holds a mixture and must not be trained on: load another checkpoint over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from headway.base.errors import Problem, RunError
from headway.checkpoint.tensors import CARRIERS, DTYPES, dtype_name
from headway.store.assemble import fill, new_scratch
from headway.store.manifest import Manifest
from headway.store.verify import OpenCheckpoint, open_checkpoint


def load_checkpoint(directory: Path, tensors: dict[str, torch.Tensor]) -> Manifest:
    """Fill ``tensors`` in place with the checkpoint's values; RunError for damage or any difference in kind."""
    checkpoint = open_checkpoint(directory)
    check_fits(checkpoint, tensors)
    scratch = new_scratch()
    for name in sorted(tensors):
        tensor = tensors[name]
        load_rectangle(checkpoint, name, tensor, (0,) * tensor.ndim, scratch)
    return checkpoint.manifest


def check_fits(checkpoint: OpenCheckpoint, tensors: dict[str, torch.Tensor]) -> None:
    """Every difference between what is saved and what is wanted, all at once."""
    saved = checkpoint.tensors
    problems = [Problem(f"{name} is in the checkpoint, but the model has none") for name in sorted(set(saved) - set(tensors))]
    problems += [Problem(f"{name} is missing in the checkpoint") for name in sorted(set(tensors) - set(saved))]
    for name in sorted(set(saved) & set(tensors)):
        have, want = saved[name], tensors[name]
        if have.shape != tuple(want.shape):
            problems.append(Problem(f"{name}: saved with shape {have.shape}, wanted {tuple(want.shape)}"))
        if DTYPES[have.dtype] != want.dtype:
            problems.append(Problem(f"{name}: saved as {have.dtype}, wanted {dtype_name(name, want.dtype)}"))
    if problems:
        way_out = f"load it with the recipe and code that wrote it; path: {checkpoint.directory}"
        raise RunError([Problem(p.seen, "a state is loaded whole or not at all", way_out) for p in problems])


def load_rectangle(
    checkpoint: OpenCheckpoint, name: str, destination: torch.Tensor, offset: Sequence[int], scratch: np.ndarray | None = None
) -> None:
    """Fill ``destination``, the rectangle of tensor ``name`` that starts at ``offset``, reading only what it needs.

    ``scratch``: uint8 memory to read into, for callers that load many (``store.assemble.new_scratch``).
    """
    entry = checkpoint.tensors[name]
    if DTYPES[entry.dtype] != destination.dtype:
        raise RunError(f"{name}: saved as {entry.dtype}, wanted {destination.dtype}", "dtypes are never converted silently")
    target = destination.detach()
    on_host = target if target.device.type == "cpu" else torch.empty(target.shape, dtype=target.dtype)
    fill(checkpoint, name, on_host.view(CARRIERS[target.element_size()]).numpy(), offset, scratch)
    if on_host is not target:
        target.copy_(on_host)
