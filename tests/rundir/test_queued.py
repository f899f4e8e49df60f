"""Time in a scheduler's queue, as the job's environment tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import tiny_run

from headway.base.clocks import FakeClock
from headway.monitor.ledger import build_ledger
from headway.rundir.events import REQUEUED, EventLog, read_events
from headway.rundir.queued import STARTED, SUBMITTED, queued_ns

S = 10**9


@pytest.mark.parametrize(
    ("submitted", "started", "last", "queued"),
    [
        (None, None, None, 0),  # no scheduler
        (None, 60, None, 0),  # nobody said when it was submitted
        (40, None, None, 60),  # started just now
        (40, 90, None, 50),  # ... ten seconds ago
        (40, 90, 70, 20),  # requeued: only since the record before
        (40, 90, 95, 0),  # the same job opens the run once more
        (120, 130, None, 0),  # clocks disagree
    ],
)
def test_queue_up_to_second_100(submitted, started, last, queued):
    environment = {SUBMITTED: submitted, STARTED: started}
    told = {name: str(value) for name, value in environment.items() if value is not None}
    assert queued_ns(told, 100 * S, None if last is None else last * S) == queued * S


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1e9", "9" * 30, "²"])
def test_what_is_no_time_is_not_believed(text):
    assert queued_ns({SUBMITTED: text}, 100 * S, None) == 0


def test_the_queue_of_a_run_that_was_submitted_and_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """50 s in the queue, 5 s of work, requeued for 80 s; then stopped, and 30 of 100 s in the queue again."""
    run, clock = tiny_run(tmp_path / "run"), FakeClock()
    now = clock.real_ns // S
    monkeypatch.setenv(SUBMITTED, str(now - 60))
    monkeypatch.setenv(STARTED, str(now - 10))
    first = EventLog(run, 1, clock)
    clock.advance(5)
    first.append("finish", state=REQUEUED, reason="preempted")
    clock.advance(80)
    monkeypatch.setenv(STARTED, str(clock.real_ns // S))
    second = EventLog(run, 2, clock)
    second.append("finish", state="stopped", reason="by a person")
    clock.advance(70)
    monkeypatch.setenv(SUBMITTED, str(clock.real_ns // S))
    clock.advance(30)
    monkeypatch.setenv(STARTED, str(clock.real_ns // S))
    EventLog(run, 3, clock)
    ledger = build_ledger(read_events(run), {}, [])
    assert ledger.categories == {
        "queue": (50 + 80 + 30) * S,
        "planned_pause": 70 * S,
        "reconfigure": 5 * S,
    }
    assert ledger.flags == ()


def test_without_a_scheduler_nothing_is_said_of_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SUBMITTED, raising=False)
    assert "queued_ns" not in EventLog(tiny_run(tmp_path / "run"), 1, FakeClock()).opened
