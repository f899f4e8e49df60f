"""A rank of a toy trainer for nodes: rank 0 is the stand-in, the others only live as long as it trains."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from standin import StandIn

from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_steps


def idle(run: RunDirectory, segment: int) -> None:
    """Until the first rank has written its end, or nobody wants it any more."""
    gone = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: gone.set())

    def watch() -> None:
        while os.read(0, 4096):
            pass
        gone.set()

    threading.Thread(target=watch, daemon=True).start()
    while not gone.is_set():
        if any(row["kind"] == "end" for row in read_steps(run, segment)):
            return
        time.sleep(0.2)


if __name__ == "__main__":
    values = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    directory, number = RunDirectory(Path(sys.argv[1])), int(values["--segment"])
    if int(values.get("--rank", 0)) == 0:
        StandIn(directory, number).main()
    else:
        idle(directory, number)
