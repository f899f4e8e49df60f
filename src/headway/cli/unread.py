"""What a verb prints that must go on when nobody reads it: a stopped pager, a terminal halted by Ctrl-S, a slow program.

    supervisor --print--> Outlet, text in memory --thread--> pipe or terminal, which may take nothing for hours

A supervisor that waits for its reader would look at no trainer and obey no signal meanwhile. What does not fit into the memory
that is set aside is left out, whole pieces at a time, and how much that was is told once there is room again.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

MOST_BYTES = 16 * 2**20
"""That wait for a reader: some hours of a run's rows."""


class Outlet(io.TextIOBase):
    """A text stream that never blocks; ``left_out``: the words that tell of so many pieces for which there was no room.

    A piece is what stands between two flushes. After an error of the descriptor (its reader is gone) writing raises it.
    """

    def __init__(self, descriptor: int, encoding: str, left_out: Callable[[int], str], most_bytes: int = MOST_BYTES):
        self._descriptor, self._encoding, self._left_out, self._most_bytes = descriptor, encoding, left_out, most_bytes
        self._piece: list[str] = []
        self._pieces: deque[bytes] = deque()
        self._bytes, self._missed, self._is_over = 0, 0, False
        self._error: OSError | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._drain, name="output", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._piece.append(text)
        return len(text)

    def flush(self) -> None:
        """Hands the piece over; OSError where its reader is gone."""
        text, self._piece = "".join(self._piece), []
        with self._change:
            if self._error is not None:
                raise self._error
            if text:
                self._take(text)
                self._change.notify_all()

    def end(self) -> None:
        """Returns when everything is written, or nobody is there to read it."""
        with contextlib.suppress(OSError):
            self.flush()
        with self._change:
            if self._missed and self._error is None:
                self._keep(self._left_out(self._missed))
            self._is_over = True
            self._change.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.2)  # with an end, so that a signal is obeyed in between

    def _take(self, text: str) -> None:
        if self._bytes + len(text) > self._most_bytes:
            self._missed += 1
            return
        if self._missed:
            self._keep(self._left_out(self._missed))
            self._missed = 0
        self._keep(text)

    def _keep(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        self._pieces.append(data)
        self._bytes += len(data)

    def _drain(self) -> None:
        while True:
            with self._change:
                while not self._pieces and not self._is_over:
                    self._change.wait()
                if not self._pieces:
                    return
                data = self._pieces[0]
            try:
                self._write(data)
            except OSError as error:
                with self._change:
                    self._error = error
                    self._pieces.clear()
                return
            with self._change:
                self._pieces.popleft()
                self._bytes -= len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # whoever opened it asked for that
                select.select([], [self._descriptor], [])


@contextlib.contextmanager
def unread_output(left_out: Callable[[int], str]) -> Iterator[None]:
    """While it lasts, standard output holds nobody up; then it waits for whoever reads, as any program does.

    A file takes everything at once, and is left as it is.
    """
    stream = sys.stdout
    try:
        descriptor = stream.fileno()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (AttributeError, OSError, ValueError):  # none at all, or one in memory
        is_file = True
    if is_file:
        yield
        return
    stream.flush()
    outlet = Outlet(descriptor, stream.encoding, left_out)
    sys.stdout = outlet
    try:
        yield
    finally:
        sys.stdout = stream
        outlet.end()
