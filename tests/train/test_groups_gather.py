"""Before a step, the batch is divided anew whenever what this group takes of it, or the step it is at, may be another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headway.parallel.replica_groups import GroupPlace, Quorum
from headway.train.crew import ALONE
from headway.train.feed import Replica
from headway.train.groups import Groups

BOTH = ("00000:0", "00001:0")


class Told(Groups):
    """Group 1 of two; a state that is handed over is of the step that the quorum's place in the list gives."""

    def __init__(self, *quorums: Quorum):
        super().__init__(GroupPlace(group=1, groups=2, rank=0, world=1, start=0, store="127.0.0.1:1"))
        self.quorums = list(quorums)

    def _open(self, run: Any) -> Any:
        return SimpleNamespace(quorum=lambda step: self.quorums.pop(0), told=lambda number: number)

    def _hand_over(self, run: Any, exchange: Any, quorum: Quorum) -> None:
        if quorum.heals_from is not None:
            run.step += 5


class Run(SimpleNamespace):
    def __init__(self) -> None:
        log = SimpleNamespace(write=lambda *kind, **fields: None, mark=lambda category: None)
        super().__init__(step=2, crew=ALONE, log=log, fetched=[])

    def refetch(self, replica: Replica) -> None:
        self.fetched.append((self.step, replica.index, replica.count))


def quorum(names: tuple[str, ...] = BOTH, heals_from: int | None = None) -> Quorum:
    return Quorum(names=names, index=names.index("00001:0"), heals_from=heals_from, hands_to=())


def test_a_group_that_was_taken_for_lost_reads_on_where_the_others_are():
    """It was in no quorum meanwhile, so the names are the ones that it knows: only the hand-over tells."""
    groups, run = Told(quorum(), quorum(), quorum(heals_from=0)), Run()
    for _ in range(3):
        assert groups.gather(run)
    assert run.fetched == [(2, 1, 2), (7, 1, 2)]


def test_the_shares_follow_the_groups_that_take_part():
    groups, run = Told(quorum(), quorum(("00000:0", "00001:0", "00002:0"))), Run()
    for _ in range(2):
        assert groups.gather(run)
    assert run.fetched == [(2, 1, 2), (2, 1, 3)]
