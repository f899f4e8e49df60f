"""Which ends of attempts are interruptions, how long trainers were at risk, and what a restart took."""

from __future__ import annotations

import pytest
from histories import MS, History

from headway.monitor.interruptions import Interruptions, read_interruptions


class Told(History):
    """Attempts with ten steps of 9 ms, restored in 5 ms."""

    def attempt(self, steps: int = 10, end: str | None = None) -> int:
        number = self.launch(None, 0)
        self.row("start", [("init", 50 * MS)], pid=1)
        self.row("restored", [("restore", 5 * MS)], step=0)
        for step in range(1, steps + 1):
            self.step(step, 1 * MS, 8 * MS)
        if end:
            self.row("end", [("reconfigure", 1 * MS)], step=steps, state=end)
        return number

    def ends(self, reason: str, code: int | None = None, signal: int | None = None, ns: int = 20 * MS) -> None:
        self.advance(ns)
        self.event("exit", segment=len(self.segments), code=code, signal=signal, reason=reason)

    def read(self) -> Interruptions:
        return read_interruptions(self.events, self.steps)


@pytest.fixture
def told() -> Told:
    history = Told()
    history.open()
    return history


def seconds(*ms: float) -> tuple[float, ...]:
    return tuple(value / 1000 for value in ms)


def test_a_history_by_hand(told):
    """Killed after 90 ms; back after 20 ms of nothing, 3 + 50 + 5 ms of start and the first step of 9 ms."""
    told.attempt()
    told.ends("killed", signal=9)
    told.advance(20 * MS)
    told.attempt(steps=4)
    assert told.read() == Interruptions(gaps=seconds(90), quiet=0.036, restarts=seconds(87))


def test_saves_and_evaluations_are_time_at_risk(told):
    told.attempt()
    told.row("save", [("blocking_save", 7 * MS)], step=10)
    told.row("evaluation", [("evaluation", 3 * MS)], step=10, loss={})
    told.ends("killed", signal=9)
    assert told.read().gaps == seconds(100)


def test_what_dies_before_its_first_step_prolongs_one_restart(told):
    told.attempt()
    told.ends("killed", signal=9)
    told.attempt(steps=0)
    told.ends("exit code 3: the disk is full", code=3)
    told.attempt()
    seen = told.read()
    assert seen.gaps == seconds(90)
    assert seen.restarts == seconds(3 + 50 + 5 + 20 + 3 + 50 + 5 + 9)


def test_a_stop_by_a_person_is_none_and_the_time_before_it_counts_on(told):
    for asked in ("asked to stop by SIGTERM, exit code 0", "asked to stop by SIGINT, ended by SIGKILL"):
        told.attempt()
        told.ends(asked, signal=9)
        told.event("finish", state="stopped", reason=asked)
        told.advance(10**15)
        told.open("planned_pause")
    told.attempt()
    assert told.read() == Interruptions(gaps=(), quiet=0.27, restarts=())
    told.ends("killed", signal=9)
    told.attempt()
    assert told.read() == Interruptions(gaps=seconds(270), quiet=0.09, restarts=seconds(67))


def test_the_end_of_the_run_and_a_refused_configuration_are_none(told):
    told.attempt()
    told.ends("exit code 2: the data moved", code=2)
    told.event("finish", state="failed", reason="the trainer cannot run: ...")
    told.open("unknown")
    told.attempt(end="complete")
    told.ends("exit code 0", code=0)
    told.event("finish", state="complete", reason="all steps are trained")
    assert told.read() == Interruptions(gaps=(), quiet=0.181, restarts=())


def test_a_crash_that_is_followed_by_a_stop_is_one(told):
    told.attempt()
    told.ends("ended by SIGKILL", signal=9)
    told.event("finish", state="stopped", reason="asked to stop by SIGTERM")
    assert told.read().gaps == seconds(90)


def test_a_hang_is_one_interruption(told):
    told.attempt()
    told.hang(120_000 * MS)
    told.ends("no progress for 120 s, ended by SIGKILL", signal=9)
    told.attempt()
    assert told.read().gaps == seconds(90), "nothing was lost while it hung but time"


def test_the_death_of_an_owner_is_one_although_its_trainer_saved_and_stopped(told):
    told.attempt(end="stopped")
    told.advance(3_600_000 * MS)
    told.open("unknown")
    told.ends("its owner had died; its trainer was gone already")
    told.attempt()
    seen = told.read()
    assert seen.gaps == seconds(91)
    assert seen.restarts == seconds(67), "from the take-over: when a person came to look is no property of the run"


def test_a_lost_lease_is_one(told):
    told.attempt(end="stopped")
    told.ends("the lease was lost, exit code 0", code=0)
    told.event("note", text="the lease could not be renewed", state="lost")
    told.open("unknown")
    told.attempt()
    assert told.read().gaps == seconds(91)
    assert told.read().restarts == (), "the next owner came when it came"


def test_a_run_that_was_given_up_does_not_tell_how_long_a_restart_takes(told):
    told.attempt()
    told.ends("killed", signal=9)
    told.event("finish", state="failed", reason="3 attempts in a row committed no new step")
    told.advance(10**15)
    told.open("unknown")
    told.attempt()
    assert told.read() == Interruptions(gaps=seconds(90), quiet=0.09, restarts=())


def test_readings_of_two_boots_are_never_subtracted(told):
    told.attempt()
    told.ends("killed", signal=9)
    told.reboot(5 * MS)
    told.attempt()
    assert told.read() == Interruptions(gaps=seconds(90), quiet=0.09, restarts=())


def test_where_the_exit_is_lost_the_rows_tell(told):
    """An attempt without an exit is over when another has begun; it ended as it should if its rows say so."""
    told.attempt()
    told.attempt(end="stopped")
    told.attempt()
    assert told.read() == Interruptions(gaps=seconds(90), quiet=0.181, restarts=())


def test_without_events_there_is_a_history_all_the_same():
    assert read_interruptions([], {}) == Interruptions(gaps=(), quiet=0.0, restarts=())


@pytest.mark.parametrize("state", ["stopped", "relaid"])
def test_an_attempt_that_saved_and_ended_by_itself_is_none(told, state):
    """A scheduler that takes its machines back, nodes that are there again, a stage with another layout: no work is lost."""
    told.attempt(end=state)
    told.ends("exit code 0", code=0)
    told.attempt()
    told.ends("killed", signal=9)
    assert len(told.read().gaps) == 1


def test_what_ends_with_its_last_word_and_then_fails_is_one(told):
    told.attempt(end="stopped")
    told.ends("the writer was lost, exit code 4", code=4)
    told.attempt()
    assert len(told.read().gaps) == 1
