"""Messages between a trainer and its writer: JSON with a length before it, over a local socket; memory files travel beside.

    | 8 bytes: length | JSON object |       file descriptors by SCM_RIGHTS, with the first bytes of a message

The socket's name is abstract (it vanishes with its last holder and needs no directory); it follows from the run and the rank, so
that the next trainer finds the writer of the one before. Names can be taken by anybody on the machine: both sides check
that the other belongs to the same user.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.base.digests import digest_bytes
from headway.base.errors import EnvironmentFault

MAX_MESSAGE_BYTES = 1 << 30
SEND_SECONDS = 5.0
"""For a peer to take what is sent to it, or to let somebody connect."""
_MAX_DESCRIPTORS = 4


@dataclass(frozen=True)
class Message:
    """``body`` has a ``kind``; ``descriptors`` are the receiver's own now."""

    body: dict[str, Any]
    descriptors: list[int] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.body.get("kind"))


def address(run_id: str, root: Path, rank: int) -> str:
    """The abstract name of a rank's writer. A copy of a run directory is another place, hence another name."""
    place = digest_bytes(f"{run_id}\0{root.resolve()}".encode()).rpartition(":")[2][:32]
    return f"\0headway-writer-{os.getuid()}-{place}-{rank}"


class Channel:
    """One end of a connection. ``peer_pid``: for who connects, the process that listens.

    Nothing here waits longer than it is told to: a peer that stops in the middle of a message, or never reads, holds up nobody.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self.peer_pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if uid != os.getuid():
            connection.close()
            raise EnvironmentFault(
                f"user {uid} holds the name of this run's checkpoint writer",
                "trainer and writer belong to one user",
                "end that user's process, or copy the run directory to another place and resume it there",
            )
        connection.setblocking(False)
        self._bytes = bytearray()
        self._descriptors: list[int] = []
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, descriptors: tuple[int, ...] = (), **fields: Any) -> None:
        """OSError as it comes: a broken pipe, or TimeoutError from a peer that does not read."""
        body = json.dumps({"kind": kind, **fields}, allow_nan=False).encode()
        data = memoryview(struct.pack("<Q", len(body)) + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._socket.settimeout(SEND_SECONDS)
        try:
            sent = self._socket.sendmsg([data], rights)
            self._socket.sendall(data[sent:])
        finally:
            with contextlib.suppress(OSError):
                self._socket.setblocking(False)

    def drain(self) -> tuple[list[Message], bool]:
        """The whole messages that are there now, and whether the connection has ended behind them."""
        self._pull()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages, self._ended

    def receive(self, timeout_seconds: float) -> Message | None:
        """The next message; None at the end of the connection. TimeoutError when it does not come."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            message = self._take()
            if message is not None or self._ended:
                return message
            if not readable([self], max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise TimeoutError
            self._pull()

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._socket.close()

    def _pull(self) -> None:
        """Everything that has arrived, without waiting."""
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        while not self._ended:
            try:
                piece, rights, _, _ = self._socket.recvmsg(1 << 20, space, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                piece, rights = b"", []
            for level, kind, payload in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) // numbers.itemsize * numbers.itemsize])
                    self._descriptors.extend(numbers)
            self._ended = not piece
            self._bytes += piece

    def _take(self) -> Message | None:
        """A whole message out of what has arrived; noise ends the connection."""
        if len(self._bytes) < 8:
            return None
        length = struct.unpack("<Q", self._bytes[:8])[0]
        if not 0 < length <= MAX_MESSAGE_BYTES:
            self._ended = True
            return None
        if len(self._bytes) < 8 + length:
            return None
        body = bytes(self._bytes[8 : 8 + length])
        del self._bytes[: 8 + length]
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._ended = True
            self._bytes.clear()
            return None
        descriptors, self._descriptors = self._descriptors, []
        return Message(value, descriptors)


def readable(sources: Sequence[Any], timeout_seconds: float) -> list[Any]:
    """Those of ``sources`` (with a ``fileno``, or numbers) that have something to read; any number of them, and any numbers."""
    poll, by_number = select.poll(), {}
    for source in sources:
        number = source if isinstance(source, int) else source.fileno()
        if number >= 0:
            by_number[number] = source
            poll.register(number, select.POLLIN | select.POLLHUP)
    return [by_number[number] for number, _ in poll.poll(timeout_seconds * 1000)]


def connect(name: str) -> Channel | None:
    """To whoever listens under ``name``; None when nobody does, or when he lets everybody wait."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(SEND_SECONDS)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    return Channel(connection)


def listen(name: str) -> socket.socket | None:
    """A listening socket under ``name``; None when somebody has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(name)
    except OSError:
        listener.close()
        return None
    listener.listen(8)
    return listener
