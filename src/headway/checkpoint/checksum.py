"""A 64-bit number for the bits of a tensor, where it lies: on the CPU by xxh3, on a device by its own arithmetic.

    words  w0 w1 w2 ...        sum of (2 i + 1) w_i modulo 2^64, stretch by stretch, each times an odd number more

An odd factor times a flipped bit, 2^k, is never 0 modulo 2^64: one flipped bit always shows. Numbers of a CPU and of a device
differ for the same bits; they are compared among ranks of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash
from torch import Tensor

from headway.checkpoint.tensors import bytes_view

STRETCH_WORDS = 2**22
"""Whose factors are made at once: 32 MiB."""
_ODD = 0x9E3779B97F4A7C15 - 2**64


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Of each, signed; one transfer from a device for all."""
    on_host = {name: _host_checksum(t) for name, t in tensors.items() if t.device.type == "cpu"}
    away = {name: device_checksum(t) for name, t in tensors.items() if t.device.type != "cpu"}
    told = torch.stack(list(away.values())).tolist() if away else []
    return on_host | dict(zip(away, told, strict=True))


def _host_checksum(tensor: Tensor) -> int:
    value = xxhash.xxh3_64_intdigest(bytes_view(tensor).data)
    return value - 2**64 if value >= 2**63 else value


@torch.no_grad()
def device_checksum(tensor: Tensor) -> Tensor:
    """int64 on the tensor's device."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    padded = data.new_zeros(-(-len(data) // 8) * 8)  # of its own: a part of a tensor may lie at any byte
    padded[: len(data)] = data
    words = padded.view(torch.int64)
    factors = torch.arange(min(len(words), STRETCH_WORDS), device=words.device) * 2 + 1
    total = torch.full((), len(data), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), STRETCH_WORDS):
        stretch = words[start : start + STRETCH_WORDS]
        total = total * _ODD + (stretch * factors[: len(stretch)]).sum()
    return total
