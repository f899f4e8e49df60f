"""What a rank sends to others while a step runs, written down: the evidence of where a wrong number came from.

    rank 0   @all/0 w0    @all/1 w1   @all/2 g       each note: which meeting, and a checksum of what this rank brought
    rank 1   @all/0 w0'   @all/1 w1   @all/2 g'      (receiving alone: no checksum)

A meeting has the same name on all ranks that take part: a collective that of its group and its place among the group's, a message
that of sender, receiver and its place among those between the two. So whoever was the first to bring something else is found by
reading the notes of all: the others did so only after they had met it.

Seen where torch hands operations to its backends: nothing in the model has to know, and the numbers are the same with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MEETING = "@"
"""How names of meetings begin."""
UNKNOWN = "?"
"""A meeting of a kind that is not in the tables: who brought what to it is not known."""

Note = Callable[[str, Sequence[Tensor] | None], None]
"""Gets the name of a meeting, and what this rank brought (None: nothing)."""

_SENT = {
    "allreduce_": (0, 1),
    "allreduce_coalesced_": (0, 1),
    "allgather_": (1, 2),
    "_allgather_base_": (1, 2),
    "allgather_coalesced_": (1, 2),
    "allgather_into_tensor_coalesced_": (1, 2),
    "reduce_scatter_": (1, 2),
    "_reduce_scatter_base_": (1, 2),
    "reduce_scatter_tensor_coalesced_": (1, 2),
    "alltoall_": (1, 2),
    "alltoall_base_": (1, 2),
}
"""Collectives of torch.ops.c10d: which argument is brought, which is the group."""
_FUNCTIONAL = {
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
}
"""Of torch.ops._c10d_functional: the first argument is brought, the last is the group."""
_SILENT = {"barrier", "wait_tensor", "_wrap_tensor_autograd"}
"""Nothing travels with these."""


class Exchanges(TorchDispatchMode):
    """While it is entered, ``note`` is called for every meeting, before it."""

    def __init__(self, note: Note):
        super().__init__()
        self._note, self._places = note, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._take_up(func.overloadpacket.__name__, args)
        elif func.namespace.startswith("_c10d_functional"):
            self._take_up_functional(func.overloadpacket.__name__, args)
        elif func.namespace == "headway":
            self._tell(args[1], [args[0]])
        return func(*args, **(kwargs or {}))

    def _take_up(self, kind: str, args: Sequence[Any]) -> None:
        if kind in _SENT:
            what, whose = _SENT[kind]
            self._tell(_name(args[whose]), _flat(args[what]))
        elif kind == "broadcast_":
            group = dist.ProcessGroup.unbox(args[1])
            self._tell(group.group_name, _flat(args[0]) if group.rank() == args[2] else None)
        elif kind == "send":
            group = dist.ProcessGroup.unbox(args[1])
            self._tell(f"{group.group_name}:{group.rank()}>{args[2]}", _flat(args[0]))
        elif kind == "recv_":
            group = dist.ProcessGroup.unbox(args[1])
            self._tell(f"{group.group_name}:{args[2]}>{group.rank()}", None)
        elif kind not in _SILENT:
            self._tell(UNKNOWN, None)

    def _take_up_functional(self, kind: str, args: Sequence[Any]) -> None:
        if kind in _FUNCTIONAL:
            self._tell(_name(args[-1]), _flat(args[0]))
        elif kind not in _SILENT:
            self._tell(UNKNOWN, None)

    def _tell(self, where: str, brought: Sequence[Tensor] | None) -> None:
        self._note(f"{MEETING}{where}/{self._places[where]}", brought)
        self._places[where] += 1


def _name(group: Any) -> str:
    return group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name


def _flat(brought: Any) -> list[Tensor]:
    return [brought] if isinstance(brought, Tensor) else [tensor for part in brought for tensor in _flat(part)]
