"""What people ask of a run's owner: stop, pause, go on; answered wherever the owner is, each once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from bench import plan, quick, read_ledger, standin_launcher

from headway.base.clocks import SystemClock
from headway.base.errors import EnvironmentFault
from headway.cli import stop as verbs
from headway.cli.main import run_guarded
from headway.monitor.summary import summarise
from headway.rundir.events import EventLog, read_events
from headway.rundir.lease import Lease, newest_epoch
from headway.rundir.processes import this_process
from headway.rundir.requests import Inbox, Request, ask
from headway.rundir.segments import read_segments
from headway.supervise import options
from headway.supervise.supervisor import supervise


def asked(run, verb: str, reason: str = "") -> None:
    ask(run, Request(verb=verb, author="anna", reason=reason, epoch=newest_epoch(run)), SystemClock())


class VirtualClock(SystemClock):
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.at = 10**12

    def stamp(self):
        import dataclasses

        return dataclasses.replace(super().stamp(), boot_ns=self.at)


def test_each_request_is_taken_once_and_by_the_owner_it_names(run):
    clock = VirtualClock()
    inbox = Inbox(run, 3, clock)
    for epoch, verb in ((3, "pause"), (2, "stop"), (3, "resume")):
        ask(run, Request(verb=verb, author="anna", reason="", epoch=epoch), clock)
    assert [request.verb for request in inbox.take()] == ["pause", "resume"]
    clock.at += 10**9
    assert inbox.take() == []
    ask(run, Request(verb="stop", author="ben", reason="the disk", epoch=3), clock)
    assert inbox.take() == [], "it was looked a moment ago"
    clock.at += 10**9
    assert [request.words for request in inbox.take()] == ["headway stop by ben: the disk"]


def test_a_stop_that_is_asked_for_twice_is_no_more_urgent(run):
    from types import SimpleNamespace

    from headway.supervise.attempt import StopSignals, Watch

    watch = SimpleNamespace(stop=StopSignals(), pauses=[])
    for _ in range(2):
        Watch._obey(watch, Request(verb="stop", author="anna", reason="", epoch=1))
    assert watch.stop.count == 1


def test_commands_of_a_directory_that_others_wrote_are_not_run(run, monkeypatch):
    from headway.supervise import commands

    named = {"fleet": {"start": ["ssh", "{host}"]}, "supervise": {"requeue": []}}
    commands.refuse_foreign(run, named)
    monkeypatch.setattr(commands, "_owner", lambda path: 12_345)
    with pytest.raises(EnvironmentFault, match=r"another account, and names commands: fleet\.start"):
        commands.refuse_foreign(run, named)
    commands.refuse_foreign(run, {"supervise": {}})


def test_what_is_no_request_is_passed_over(run):
    run.requests.mkdir()
    (run.requests / "20261130.json").write_text("{}")
    (run.requests / "000001.json").write_text("{")
    (run.requests / "000002.json").write_text('{"verb": 3}')
    (run.requests / "copy of 000002.json").write_text("{}")
    ask(run, Request(verb="stop", author="anna", reason="", epoch=1), SystemClock())
    assert [request.verb for request in Inbox(run, 1, SystemClock()).take()] == ["stop"]


class Asking:
    """Asks at records of the run, from another thread where it must wait."""

    def __init__(self, run, *steps: tuple[int, str]):
        self.run, self.steps, self.seen = run, dict(steps), []

    def __call__(self, record: dict) -> None:
        self.seen.append(record)
        if record["kind"] == "step" and (verb := self.steps.pop(record["step"], None)):
            asked(self.run, verb, "as planned")
        if record["kind"] == "pause":
            self.state = summarise(self.run).state
            threading.Timer(0.5, asked, (self.run, "resume")).start()


@pytest.mark.e2e
@pytest.mark.usefixtures("file_checkpoints")
def test_a_run_rests_and_goes_on_under_the_same_owner(run):
    plan(run, step_seconds=0.2)
    asking = Asking(run, (7, "pause"))
    outcome = supervise(run, options=quick(), launcher=standin_launcher(), on_record=asking)
    assert outcome.state == "complete"
    assert asking.state == "paused"
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["open", "launch", "exit", "pause", "resume", "launch", "exit", "finish"]
    assert read_events(run)[3]["reason"] == "headway pause by anna: as planned"
    second = read_segments(run)[1]
    assert second.reason.startswith("pause: headway pause by anna: as planned")
    assert read_ledger(run).categories["planned_pause"] >= 0.4e9


@pytest.mark.e2e
@pytest.mark.usefixtures("file_checkpoints")
def test_a_stop_that_is_asked_for_ends_it_cleanly_and_names_who_asked(run):
    plan(run, step_seconds=0.2)
    outcome = supervise(run, options=quick(), launcher=standin_launcher(), on_record=Asking(run, (7, "stop")))
    assert (outcome.state, outcome.exit_code) == ("stopped", 0)
    assert "headway stop by anna: as planned" in outcome.reason


@pytest.mark.e2e
@pytest.mark.usefixtures("file_checkpoints")
def test_a_batch_system_is_asked_again_only_after_a_signal(run, tmp_path, monkeypatch):
    plan(run, step_seconds=0.2)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    command = ("sh", "-c", f"echo {{SLURM_JOB_ID}} > {tmp_path}/queued")
    supervise(run, options=quick(requeue=command), launcher=standin_launcher(), on_record=Asking(run, (4, "stop")))
    assert not (tmp_path / "queued").exists()
    seen: list[dict] = []

    def on_record(record: dict) -> None:
        seen.append(record)
        if record["kind"] == "step" and record["step"] == 9:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGUSR1)

    outcome = supervise(run, options=quick(requeue=command), launcher=standin_launcher(), on_record=on_record)
    assert (outcome.state, outcome.reason.split(",")[0]) == ("stopped", "asked to stop by SIGUSR1")
    assert (tmp_path / "queued").read_text() == "77\n"
    assert read_events(run)[-1]["state"] == "requeued"
    assert seen[-2]["text"] == f"sh -c echo 77 > {tmp_path}/queued: the run is queued again"


def refusal(run, verb: str, capsys) -> str:
    assert run_guarded([verb, str(run.root)]) == 3
    return " ".join(capsys.readouterr().err.split())


def ends(run, clock, epoch: int, **fields) -> None:
    log = EventLog(run, epoch, clock)
    log.append("finish", **fields)
    log.close()


def test_nobody_is_asked_where_nobody_runs_it_and_it_is_told_how_the_run_stands(run, capsys):
    clock = SystemClock()
    Lease.acquire(run, {"pid": 1, "host": "alpha"}, 15.0, clock).release()
    for verb in ("stop", "pause"):
        assert f"{run.root} was never started, so there is nothing to {verb}" in refusal(run, verb, capsys)
    ends(run, clock, 1, state="stopped", reason="by a person")
    said = refusal(run, "stop", capsys)
    assert f"{run.root} is stopped already" in said
    assert f"headway resume {run.root}" in said
    ends(run, clock, 2, state="complete", reason="all steps are trained")
    said = refusal(run, "pause", capsys)
    assert f"{run.root} is complete, so there is nothing to pause" in said
    assert f"headway report {run.root}" in said
    EventLog(run, 3, clock)
    assert f"{run.root} crashed: its owner is gone, so there is nothing to stop" in refusal(run, "stop", capsys)


def test_the_ranks_of_a_dead_owner_cannot_be_asked_and_end_by_themselves(run, capsys):
    log, me = EventLog(run, 1, SystemClock()), this_process()
    log.append("launch", segment=1, pid=me["pid"], start_ticks=me["start_ticks"], host=me["host"])
    said = refusal(run, "stop", capsys)
    assert f"the owner of {run.root} is gone, so nobody can be asked to stop; its ranks still run" in said
    assert "save and end by themselves, within 30 s" in said
    assert f"to go on: headway resume {run.root}" in said
    assert "nothing to stop" not in said


def test_a_second_pause_says_that_the_run_rests_already(run, capsys):
    clock = SystemClock()
    lease = Lease.acquire(run, {"pid": 1, "host": "alpha"}, 1.0, clock)
    EventLog(run, lease.epoch, clock).append("pause", reason="headway pause by anna")
    with lease.renewed_in_background():
        assert run_guarded(["pause", str(run.root)]) == 0
    assert f"{run.root} is already paused; go on with: headway resume {run.root}" in capsys.readouterr().out
    assert not run.requests.exists(), "nobody was asked again"


def test_resume_of_a_complete_run_says_so_and_what_it_did_not_use(run, capsys, monkeypatch):
    from headway.cli import run as verb
    from headway.supervise.options import Outcome

    done = Outcome(state="complete", reason="nothing is left to train", attempts=0, exit_code=0)
    monkeypatch.setattr(verb, "follow_to_end", lambda run, json, **how: done)
    assert verb.follow(run, json=False, deployment={"nodes": 2}, change=None) == 0
    told = capsys.readouterr().out
    assert f"{run.root} is complete: nothing is left to train; --deployment changed nothing" in told
    monkeypatch.setattr(verb, "follow_to_end", lambda run, json, **how: replace(done, attempts=1))
    verb.follow(run, json=False)
    assert "is complete" not in capsys.readouterr().out


@pytest.mark.e2e
@pytest.mark.usefixtures("file_checkpoints")
def test_the_verbs_reach_an_owner_and_say_what_came(run, capsys):
    plan(run, step_seconds=0.2)
    codes: dict[str, int] = {}

    def at(record: dict) -> None:
        if record["kind"] == "step" and record["step"] == 3 and "pause" not in codes:
            codes["pause"] = run_guarded(["pause", str(run.root), "--detach"])
        if record["kind"] == "pause":
            threading.Thread(target=lambda: codes.update(resume=run_guarded(["resume", str(run.root)]))).start()

    outcome = supervise(run, options=quick(ttl_seconds=2.0), launcher=standin_launcher(), on_record=at)
    deadline = time.monotonic() + 10
    while len(codes) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert outcome.state == "complete"
    assert codes == {"pause": 0, "resume": 0}
    assert "asked its owner to go on" in capsys.readouterr().out


def test_a_pause_is_no_way_to_change_a_run(run, monkeypatch, capsys):
    monkeypatch.setattr("headway.cli.stop.paused_owner", lambda directory: 1)  # by name: other tests import verbs anew
    assert run_guarded(["resume", str(run.root), "--mixture", "a=1"]) == 2
    assert "a paused run goes on as it was" in capsys.readouterr().err


def test_the_options_know_the_command(run):
    found = options.SuperviseOptions.of({"supervise": {"requeue": ["scontrol", "requeue", "{SLURM_JOB_ID}"]}})
    assert found.requeue == ("scontrol", "requeue", "{SLURM_JOB_ID}")


def test_an_owner_that_released_is_nobody(run):
    with pytest.raises(EnvironmentFault):
        verbs.owned(run.root, "stop")
