"""Replica groups under the supervisor, with stand-ins for processes: who is started again, and what ends all."""

from __future__ import annotations

import importlib.util

import pytest

from headway.base.errors import EXIT_ENVIRONMENT, ConfigError, EnvironmentFault
from headway.base.files import write_json
from headway.supervise import groups as module
from headway.supervise.groups import MOST_DEATHS, GroupedRanks, replica_groups
from headway.supervise.launcher import LocalRanks
from headway.supervise.takeover import with_groups


class FakeRank:
    """A process that ends when it is told to."""

    def __init__(self, pid: int):
        self.pid, self.start_ticks, self.status, self.asked, self.closed = pid, 1, None, False, False

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.asked = True

    def kill(self) -> None:
        self.status = -9 if self.status is None else self.status

    def close(self) -> None:
        self.closed = True


class FakeMeeting:
    has_died, closed = False, False

    def close(self) -> None:
        self.closed = True


class Bench:
    """Groups of two ranks."""

    def __init__(self, run, groups: int = 3):
        self.run, self.started, self.meeting = run, [], FakeMeeting()
        run.segment(1).mkdir(parents=True, exist_ok=True)
        self.all = GroupedRanks(run, 1, groups, self.start, self.meeting)  # type: ignore[arg-type]

    def start(self, group: int, before: int) -> LocalRanks:
        self.started.append((group, before))
        first = 100 * group + 10 * before
        return LocalRanks([FakeRank(first), FakeRank(first + 1)])

    def ends(self, group: int, status: int, rank: int = 0) -> None:
        self.all._groups[group].ranks[rank].status = status

    def poll(self) -> int | None:
        """The others of a group that has lost a rank are killed in the first look, and gone in the second."""
        self.all.poll()
        return self.all.poll()

    def rows(self, *rows: dict) -> None:
        for row in rows:
            self.all.heard(row)

    def news(self) -> list[tuple[int, str]]:
        self.told = self.all.news()
        return [(one["group"], one["state"]) for one in self.told]


@pytest.fixture
def bench(run) -> Bench:
    return Bench(run)


def test_a_lost_group_is_started_again_alone(bench):
    others = bench.all.ranks[:4]
    bench.ends(2, -9, rank=1)
    assert bench.poll() is None
    assert bench.started == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert bench.news() == [(2, "lost"), (2, "started")]
    assert (bench.told[0]["rank"], bench.told[0]["signal"], bench.told[0]["reason"]) == (5, 9, "rank 5 ended by SIGKILL")
    assert [one["pid"] for one in bench.told[1]["ranks"]] == [210, 211]
    assert bench.all.ranks[:4] == others
    assert [rank.status for rank in bench.all.ranks] == [None] * 6
    bench.rows({"kind": "groups", "groups": [0, 1, 2], "back": [2], "step": 8})
    assert bench.news() == [(2, "back")]


def test_the_end_of_the_leading_group_is_the_end_of_all(bench):
    bench.ends(0, 4, rank=1)
    assert bench.poll() == 4
    assert bench.all.failed == 1
    assert all(rank.status is not None for rank in bench.all.ranks)
    assert bench.news() == []


def dies(bench, group: int) -> int | None:
    bench.ends(group, -11)
    return bench.poll()


def test_a_group_that_dies_without_a_step_between_ends_all(bench):
    for _ in range(MOST_DEATHS - 1):
        assert dies(bench, 1) is None
        bench.rows({"kind": "step", "step": 3})  # of the others: this one was not there
    dies(bench, 1)
    assert bench.poll() == -11, "the others are ended"
    assert bench.all.failed == 2
    assert bench.started.count((1, 0)) == 1
    assert len(bench.started) == 3 + MOST_DEATHS - 1


def test_a_step_that_it_took_part_in_clears_it(bench):
    for step in range(3 * MOST_DEATHS):
        assert dies(bench, 1) is None
        bench.rows({"kind": "groups", "groups": [0, 1, 2], "back": [1], "step": step}, {"kind": "step", "step": step + 1})
    assert bench.all.failed is None


