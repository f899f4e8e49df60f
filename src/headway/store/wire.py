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
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.base.digests import digest_bytes
from headway.base.errors import EnvironmentFault

MAX_MESSAGE_BYTES = 1 << 30
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
    """One end of a connection. ``receive`` gives None at its end. ``peer_pid``: for who connects, the process that listens."""

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

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, descriptors: tuple[int, ...] = (), **fields: Any) -> None:
        """OSError (a broken pipe, say) as it comes."""
        body = json.dumps({"kind": kind, **fields}, allow_nan=False).encode()
        data = memoryview(struct.pack("<Q", len(body)) + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self._socket.sendmsg([data], rights)
        self._socket.sendall(data[sent:])

    def receive(self, timeout_seconds: float | None = None) -> Message | None:
        """The next message. TimeoutError when it does not come; a connection that breaks off has ended."""
        self._socket.settimeout(timeout_seconds)
        descriptors: list[int] = []
        try:
            head = self._exactly(8, descriptors)
            length = struct.unpack("<Q", head)[0] if head else 0
            body = self._exactly(length, descriptors) if 0 < length <= MAX_MESSAGE_BYTES else b""
            value = json.loads(body) if body else None
        except TimeoutError:
            raise
        except (OSError, ValueError):
            value = None
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        if not isinstance(value, dict):
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        return Message(value, descriptors)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int, descriptors: list[int]) -> bytes:
        """Empty where the other side ends before."""
        data = bytearray()
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        while len(data) < count:
            piece, rights, _, _ = self._socket.recvmsg(min(count - len(data), 1 << 20), space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, payload in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) // numbers.itemsize * numbers.itemsize])
                    descriptors.extend(numbers)
            if not piece:
                return b""
            data += piece
        return bytes(data)


def connect(name: str) -> Channel | None:
    """To whoever listens under ``name``; None when nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(name)
    except (ConnectionRefusedError, FileNotFoundError):
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
