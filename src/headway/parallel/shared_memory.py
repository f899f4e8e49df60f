"""Messages between ranks of one machine through memory that all of them see, in place of the loopback interface.

    area of rank 0 | area of rank 1 | ...       each twice: what is written for one meeting stays while the next one is written
       write own         write own
    ------------- barrier -------------         of the backend: it has its time-out, and notices ranks that are gone
       read others'      read others'

Who passes the barrier of a meeting knows that all others have read what was written for the meeting before; so a rank writes for
the next but one over what nobody reads any more. Long messages meet several times, a part at a time.

The memory has no name: a file of rank 0's that exists in memory alone, which the others open through its process. When the last
of them ends, however it ends, it is gone.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_told = torch.library.Library("headway", "DEF")
_told.define("brought(Tensor brought, str group) -> ()")
_told.impl("brought", lambda brought, group: None, "CompositeExplicitAutograd")
"""Does nothing: it is how a dispatch mode sees what a rank brings, as it sees torch's own collectives (``train/soundness``)."""

AREA_BYTES = 8 * 2**20
"""Of a rank, for one meeting: larger ones leave the caches, smaller ones meet more often."""
_WORDS, _TOKEN_BYTES = 256, 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SharedMemory:
    """Of the ranks of ``group``. All of them call the same methods in the same order, with messages of the same size."""

    def __init__(self, group: dist.ProcessGroup, memory: mmap.mmap):
        self.group, self.size, self.rank = group, group.size(), dist.get_rank(group)
        areas = torch.frombuffer(memory, dtype=torch.uint8, offset=_TOKEN_BYTES)
        self._areas = areas.view(2, self.size, AREA_BYTES)
        self._turn = 0

    @staticmethod
    def of(group: dist.ProcessGroup) -> SharedMemory | None:
        """None on all ranks where any does not see the memory: they are of several machines, or may not look at each other."""
        size, rank = _TOKEN_BYTES + 2 * group.size() * AREA_BYTES, dist.get_rank(group)
        with contextlib.ExitStack() as stack:
            own = _make(size) if rank == 0 else None
            if own is not None:
                stack.callback(os.close, own)
            said = _told_by_first(group, {"boot": _boot(), "process": os.getpid(), "file": own})
            found = own if rank == 0 else _open(said, stack)
            memory = _mapped(found, size)
            token = _told_by_first(group, {"token": secrets.token_hex(_TOKEN_BYTES // 2)})["token"].encode()
            if rank == 0 and memory is not None:
                memory[:_TOKEN_BYTES] = token
            dist.barrier(group)
            seen = torch.tensor(int(memory is not None and memory[:_TOKEN_BYTES] == token))
            dist.all_reduce(seen, dist.ReduceOp.MIN, group=group)
        return SharedMemory(group, memory) if bool(seen) and memory is not None else None

    def gather(self, output: Tensor, own: Tensor) -> None:
        """Into ``output`` what every rank has, one after the other. ``own`` may be this rank's part of it."""
        torch.ops.headway.brought(own, self.group.group_name)
        parts, source = output.view(self.size, -1), own.view(-1)
        if parts[self.rank].data_ptr() != source.data_ptr():
            parts[self.rank].copy_(source)
        for piece in _pieces(source.numel(), AREA_BYTES // source.element_size()):
            areas = self._meet({self.rank: source[piece]}, source.dtype)
            for rank in self._others():
                parts[rank, piece].copy_(areas[rank][: piece.stop - piece.start])

    def scatter_sum(self, output: Tensor, whole: Tensor) -> None:
        """Into ``output`` this rank's part of the sum of all ranks' ``whole``, added in the order of ranks."""
        torch.ops.headway.brought(whole, self.group.group_name)
        parts, count = whole.view(self.size, -1), output.numel()
        room = AREA_BYTES // whole.element_size() // self.size
        for piece in _pieces(count, room):
            length = piece.stop - piece.start
            areas = self._meet({rank: parts[rank, piece] for rank in self._others()}, whole.dtype, room)
            found = [
                parts[rank, piece] if rank == self.rank else areas[rank][self.rank * room : self.rank * room + length]
                for rank in range(self.size)
            ]
            torch.add(found[0], found[1], out=output[piece])
            for more in found[2:]:
                output[piece].add_(more)

    def _meet(self, brought: dict[int, Tensor], dtype: torch.dtype, room: int = 0) -> list[Tensor]:
        """Write ``brought``, by place in this rank's area (each of ``room`` elements), and see the areas of all."""
        areas = [area.view(dtype) for area in self._areas[self._turn]]
        self._turn = 1 - self._turn
        for place, tensor in brought.items():
            start = place * room
            areas[self.rank][start : start + tensor.numel()].copy_(tensor)
        dist.barrier(self.group)
        return areas

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]


def _pieces(count: int, most: int) -> Iterator[slice]:
    for start in range(0, count, most):
        yield slice(start, min(count, start + most))


def _make(size: int) -> int | None:
    try:
        file = os.memfd_create("headway")
        os.ftruncate(file, size)
    except OSError:
        return None
    return file


def _open(said: dict, stack: contextlib.ExitStack) -> int | None:
    """The first rank's file, where its process is of this machine."""
    if said["file"] is None or said["boot"] != _boot():
        return None
    try:
        file = os.open(f"/proc/{said['process']}/fd/{said['file']}", os.O_RDWR)
    except OSError:
        return None
    stack.callback(os.close, file)
    return file


def _mapped(file: int | None, size: int) -> mmap.mmap | None:
    """None: it is another file, of a process that has the same number elsewhere, or cannot be mapped."""
    with contextlib.suppress(OSError, ValueError):
        return None if file is None else mmap.mmap(file, size)
    return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return secrets.token_hex()


def _told_by_first(group: dist.ProcessGroup, words: dict) -> dict:
    """What the first rank of ``group`` says, as JSON."""
    data = json.dumps(words).encode().ljust(_WORDS, b" ")
    told = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(told, group=group, group_src=0)
    return json.loads(told.numpy().tobytes())
