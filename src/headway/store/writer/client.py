"""The trainer's side of its writer: find the one that is there, or start one; hand snapshots over, hear what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headway.base.errors import EnvironmentFault, from_os_error
from headway.rundir.layout import RunDirectory
from headway.store.writer.protocol import Attachment, Seal
from headway.store.writer.wire import Channel, Message, address, connect, listen, readable

ANSWER_SECONDS = 30.0
"""To a greeting: it needs an interpreter's start at most."""
ROOM_SECONDS = 900.0
"""To an attachment: an earlier save is finished first, then memory is filled (about 0.6 s per GiB)."""


class WriterClient:
    """A connection to the writer of one rank. Everything that breaks off says so once, as ``gone``."""

    def __init__(self, run: RunDirectory, channel: Channel, process: subprocess.Popen[bytes] | None):
        self._run, self._channel, self._process, self.gone = run, channel, process, False
        channel.send("hello")
        body = self._expect("hello", ANSWER_SECONDS).body
        self.pid: int = body["pid"]
        self.held: str | None = body["held"]  # the checkpoint whose data file lies in its memory

    @staticmethod
    def find(run: RunDirectory, rank: int) -> WriterClient | None:
        """The writer that an earlier trainer of this run left on this host; one that does not answer is ended."""
        channel = connect(_name(run, rank))
        if channel is None:
            return None
        try:
            return WriterClient(run, channel, None)
        except (EnvironmentFault, OSError):
            _end_stuck(channel.peer_pid)
            channel.close()
            return None

    @staticmethod
    def start(run: RunDirectory, rank: int) -> WriterClient:
        """The writer that is there, or a new one, in a session of its own: what ends the trainer does not reach it."""
        name, deadline = _name(run, rank), time.monotonic() + ANSWER_SECONDS
        while (channel := connect(name)) is None:
            listener = listen(name)
            if listener is not None:
                process = _launch(run, rank, listener.fileno())
                channel = connect(name)
                listener.close()
                if channel is not None:
                    return WriterClient(run, channel, process)
            if time.monotonic() > deadline:
                seen = f"no checkpoint writer answers for rank {rank}"
                raise EnvironmentFault(seen, "each rank has one", "see the trainer's log")
            time.sleep(0.02)
        return WriterClient(run, channel, None)

    def lend(self) -> memoryview | None:
        """The memory that it holds, to read from; None when it holds none."""
        try:
            self._channel.send("lend")
            message = self._expect("lent", ANSWER_SECONDS, or_else="refused")
        except (OSError, EnvironmentFault):  # it has ended meanwhile: the files serve
            self._broke_off()
            return None
        if message.kind == "refused" or not message.descriptors:
            return None
        return _mapped(message.descriptors[0], mmap.PROT_READ)

    def attach(self, attachment: Attachment) -> None:
        """Ask for memory; ``ready`` gets it. In between there is time for other things."""
        self._tell("attach", **dataclasses.asdict(attachment))

    def ready(self) -> memoryview:
        """The memory to copy snapshots into, every page in place. EnvironmentFault when there is none to be had."""
        message = self._expect("ready", ROOM_SECONDS, or_else="refused")
        if message.kind == "ready" and not message.descriptors:
            raise EnvironmentFault("no file could be opened for the snapshot", "each needs one", "raise the limit: ulimit -n")
        if message.kind == "refused":
            raise EnvironmentFault(
                f"the checkpoint writer cannot hold a snapshot: {message.body.get('error')}",
                "a snapshot takes as much host memory as the state that this process saves",
                "free memory on this host, or use more processes",
            )
        return _mapped(message.descriptors[0], mmap.PROT_READ | mmap.PROT_WRITE)

    def begin(self) -> None:
        self._tell("begin")

    def seal(self, seal: Seal) -> None:
        self._tell("seal", **dataclasses.asdict(seal))

    def hurry(self, on: bool = True) -> None:
        self._tell("hurry", on=on)

    def leave(self) -> None:
        """Let go of it without a word."""
        self._broke_off()

    def bye(self) -> None:
        """It finishes what is sealed, and ends."""
        self._tell("end")
        self._channel.close()
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_SECONDS)

    def poll(self, timeout_seconds: float = 0.0) -> list[Message]:
        """What it has said since; waits at most so long for the first word."""
        messages: list[Message] = []
        if not self.gone and readable([self._channel], timeout_seconds):
            messages, ended = self._channel.drain()
            if ended:
                self._broke_off()
        return messages

    def kill(self) -> None:
        """For a writer that does not move any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._broke_off()

    def _broke_off(self) -> None:
        self.gone = True
        self._channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)  # reaped, so that nobody takes it for alive

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self.gone:
            try:
                self._channel.send(kind, **fields)
            except OSError:
                self._broke_off()

    def _expect(self, kind: str, timeout_seconds: float, or_else: str = "") -> Message:
        """The next message of that kind; others before it belong to saves of an earlier trainer."""
        if self.gone:
            raise EnvironmentFault(
                "the checkpoint writer has ended", "each rank has one", "another is started with the next save"
            )
        try:
            while (message := self._channel.receive(timeout_seconds)) is not None:
                if message.kind in (kind, or_else):
                    return message
        except TimeoutError:
            pass
        raise EnvironmentFault("the checkpoint writer does not answer", "each rank has one that does", "see the trainer's log")


def end_writers(run: RunDirectory, world: int, first: int = 0) -> None:
    """Tell those of this host that nobody will come back for their memory: they finish what is sealed, and end.

    Of the ranks ``first`` to ``world - 1``.
    """
    for rank in range(first, world):
        with contextlib.suppress(OSError, EnvironmentFault):
            channel = connect(_name(run, rank))
            if channel is not None:
                channel.send("end")
                channel.close()


def _end_stuck(pid: int) -> None:
    """Only what is a writer indeed: pids are used again."""
    with contextlib.suppress(OSError):
        if b"headway.store.writer" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _name(run: RunDirectory, rank: int) -> str:
    return address(run.info()["run_id"], run.root, rank)


def _launch(run: RunDirectory, rank: int, descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headway.store.writer", str(run.root), str(rank), str(descriptor)]
    try:
        return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise from_os_error(error, run.root, "cannot start the checkpoint writer") from error


def _mapped(descriptor: int, protection: int) -> memoryview:
    """The whole memory file; its page table is filled at once, so that no copy has to wait for it."""
    try:
        size = os.fstat(descriptor).st_size
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=protection))
    finally:
        os.close(descriptor)
