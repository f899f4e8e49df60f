"""Every exchange between ranks and every product, as they are dispatched: what a rank does, in order.

exchange   axis (which coordinates of the mesh its ranks differ in), kind, bytes of the whole logical message
           all_gather: what is gathered; reduce_scatter, all_reduce: what is summed; all_to_all: what one rank hands out;
           send, recv: one message
product    FLOPs, 2 per multiplication and addition; attention with what a causal edge leaves of its scores, all under a mask

Groups of several axes may have the same ranks, so who asks tells the axis: what shares states (FSDP2) works in place, in torch's
namespace c10d, over dp_shard x cp as a whole, named dp_shard; what the model's own modules exchange is functional, and
all-to-all is between experts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.model import attention
from headway.model.context import Visible
from headway.parallel.mesh import AXES, Axes

KINDS = {"gather": "all_gather", "reduce": "all_reduce", "alltoall": "all_to_all", "recv_": "recv"}
"""By a part of the operator's name; the first that fits."""
NAMES = ("reduce_scatter", "all_to_all", "alltoall", "gather", "reduce", "send", "recv_")
PRODUCTS = ("mm", "addmm", "_grouped_mm")
"""With weights; those of attention are counted where it is called."""
STATES, SHARDS, MESSAGES = "c10d", ("cp", "dp_shard x cp"), ("send", "recv")
FLASH_BACKWARD, PLAIN_BACKWARD = 2.5, 2.0
"""Of forward: four products with gradients for two, and in a kernel that keeps no scores these again."""


@dataclass(frozen=True)
class Exchange:
    """One kind of message. ``payload_bytes`` of one call."""

    axis: str
    kind: str
    phase: str
    group: int
    payload_bytes: int


@dataclass
class Tally:
    """Of one pass."""

    exchanges: Counter[Exchange] = field(default_factory=Counter)
    order: list[Exchange] = field(default_factory=list)
    flops: Counter[str] = field(default_factory=Counter)  # by phase
    attention_flops: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)  # bytes of activations, to host memory and back


class Watch(TorchDispatchMode):
    """``with watch: with watch.phase("forward"): ...``; what autograd runs is of the backward pass in any case."""

    def __init__(self, axes: Axes):
        super().__init__()
        self._axes = axes
        self._groups: dict[str, str] = {}
        self._sent: dict[int, str] = {}
        self.tally, self._named = Tally(), ""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before, self._named = self._named, name
        try:
            yield
        finally:
            self._named = before

    def __enter__(self) -> Watch:
        self._attention = _attention_told(self.attended)
        self._attention.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._attention.__exit__(*error)

    @property
    def _phase(self) -> str:
        return "backward" if torch._C._current_graph_task_id() != -1 else self._named

    def send(self, operations: list[dist.P2POp], phase: str) -> list[dist.P2POp]:
        """Notes what these tensors belong to, until they are sent."""
        self._sent |= {id(one.tensor): phase for one in operations}
        return operations

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if func.namespace in (STATES, "_c10d_functional"):
            self._exchange(name, args, out, of_states=func.namespace == STATES)
        elif func.namespace == "aten":
            self._product(name, args, out)
        return out

    def _exchange(self, name: str, args: tuple, out: Any, *, of_states: bool) -> None:
        part = next((part for part in NAMES if part in name), None)
        if part is None:  # waits, barriers
            return
        kind = KINDS.get(part, part)
        group = next(found for found in map(_group, args) if found is not None)
        if group.size() == 1:
            return
        tensors = [x for x in tree_leaves((args, out)) if isinstance(x, Tensor)]
        payload = max(x.numel() * x.element_size() for x in tensors)
        axis = "ep" if kind == "all_to_all" else self._axis(group)
        axis = "dp_shard" if of_states and axis in SHARDS else axis
        phase = self._sent.pop(id(tensors[0]), self._phase) if kind in MESSAGES else self._phase
        seen = Exchange(axis, kind, phase, group.size(), payload)
        self.tally.exchanges[seen] += 1
        self.tally.order.append(seen)

    def _axis(self, group: dist.ProcessGroup) -> str:
        """The axes in which its ranks differ, joined by x."""
        if group.group_name not in self._groups:
            places = [_place(rank, self._axes) for rank in dist.get_process_group_ranks(group)]
            differ = [axis for at, axis in enumerate(AXES) if len({place[at] for place in places}) > 1]
            self._groups[group.group_name] = " x ".join(differ) or "alone"
        return self._groups[group.group_name]

    def _product(self, name: str, args: tuple, out: Any) -> None:
        if name in PRODUCTS:
            inner = args[1].shape[-1] if name == "addmm" else args[0].shape[-1]
            self.tally.flops[self._phase] += 2 * _grouped(args, out, inner) if name == "_grouped_mm" else 2 * out.numel() * inner

    def attended(self, flops: int) -> None:
        self.tally.attention_flops[self._phase] += flops


@contextlib.contextmanager
def _attention_told(count: Callable[[int], None]) -> Iterator[None]:
    """Whichever way this machine takes inside attention: FLOPs at once, and those of its gradients when these are taken."""
    inside = attention.attend_sdpa

    def attend(q: Tensor, k: Tensor, v: Tensor, visible: Visible, softcap: float | None = None) -> Tensor:
        out, flops = inside(q, k, v, visible, softcap), _attention_flops(q, v, visible, softcap)
        count(flops)
        if out.requires_grad:
            backward = FLASH_BACKWARD if softcap is None else PLAIN_BACKWARD
            out.register_hook(lambda _: count(int(backward * flops)))
        return out

    with mock.patch.object(attention, "attend_sdpa", attend):
        yield


def _attention_flops(q_BsHE: Tensor, v_BTKV: Tensor, visible: Visible, softcap: float | None) -> int:
    """Of a query the keys before it, by kernels that know this edge; under a mask, which none looks into, all of the row."""
    B, queries, H, E = q_BsHE.shape
    met = 2 * queries * v_BTKV.shape[1]
    if softcap is None and visible.is_causal:
        runs = [(part.stop - part.start, column) for part, column in visible.columns.pieces()]
        met = sum(2 * count * (column + count) - count * count for count, column in runs)
    return B * H * met * (E + v_BTKV.shape[-1])


def _grouped(args: tuple, out: Tensor, inner: int) -> int:
    """Rows by experts, or, of gradients by weights, rows summed over."""
    return out.numel() * inner if out.dim() == 2 else out.shape[-1] * out.shape[-2] * inner


def _group(argument: Any) -> dist.ProcessGroup | None:
    """The process group that an operator was given, by itself or by its name."""
    if isinstance(argument, str):
        with contextlib.suppress(Exception):
            return torch.distributed.distributed_c10d._resolve_process_group(argument)  # type: ignore[arg-type]
        return None
    if isinstance(argument, torch.ScriptObject):
        with contextlib.suppress(RuntimeError):
            return dist.ProcessGroup.unbox(argument)
    return None


def _place(rank: int, axes: Axes) -> tuple[int, ...]:
    """Coordinates, outermost axis first."""
    found = []
    for axis in reversed(AXES):
        rank, at = divmod(rank, getattr(axes, axis))
        found.append(at)
    return tuple(reversed(found))
