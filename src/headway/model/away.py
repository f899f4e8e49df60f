"""What blocks keep for their backward pass lies in host memory until then, and comes back in reverse order.

    forward     block 0: x y z --put--> host     block 1: ...              block 2: ...
    backward    block 2: fetches its own, and block 1's    block 1: is there, fetches block 0's    block 0: is there

torch's hooks on saved tensors say what a block keeps. It stays where it is what a block does not own: weights, which FSDP frees
and gathers itself, and what all layers read (angles, masks). What shares memory is put away once. A block that is computed again
(``recompute.py``) keeps its input alone; what selective recomputation keeps beside autograd goes the same way.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from headway.model.context import Context
from headway.model.distributed import is_distributed
from headway.model.host_memory import HostMemory, HostMemoryBeside

LEAST_BYTES = 4096
"""Of memory that is worth a copy."""


class Away:
    """Of all blocks of a model."""

    def __init__(self, memory: HostMemory | None = None):
        self.memory = memory or HostMemoryBeside()
        self.block: Kept | None = None  # that computes now
        self._last: weakref.ref[Kept] | None = None

    @contextlib.contextmanager
    def keeping(self, block: nn.Module, context: Context) -> Iterator[None]:
        """While ``block`` computes."""
        outer, self.block = self.block, Kept(self.memory, block, context, self._last)
        self._last = weakref.ref(self.block)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.block.put, fetched):
                yield
        finally:
            self.block = outer


@dataclass(frozen=True, eq=False)
class Place:
    """Where a kept tensor lies. ``memory``: that it shares with others, as a whole."""

    block: Kept
    memory: _Memory
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class Kept:
    """What one block has put away for one micro-batch; alive as long as autograd needs any of it."""

    def __init__(self, host: HostMemory, block: nn.Module, context: Context, before: weakref.ref[Kept] | None):
        self._host, self._before = host, before
        self._modules = [module for module in block.modules() if module._parameters]
        self._shared = {_storage(x) for x in context.tensors()}
        self._begun = False
        self._found: dict[tuple[int, int, torch.dtype], tuple[StorageWeakRef, weakref.ref[_Memory]]] = {}

    def put(self, x: Tensor) -> Tensor | Place:
        """The same memory where it stays. Detached: what a node keeps of its own result would keep the node."""
        if not self._goes(x):
            return x.detach()
        return Place(self, self._memory_of(x.detach()), x.shape, x.stride(), int(x.storage_offset()))

    def fetch(self) -> None:
        """Begin to bring everything back, and what the block before has kept."""
        before = None if self._before is None else self._before()
        for kept in (self, *(() if before is None else (before,))):
            kept._begin()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            for memory in (found() for _, found in self._found.values()):
                if memory is not None:
                    memory.fetch()

    def _goes(self, x: Tensor) -> bool:
        if is_traceable_wrapper_subclass(x):
            return False
        storage, size = _storage(x), x.untyped_storage().nbytes()
        if size < LEAST_BYTES or size % x.element_size():
            return False
        return storage not in self._shared and storage not in self._weights()

    def _weights(self) -> set[int]:
        """Asked anew: experts gather theirs in the middle of the block."""
        return {_storage(p) for module in self._modules for p in module._parameters.values() if p is not None}

    def _memory_of(self, x: Tensor) -> _Memory:
        """By storage and version: what was changed in place is another tensor. The weak reference keeps the number of the
        storage from being given to another one."""
        key = (_storage(x), x._version, x.dtype)
        known = self._found[key][1]() if key in self._found else None
        if known is None:
            known = _Memory(self._host, x)
            self._found[key] = StorageWeakRef(x.untyped_storage()), weakref.ref(known)
        return known


class _Memory:
    """In host memory, and on the device from when it is wanted."""

    def __init__(self, host: HostMemory, x: Tensor):
        whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        self._host, self._device, self._kept = host, x.device, host.empty(whole)
        self._here: Tensor | None = None
        host.put(whole, self._kept)

    def fetch(self) -> Tensor:
        if self._here is None:
            self._here = self._host.fetch(self._kept, self._device)
        return self._here

    def value(self) -> Tensor:
        here = self.fetch()
        self._host.wait(here)
        return here


def fetched(place: Tensor | Place) -> Tensor:
    """What was put away, for its backward pass."""
    if isinstance(place, Tensor):
        return place
    place.block.fetch()
    return place.memory.value().as_strided(place.shape, place.stride, place.offset)


def _storage(x: Tensor) -> int:
    """Its number, as long as it lives."""
    local = cast("Tensor", x._local_tensor) if is_distributed(x) else x
    return local.untyped_storage()._cdata
