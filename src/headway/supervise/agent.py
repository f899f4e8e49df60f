"""The agent of a node: starts the ranks of that node, watches them, and ends them with whoever started it.

    supervisor --stdin, lines of JSON--> agent --stdin--> rank 0, rank 1, ...      sessions of their own
               <-stdout, lines of JSON--       (hello, launched, status, checked, and a beat every second)

    python -m headway.supervise.agent        started over ssh, srun, or on this machine (``nodes.py``)

It lives through many attempts, so that a restart costs no more than the ranks' own start, and it never acts by itself: a
restart is a segment, which the owner of the lease writes before anything starts. Its stdin is the owner's life: at end of file
the ranks read end of file too, get their time to save, and are killed after it. Where the agent itself is killed, the kernel
closes the ranks' stdin, and they end in the same way; the next agent of the node ends what is left of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headway.base.clocks import SystemClock
from headway.base.errors import HeadwayError
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import is_alive, start_ticks
from headway.supervise.doctor import check_node
from headway.supervise.launcher import LocalProcess, kill_session, log_of, start_process

BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_ORPHAN_SECONDS = 30.0


class Agent:
    """One per node and owner."""

    def __init__(self, inlet: int, outlet: int):
        self._inlet, self._outlet = inlet, outlet
        self._ranks: dict[int, LocalProcess] = {}
        self._told: set[int] = set()
        self._segment = 0
        self._checked: dict[str, Any] | None = None  # what the check found, until it is told
        self._orphan_seconds = _ORPHAN_SECONDS
        self._beaten, self._buffer = 0.0, b""

    def run(self) -> None:
        """Until the owner lets go; whatever happens, no rank is left behind."""
        boot_id = SystemClock().stamp().boot_id
        ticks = start_ticks(os.getpid())
        self._tell("hello", host=socket.gethostname(), pid=os.getpid(), start_ticks=ticks, boot_id=boot_id)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._inlet, selectors.EVENT_READ)
                while self._turn(bool(selector.select(_LOOK_SECONDS))):
                    pass
            self._let_go()
        finally:
            for process in self._ranks.values():
                process.kill()
                process.close()

    def _turn(self, readable: bool) -> bool:
        """One look at the owner and at the ranks; False: the owner is gone."""
        if readable:
            data = os.read(self._inlet, 65_536)
            if not data:
                return False
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._obey(json.loads(line))
        self._report()
        return True

    def _obey(self, order: dict[str, Any]) -> None:
        """Orders come from the owner alone, who started this process."""
        match order["do"]:
            case "launch":
                self._launch(order)
            case "terminate":
                for process in self._ranks.values():
                    process.terminate()
            case "kill":
                for process in self._ranks.values():
                    process.kill()
            case "close":
                self._close()
            case "check":
                threading.Thread(target=self._check, args=(Path(order["directory"]),), daemon=True).start()
            case "sweep":
                for process in order["processes"]:
                    if is_alive(process["pid"], process["start_ticks"]):
                        kill_session(process["pid"])
                        with contextlib.suppress(ProcessLookupError, PermissionError):  # an agent may lead no session
                            os.kill(process["pid"], signal.SIGKILL)
                self._tell("swept")

    def _check(self, directory: Path) -> None:
        """Beside everything else: a node that is slow to answer is not a dead one."""
        try:
            report = check_node(directory, quick=True)
        except Exception as error:  # a check that cannot be made is not passed
            self._checked = {"may_join": False, "reasons": f"the check broke off: {error}", "report": {}}
            return
        self._checked = {"may_join": report.may_join, "reasons": report.reasons(), "report": report.to_json()}

    def _launch(self, order: dict[str, Any]) -> None:
        self._close()
        self._segment, self._orphan_seconds = order["segment"], order["orphan_seconds"]
        run = RunDirectory(Path(order["run"]))
        try:
            for rank in order["ranks"]:
                command = [sys.executable, *order["arguments"], "--rank", str(rank)]  # the interpreter of this node
                self._ranks[rank] = start_process(command, log_of(run, self._segment, rank))
        except HeadwayError as error:
            return self._tell("failed", segment=self._segment, text=str(error))
        started = {rank: {"pid": process.pid, "start_ticks": process.start_ticks} for rank, process in self._ranks.items()}
        self._tell("launched", segment=self._segment, ranks=started)

    def _close(self) -> None:
        for process in self._ranks.values():
            process.kill()
            process.close()
        self._ranks, self._told = {}, set()

    def _report(self) -> None:
        for rank, process in self._ranks.items():
            status = process.poll()
            if status is not None and rank not in self._told:
                self._told.add(rank)
                self._tell("status", segment=self._segment, rank=rank, status=status)
        checked, self._checked = self._checked, None
        if checked is not None:
            self._tell("checked", **checked)
        if time.monotonic() - self._beaten >= BEAT_SECONDS:
            self._tell("beat")

    def _tell(self, kind: str, **fields: Any) -> None:
        self._beaten = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the owner is gone: its end of file comes next
            os.write(self._outlet, json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def _let_go(self) -> None:
        """Nobody asks for anything any more: the ranks save and end, or are ended."""
        for process in self._ranks.values():
            process.hang_up()
        deadline = time.monotonic() + self._orphan_seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self._ranks.values()):
            time.sleep(_LOOK_SECONDS)


def _leave_to_the_owner(number: int, frame: object) -> None:
    """Of a Ctrl-C, or a batch system that signals all processes. A handler, and no ignoring: ranks would inherit that."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, _leave_to_the_owner)
    outlet = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything prints is no message
    Agent(sys.stdin.fileno(), outlet).run()


if __name__ == "__main__":
    main()
