"""Messages through shared memory: what every rank has, sums in the order of ranks, no races, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from layout_cases import described, failures, reference

from headway.base.errors import RunError
from headway.parallel import shared_memory
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.shared_memory import SharedMemory
from headway.train.prove.compare import compare
from headway.train.prove.rank import Work, measure_rank
from headway.train.soundness.exchanges import Exchanges

SMALL = 4096


def brought(rank: int, turn: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What rank ``rank`` brings to meeting ``turn``."""
    generator = torch.Generator().manual_seed(100 * turn + rank)
    return torch.randn(count, generator=generator).to(dtype)


class Late(SharedMemory):
    """Some ranks read long after they could."""

    def _meet(self, *given):
        areas = super()._meet(*given)
        time.sleep(0.003 * ((self.rank + self._turn) % 2))
        return areas


def exchanged(kind: type[SharedMemory], counts: list[int], dtype: torch.dtype) -> list[bool]:
    """Of each meeting on this rank, whether both answers are right to the bit."""
    with mock.patch.object(shared_memory, "AREA_BYTES", SMALL):
        made = SharedMemory.of(dist.group.WORLD)
        assert made is not None
        made.__class__ = kind
        rank, world, right = dist.get_rank(), dist.get_world_size(), []
        for turn, count in enumerate(counts):
            everybodys = [brought(of, turn, count, dtype) for of in range(world)]
            gathered = torch.full((world * count,), torch.nan, dtype=dtype)
            own = gathered[rank * count : (rank + 1) * count].copy_(everybodys[rank]) if turn % 2 else everybodys[rank]
            made.gather(gathered, own)
            wholes = [brought(of, 50 + turn, world * count, dtype) for of in range(world)]
            part, expected = torch.full((count,), torch.nan, dtype=dtype), wholes[0].view(world, -1)[rank].clone()
            for more in wholes[1:]:
                expected += more.view(world, -1)[rank]
            made.scatter_sum(part, wholes[rank])
            right += [torch.equal(gathered, torch.cat(everybodys)), torch.equal(part, expected)]
        return right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_every_answer_is_right_whoever_is_late(world, dtype):
    counts = [1, 300, 1024, 1025, 5000, 7, 0, 2048] * 2
    for right in on_ranks(exchanged, world, Late, counts, dtype):
        assert right == [True] * (2 * len(counts))


def mapped() -> set[str]:
    return set(os.listdir("/dev/shm"))


def killed() -> None:
    made = SharedMemory.of(dist.group.WORLD)
    assert made is not None
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    made.gather(torch.empty(2000), torch.ones(1000))


def test_a_rank_that_is_killed_ends_the_wait_of_the_others_and_leaves_nothing():
    before, began = mapped(), time.monotonic()
    with pytest.raises(RunError):
        on_ranks(killed, 2)
    assert time.monotonic() - began < 60
    assert mapped() <= before


def names_in_the_file_system() -> list[str]:
    """Of what this rank has mapped of it: its memory has none."""
    made = SharedMemory.of(dist.group.WORLD)
    assert made is not None
    return [line.split()[-2] for line in Path("/proc/self/maps").read_text().splitlines() if "headway (deleted)" in line]


def test_the_memory_has_no_name():
    assert all(set(found) == {"/memfd:headway"} for found in on_ranks(names_in_the_file_system, 2))


def made_where(blind: int, how: str) -> bool:
    """Whether a rank has it where rank ``blind`` is of another machine, may not look, or sees something else."""
    patches = {
        "machine": mock.patch.object(shared_memory, "_boot", return_value="another"),
        "look": mock.patch.object(os, "open", mock.Mock(side_effect=PermissionError)),
        "file": mock.patch.object(shared_memory, "_open", return_value=shared_memory._make(2**26)),
        "make": mock.patch.object(os, "memfd_create", mock.Mock(side_effect=OSError)),
    }
    if dist.get_rank() == blind:
        patches[how].start()
    return SharedMemory.of(dist.group.WORLD) is not None


@pytest.mark.parametrize(("how", "blind"), [("machine", 1), ("look", 1), ("file", 1), ("make", 0)])
def test_where_one_rank_does_not_see_it_nobody_has_it(how, blind):
    assert on_ranks(made_where, 2, blind, how) == [False, False]


def measured(work: Work, axes: Axes, shared: bool):
    if not shared:
        Mesh.shared_memory = lambda self, states: None
    return measure_rank(work, axes)


@pytest.mark.layouts
@pytest.mark.parametrize("axes", [{"dp_shard": 2}, {"dp_replicate": 2, "dp_shard": 2, "zero": 1}, {"dp_shard": 3}], ids=str)
def test_bits_do_not_depend_on_the_way(axes):
    work, layout = Work(described("proxy", ("model.kv_heads=4",)), 3, 3), Axes(**axes)
    here, sent = (on_ranks(measured, layout.world, work, layout, shared)[0] for shared in (True, False))
    assert failures({one.what: one for one in compare(here, reference(work))}) == []
    assert here.losses == sent.losses
    assert all(torch.equal(here.updated[name], sent.updated[name]) for name in sent.updated)


def told() -> list[tuple[str, int]]:
    """Meetings, and how many elements this rank brought."""
    made, found = SharedMemory.of(dist.group.WORLD), []
    with Exchanges(lambda name, brought: found.append((name.partition("/")[2], sum(x.numel() for x in brought or ())))):
        made.gather(torch.empty(6), torch.ones(3))
        made.scatter_sum(torch.empty(4), torch.ones(8))
    return found


def test_checks_for_corruption_see_what_a_rank_brings():
    assert on_ranks(told, 2) == [[("0", 3), ("1", 8)]] * 2
