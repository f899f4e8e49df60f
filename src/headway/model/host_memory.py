"""Host memory beside a device: tensors are put there while nothing needs them, and fetched again.

    device   x --put--> host, pinned      put, fetch: return at once on CUDA, where copies queue behind what the device computes
             x <-fetch-----'              settle:     before the host itself reads what was put

Without an accelerator the device's memory is the host's. The copies are made all the same: it is one path, and what is proven of
it on a CPU is the mathematics of it anywhere. On CUDA it has not run yet.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HostMemory:
    """Copies in the order of the device's own work: what was fetched can be used at once, what was put can be freed."""

    def __init__(self) -> None:
        self._queued = False

    def empty(self, like: Tensor) -> Tensor:
        """Room for ``like``; pinned, so that copies need not wait for the host."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=_is_cuda(like.device))

    def put(self, x: Tensor, kept: Tensor) -> None:
        self._queued |= _is_cuda(x.device)
        kept.copy_(x, non_blocking=_is_cuda(x.device))

    def fetch(self, kept: Tensor, device: torch.device) -> Tensor:
        """A new tensor on ``device``."""
        return torch.empty(kept.shape, dtype=kept.dtype, device=device).copy_(kept, non_blocking=_is_cuda(device))

    def wait(self, fetched: Tensor) -> None:
        """Before ``fetched`` is used."""

    def settle(self) -> None:
        if self._queued:
            torch.cuda.synchronize()
            self._queued = False


class HostMemoryBeside(HostMemory):
    """Copies on a stream of their own, beside what the device computes."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: torch.cuda.Stream | None = None
        self._arrived: dict[int, torch.cuda.Event] = {}  # by the address of what is on its way

    def put(self, x: Tensor, kept: Tensor) -> None:
        if not _is_cuda(x.device):
            return super().put(x, kept)
        stream = self._beside(x.device)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            super().put(x, kept)
        x.record_stream(stream)  # its memory is not given to others before it was copied

    def fetch(self, kept: Tensor, device: torch.device) -> Tensor:
        if not _is_cuda(device):
            return super().fetch(kept, device)
        stream = self._beside(device)
        with torch.cuda.stream(stream):
            fetched = super().fetch(kept, device)
            self._arrived[fetched.data_ptr()] = stream.record_event()
        return fetched

    def wait(self, fetched: Tensor) -> None:
        arrived = self._arrived.pop(fetched.data_ptr(), None) if _is_cuda(fetched.device) else None
        if arrived is not None:
            current = torch.cuda.current_stream(fetched.device)
            current.wait_event(arrived)
            fetched.record_stream(current)

    def _beside(self, device: torch.device) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return self._stream


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"
