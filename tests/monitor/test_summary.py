"""One look at a run, in each of its states."""

from __future__ import annotations

import json
import math
import os

from headway.base.clocks import FakeClock
from headway.base.records import encode_record
from headway.monitor.progress import Progress
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


def test_records_of_an_owner_that_had_lost_the_run_are_shown_apart(run):
    told = Told(run)
    told.lease.release()
    EventLog(run, 2, told.clock).append("finish", state="stopped", reason="by the second owner")
    told.events.append("note", text="the first owner speaks late")
    summary = summarise(run, FakeClock())
    assert [record["text"] for record in summary.late_records] == ["the first owner speaks late"]
    assert summary.reason == "by the second owner"
    assert summary.to_json()["late_records"][0]["text"] == "the first owner speaks late"


def test_checkpoints_that_lie_there_and_the_refused_among_them(run):
    told = Told(run)
    (run.checkpoints / "g0001-s00000004").mkdir()
    (run.checkpoints / "g0001-s00000004" / "MANIFEST.json").touch()
    (run.checkpoints / "g0001-s00000005").mkdir()
    told.events.append("checkpoint_rejected", checkpoint="g0001-s00000004", reason="no JSON")
    told.end("failed")
    summary = summarise(run, FakeClock())
    assert [(info.step, info.committed, info.admissible) for info in summary.checkpoints] == [(4, True, True), (5, False, True)]
    assert [(finding.rule, finding.step) for finding in summary.findings] == [("checkpoint_rejected", 4)]
    assert json.loads(json.dumps(summary.to_json()))["checkpoints"][1]["name"] == "g0001-s00000005"


def test_tokens_of_the_committed_step_are_exact_although_its_row_is_torn(run):
    told = Told(run)
    told.end("stopped")
    lines = run.steps_file(1).read_bytes().split(b"\n")
    run.steps_file(1).write_bytes(b"\n".join(line for line in lines if b'"step":4,' not in line or b'"save"' in line))
    assert summarise(run, FakeClock()).ledger.committed == Progress(4, 4 * 64)


def test_findings_and_json_of_a_run_that_went_wrong(run):
    told = Told(run)
    told.log.write("step", step=6, stage="main", tokens=384, targets=64, loss=math.nan, grad_norm=1.0)
    told.end("failed")
    summary = summarise(run, FakeClock())
    assert [finding.rule for finding in summary.findings] == ["non_finite"]
    plain = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert (plain["loss"], plain["state"], plain["ledger"]["total_ns"]) == ("nan", "failed", 5 * 10**9)


def test_events_that_were_emptied_are_not_a_run_that_never_started(run):
    told = Told(run)
    told.end("complete")
    (run.events / "epoch-000001.jsonl").write_bytes(b"")
    summary = summarise(run, FakeClock())
    assert summary.state == "crashed"
    assert summary.reason.startswith("it has 1 segments, but no record of its events")
    assert any("segment 1: its launch is not recorded" in flag for flag in summary.ledger.flags)


def test_damaged_lines_are_counted_in_the_flags(run):
    told = Told(run)
    told.end("complete")
    for path, word in ((run.events / "epoch-000001.jsonl", b"launch"), (run.steps_file(1), b"main")):
        path.write_bytes(path.read_bytes().replace(word, word[::-1], 1))
    with open(run.steps_file(1), "ab") as file:
        file.write(encode_record(5) + encode_record({"kind": "step"}))
    flags = summarise(run, FakeClock()).ledger.flags
    assert "1 torn or altered lines in the records of the events were left out" in flags
    assert "3 torn or altered lines in the records of segment 1 were left out" in flags
    assert any("the record it follows is missing" in flag for flag in flags)


def test_a_step_beyond_the_end_of_the_schedule_does_not_break_the_look(run):
    told = Told(run)
    told.log.write("step", step=10**9, stage="main", tokens=384, targets=64, loss=2.0, grad_norm=1.0)
    told.end("failed")
    assert summarise(run, FakeClock()).step == 20


def test_an_owner_that_gave_up_its_lease_is_not_said_to_have_died(run):
    told = Told(run)
    told.events.append("note", text="the lease could not be renewed", state="lost")
    summary = summarise(run, FakeClock())
    assert (summary.state, "gave up the lease" in summary.reason) == ("crashed", True)
