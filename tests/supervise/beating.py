"""A rank without tensors that trains in step with others through files, and has a heartbeat: its work is sleep.

beating.json in the run directory: {steps, work_seconds, factors: {"RANK": factor from "slow_from" on}, slow_from, skew: {"RANK":
seconds}}. Every step waits until all ranks have come, as a collective does; the wait is counted as one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from headway.base.clocks import SystemClock
from headway.base.files import read_json
from headway.rundir.heartbeats import Heart, now_ns
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog


def meet(place: Path, rank: int, world: int, step: int, heart: Heart) -> None:
    """One byte per step in a file of one's own; gone on when all others have as many."""
    heart.blocked.since_ns = began = now_ns()
    with open(place / str(rank), "ab") as file:
        file.write(b".")
    paths = [place / str(other) for other in range(world)]
    while any(not path.exists() or path.stat().st_size < step for path in paths):
        time.sleep(0.001)
    heart.blocked.total_ns += now_ns() - began
    heart.blocked.count, heart.blocked.since_ns = heart.blocked.count + 1, 0


def main(root: Path, segment: int, rank: int, world: int) -> None:
    run, plan = RunDirectory(root), read_json(root / "beating.json")
    skew = plan.get("skew", {}).get(str(rank), 0)
    if skew:  # this host's realtime is wrong
        honest = time.time_ns
        time.time_ns = lambda: honest() + round(skew * 1e9)  # type: ignore[assignment]
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
    heart = Heart.start(run, segment, rank, world, every_seconds=0.1)
    log = None if rank else StepLog(run, segment, SystemClock())
    if log:
        log.write("start", pid=os.getpid())
        log.write("restored", step=0, checkpoint=None)
    place = run.segment(segment) / "meeting"
    place.mkdir(exist_ok=True)
    for step in range(plan["steps"]):
        factor = plan.get("factors", {}).get(str(rank), 1.0) if step >= plan.get("slow_from", 0) else 1.0
        heart.enter("data", step)
        heart.enter("compile" if step == 0 else "step", step)
        time.sleep(plan["work_seconds"] * factor)
        meet(place, rank, world, step + 1, heart)
        heart.stepped(step + 1, data_ns=0)
        if log:
            log.write("step", step=step + 1, stage="main", tokens=64 * (step + 1), targets=64, loss=2.0, grad_norm=1.0)
    if log:
        name = f"g{segment:04d}-s{plan['steps']:08d}"
        (run.checkpoints / name).write_text("whole")
        log.write("save", step=plan["steps"], checkpoint=name)
        log.write("end", step=plan["steps"], state="complete")
    meet(place, rank, world, plan["steps"] + 1, heart)


if __name__ == "__main__":
    named = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    main(Path(sys.argv[1]), int(named["--segment"]), int(named.get("--rank", 0)), int(named.get("--world", 1)))
