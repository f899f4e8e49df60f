"""Nodes as the supervisor sees them: an agent each, over the two pipes of the command that started it.

    Node.start --> command --> agent's hello --> launch --> launched --> statuses, a beat every second
                                                    \\_ pipe closed, or silent too long: the node is lost, with all its ranks

Nothing listens on a port: whatever can run a command on a node (ssh, srun, kubectl exec) carries the two pipes, with its own
authentication. A message is a line of JSON; a thread per node reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.base.errors import EnvironmentFault, from_os_error
from headway.base.files import make_directory
from headway.rundir.layout import RunDirectory
from headway.supervise.causes import status_words

AGENT = ("-m", "headway.supervise.agent")
LOST = -int(signal.SIGKILL)
"""The status of a rank whose node is lost: nobody knows better."""


@dataclass(frozen=True)
class NodeOptions:
    """``start``: what runs a command on a node, ``{host}`` its name; empty: this machine. Times in seconds."""

    start: tuple[str, ...] = ()
    python: str = sys.executable
    hello_seconds: float = 60.0  # from the start of the command to the agent's first word
    silence_seconds: float = 10.0  # without a word of the agent: the node is lost
    check: bool = True  # a node joins when it has passed the quick check of headway doctor
    orphan_seconds: float = 30.0  # that ranks have to save and end when their owner is gone


@dataclass
class _Heard:
    """What the agent has said. ``ranks``: {pid, start_ticks} by rank of the launch in force."""

    hello: dict[str, Any] | None = None
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    segment: int | None = None
    failed: str = ""
    swept: bool = False
    checked: dict[str, Any] | None = None  # {may_join, reasons, report}
    last: float = 0.0  # monotonic


class Node:
    """One host and its agent. ``lost``: why nothing can be asked of it any more; empty: it answers."""

    def __init__(self, host: str, options: NodeOptions, root: Path):
        """``root``: the run's directory, where the node is checked and ``fleet/HOST.log`` has what its command says."""
        self.host, self.lost = host, ""
        self._options, self._heard = options, _Heard(last=time.monotonic())
        self._lock = threading.Lock()
        command = [part.replace("{host}", host) for part in options.start]
        log = make_directory(root / "fleet", "directory of node logs") / f"{host}.log"
        try:
            with open(log, "ab") as said:
                self._process = subprocess.Popen(
                    [*command, options.python if command else sys.executable, *AGENT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    start_new_session=True,
                )
        except OSError as error:
            raise from_os_error(error, Path(command[0] if command else options.python), f"cannot start node {host}") from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a node that takes no orders must not hold up the others
        threading.Thread(target=self._listen, daemon=True, name=f"node {host}").start()
        if options.check:
            self.order(do="check", directory=str(root.resolve()))

    @property
    def pid(self) -> int:
        """Of the command on this machine that carries the agent's pipes."""
        return self._process.pid

    @property
    def hello(self) -> dict[str, Any] | None:
        """{host, pid, start_ticks, boot_id} of the agent; None: it has not answered yet."""
        with self._lock:
            return self._heard.hello

    @property
    def unfit(self) -> str | None:
        """Why it must not join; empty: it may; None: its check is under way."""
        with self._lock:
            if not self._options.check:
                return ""
            return None if self._heard.checked is None else str(self._heard.checked["reasons"])

    def look(self) -> bool:
        """Whether it still answers; what it has not said for too long is its loss."""
        if self.lost:
            return False
        with self._lock:
            silent, hello, segment = time.monotonic() - self._heard.last, self._heard.hello, self._heard.segment
        limit = self._options.silence_seconds if hello else self._options.hello_seconds
        if self._process.poll() is not None:
            code = self._process.returncode
            self._lose(f"its agent ended (exit code {code})" if code >= 0 else f"its agent was {status_words(None, -code)}")
        elif silent > limit:
            self._lose(f"nothing was heard of its agent for {limit:.0f} s" + ("" if segment is None else " in mid-run"))
        return not self.lost

    def launch(self, run: RunDirectory, segment: int, ranks: Sequence[int], arguments: Sequence[str]) -> None:
        """Ask for these ranks, each ``python arguments --rank N``; ``launched`` says when they are there."""
        with self._lock:
            self._heard.ranks, self._heard.statuses, self._heard.failed, self._heard.segment = {}, {}, "", segment
        order = {"do": "launch", "run": str(run.root.resolve()), "segment": segment, "ranks": list(ranks)}
        self.order(**order, arguments=list(arguments), orphan_seconds=self._options.orphan_seconds)

    def sweep(self, processes: Sequence[dict[str, Any]]) -> None:
        """End what an earlier agent of this node may have left: {pid, start_ticks} of its boot."""
        self.order(do="sweep", processes=list(processes))

    def launched(self) -> dict[int, dict[str, Any]] | None:
        """{pid, start_ticks} by rank once they are started; None: not yet. EnvironmentFault where they cannot be."""
        with self._lock:
            if self._heard.failed:
                raise EnvironmentFault(f"node {self.host}: {self._heard.failed}")
            return dict(self._heard.ranks) or None

    def status(self, rank: int) -> int | None:
        """Of a rank of the launch in force: None while it runs."""
        with self._lock:
            found = self._heard.statuses.get(rank)
        return found if found is not None else None if self.look() else LOST

    def order(self, **order: Any) -> None:
        """Fire and forget: a node that cannot be asked is lost."""
        if self.lost:
            return
        try:
            assert self._process.stdin is not None
            line = json.dumps(order).encode() + b"\n"
            if os.write(self._process.stdin.fileno(), line) < len(line):
                self._lose("its agent takes no orders (the pipe to it is full)")
        except OSError as error:
            self._lose(f"its agent takes no orders ({error.strerror})")

    def close(self) -> None:
        """Its ranks read end of file, and it ends; one that does not is ended."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if self.lost:
            self._process.kill()

    def wait(self, seconds: float) -> None:
        """For the end of a closed one; then it is killed."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _lose(self, why: str) -> None:
        self.lost = why
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # a login message, say
                continue
            if isinstance(said, dict):
                self._hear(said)

    def _hear(self, said: dict[str, Any]) -> None:
        with self._lock:
            heard = self._heard
            heard.last = time.monotonic()
            match said.get("kind"):
                case "hello":
                    heard.hello = {key: said[key] for key in ("host", "pid", "start_ticks", "boot_id")}
                case "launched" if said["segment"] == heard.segment:
                    heard.ranks = {int(rank): process for rank, process in said["ranks"].items()}
                case "status" if said["segment"] == heard.segment:
                    heard.statuses[said["rank"]] = said["status"]
                case "failed" if said["segment"] == heard.segment:
                    heard.failed = said["text"]
                case "checked":
                    heard.checked = said
                case "swept":
                    heard.swept = True


class NodeRank:
    """A rank on a node, as ``TrainerProcess``. An agent does what is asked to all its ranks at once: one of them ``leads``."""

    def __init__(self, node: Node, rank: int, process: dict[str, Any], leads: bool = True):
        self.node, self._rank, self._leads = node, rank, leads
        self.pid: int = process["pid"]
        self.start_ticks: int | None = process["start_ticks"]

    def poll(self) -> int | None:
        return self.node.status(self._rank)

    def terminate(self) -> None:
        self._order("terminate")

    def kill(self) -> None:
        self._order("kill")

    def close(self) -> None:
        self._order("close")

    def _order(self, do: str) -> None:
        if self._leads:
            self.node.order(do=do)
