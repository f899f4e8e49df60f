"""``python -m headway.store.writer``: the process itself."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from headway.base import failpoints
from headway.base.clocks import SystemClock
from headway.rundir.layout import RunDirectory
from headway.store.writer.serve import Writer


def main(arguments: list[str]) -> int:
    """``python -m headway.store.writer RUN RANK DESCRIPTOR``: serve on the listening socket that was handed over."""
    root, rank, descriptor = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # it ends when its work does
        signal.signal(number, signal.SIG_IGN)
    run = RunDirectory.open(root)
    failpoints.arm(run.root, rank)
    listener = socket.socket(fileno=descriptor)
    listener.listen(8)  # again: now whoever connects sees this process as the one that listens
    Writer(run, rank, listener, SystemClock()).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
