"""The ranks of one trainer: one end for all, and the cause is the rank that failed first. With processes that exist only here."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.base.clocks import FakeClock
from headway.base.files import write_json
from headway.base.records import append_stamped
from headway.rundir.processes import is_alive, session_members
from headway.rundir.segments import Segment, write_segment
from headway.supervise.attempt import Attempt
from headway.supervise.causes import own_error
from headway.supervise.launcher import LocalRanks, ProcessLauncher, log_of
from headway.supervise.options import SuperviseOptions
from headway.supervise.patience import Patience
from headway.supervise.ranks import RankWatch


class Fake:
    """Runs until it is told a status; a kill takes a look to be seen."""

    def __init__(self, pid: int):
        self.pid, self.start_ticks, self.status, self.calls = pid, pid, None, []

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")
        self.status = -signal.SIGKILL if self.status is None else self.status

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def three():
    return [Fake(pid) for pid in (10, 11, 12)]


def test_F1_the_first_failure_ends_all_and_is_the_status(three):
    ranks = LocalRanks(three)
    assert ranks.poll() is None
    three[1].status = 4
    assert ranks.poll() is None, "the others are being ended"
    assert [fake.status for fake in three] == [-9, 4, -9]
    assert (ranks.poll(), ranks.failed) == (4, 1)


def test_F1_a_signal_is_the_cause_of_errors_that_are_seen_with_it(three):
    """The others lose their connection, and may be faster to say so than the supervisor is to look."""
    three[0].status, three[2].status = 4, -signal.SIGSEGV
    ranks = LocalRanks(three, first_error=lambda: 0)
    ranks.poll()
    assert (ranks.poll(), ranks.failed) == (-signal.SIGSEGV, 2)


def test_F1_of_several_errors_the_first_that_was_told_counts(three):
    three[0].status, three[1].status = 4, 3
    ranks = LocalRanks(three, first_error=lambda: 1)
    ranks.poll()
    assert (ranks.poll(), ranks.failed) == (3, 1)


def test_it_is_done_when_all_are(three):
    ranks = LocalRanks(three)
    three[0].status = three[2].status = 0
    assert (ranks.poll(), ranks.failed) == (None, None)
    assert "kill" not in three[1].calls
    three[1].status = 0
    assert ranks.poll() == 0


def test_everybody_is_asked_to_stop(three):
    LocalRanks(three).terminate()
    assert [fake.calls for fake in three] == [["terminate"]] * 3


CHILD = "import sys, time; print(*sys.argv[1:], flush=True); sys.stdin.read()"


def launched(run, world: int, child: str = CHILD):
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, {"world": world}))
    return ProcessLauncher(lambda run, segment: [sys.executable, "-c", child]).launch(run, 1)


def ended(process, seconds: float = 20.0) -> int:
    deadline = time.monotonic() + seconds
    while (status := process.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return status


def wait_for_text(path: Path, seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.e2e
def test_each_rank_has_its_place_its_log_and_its_own_stdin(run):
    process = launched(run, 2)
    said = [wait_for_text(log_of(run, 1, rank)).split() for rank in range(2)]
    assert [words[:5] for words in said] == [["--rank", str(r), "--world", "2", "--meeting"] for r in range(2)]
    assert said[0][5] == said[1][5]
    private = Path(said[0][5]).parent
    assert stat.S_IMODE(private.stat().st_mode) == 0o700, "only who started them can join them"
    assert len({os.getsid(rank.pid) for rank in process.ranks}) == 2
    for rank in process.ranks:
        rank.close()  # as the kernel does when the supervisor dies
    assert ended(process) == 0
    process.close()
    assert not private.exists()


@pytest.mark.e2e
def test_F1_a_killed_rank_takes_the_others_and_their_helpers_with_it(run):
    child = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print(flush=True); sys.stdin.read()"
    process = launched(run, 2, child)
    for rank in range(2):
        wait_for_text(log_of(run, 1, rank))
    os.kill(process.ranks[1].pid, signal.SIGKILL)
    assert (ended(process), process.failed) == (-signal.SIGKILL, 1)
    process.close()
    assert not any(is_alive(rank.pid, rank.start_ticks) for rank in process.ranks)
    assert [session_members(rank.pid) for rank in process.ranks] == [[], []]


@pytest.mark.e2e
def test_F1_the_rank_that_left_word_first_is_the_cause(run):
    process = launched(run, 2, "import sys; sys.exit(4)")
    write_json(run.segment(1) / "error.json", {"label": "run failed", "problems": [], "exit_code": 4, "rank": 1})
    time.sleep(1.0)
    assert ended(process) == 4
    assert process.failed == 1
    process.close()


def test_F1_the_word_of_a_rank_that_noticed_is_not_the_cause(run):
    run.segment(1).mkdir(parents=True, exist_ok=True)
    write_json(run.segment(1) / "error.json", {"label": "run failed", "problems": [], "exit_code": 4, "rank": 1})
    assert own_error(run, 1, 0) is None
    assert own_error(run, 1, 1) == own_error(run, 1, None)
    assert own_error(run, 1, 1) is not None
    assert own_error(run, 2, 1) is None


def test_the_loss_of_a_node_is_told_once_and_with_no_status_that_nobody_saw(run, three):
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, {"world": 3}))
    three[1].status, three[1].node = -signal.SIGKILL, SimpleNamespace(host="n1", lost="its agent was ended by SIGKILL")
    told: list[dict] = []
    watch = SimpleNamespace(
        run=run,
        options=SuperviseOptions(),
        patience=Patience(floor_seconds=600.0, factor=1.0, generous_seconds=600.0),
        now_ns=lambda: 0,
        clock=FakeClock(),
        show=told.append,
        record=lambda kind, **fields: told.append({"kind": kind, **fields}),
        lease=SimpleNamespace(must_stop=lambda: False),
        stop=SimpleNamespace(count=0, name=""),
        pauses=[],
        pause=lambda: None,
    )
    end = Attempt(watch, 1, LocalRanks(three)).follow()
    assert (end.rank, end.signal, end.reason) == (1, 9, "node n1 was lost with rank 1: its agent was ended by SIGKILL")
    assert [event["lost_node"] for event in told if event["kind"] == "exit"] == ["n1"]


def test_D12_a_rank_that_waits_for_data_is_heard_although_it_writes_no_rows(run):
    """Else the others wait for it in a collective, nobody writes a row, and the trainer would be taken to hang."""
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, {"world": 2}))
    append_stamped(run.stalls_file(1, 1), {"kind": "stall", "rank": 1, "step": 3, "waited_ns": 10, "shard": "code-0"})
    shown: list[dict] = []
    patience = Patience(floor_seconds=1.0, factor=1.0, generous_seconds=600.0)
    watch = SimpleNamespace(run=run, patience=patience, now_ns=lambda: 0, show=shown.append)
    attempt = Attempt(watch, 1, LocalRanks([Fake(1), Fake(2)]))
    patience.learn([{"kind": kind, "split": {}} for kind in ("step", "save", "evaluation")])
    patience.progress({"kind": "step"}, 0)
    assert patience.limit_seconds == 1.0
    attempt._take_rows()
    assert [(row["rank"], row["shard"]) for row in shown] == [(1, "code-0")]
    assert patience.limit_seconds == 600.0


def test_a_rank_that_the_kernel_ended_for_memory_is_said_to_be(run, monkeypatch):
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, {"world": 2}))
    counts = iter([7, 9])
    monkeypatch.setattr("headway.supervise.ranks.memory_kills", lambda: next(counts))
    watch = SimpleNamespace(run=run, options=SuperviseOptions(), patience=None, now_ns=lambda: 0)
    words = RankWatch(watch, 1, 2).memory_words(1)
    assert words == "the kernel ran out of memory and ended 2 processes on this machine meanwhile"
