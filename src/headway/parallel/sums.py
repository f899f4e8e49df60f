"""Sums over the ranks of a mesh: losses and loads over tokens, and over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from headway.parallel.mesh import Mesh


def over_routed(x: Tensor, mesh: Mesh | None) -> Tensor:
    """The sum over all ranks that have tokens of their own between layers, on each, in place: what their routers did."""
    if mesh is not None:
        dist.all_reduce(x, group=mesh.token_group)
    return x


def over_batch(x: Tensor, mesh: Mesh | None) -> Tensor:
    """The sum over all ranks that have rows of their own, and over the stages of a pipeline: each adds what arises on it."""
    if mesh is not None:
        dist.all_reduce(x, group=mesh.losses_group)
    return x


def of_stages(row: Sequence[float], mesh: Mesh | None) -> list[list[float]]:
    """The row of every stage, on each, in their order."""
    if mesh is None or mesh.axes.pp == 1:
        return [list(row)]
    own = torch.tensor(row, dtype=torch.float64, device=mesh.device)
    rows = [torch.empty_like(own) for _ in range(mesh.axes.pp)]
    dist.all_gather(rows, own, group=mesh.group("pp"))
    return torch.stack(rows).tolist()
