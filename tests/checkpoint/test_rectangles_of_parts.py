"""Which rectangle a rank holds: parts of parts tile every tensor, whatever divides."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from headway.parallel import state
from headway.parallel.divide import part


class Held(SimpleNamespace):
    """What ``rectangle_of`` asks of a DTensor."""

    def dim(self) -> int:
        return len(self.shape)


def held(shape, sizes, placements, here):
    mesh = SimpleNamespace(size=lambda axis: sizes[axis], get_local_rank=lambda axis: here[axis])
    return Held(shape=shape, device_mesh=mesh, placements=placements)


@pytest.mark.parametrize("rows", [*range(1, 40), 255, 257, 32001, 50257, 151643])
@pytest.mark.parametrize(("shards", "tp"), [(1, 2), (4, 2), (3, 2), (2, 3), (8, 8)])
def test_P1_rows_over_tp_and_then_over_shards_lie_end_to_end(monkeypatch, rows, shards, tp):
    monkeypatch.setattr(state, "is_distributed", lambda tensor: isinstance(tensor, Held))
    placements, found = (_StridedShard(0, split_factor=tp), Shard(0)), []
    for index, own in itertools.product(range(tp), range(shards)):
        place = state.rectangle_of(held((rows, 5), (shards, tp), placements, (own, index)))
        assert (place.offset[1], place.lengths[1]) == (0, 5)
        of_tp = part(rows, index, tp)
        of_shard = part(of_tp.stop - of_tp.start, own, shards)
        assert place.lengths[0] == of_shard.stop - of_shard.start
        found += range(place.offset[0], place.offset[0] + place.lengths[0])
    assert found == list(range(rows))


def test_copies_hold_the_same(monkeypatch):
    monkeypatch.setattr(state, "is_distributed", lambda tensor: isinstance(tensor, Held))
    places = [state.rectangle_of(held((7, 3), (2, 2), (Replicate(), Shard(1)), (copy, 1))) for copy in range(2)]
    assert places[0] == places[1] == state.Rectangle((0, 2), (7, 1))
