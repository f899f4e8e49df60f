"""Processes that end at once when whoever asked for their work does: for work whose every result appears whole.

Who asked is told by the one that starts the process. To look at one's own parent instead is to look too late: importing takes
seconds, and a process whose parent has gone meanwhile has been given another one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from typing import Any

from headway.base.errors import EXIT_RUN

LOOK_SECONDS = 0.5


def end_with(owner: int) -> None:
    """From now on this process ends when its parent, which is ``owner`` (a process id), has ended, or did so already."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(LOOK_SECONDS)
        os._exit(EXIT_RUN)

    threading.Thread(target=watch, daemon=True, name="owner-watch").start()


def tell_owner(**what: Any) -> None:
    """A line of JSON on stdout. Where nobody reads it any more, this process ends as ``end_with`` does, only sooner."""
    try:
        print(json.dumps(what), flush=True)
    except BrokenPipeError:
        os._exit(EXIT_RUN)


def end_with_starter() -> None:
    """The same for a process of ``multiprocessing``, which knows who started it even where another process forked it."""
    starter = multiprocessing.parent_process()
    if starter is None:
        return

    def watch() -> None:
        starter.join()
        os._exit(EXIT_RUN)

    threading.Thread(target=watch, daemon=True, name="owner-watch").start()
