"""Who reads what when several ranks restore: one of the ranks that hold equal values reads, the others are sent them.

    mesh 2 x 2, axes (dp_replicate, dp_shard), a weight sharded over the second, and a counter that every rank holds
                    rank 0  rank 1  rank 2  rank 3
    weight, rows      a       b       a       b          a: rank 2 reads, sends to 0     b: rank 1 reads, sends to 3
    counter           c       c       c       c          c: rank 0 reads, sends to all

The reader follows from a hash of name and offset, as the writer of a save does, so that the load spreads. All ranks walk through
the names in the same order, so the messages meet. A rank that found damage sends what it has all the same: errors are told
at the end, together, and nobody waits for a rank that has gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from headway.base.errors import RunError
from headway.checkpoint.rectangles import owner
from headway.parallel.state import rectangle_of

_WORDS_BYTES = 400


@dataclass(frozen=True)
class LocalShare:
    """The rectangle of a tensor that this rank holds. ``reads``: it does; ``routes``: (group, source rank) to pass it on by."""

    values: torch.Tensor
    offset: tuple[int, ...]
    reads: bool
    routes: tuple[tuple[dist.ProcessGroup, int], ...]

    def pass_on(self) -> None:
        """From the reader to its replicas; by way of the device where messages lie there, and the values in host memory."""
        for group, source in self.routes:
            values = _as_bytes(self.values)
            sent = values.to(_device())
            dist.broadcast(sent, source, group)
            if sent is not values:
                values.copy_(sent)


def local_share(name: str, tensor: torch.Tensor, holders: dist.ProcessGroup | None, *, together: bool) -> LocalShare:
    """This rank's share of ``tensor``: whole, or the local rectangle of a DTensor. Alone, every rank reads its own.

    ``holders``: the ranks that have a plain tensor of this name (None: all).
    """
    if not hasattr(tensor, "device_mesh"):
        return _plain_share(name, tensor.detach(), (holders or dist.group.WORLD) if together else None)
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    held = rectangle_of(tensor)
    shape, offset = held.lengths, held.offset
    axes = [axis for axis, p in enumerate(placements) if p.is_replicate() and mesh.size(axis) > 1 and together]
    chosen = _coordinates(owner(name, tuple(offset), math.prod(mesh.size(axis) for axis in axes)), [mesh.size(a) for a in axes])
    here = [mesh.get_local_rank(axis) for axis in axes]
    routes = []
    for place, axis in enumerate(axes):  # along one axis after the other; later ones still stand at the reader's coordinate
        if here[place + 1 :] == chosen[place + 1 :]:
            group = mesh.get_group(axis)
            routes.append((group, dist.get_global_rank(group, chosen[place])))
    local = tensor.to_local().detach()  # type: ignore[attr-defined]
    empty = math.prod(shape) == 0
    return LocalShare(local, tuple(offset), reads=here == chosen and not empty, routes=() if empty else tuple(routes))


def _plain_share(name: str, tensor: torch.Tensor, holders: dist.ProcessGroup | None) -> LocalShare:
    offset = (0,) * tensor.ndim
    if holders is None or holders.size() == 1:
        return LocalShare(tensor, offset, reads=True, routes=())
    reader = dist.get_global_rank(holders, owner(name, offset, holders.size()))
    routes = () if tensor.numel() == 0 else ((holders, reader),)
    return LocalShare(tensor, offset, reads=dist.get_rank() == reader, routes=routes)


def _coordinates(index: int, sizes: list[int]) -> list[int]:
    """The mixed-radix digits of ``index``, as ``rectangles`` numbers equal copies."""
    digits = []
    for size in reversed(sizes):
        index, digit = divmod(index, size)
        digits.append(digit)
    return digits[::-1]


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    """gloo carries no float8 and no unsigned words: bytes always travel. Contiguous, since shards are made so."""
    if not values.is_contiguous():
        raise RunError("a replicated tensor of the state is not contiguous", "only contiguous memory can be sent")
    return values.reshape(-1).view(torch.uint8)


def agree(trouble: str, *, together: bool) -> None:
    """All ranks say whether they are well; RunError on all of them when one is not, with the ranks and their words."""
    if not together or dist.get_world_size() == 1:
        if trouble:
            raise RunError(trouble)
        return
    bad = [f"rank {rank}: {said}" for rank, said in enumerate(everybodys_words(trouble)) if said]
    if bad:
        raise RunError("; ".join(bad[:4]) + (f"; and {len(bad) - 4} more ranks" if len(bad) > 4 else ""))


def same_everywhere(word: str, what: str, *, together: bool) -> None:
    """RunError on all ranks unless all of them have the same ``word``."""
    if together and dist.get_world_size() > 1:
        told = everybodys_words(word)
        differing = [rank for rank, said in enumerate(told) if said != told[0]]
        if differing:
            raise RunError(f"ranks {differing} see another {what} than rank 0", "all ranks restore the same checkpoint")


def wanted_anywhere(wanted: list[bool], *, together: bool) -> list[bool]:
    """Which of some things any rank wants: the ranks of a pipeline stage want their own only."""
    if not together or dist.get_world_size() == 1:
        return wanted
    marks = torch.tensor(wanted, dtype=torch.uint8, device=_device())
    dist.all_reduce(marks, dist.ReduceOp.MAX)
    return [bool(mark) for mark in marks.tolist()]


def _device() -> torch.device:
    """Where the backend's messages lie."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def everybodys_words(words: str) -> list[str]:
    """Short texts of all ranks, as bytes of a fixed length (torch's own gathering of objects would pickle them)."""
    everybody = _gathered(words.encode()[:_WORDS_BYTES], _WORDS_BYTES)
    return [said.decode(errors="replace") for said in everybody]


def everybodys_bytes(data: bytes) -> list[bytes]:
    """The same of any length; no byte of ``data`` is zero at its end."""
    longest = torch.tensor(len(data), device=_device())
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return _gathered(data, int(longest))


def _gathered(data: bytes, length: int) -> list[bytes]:
    mine = torch.frombuffer(bytearray(data.ljust(max(1, length), b"\0")), dtype=torch.uint8).to(_device())
    everybody = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return [said.cpu().numpy().tobytes().rstrip(b"\0") for said in everybody]
