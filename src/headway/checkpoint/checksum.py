"""A 64-bit number for the bits of a tensor, where it lies: on the CPU by xxh3, on a device by its own arithmetic.

    words  w0 w1 w2 ...   sum of mixed(w_i + i c) modulo 2^64, stretch by stretch, each sum times an odd number more

Mixing a word is reversible, so one flipped bit always gives another word, and another sum; that flips cancel each other is as
unlikely as with a random 64-bit number. Numbers of a CPU and of a device differ for the same bits: they are compared among ranks
of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash
from torch import Tensor

from headway.checkpoint.tensors import bytes_view

STRETCH_WORDS = 2**22
"""Mixed at once: a few times 32 MiB."""
_GOLDEN, _MIX, _MIX_AGAIN = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""Odd; of splitmix64, as signed words."""


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
    total = torch.full((), len(data), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), STRETCH_WORDS):
        total = total * _GOLDEN + _mixed(words[start : start + STRETCH_WORDS]).sum()
    return total


def _mixed(words: Tensor) -> Tensor:
    """Words that tell their place; shifts of signed words bring copies of the sign, which are cut off."""
    x = words + torch.arange(1, len(words) + 1, device=words.device) * _GOLDEN
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX_AGAIN
    return x ^ ((x >> 31) & (2**33 - 1))
