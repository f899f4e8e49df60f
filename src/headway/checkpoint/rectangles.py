"""Which rectangles of the logical tensors a rank writes: computed locally, without a collective.

    plain tensor     the same on all ranks: one of them writes it, by a hash of its name
    DTensor          Shard axes give the offset; over Replicate axes the copies are equal and one of them writes

The owner among equal copies follows from a hash of (name, offset), so the load spreads and nobody has to ask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import xxhash

from headway.base.errors import RunError
from headway.checkpoint.tensors import bytes_view, dtype_name
from headway.parallel.state import rectangle_of
from headway.store.rectangle import Part, Rectangle


@dataclass(frozen=True)
class LocalPart:
    """A rectangle that this rank writes, and the local tensor that holds it."""

    part: Part
    values: torch.Tensor


def local_parts(tensors: dict[str, torch.Tensor], rank: int = 0, world: int = 1) -> list[LocalPart]:
    """What this rank writes of a state, by name. The live tensors, not copies."""
    return [part for name in sorted(tensors) for part in _of_tensor(name, tensors[name], rank, world)]


def local_rectangles(tensors: dict[str, torch.Tensor], rank: int = 0, world: int = 1) -> list[Rectangle]:
    """As ``local_parts``, as bytes: views of the tensors' memory where they are contiguous on the CPU."""
    return [Rectangle(**vars(local.part), data=bytes_view(local.values)) for local in local_parts(tensors, rank, world)]


def _of_tensor(name: str, tensor: torch.Tensor, rank: int, world: int) -> list[LocalPart]:
    if not hasattr(tensor, "device_mesh"):
        offset = (0,) * tensor.ndim
        return [_part(name, tensor, tuple(tensor.shape), offset)] if owner(name, offset, world) == rank else []
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(p.is_partial() for p in placements):
        raise RunError(f"{name} holds unreduced partial sums", "only reduced tensors are state", "reduce it before saving")
    place = rectangle_of(tensor)
    shape, offset = place.lengths, place.offset
    nothing = math.prod(shape) == 0 and tensor.numel() > 0  # fewer rows than ranks
    if nothing or not _owns_copy(name, offset, mesh, placements):
        return []
    local = tensor.to_local()  # type: ignore[attr-defined]
    return [_part(name, local, tuple(tensor.shape), tuple(offset))]


def owner(name: str, offset: tuple[int, ...], copies: int) -> int:
    """Which of ``copies`` equal copies is written."""
    return xxhash.xxh3_64_intdigest(f"{name}@{offset}".encode()) % copies


def _owns_copy(name: str, offset: tuple[int, ...], mesh: object, placements: tuple) -> bool:
    """Number the equal copies by the coordinates on the replicated axes; is the chosen one here?"""
    index, copies = 0, 1
    for axis, placement in enumerate(placements):
        if placement.is_replicate():
            index = index * mesh.size(axis) + mesh.get_local_rank(axis)  # type: ignore[attr-defined]
            copies *= mesh.size(axis)  # type: ignore[attr-defined]
    return owner(name, tuple(offset), copies) == index


def _part(name: str, local: torch.Tensor, global_shape: tuple[int, ...], offset: tuple[int, ...]) -> LocalPart:
    dtype = dtype_name(name, local.dtype)
    return LocalPart(
        Part(name=name, dtype=dtype, global_shape=global_shape, offset=offset, shape=tuple(local.shape)), local.detach()
    )
