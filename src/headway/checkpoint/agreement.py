"""Whether ranks that hold the same values hold the same bits: dp_replicate's copies, what tp does not cut, plain tensors.

    mesh 2 x 2, axes (dp_replicate, tp), a matrix cut over tp and a norm that every rank holds
                    rank 0   rank 1   rank 2   rank 3
    matrix            a        b        a        b         compared along dp_replicate: 0 with 2, 1 with 3
    norm              n        n        n        n         compared along dp_replicate, and along tp

A comparison sends two numbers per tensor along each axis, their maximum and minimum; only when they differ anywhere does
everybody tell what it holds of those tensors, and the copy that most do not have is the odd one. Two copies have no majority.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from headway.base.digests import canonical_json
from headway.checkpoint.checksum import checksums
from headway.checkpoint.replicas import everybodys_bytes
from headway.parallel.state import local_values, rectangle_of

MOST_NAMES = 64
"""Of differing tensors, that are told about."""


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """``names``: of the tensors that differ, in order. ``holders``: ranks that hold copies of one that differ, all of them.
    ``odd``: of these, the ranks whose copy most others do not have; empty: there is no majority."""

    names: tuple[str, ...]
    holders: tuple[int, ...]
    odd: tuple[int, ...]


def has_copies(tensors: Mapping[str, Tensor]) -> bool:
    """Whether any rank's part of ``tensors`` lies on another one too."""
    return any(_groups(tensor) for tensor in tensors.values())


def disagreement(tensors: Mapping[str, Tensor]) -> Disagreement | None:
    """None where all copies are equal, bit for bit. Every rank of the default group calls at once."""
    names = sorted(tensors)
    own = checksums(local_values({name: tensors[name] for name in names}))
    differing = _differing({name: _groups(tensors[name]) for name in names}, own)
    if not _anywhere(len(differing)):
        return None
    told = everybodys_bytes(canonical_json(sorted(differing)[:MOST_NAMES]))
    named = sorted({name for said in told for name in json.loads(said)})[:MOST_NAMES]
    return judged(_held_by_all({name: tensors[name] for name in named if name in tensors}, own))


def _groups(tensor: Tensor) -> list[dist.ProcessGroup]:
    """Along which the copies of this rank's part lie."""
    if not hasattr(tensor, "device_mesh"):
        return [dist.group.WORLD] if dist.get_world_size() > 1 else []  # type: ignore[list-item]
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return [mesh.get_group(axis) for axis, p in enumerate(placements) if p.is_replicate() and mesh.size(axis) > 1]


def _differing(groups: Mapping[str, list[dist.ProcessGroup]], own: Mapping[str, int]) -> set[str]:
    """Names that a neighbour along an axis has another checksum of."""
    by_group: dict[dist.ProcessGroup, list[str]] = {}
    for name, along in groups.items():
        for group in along:
            by_group.setdefault(group, []).append(name)
    found: set[str] = set()
    for group, names in by_group.items():
        numbers = torch.tensor([own.get(name, 0) for name in names], dtype=torch.int64)
        bounds = torch.stack([numbers, ~numbers]).to(_device(group))  # of ~x the maximum is that of the minimum
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=group)
        equal = (bounds[0] == ~bounds[1]).tolist()
        found |= {name for name, same in zip(names, equal, strict=True) if not same}
    return found


def _device(group: dist.ProcessGroup) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")


def _anywhere(count: int) -> bool:
    total = torch.tensor(count, device=_device(dist.group.WORLD))  # type: ignore[arg-type]
    dist.all_reduce(total)
    return bool(total)


_Place = tuple[str, tuple[int, ...], tuple[int, ...]]


def _held_by_all(tensors: Mapping[str, Tensor], own: Mapping[str, int]) -> dict[_Place, dict[int, int]]:
    """Checksums by rank, of every rectangle of ``tensors``."""
    mine = []
    for name, tensor in tensors.items():
        place = rectangle_of(tensor)
        mine.append([name, place.offset, place.lengths, own.get(name, 0)])
    held: dict[_Place, dict[int, int]] = {}
    for rank, said in enumerate(everybodys_bytes(canonical_json(mine))):
        for name, offset, lengths, checksum in json.loads(said):
            held.setdefault((name, tuple(offset), tuple(lengths)), {})[rank] = checksum
    return held


def judged(held: Mapping[_Place, Mapping[int, int]]) -> Disagreement:
    """``held``: checksums by rank, of every rectangle of a tensor that differs somewhere."""
    names, holders, odd, unclear = set(), set(), set(), set()
    for (name, _, _), by_rank in held.items():
        [(usual, count), *others] = Counter(by_rank.values()).most_common()
        if not others:
            continue
        names.add(name)
        holders |= set(by_rank)
        if 2 * count > len(by_rank):
            odd |= {rank for rank, checksum in by_rank.items() if checksum != usual}
        else:
            unclear |= set(by_rank)
    return Disagreement(
        names=tuple(sorted(names)), holders=tuple(sorted(holders)), odd=() if unclear - odd else tuple(sorted(odd))
    )
