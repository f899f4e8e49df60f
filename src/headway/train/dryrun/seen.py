"""Every exchange between ranks and every product, as they are dispatched: what a rank does, in order.

exchange   axis (which coordinates of the mesh its ranks differ in), kind, bytes of the whole logical message
           all_gather: what is gathered; reduce_scatter, all_reduce: what is summed; all_to_all: what one rank hands out
product    FLOPs, 2 per multiplication and addition; attention with half of the square where it is causal
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.parallel.mesh import AXES, Axes

KINDS = {"gather": "all_gather", "reduce_scatter": "reduce_scatter", "reduce": "all_reduce", "all_to_all": "all_to_all"}
"""By a part of the operator's name; the first that fits."""
NAMES = ("reduce_scatter", "all_to_all", "alltoall", "gather", "reduce")
PRODUCTS = ("mm", "bmm", "addmm", "_grouped_mm")
ATTENTION = "scaled_dot_product"
BACKWARD_ATTENTION = 2.5
"""Of forward: the scores again, and four products with gradients, for two."""


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


class Watch(TorchDispatchMode):
    """``with watch.phase("forward"): ...``"""

    def __init__(self, axes: Axes):
        super().__init__()
        self._axes = axes
        self._groups: dict[str, str] = {}
        self.tally, self._phase = Tally(), ""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase = name
        with self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if func.namespace in ("c10d", "_c10d_functional"):
            self._exchange(name, args, out)
        elif func.namespace == "aten":
            self._product(name, args, out)
        return out

    def _exchange(self, name: str, args: tuple, out: Any) -> None:
        part = next((part for part in NAMES if part in name), None)
        if part is None:  # waits, barriers
            return
        kind = KINDS["all_to_all" if part == "alltoall" else part]
        group = next(found for found in map(_group, args) if found is not None)
        if group.size() == 1:
            return
        tensors = [x for x in tree_leaves((args, out)) if isinstance(x, Tensor)]
        payload = max(x.numel() * x.element_size() for x in tensors)
        seen = Exchange(self._axis(group), kind, self._phase, group.size(), payload)
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
        elif ATTENTION in name:
            self.tally.attention_flops[self._phase] += _attention(name, args)


def _grouped(args: tuple, out: Tensor, inner: int) -> int:
    """Rows by experts, or, of gradients by weights, rows summed over."""
    return out.numel() * inner if out.dim() == 2 else out.shape[-1] * out.shape[-2] * inner


def _attention(name: str, args: tuple) -> int:
    """Of causal scores, half of the square."""
    backward = "backward" in name
    q, k, v = args[1:4] if backward else args[:3]
    square = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[-1] + v.shape[-1])
    return int(square * (BACKWARD_ATTENTION if backward else 1.0))


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
