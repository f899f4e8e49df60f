"""Summing gradients over ranks that meet through gloo: parts sent to whom they belong, added in the order of ranks.

    rank 0   a0 b0 c0          a0 + a1 + a2
    rank 1   a1 b1 c1    ->    b0 + b1 + b2      each part travels once, and has one order of additions
    rank 2   a2 b2 c2          c0 + c1 + c2

gloo's own reduce-scatter took 2.1 times as long on two ranks of one machine (68 MB of float32: 110 ms against 53).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


class HostReduceScatter(ReduceScatter):
    """For ``FSDPModule.set_custom_reduce_scatter``; sums alone."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Into ``output_tensor`` this rank's part of the sum of all ``input_tensor``."""
        assert op == dist.ReduceOp.SUM, op
        assert not async_op, "gradients are there when this returns"
        parts, own = input_tensor.view(group.size(), -1), dist.get_rank(group)
        found = {own: parts[own]} | {rank: torch.empty_like(output_tensor) for rank in range(group.size()) if rank != own}
        pairs = [
            exchange
            for rank in found
            if rank != own
            for exchange in (
                dist.P2POp(dist.isend, parts[rank], group=group, group_peer=rank),
                dist.P2POp(dist.irecv, found[rank], group=group, group_peer=rank),
            )
        ]
        for request in dist.batch_isend_irecv(pairs):
            request.wait()
        torch.add(found[0], found[1], out=output_tensor)
        for rank in range(2, group.size()):
            output_tensor.add_(found[rank])
