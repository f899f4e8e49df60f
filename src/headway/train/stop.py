"""Who may end a run early: a termination signal, or the loss of the supervisor (end of file on stdin).

With several ranks a signal reaches each at another moment. What one of them wishes becomes a stop for all when they agree.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from headway.train.crew import Crew


class StopRequest:
    """Set once, from a signal handler or the watching thread; read at the boundaries of the loop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def on_signals(self) -> StopRequest:
        """Ask for a stop on SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda n, _frame: self.ask(f"signal {signal.Signals(n).name}"))
        signal.signal(signal.SIGUSR1, lambda n, _frame: None)  # a batch system's warning is the supervisor's to answer
        return self

    def on_owner_gone(self) -> StopRequest:
        """Ask for a stop when stdin ends: the supervisor holds the other end of that pipe."""

        def watch(descriptor: int) -> None:
            while os.read(descriptor, 4096):
                pass
            self.ask("the supervisor is gone")

        threading.Thread(target=watch, args=(sys.stdin.fileno(),), daemon=True, name="owner-watch").start()
        return self


class Stop:
    """What the loop obeys: the process's own wish when alone, and what was agreed last, the same on all ranks."""

    def __init__(self, own: StopRequest, crew: Crew):
        self.own, self._crew, self._agreed = own, crew, False

    def __bool__(self) -> bool:
        return self._agreed or (bool(self.own) and not self._crew.together)

    @property
    def reason(self) -> str | None:
        """None: nobody asked."""
        return self.own.reason or ("another rank was asked to stop" if self._agreed else None)

    def agreed(self, wish: bool) -> bool:
        """Take up what was agreed elsewhere; there is no way back."""
        self._agreed = self._agreed or wish
        return bool(self)

    def agree(self) -> bool:
        """All ranks at once."""
        return self.agreed(self._crew.anybody(bool(self.own)))
