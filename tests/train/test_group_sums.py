"""Sums over replica groups and the word that makes them count, with fakes for what travels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.parallel.replica_groups import BUCKET_BYTES, GroupPlace, ReplicaGroups, _buckets, group_of
from headway.train.step import Sums

ERROR = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by a crash")


class Done:
    def wait(self) -> None:
        pass


class FakeExchange:
    """Between this group and another that has the same numbers. ``fails``: calls, counted from 0, that do not come through."""

    def __init__(self, word: int = 1, fails: tuple[int, ...] = ()):
        self.word, self.fails, self.calls, self.sizes, self.aborted = word, fails, 0, [], False

    def _come(self) -> Done:
        self.calls += 1
        if self.calls - 1 in self.fails:
            raise ERROR
        return Done()

    def allreduce(self, tensors: list[Tensor], options: object) -> Done:
        done = self._come()
        self.sizes.append(tensors[0].numel())
        tensors[0].mul_(2)
        return done

    def broadcast(self, tensors: list[Tensor], options: object) -> Done:
        done = self._come()
        if self.word is not None:
            tensors[0].fill_(self.word)
        return done

    def abort(self) -> None:
        self.aborted = True


class FakeClient:
    """Of a group of one rank: its vote is the group's."""

    def should_commit(self, rank: int, step: int, wish: bool, timeout: object) -> bool:
        self.asked = wish
        return wish


def groups_of(group: int, exchange: FakeExchange) -> ReplicaGroups:
    found = ReplicaGroups.__new__(ReplicaGroups)
    found.place = GroupPlace(group=group, groups=2, rank=0, world=1, start=0, store="127.0.0.1:1")
    found._exchange, found._client, found._error, found._refused = exchange, FakeClient(), "", False
    return found


@pytest.mark.parametrize(
    ("group", "word", "fails", "counts"),
    [
        pytest.param(0, 1, (), True, id="all came through, and it leads"),
        pytest.param(0, 1, (0,), False, id="a sum failed"),
        pytest.param(0, 1, (1,), True, id="its word was not heard: it has decided all the same"),
        pytest.param(1, 1, (), True, id="it heard yes"),
        pytest.param(1, 0, (), False, id="it heard no"),
        pytest.param(1, 1, (1,), False, id="it heard nothing"),
        pytest.param(1, 1, (0,), False, id="its sum failed, so it does not listen"),
    ],
)
def test_a_step_counts_when_the_leading_group_says_so(group, word, fails, counts):
    exchange = FakeExchange(word=word if group else None, fails=fails)
    groups = groups_of(group, exchange)
    groups.sum(torch.ones(3))
    assert groups.commits(7) is counts
    assert groups._refused is not counts
    assert exchange.aborted is bool(fails), "whoever waits for this rank learns of it"
    assert groups.error == ("Connection closed by peer [127.0.0.1]:1" if fails else "")


def test_nothing_is_sent_behind_a_failure():
    exchange = FakeExchange(fails=(0,))
    groups = groups_of(1, exchange)
    groups.sum(torch.ones(3))
    groups.sum_all([torch.ones(4)])
    assert groups.told(5) is None
    assert exchange.calls == 1


def test_gradients_are_added_in_few_messages_of_one_kind():
    tensors = [torch.full((3, 2), 1.0), torch.zeros(0), torch.full((5,), 2.0), torch.full((2,), 3, dtype=torch.int64)]
    exchange = FakeExchange()
    groups_of(1, exchange).sum_all(tensors)
    assert exchange.sizes == [11, 2]
    assert [tensor.tolist() for tensor in tensors] == [[[2.0, 2.0]] * 3, [], [4.0] * 5, [6, 6]]
    large = torch.zeros(BUCKET_BYTES // 4, device="meta")
    assert [len(bucket) for bucket in _buckets([large, large, torch.zeros(1, device="meta")])] == [1, 1, 1]


@pytest.mark.parametrize("wish", [False, True])
def test_losses_and_wishes_travel_together(wish):
    sums = Sums()
    sums.losses = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    sums.loads.counts = {"layers.0": torch.tensor([4, 5])}
    assert sums.add_up(lambda tensor: tensor * 2, wish=wish) is wish
    numbers, wished = sums.read(None, wish)
    assert (numbers, wished) == ([2.0, 4.0, 6.0, 0.0], wish)
    assert sums.loads.counts["layers.0"].tolist() == [8, 10]


def test_a_group_that_comes_back_has_another_name_and_the_leading_one_sorts_first():
    names = [
        str(GroupPlace(group=g, groups=12, rank=0, world=1, start=s, store="")) for g, s in ((0, 0), (2, 0), (2, 1), (11, 0))
    ]
    assert names == sorted(names)
    assert [group_of(name) for name in names] == [0, 2, 2, 11]
