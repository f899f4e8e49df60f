"""The processes of a run: how they meet, what they agree upon, how an evaluation and the stages are divided among them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from test_train_step import make_spec

from headway.base.clocks import FakeClock
from headway.base.errors import ConfigError, EnvironmentFault
from headway.parallel import group
from headway.parallel.group import Member
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.recipe.schedules import Schedule
from headway.train.crew import Crew, Together, join
from headway.train.setup import Phases, axes_at, end_of_layout
from headway.train.stop import Stop, StopRequest


@pytest.mark.parametrize(("member", "axes"), [(None, Axes(dp_shard=2)), (Member(0, 4, "unused"), Axes(tp=2))])
def test_P6_a_layout_for_another_number_of_processes_is_refused_with_both_numbers(member, axes):
    world = member.world if member else 1
    with pytest.raises(ConfigError, match=rf"is for 2 processes, and {world} were started"):
        join(member, axes)


def test_ranks_that_do_not_come_are_named(tmp_path):
    with pytest.raises(EnvironmentFault, match="rank 1, 2 of 3 has not come: the wait was given up"):
        group.join(Member(0, 3, str(tmp_path / "meeting")), given_up=lambda: True)


def test_stages_that_train_alike_are_one_stretch():
    base = make_spec()
    names = ("one", "two", "three")
    spec = dataclasses.replace(base, stages=tuple(dataclasses.replace(base.stages[0], name=name) for name in names))
    schedule, steps = Schedule(spec), Schedule(base).total_steps
    layouts = {"layouts": {"default": {"dp_shard": 2}, "three": {"tp": 2}}}
    assert [axes_at(step, schedule, layouts).tp for step in (0, steps, 2 * steps)] == [1, 1, 2]
    assert [end_of_layout(step, schedule, layouts) for step in (0, steps, 2 * steps)] == [2 * steps, 2 * steps, 3 * steps]
    assert end_of_layout(0, schedule, {}) == schedule.total_steps


class Scripted(Crew):
    """Answers for the other ranks."""

    together, others = True, False

    def anybody(self, wish: bool) -> bool:
        return wish or self.others


def test_a_stop_counts_once_all_have_agreed():
    crew, own = Scripted(), StopRequest()
    stop = Stop(own, crew)
    own.ask("signal SIGTERM")
    assert not stop, "the others have not heard of it"
    assert stop.agree()
    assert stop.reason == "signal SIGTERM"
    other = Stop(StopRequest(), crew)
    assert not other.agree()
    crew.others = True
    assert other.agree()
    assert other.reason == "another rank was asked to stop"


def test_alone_a_stop_counts_at_once():
    own = StopRequest()
    stop = Stop(own, Crew())
    own.ask("signal SIGINT")
    assert stop


def test_phases_of_a_start_are_told_apart():
    clock = FakeClock()
    phases = Phases(clock)
    clock.advance(2.0)
    phases.mark("group")
    clock.advance(3.0)
    phases.mark("model")
    assert (phases.ns["group"], phases.ns["model"]) == (2_000_000_000, 3_000_000_000)


def agreements() -> dict[str, object]:
    crew = Together.of(Axes(dp_shard=2))
    rank = dist.get_rank()
    groups = dist.distributed_c10d._world.pg_map
    return {
        "any": [crew.anybody(rank == 1), crew.anybody(False)],
        "told": crew.told(7 + rank),
        "words": crew.words("alas" if rank == 1 else ""),
        "sum": float(crew.over_tokens(torch.tensor(0.25 + rank))),
        "replica": (crew.replica.index, crew.replica.count),
        "waits": {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups},
    }


@pytest.mark.e2e
def test_ranks_agree_and_every_wait_of_theirs_has_an_end():
    first, second = on_ranks(agreements, 2)
    assert first | {"replica": (1, 2)} == second
    assert first["any"] == [True, False]
    assert (first["told"], first["words"], first["sum"]) == (7, ["rank 1: alas"], 1.5)
    assert first["waits"] == {group.COLLECTIVE_SECONDS}
