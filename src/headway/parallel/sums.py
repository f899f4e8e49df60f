"""Sums over the ranks of a mesh: losses and loads over tokens."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from headway.parallel.mesh import Mesh


def over_routed(x: Tensor, mesh: Mesh | None) -> Tensor:
    """The sum over all ranks that have tokens of their own between layers, on each, in place: what their routers did."""
    if mesh is not None:
        dist.all_reduce(x, group=mesh.token_group)
    return x


def over_tokens(x: Tensor, mesh: Mesh | None) -> Tensor:
    """The sum over all ranks that have rows of their own, on each, in place."""
    if mesh is not None:
        dist.all_reduce(x, group=mesh.batch_group)
    return x
