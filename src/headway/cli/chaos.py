"""``headway demo --chaos``: a run on two nodes of this machine, and a spare, that is killed five times and finishes.

    chaos (this process) --SIGKILL, SIGSTOP--> rank, node agent, store, supervisor
          '-- headway resume RUN --json, started again when it was killed, its records on the screen

It knows nothing but what the records say: process ids stand in the launch events.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headway.base.errors import RunError

HOSTS = ("node-0", "node-1", "spare")
FLEET = (
    "deployment.nodes=2",
    "deployment.processes_per_node=1",
    "deployment.threads=1",
    "deployment.layouts.default.dp_shard=2",
    f"deployment.fleet.hosts={json.dumps(HOSTS)}",
    "deployment.fleet.start=[]",
    "deployment.fleet.silence=5s",
    "deployment.checkpoints.every_steps=20",
    "deployment.supervise.hang_floor=20s",
    "deployment.supervise.lease_ttl=5s",
)
"""Of the demo's deployment, with chaos. No fewer nodes than two: numbers are equal to the bit under one layout."""


@dataclass(frozen=True)
class Blow:
    """``share``: of the run's steps, when it falls."""

    share: float
    what: str
    expected: str
    strike: Callable[[Chaos], None]


class Chaos:
    """Starts the supervisor, shows its records, strikes when the time has come, and starts it again where it was struck."""

    def __init__(self, run: Any, show: Callable[[dict[str, Any]], None], say: Callable[[str], None], total_steps: int):
        self._run, self._show, self._say, self._total = run, show, say, total_steps
        self._left = list(BLOWS)
        self._process: subprocess.Popen[bytes] | None = None
        self._launch: dict[str, Any] = {}
        self.struck = 0

    def play(self) -> str:
        """To the end of the run; the state it ended in."""
        state = ""
        while not state:
            state = self._follow()
        if self._left or state != "complete":
            raise RunError(
                f"the run is {state} after {self.struck} of {len(BLOWS)} blows",
                "a run that is killed goes on, and finishes",
                f"see headway status {self._run.root}",
            )
        return state

    def _follow(self) -> str:
        """One life of a supervisor; empty: it was killed."""
        command = [sys.executable, "-m", "headway.cli.main", "resume", str(self._run.root), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as self._process:
            assert self._process.stdout is not None
            try:
                for line in self._process.stdout:
                    record = json.loads(line)
                    if record["kind"] == "outcome":
                        return str(record["state"])
                    self._see(record)
            except BaseException:
                self._process.terminate()  # a Ctrl-C stops the run cleanly
                raise
        return "" if self._process.returncode == -signal.SIGKILL else "failed"

    def _see(self, record: dict[str, Any]) -> None:
        if record["kind"] == "launch":
            self._launch = record
        self._show(record)
        if record["kind"] != "step" or not self._left or record["step"] < self._left[0].share * self._total:
            return
        blow = self._left.pop(0)
        self.struck += 1
        self._say(f"*** blow {self.struck} of {len(BLOWS)}, in step {record['step'] + 1}: {blow.what}; {blow.expected}")
        blow.strike(self)

    # --- what it can strike -------------------------------------------------------------------------------------------------

    def rank(self, number: int, how: signal.Signals) -> None:
        kill(self._launch["ranks"][number]["pid"], how)

    def agent(self, node: int) -> None:
        """Of the node of that place, with its ranks: as a machine that loses its power."""
        ranks = self._launch["ranks"]
        name = ranks[node]["node"]
        for rank in (rank for rank in ranks if rank["node"] == name):
            kill(rank["pid"], signal.SIGKILL)
        kill(ranks[node]["agent"], signal.SIGKILL)

    def store(self) -> None:
        kill(self._launch["store"], signal.SIGKILL)

    def supervisor(self) -> None:
        assert self._process is not None
        self._process.kill()


BLOWS = (
    Blow(0.15, "SIGKILL to rank 1", "all ranks end, and go on from the last checkpoint", lambda c: c.rank(1, signal.SIGKILL)),
    Blow(
        0.30,
        "SIGSTOP to rank 0, which then neither works nor ends",
        "it is found by its silence (20 s, or eight of its longest steps), and replaced",
        lambda c: c.rank(0, signal.SIGSTOP),
    ),
    Blow(0.45, "a node dies, agent and ranks", "another takes its place", lambda c: c.agent(1)),
    Blow(
        0.60, "SIGKILL to the store where ranks meet", "nobody notices, until they meet again in a new one", lambda c: c.store()
    ),
    Blow(
        0.75,
        "SIGKILL to the supervisor itself",
        "its ranks save and end, and the next supervisor takes over",
        lambda c: c.supervisor(),
    ),
)


def kill(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)
