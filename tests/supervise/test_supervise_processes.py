"""The supervisor with real processes: crashes, hangs, signals, its own death, a second launch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import plan, quick, read_ledger, standin_launcher

from headway.monitor.summary import summarise
from headway.rundir.events import read_events
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.processes import is_alive, process_stat
from headway.rundir.segments import current_chain, read_segments
from headway.supervise.attempt import StopSignals
from headway.supervise.supervisor import supervise

OWNER = Path(__file__).with_name("owner.py")

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("file_checkpoints")]


def go(run, on_record=None, **options):
    outcome = supervise(run, options=quick(**options), launcher=standin_launcher(), on_record=on_record)
    read_ledger(run)  # checks itself
    assert all(not is_alive(event["pid"], event["start_ticks"]) for event in events(run, "launch")), "a trainer was left behind"
    return outcome


def events(run, kind: str) -> list[dict]:
    return [event for event in read_events(run) if event["kind"] == kind]


def owner(run) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(OWNER), str(run.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, seconds: float = 15.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


def test_undisturbed_run_completes(run):
    plan(run)
    seen: list[dict] = []
    outcome = go(run, on_record=seen.append)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("complete", 1, 0)
    kinds = [record["kind"] for record in seen]
    assert kinds[:3] == ["open", "launch", "start"]
    assert kinds[-3:] == ["end", "exit", "finish"]
    assert kinds.count("step") == 20
    assert "done" in (run.segment(1) / "trainer.log").read_text()
    assert summarise(run).state == "complete"


def test_complete_run_is_not_trained_again(run):
    plan(run)
    go(run)
    outcome = go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 0)
    assert len(read_segments(run)) == 1


def test_killed_trainer_is_restarted_from_the_last_commit(run):
    plan(run, faults={"1": {"at": 13, "how": "kill"}})
    outcome = go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    chain = current_chain(read_segments(run))
    assert [(s.id, s.parent, s.restored_step, s.checkpoint) for s in chain] == [(1, None, 0, None), (2, 1, 10, "g0001-s00000010")]
    assert "SIGKILL" in chain[1].reason
    exits = events(run, "exit")
    assert [(e["code"], e["signal"], e.get("forced")) for e in exits] == [(None, signal.SIGKILL, None), (0, None, None)]
    ledger = read_ledger(run)
    assert (ledger.committed.steps, ledger.attempted.steps) == (20, 23)
    assert ledger.categories["rolled_back"] > 0
    kept = [row["step"] for row in read_chain_rows(run, chain).kept if row["kind"] == "step"]
    assert kept == list(range(1, 21))


def test_F4_crash_loop_stops_with_the_cause(run):
    plan(run, faults={"*": {"at": 7, "how": "exit4"}})
    outcome = go(run)
    assert (outcome.state, outcome.exit_code, outcome.attempts) == ("failed", 4, 4), "the first committed step 5, three did not"
    assert "3 attempts in a row" in outcome.reason
    assert "broken on purpose at step 7" in outcome.reason
    cause = events(run, "finish")[-1]["cause"]
    assert cause["error"]["exit_code"] == 4
    assert cause["log_tail"] == ["last words"]
    assert summarise(run).state == "failed"


def test_F4_crashes_with_committed_progress_between_them_go_on(run):
    plan(run, faults={str(n): {"at": 5 * n + 1, "how": "kill"} for n in range(1, 4)})
    outcome = go(run, max_fruitless_attempts=1)
    assert (outcome.state, outcome.attempts) == ("complete", 4)


def test_configuration_is_not_retried(run):
    plan(run, faults={"*": {"at": 3, "how": "exit2"}})
    outcome = go(run)
    assert (outcome.state, outcome.exit_code, outcome.attempts) == ("failed", 2, 1)
    assert "broken on purpose" in outcome.reason


def test_C7_fault_of_the_environment_that_passes_does_not_end_the_run(run):
    plan(run, faults={"1": {"at": 13, "how": "exit3"}, "2": {"at": 0, "how": "exit3"}})
    outcome = go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 3)
    assert read_segments(run)[2].restored_step == 10


def test_C7_fault_of_the_environment_that_stays_ends_it_with_its_own_exit_code(run):
    plan(run, faults={"*": {"at": 3, "how": "exit3"}})
    outcome = go(run)
    assert (outcome.state, outcome.exit_code, outcome.attempts) == ("failed", 3, 3)
    assert "broken on purpose" in outcome.reason


def test_C12_exit_zero_without_a_recorded_end_is_a_crash(run):
    plan(run, faults={"1": {"at": 3, "how": "exit0"}})
    outcome = go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    assert "without a record of its end" in events(run, "exit")[0]["reason"]


def test_F2_F8_stopped_process_is_detected_and_replaced(run):
    plan(run, faults={"1": {"at": 12, "how": "hang"}})
    began = time.monotonic()
    outcome = go(run)
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    assert time.monotonic() - began < 30
    assert len(events(run, "hang")) == 1
    categories = read_ledger(run).categories
    assert 1.0e9 < categories["hang"] < 30e9, "the floor is one second"
    assert read_segments(run)[1].restored_step == 10


def test_nothing_of_a_dead_trainers_session_survives(run):
    plan(run, faults={"1": {"at": 3, "how": "helper"}})
    assert go(run).state == "complete"
    stat = process_stat(int((run.root / "helper.pid").read_text()))
    assert stat is None or not stat.alive


@pytest.fixture
def not_ignored(number):
    """A shell starts what runs in its background with SIGINT ignored, which the supervisor obeys: not what is tested here."""
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    signal.signal(number, before)


def test_an_interrupt_that_is_ignored_stays_ignored(run):
    """As under nohup: the run goes on to its end."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        plan(run, steps=40)
        assert go(run, on_record=signal_at_step(7, signal.SIGINT)).state == "complete"
    finally:
        signal.signal(signal.SIGINT, before)


