"""A rank's part of the state: which rectangle of each logical tensor it holds, and the parts as tensors of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.base.errors import RunError
from headway.model.distributed import is_distributed
from headway.optim.parts import Parts
from headway.parallel.divide import part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Rectangle:
    """``offset`` and ``lengths`` per dimension of the logical tensor."""

    offset: tuple[int, ...]
    lengths: tuple[int, ...]


def rectangle_of(tensor: Tensor) -> Rectangle:
    """What this rank holds of ``tensor``. A part of a part is a rectangle still: tp and ep cut first, then the rows are sharded.

    torch's own arithmetic of such parts is off by rows where the first cut is uneven (50,257 rows over tp 2 x 4 shards).
    """
    offset, lengths = [0] * tensor.dim(), list(tensor.shape)
    if is_distributed(tensor):
        for axis, dimension in _cuts(tensor):
            own = part(lengths[dimension], tensor.device_mesh.get_local_rank(axis), tensor.device_mesh.size(axis))
            offset[dimension] += own.start
            lengths[dimension] = own.stop - own.start
    return Rectangle(tuple(offset), tuple(lengths))


def _cuts(tensor: DTensor) -> list[tuple[int, int]]:
    """(axis of the mesh, dimension of the tensor) in the order of cutting: strided shards cut what the others have left."""
    found = [(axis, placement) for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if any(placement.is_partial() for _, placement in found):
        raise RunError("a tensor of the state holds unreduced partial sums", "only reduced tensors are state")
    from torch.distributed.tensor import Shard

    ordered = sorted(found, key=lambda cut: type(cut[1]) is not Shard)
    return [(axis, cast(Shard, placement).dim) for axis, placement in ordered]


class LocalParts(Parts):
    """Sharded parameters as plain ones, over the same memory (``local``): what clipping and updates work on."""

    def __init__(self, stage: DeviceMesh, *models: nn.Module, copies: frozenset[str] = frozenset()):
        """``stage``: all ranks that hold ``models``; ``copies``: names that another stage of a pipeline holds as well, and counts
        and saves."""
        self.stage, self.copies = stage, copies
        self.sharded = {name: parameter for model in models for name, parameter in model.named_parameters()}
        self.local = {name: _local(parameter) for name, parameter in self.sharded.items()}
        self._copied = {self.local[name] for name in copies}
        self._sharded_of = {self.local[name]: parameter for name, parameter in self.sharded.items()}

    def take_gradients(self) -> None:
        """From the sharded parameters to the local ones. AssertionError where one has none: it would silently not learn."""
        for name, parameter in self.sharded.items():
            if parameter.requires_grad:
                assert parameter.grad is not None, f"{name} has no gradient"
                gradient = parameter.grad
                self.local[name].grad = gradient.to_local() if is_distributed(gradient) else gradient
                parameter.grad = None

    def logical(self, name: str, part: Tensor) -> Tensor:
        """What is no DTensor lies whole on every rank of the stage."""
        sharded = self.sharded[name]
        if is_distributed(sharded):
            return _as_whole(part, sharded)
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(part, self.stage, [Replicate()], run_check=False)

    def saves(self, name: str) -> bool:
        return name not in self.copies

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        sharded = self._sharded_of[parameter]
        if not is_distributed(sharded):
            return part
        if part.dim() > 2:
            return _whole_matrices(part, sharded)
        return cast("DTensor", _as_whole(part, sharded)).full_tensor()

    def cut(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        place = rectangle_of(self._sharded_of[parameter])
        for dimension, (first, length) in enumerate(zip(place.offset, place.lengths, strict=True)):
            whole = whole.narrow(dimension, first, length) if length < whole.shape[dimension] else whole
        return whole

    def counted(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        own = [parameter for parameter in parameters if parameter not in self._copied]
        return [parameter for parameter in own if holds_first_copy(self._sharded_of[parameter])]  # type: ignore[index]

    def norm(self, norm: Tensor) -> Tensor:
        squares = norm.double().square()
        dist.all_reduce(squares)
        return squares.sqrt()


def holds_first_copy(parameter: Tensor) -> bool:
    """Of the ranks that have equal parts of ``parameter``, whether this one is the first: it alone counts in a sum."""
    if not is_distributed(parameter):
        return dist.get_rank() == 0
    mesh, placements = parameter.device_mesh, parameter.placements
    return all(mesh.get_local_rank(axis) == 0 for axis, placement in enumerate(placements) if placement.is_replicate())


def local_values(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What this rank holds of each, without those of which it holds nothing."""
    local = {name: t.to_local() if is_distributed(t) else t for name, t in tensors.items()}
    return {name: t for name, t in local.items() if t.numel()}


def _as_whole(part: Tensor, parameter: Tensor) -> Tensor:
    """``part``, which lies as ``parameter`` does; moments may be in host memory, from which ``from_local`` would copy them."""
    if not is_distributed(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor(part, parameter._spec, requires_grad=False)


def _whole_matrices(part: Tensor, parameter: DTensor) -> Tensor:
    """``part`` of a parameter with a leading axis of experts, gathered over the ranks that cut its matrices: experts stay."""
    mesh, placements = parameter.device_mesh, parameter.placements
    axes = [axis for axis, placement in enumerate(placements) if getattr(placement, "dim", 0) >= parameter.dim() - 2]
    if not axes:
        return part
    assert mesh.mesh_dim_names is not None
    over = mesh[tuple(mesh.mesh_dim_names[axis] for axis in axes)]
    shape = torch.Size((*part.shape[:-2], *parameter.shape[-2:]))
    stride = (shape[-2] * shape[-1], shape[-1], 1)
    cut = [placements[axis] for axis in axes]
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, over, cut, run_check=False, shape=shape, stride=stride).full_tensor()


def _local(parameter: nn.Parameter) -> nn.Parameter:
    if not is_distributed(parameter):
        return parameter
    return nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad)
