"""Starting trainers. The supervisor knows only the two protocols; tests hand in fakes.

A trainer runs in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone, and so that everything
it started can be ended with it. Its stdin is a pipe whose other end only the supervisor holds: whatever way the supervisor
dies, the kernel closes it, and the trainer reads end of file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from headway.base.errors import from_os_error
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import session_members, start_ticks


class TrainerProcess(Protocol):
    """One running trainer."""

    pid: int
    start_ticks: int | None

    def poll(self) -> int | None:
        """None while it runs; then its exit code, or minus the signal that ended it."""

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
    """A trainer on this machine."""

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

    def close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.returncode is not None:
            kill_session(self.pid)  # helpers that outlived their trainer


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


class ProcessLauncher:
    """Starts ``command(run, segment)`` on this machine, its output in the segment's trainer.log."""

    def __init__(self, command: Callable[[RunDirectory, int], list[str]] = engine_command):
        self._command = command

    def launch(self, run: RunDirectory, segment: int) -> LocalProcess:
        log = run.segment(segment) / "trainer.log"
        try:
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    self._command(run, segment),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=trainer_environment(os.environ),
                )
        except OSError as error:
            raise from_os_error(error, log, "cannot start the trainer") from error
        return LocalProcess(process)
