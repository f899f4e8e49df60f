"""What the supervisor writes about the ends of attempts is read as interruptions, or as none, by ``monitor.interruptions``."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from types import SimpleNamespace

import pytest
from bench import quick
from test_supervise_fakes import Stage, perform
from test_supervise_fakes import choices as choices

import headway.supervise.supervisor as supervisor_module
from headway.base.clocks import FakeClock, SystemClock
from headway.base.errors import EXIT_ENVIRONMENT
from headway.monitor.interruptions import read_interruptions
from headway.rundir.events import read_events
from headway.rundir.lease import Lease
from headway.rundir.metrics import read_all_steps
from headway.rundir.processes import this_process
from headway.rundir.segments import read_segments
from headway.supervise.launcher import log_of
from headway.supervise.ranks import RankWatch
from headway.supervise.verdict import Verdict

CRASH = ["step", "step", -9]
WEDGE = ["step", "evaluation", "save", "step"]
LAST = ["step", "end", 0]


@pytest.mark.parametrize(
    ("scripts", "interruptions"),
    [
        ([LAST], 0),
        ([CRASH, LAST], 1),
        ([WEDGE, LAST], 1),
        ([["step", 0], LAST], 1),  # it ended without a record of its end
        ([CRASH, [3], CRASH, LAST], 2),
        ([["step", 2]], 0),
        ([["step", "stopped", 0]], 0),
    ],
)
def test_interruptions_of_a_supervised_run(run, choices, scripts, interruptions):
    perform(run, scripts, max_fruitless_attempts=10)
    assert len(read_interruptions(read_events(run), read_all_steps(run)).gaps) == interruptions


@pytest.mark.parametrize("script", [["step", "silence", "stopped", 0], ["step"]], ids=["saves", "is killed"])
def test_a_stop_is_none(run, choices, script):
    def ask(record: dict) -> None:
        if record["kind"] == "step":
            os.kill(os.getpid(), signal.SIGTERM)

    outcome, _ = perform(run, [script], on_record=ask)
    assert outcome.state == "stopped"
    assert read_interruptions(read_events(run), read_all_steps(run)).gaps == ()


def test_owner_that_stood_still_while_it_wrote_a_segment_starts_nothing_and_changes_no_history(run, choices, monkeypatch):
    """Storage that does not answer for a while: another owner takes over and goes on, then the write comes through."""
    clock, stage = FakeClock(), Stage(FakeClock(), [["step", "end", 0]])
    write = supervisor_module.write_segment

    def late(run, segment):
        lease = Lease.acquire(run, {"host": "beta", "pid": 1}, 1.0, FakeClock(real_ns=clock.real_ns))
        write(run, dataclasses.replace(segment, id=segment.id, epoch=lease.epoch, reason="the new owner's"))
        clock.advance(3600)
        write(run, dataclasses.replace(segment, id=segment.id + 1))

    monkeypatch.setattr(supervisor_module, "write_segment", late)
    outcome = supervisor_module.supervise(run, options=quick(), launcher=stage, clock=clock)
    assert outcome.state == "lost"
    assert stage.trainers == []
    assert [segment.reason for segment in read_segments(run)] == ["the new owner's"]


def test_C7_what_a_file_system_says_anywhere_in_the_supervisor_is_recorded_and_leaves_no_trainer(run, choices, monkeypatch):
    def stale(self):
        raise OSError(errno.ESTALE, "Stale file handle", "/shared/run/segments")

    monkeypatch.setattr("headway.supervise.ranks.RankWatch.look", stale)
    outcome, stage = perform(run, [["step", "step", "step"]])
    assert (outcome.state, outcome.exit_code) == ("failed", EXIT_ENVIRONMENT)
    assert "Stale file handle" in outcome.reason
    assert "/shared/run/segments" in outcome.reason
    assert "kill" in stage.trainers[0].calls
    assert read_events(run)[-1]["kind"] == "finish"


def test_F2_rank_that_ends_while_its_stacks_are_asked_for_ends_nothing_else(run, monkeypatch):
    """Killed for memory, say, at the moment in which it is found to hang."""

    def ended(pid, number):
        raise ProcessLookupError

    log_of(run, 1).parent.mkdir(parents=True)
    log_of(run, 1).write_text("")
    watch = SimpleNamespace(run=run, options=quick(), clock=SystemClock(), now_ns=lambda: 0, pause=lambda: None)
    ranks = RankWatch(watch, 1, 1, sentinel=SimpleNamespace())
    who = this_process() | {"boot_id": SystemClock().stamp().boot_id, "dumps": int(signal.SIGUSR2)}
    ranks._readers[0].beat.who = who
    monkeypatch.setattr("headway.supervise.ranks.os.kill", ended)
    assert ranks._stacks(Verdict(behind=(), ranks=(), beats=())) == {}