def test_a_refused_configuration_is_not_tried_again(bench):
    bench.ends(1, 2)
    bench.poll()
    assert bench.poll() == 2
    assert len(bench.started) == 3


def test_nobody_is_started_while_all_are_asked_to_end(bench):
    bench.all.terminate()
    assert all(rank.asked for rank in bench.all.ranks)
    bench.ends(1, -15)
    assert bench.poll() is None
    assert len(bench.started) == 3


def test_all_end_well_and_stragglers_are_ended(bench, monkeypatch):
    for group in (0, 1):
        for rank in (0, 1):
            bench.ends(group, 0, rank)
    assert bench.all.poll() is None, "the last group may still end by itself"
    monkeypatch.setattr(module, "FAREWELL_SECONDS", -1.0)
    bench.all._deadline = 0.0
    assert bench.poll() == 0
    assert bench.all.failed is None
    bench.all.close()
    assert bench.meeting.closed
    assert all(rank.closed for rank in bench.all.ranks)


def test_without_a_lighthouse_all_end(bench):
    bench.meeting.has_died = True
    bench.poll()
    assert bench.poll() == EXIT_ENVIRONMENT
    assert "lighthouse" in (bench.news() and bench.told[0]["reason"])


def test_the_error_of_a_lost_group_is_told_and_set_aside(bench):
    error = {"label": "run error", "problems": [{"seen": "it broke"}], "exit_code": 4, "rank": 2}
    write_json(bench.run.segment(1) / "error.json", error)
    bench.ends(1, 4)
    bench.poll()
    assert bench.news()[0] == (1, "lost")
    assert bench.told[0]["reason"] == "rank 2 exit code 4: run error: it broke"
    assert not (bench.run.segment(1) / "error.json").exists(), "the next error is of another process"
    assert (bench.run.segment(1) / "error-group-1-0.json").exists()


def test_silent_corruption_of_a_lost_group_ends_all(bench):
    """What it added to the sums is in everybody's state: the finding stays where the supervisor looks for it."""
    error = {"label": "run error", "problems": [], "exit_code": 4, "rank": 2, "corruption": {"step": 7}}
    write_json(bench.run.segment(1) / "error.json", error)
    bench.ends(1, 4)
    bench.poll()
    assert bench.poll() == 4
    assert (bench.run.segment(1) / "error.json").exists()
    assert len(bench.started) == 3


def test_a_group_that_cannot_be_started_again_ends_the_attempt_and_not_the_supervisor(bench, monkeypatch):
    def no_room(group: int, before: int) -> LocalRanks:
        raise EnvironmentFault("no space for its log")

    monkeypatch.setattr(bench.all, "_start", no_room)
    bench.ends(1, -9)
    bench.poll()
    assert bench.poll() == EXIT_ENVIRONMENT
    assert bench.news() == [(1, "lost"), (1, "lost")]
    assert "no space for its log" in bench.told[1]["reason"]


def test_a_new_owner_looks_for_groups_that_were_started_again():
    launch = {"kind": "launch", "segment": 2, "pid": 1, "ranks": [{"pid": 1, "start_ticks": 5}, {"pid": 2, "start_ticks": 5}]}
    again = {"kind": "group", "segment": 2, "group": 1, "state": "started", "ranks": [{"pid": 3, "start_ticks": 9}]}
    told = {"kind": "group", "segment": 2, "group": 1, "state": "back"}
    found = with_groups(launch, [again | {"segment": 1, "ranks": [{"pid": 7, "start_ticks": 1}]}, launch, again, told])
    assert [rank["pid"] for rank in found["ranks"]] == [1, 2, 3]
    assert with_groups(launch, [launch, told]) == launch


def test_groups_are_the_replicas_where_the_deployment_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert replica_groups({"supervise": {"per_step": "torchft"}}, {"dp_replicate": 3, "tp": 2}) == 3
    assert replica_groups({"supervise": {"per_step": "off"}}, {"dp_replicate": 3}) == 1
    assert replica_groups({}, {"dp_replicate": 3}) == 1
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="torchft is not installed"):
        replica_groups({"supervise": {"per_step": "torchft"}}, {"dp_replicate": 3})
