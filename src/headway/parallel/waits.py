"""How long this process was blocked waiting for other ranks.

A synchronous step takes as long on every rank: who is slow shows only in what each does while it does not wait. So the waits
themselves are timed: every blocking wait of ``torch.distributed`` comes through one of two functions, which are wrapped.

    dist.all_reduce, all_gather, broadcast, recv, barrier, FSDP's unshard and reduce ...  -->  Work.wait
    functional collectives (tensor, context and expert parallelism)                      -->  wait_tensor

On the CPU (gloo) a wait blocks until the others have come: exact up to the transfer itself, which counts as waiting. On CUDA a
wait only orders streams, so nearly nothing is seen here, and the device's own idling counts as work of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from headway.rundir.heartbeats import Blocked

_targets: tuple[tuple[Any, str], ...] = ((dist.Work, "wait"), (functional, "wait_tensor"))
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def watch_waits(blocked: Blocked) -> Callable[[], None]:
    """Count every wait into ``blocked`` from now on; returns what ends it."""
    before = [getattr(owner, name) for owner, name in _targets]
    for (owner, name), original in zip(_targets, before, strict=True):
        setattr(owner, name, _timed(original, blocked))

    def end() -> None:
        for (owner, name), original in zip(_targets, before, strict=True):
            setattr(owner, name, original)

    return end


def _timed(original: Callable[..., Any], blocked: Blocked) -> Callable[..., Any]:
    def wait(*given: Any, **named: Any) -> Any:
        if blocked.since_ns:  # a wait within a wait
            return original(*given, **named)
        blocked.since_ns = began = time.clock_gettime_ns(_CLOCK)
        try:
            return original(*given, **named)
        finally:
            blocked.total_ns += time.clock_gettime_ns(_CLOCK) - began
            blocked.count += 1
            blocked.since_ns = 0

    return wait