def signal_at_step(step: int, number: int) -> Callable[[dict], None]:
    """Sends it to this process once, at the first row of ``step`` or later: after a restart that very row may not come again."""
    sent: list[int] = []

    def look(record: dict) -> None:
        if record["kind"] == "step" and record["step"] >= step and not sent:
            sent.append(record["step"])
            os.kill(os.getpid(), number)

    return look


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_F5_termination_ends_in_a_committed_checkpoint(run, number, not_ignored):
    plan(run, steps=10_000)
    outcome = go(run, on_record=signal_at_step(7, number))
    assert (outcome.state, outcome.exit_code) == ("stopped", 0)
    last_save, end = read_steps(run, read_segments(run)[-1].id)[-2:]
    assert (end["kind"], end["state"], last_save["kind"]) == ("end", "stopped", "save")
    assert last_save["step"] == end["step"]
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler), "the handlers are put back"


def test_F5_trainer_that_ignores_the_signal_is_killed_after_the_grace_time(run):
    plan(run, steps=10_000, ignore_term=True)
    outcome = go(
        run,
        on_record=signal_at_step(7, signal.SIGTERM),
        grace_seconds=0.5,
    )
    assert outcome.state == "stopped"
    assert "the last committed checkpoint stands" in outcome.reason
    assert [(e["signal"], e["forced"]) for e in events(run, "exit")] == [(signal.SIGKILL, "stop")]


def test_stopped_run_goes_on_where_it_stopped(run):
    plan(run, steps=10_000)
    go(run, on_record=signal_at_step(7, signal.SIGTERM))
    stopped_at = read_steps(run, 1)[-1]["step"]
    plan(run, steps=stopped_at + 5)
    assert go(run).state == "complete"
    assert read_segments(run)[1].restored_step == stopped_at
    assert read_segments(run)[1].reason == "resume"
    assert "planned_pause" in read_ledger(run).categories


def test_F6_dead_supervisor_leaves_no_orphan_and_is_replaced(run):
    plan(run, steps=10_000)
    first = owner(run)
    launch = wait_for(lambda: events(run, "launch"))[0]
    wait_for(lambda: any(row["kind"] == "save" for row in read_steps(run, 1)))
    first.kill()
    first.communicate()
    wait_for(lambda: not is_alive(launch["pid"], launch["start_ticks"]))
    assert read_steps(run, 1)[-1]["kind"] == "end", "it read end of file, saved and ended"
    plan(run, steps=20)
    reached = read_steps(run, 1)[-1]["step"]
    plan(run, steps=reached + 5)
    assert go(run).state == "complete"
    assert [s.restored_step for s in read_segments(run)] == [0, reached]
    ledger = read_ledger(run)
    assert ledger.categories["unknown"] > 0
    assert any("unknown" in flag for flag in ledger.flags)
    assert "its owner had died" in events(run, "exit")[0]["reason"]


