"""One look at a run, in each of its states."""

from __future__ import annotations

import json
import math
import os

from headway.base.clocks import FakeClock
from headway.monitor.summary import summarise
from headway.rundir.events import EventLog
from headway.rundir.lease import Lease
from headway.rundir.metrics import StepLog
from headway.rundir.processes import start_ticks, this_process
from headway.rundir.segments import Segment, write_segment


class Told:
    """A run that was started, and may be left in any state."""

    def __init__(self, run, ticks: int | None = 1):
        self.run, self.clock = run, FakeClock()
        self.lease = Lease.acquire(run, this_process(), 10.0, self.clock)
        self.events = EventLog(run, 1, self.clock)
        write_segment(run, Segment(1, None, 0, None, "start", "automatic", 1, {}))
        self.events.append("launch", segment=1, pid=os.getpid(), start_ticks=ticks)
        self.log = StepLog(run, 1, self.clock)
        self.log.write("start", pid=1)
        for number in range(1, 6):
            self.clock.advance(1.0)
            self.log.write("step", step=number, stage="main", tokens=number * 64, targets=64, loss=2.0, grad_norm=1.0)
        self.log.write("save", step=4, checkpoint="g0001-s00000004")

    def end(self, state: str) -> None:
        self.events.append("exit", segment=1, code=0, signal=None, reason="")
        self.events.append("finish", state=state, reason="why")
        self.lease.release()


def test_created(run):
    summary = summarise(run, FakeClock())
    assert (summary.state, summary.step, summary.total_steps, summary.segment) == ("created", 0, 20, None)


def test_finished(run):
    told = Told(run)
    told.end("stopped")
    summary = summarise(run, FakeClock())
    assert (summary.state, summary.reason, summary.owner_alive) == ("stopped", "why", False)
    assert (summary.step, summary.tokens, summary.loss, summary.stage) == (5, 320, 2.0, "main")
    assert (summary.checkpoint, summary.checkpoint_step) == ("g0001-s00000004", 4)
    assert summary.ledger.committed.steps == 4
    assert summary.ledger.total_ns == 5 * 10**9


def test_running(run):
    told = Told(run)

    class Watching(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            told.lease.renew()

    summary = summarise(run, Watching())
    assert (summary.state, summary.owner_alive, summary.owner["pid"]) == ("running", True, os.getpid())


def test_F6_owner_died_with_its_trainer(run):
    Told(run, ticks=1)
    clock = FakeClock()
    summary = summarise(run, clock)
    assert summary.state == "crashed"
    assert sum(clock.slept) < 4.0, "a reader does not wait for the whole ttl"


def test_F6_owner_died_and_its_trainer_still_runs(run):
    Told(run, ticks=start_ticks(os.getpid()))
    assert summarise(run, FakeClock()).state == "orphan"


def test_findings_and_json_of_a_run_that_went_wrong(run):
    told = Told(run)
    told.log.write("step", step=6, stage="main", tokens=384, targets=64, loss=math.nan, grad_norm=1.0)
    told.end("failed")
    summary = summarise(run, FakeClock())
    assert [finding.rule for finding in summary.findings] == ["non_finite"]
    plain = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert (plain["loss"], plain["state"], plain["ledger"]["total_ns"]) == ("nan", "failed", 5 * 10**9)
