"""Where the ranks of several nodes find each other: a store in a process of its own, beside the supervisor, on no node.

A node that dies takes no store with it, and the store lives through all attempts: each meets under a name of its own. Its socket
is bound before the process starts, to the one address that is stated, so that ranks may come before it answers, and no other
program can take the port.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from headway.base.errors import EnvironmentFault

_WAITING = 4096
"""Ranks that may come before the store answers."""


class Meeting:
    """The store, started when it is first needed, and again where it has died."""

    def __init__(self, address: str, verb: str = "store"):
        """``verb``: of the engine; ``lighthouse`` serves replica groups too."""
        self._address, self._verb = address, verb
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def place(self, segment: int) -> str:
        """Where the ranks of ``segment`` meet, as ``parallel/group.py`` reads it."""
        return f"tcp://{self.store()}/segment-{segment:04d}"

    def store(self) -> str:
        """Its address and port."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return f"{self._address}:{self._port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def has_died(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        """It reads that it is done with, and ends."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(b".")  # end of file alone says that the supervisor has died
                self._process.stdin.close()
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.bind((self._address, 0))
                listener.listen(_WAITING)
                self._port = listener.getsockname()[1]
                command = [sys.executable, "-m", "headway.engine", self._verb, "--address", self._address]
                self._process = subprocess.Popen(
                    [*command, "--port", str(self._port), "--descriptor", str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            raise EnvironmentFault(
                f"no store for the ranks at {self._address}: {error.strerror or error}",
                "fleet.address is an address of the machine that runs headway, one that all nodes reach",
                "state another fleet.address",
            ) from error