def test_F6_orphan_that_does_not_end_is_killed_before_the_next_trainer_starts(run):
    plan(run, steps=10_000, faults={"1": {"at": 7, "how": "hang"}})
    first = owner(run)
    launch = wait_for(lambda: events(run, "launch"))[0]
    wait_for(lambda: process_stat(launch["pid"]).state == "T")
    first.kill()
    first.communicate()
    plan(run, steps=20)
    seen = []

    def look(record: dict) -> None:
        if record["kind"] == "launch":
            seen.append(is_alive(launch["pid"], launch["start_ticks"]))

    assert go(run, on_record=look, orphan_seconds=0.3).state == "complete"
    assert seen == [False]
    assert "its trainer was killed" in events(run, "exit")[0]["reason"]


def test_F5_owner_that_is_to_stop_does_not_wait_for_the_orphan_and_the_next_one_ends_it(run):
    plan(run, steps=10_000, faults={"1": {"at": 7, "how": "hang"}})
    first = owner(run)
    launch = wait_for(lambda: events(run, "launch"))[0]
    wait_for(lambda: process_stat(launch["pid"]).state == "T")
    first.kill()
    first.communicate()
    options = quick(orphan_seconds=3600.0)

    def ask_at_open(record: dict) -> None:
        if record["kind"] == "open":
            os.kill(os.getpid(), signal.SIGTERM)

    second = supervise(run, options=options, launcher=standin_launcher(), on_record=ask_at_open)
    assert (second.state, second.attempts, second.exit_code) == ("stopped", 0, 0)
    assert is_alive(launch["pid"], launch["start_ticks"])
    plan(run, steps=20)
    assert go(run, orphan_seconds=0.3).state == "complete"
    assert "its trainer was killed" in events(run, "exit")[0]["reason"]


def test_trainer_of_an_earlier_owner_that_cannot_be_ended_is_named(run, monkeypatch):
    plan(run, steps=10_000, faults={"1": {"at": 7, "how": "hang"}})
    first = owner(run)
    launch = wait_for(lambda: events(run, "launch"))[0]
    wait_for(lambda: process_stat(launch["pid"]).state == "T")
    first.kill()
    first.communicate()
    monkeypatch.setattr("headway.supervise.takeover.UNKILLABLE_SECONDS", 0.2)
    with monkeypatch.context() as other_account:
        other_account.setattr("headway.supervise.takeover.kill_session", lambda session: None)
        outcome = supervise(run, options=quick(orphan_seconds=0.2), launcher=standin_launcher())
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert f"process {launch['pid']}, which an earlier owner started, cannot be ended" in outcome.reason
    plan(run, steps=20)
    assert go(run, orphan_seconds=0.2).state == "complete"


def test_C9_second_launch_is_refused_naming_the_first(run):
    plan(run, steps=10_000)
    first = owner(run)
    wait_for(lambda: events(run, "launch"))
    second = owner(run)
    _, message = second.communicate(timeout=15)
    assert second.returncode == 3
    assert "run directory in use" in message
    assert f"process {first.pid} on {os.uname().nodename}" in message
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=15)
    assert json.loads(output)["state"] == "stopped"


def test_owner_that_was_frozen_past_its_lease_ends_itself(run):
    plan(run, steps=10_000)
    first = owner(run)
    launch = wait_for(lambda: events(run, "launch"))[0]
    first.send_signal(signal.SIGSTOP)
    time.sleep(1.7)  # beyond half of its three seconds
    first.send_signal(signal.SIGCONT)
    output, _ = first.communicate(timeout=15)
    assert json.loads(output)["state"] == "lost"
    assert not is_alive(launch["pid"], launch["start_ticks"])


def test_signals_of_one_moment_are_one_request():
    """``timeout`` sends one to the process and one to its group; the second must not be taken for impatience."""
    with StopSignals() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.count == 1
        stop._last -= 2 * stop.MOMENT_SECONDS
        signal.raise_signal(signal.SIGTERM)
        assert stop.count == 2
