"""Starting trainers. The supervisor knows only the two protocols; tests hand in fakes.

    supervisor --stdin--> rank 0   segments/0001/trainer.log            session of its own
               --stdin--> rank 1   segments/0001/trainer-00001.log      session of its own
                            '------- meet through a file in a private directory (parallel/group.py)

A rank runs in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone, and so that everything
it started can be ended with it. Its stdin is a pipe whose other end only the supervisor holds: whatever way the supervisor
dies, the kernel closes it, and every rank reads end of file. There is nobody in between: a common session would need a
process that all ranks descend from, whose death would leave them behind.

The first rank to fail ends all: the others wait for it in a collective that cannot be left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headway.base.errors import HeadwayError, from_os_error
from headway.base.files import read_json
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import session_members, start_ticks

PRIVATE = "headway-meeting-"
"""What the directories are called in which ranks meet: readable by their owner alone, on a local disk."""


class TrainerProcess(Protocol):
    """One running trainer: a process, or several ranks that live and die together."""

    pid: int
    start_ticks: int | None

    def poll(self) -> int | None:
        """None while any of it runs; then its exit code, or minus the signal that ended it: of the rank that failed first."""

    def terminate(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End its whole session at once."""

    def close(self) -> None:
        """Let go of its stdin and of anything it left behind."""


class Launcher(Protocol):
    """Starts the trainer of a segment."""

    def launch(self, run: RunDirectory, segment: int) -> TrainerProcess: ...


class LocalProcess:
    """A rank on this machine."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process = process
        self.pid = process.pid
        self.start_ticks = start_ticks(process.pid)

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        """The leader alone: it owns its helpers, and a save may still need them."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        kill_session(self.pid)

    def hang_up(self) -> None:
        """End of file on its stdin: it saves and ends."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        self.hang_up()
        if self._process.returncode is not None:
            kill_session(self.pid)  # helpers that outlived their trainer


class LocalRanks:
    """The ranks of a trainer on this machine. ``first_error``: the rank that left word of its failure first (None: none did).

    ``failed``: the rank whose end was the cause of all others', once there is one.
    """

    def __init__(
        self,
        ranks: Sequence[TrainerProcess],
        first_error: Callable[[], int | None] = lambda: None,
        meeting: Path | None = None,
    ):
        self.ranks, self._first_error, self._meeting = tuple(ranks), first_error, meeting
        self.pid, self.start_ticks = self.ranks[0].pid, self.ranks[0].start_ticks
        self.failed: int | None = None
        self._statuses: list[int | None] = [None] * len(self.ranks)

    def poll(self) -> int | None:
        self._statuses = [process.poll() if at is None else at for process, at in zip(self.ranks, self._statuses, strict=True)]
        if self.failed is None and (ended := {rank: at for rank, at in enumerate(self._statuses) if at}):
            self.failed = self._cause(ended)
            self._cause_status = ended[self.failed]
            self.kill()
        if any(status is None for status in self._statuses):
            return None
        return 0 if self.failed is None else self._cause_status

    def _cause(self, ended: dict[int, int]) -> int:
        """A signal leaves no word, and ends others with an error that speaks of it; else whoever spoke first."""
        signalled = [rank for rank, status in ended.items() if status < 0]
        first = self._first_error()
        return signalled[0] if signalled else first if first in ended else min(ended)

    def lost_node(self, rank: int | None) -> Any:
        """A rank's node of which nothing is known any more, {host, lost: why}; None: it answers, or is this machine."""
        node = getattr(self.ranks[rank or 0], "node", None)
        return node if node is not None and node.lost else None

    def terminate(self) -> None:
        """All of them: what one wishes they agree upon."""
        for process in self.ranks:
            process.terminate()

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()

    def close(self) -> None:
        for process in self.ranks:
            process.close()
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)


def kill_session(session: int) -> None:
    """SIGKILL to every process of a session, until none is left to receive it (they may fork meanwhile)."""
    for _ in range(100):
        members = session_members(session)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return


def engine_command(run: RunDirectory, segment: int) -> list[str]:
    return [sys.executable, "-m", "headway.engine", "train", str(run.root), "--segment", str(segment)]


def trainer_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The outer environment (thread counts, paths) with the settings that repeatable runs need where none are given."""
    defaults = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return {**defaults, **outer}


def log_of(run: RunDirectory, segment: int, rank: int = 0) -> Path:
    """What a rank prints."""
    return run.segment(segment) / (f"trainer-{rank:05d}.log" if rank else "trainer.log")


class ProcessLauncher:
    """Starts ``command(run, segment)`` on this machine, as often as the segment has ranks, each with a log of its own."""

    def __init__(self, command: Callable[[RunDirectory, int], list[str]] = engine_command):
        self.command = command

    def launch(self, run: RunDirectory, segment: int) -> TrainerProcess:
        command, world = self.command(run, segment), world_of(run, segment)
        if world == 1:
            return start_process(command, log_of(run, segment))
        meeting = Path(tempfile.mkdtemp(prefix=PRIVATE))
        try:
            started = start_ranks(command, ["--meeting", str(meeting / "ranks")], run, segment, range(world))
        except BaseException:
            shutil.rmtree(meeting, ignore_errors=True)
            raise
        return LocalRanks(started, lambda: first_error_of(run, segment), meeting)


def start_ranks(command: list[str], place: list[str], run: RunDirectory, segment: int, ranks: range) -> list[LocalProcess]:
    """``ranks`` of a segment, which count from 0 among themselves: all or none. ``place``: arguments, the same for all."""
    started: list[LocalProcess] = []
    try:
        for at, rank in enumerate(ranks):
            own = ["--rank", str(at), "--world", str(len(ranks))]
            started.append(start_process([*command, *own, *place], log_of(run, segment, rank)))
    except BaseException:
        for process in started:
            process.kill()
            process.close()
        raise
    return started


def world_of(run: RunDirectory, segment: int) -> int:
    """Processes of a segment, as its record says; 1 where there is none."""
    return int(recorded_layout(run, segment).get("world", 1))


def recorded_layout(run: RunDirectory, segment: int) -> dict[str, Any]:
    """As a segment's record says it; empty where there is none."""
    path = run.segment(segment) / "segment.json"
    layout: Any = read_json(path, "segment").get("layout", {}) if path.exists() else {}
    return layout


def first_error_of(run: RunDirectory, segment: int) -> int | None:
    """The rank that left word of its failure first; None: none did."""
    try:
        error = read_json(run.segment(segment) / "error.json", "error record")
    except HeadwayError:
        return None
    return error.get("rank") if isinstance(error, dict) else None


def start_process(command: list[str], log: Path) -> LocalProcess:
    """A rank on this machine, its output appended to ``log``. EnvironmentFault where it cannot be started."""
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=trainer_environment(os.environ),
            )
    except OSError as error:
        raise from_os_error(error, log, "cannot start the trainer") from error
    return LocalProcess(process)
