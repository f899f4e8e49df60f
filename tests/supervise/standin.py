"""A trainer without tensors: keeps the protocol, and does what ``standin.json`` in the run directory tells it.

standin.json: {steps, save_every, step_seconds, faults: {"SEGMENT": {at, how}}, ignore_term}. A save is a small file
checkpoints/gNNNN-sNNNNNNNN and a save row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from headway.base.clocks import SystemClock
from headway.base.files import read_json, write_json
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.segments import read_segments


class StandIn:
    def __init__(self, run: RunDirectory, segment: int):
        self.run = run
        self.plan = read_json(run.root / "standin.json")
        self.segment = next(s for s in read_segments(run) if s.id == segment)
        self.log = StepLog(run, segment, SystemClock())
        self.stop = ""
        self.fault = self.plan.get("faults", {}).get(str(segment)) or self.plan.get("faults", {}).get("*") or {}
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self.plan.get("ignore_term") else self.on_term)
        threading.Thread(target=self.watch_owner, daemon=True).start()

    def on_term(self, number: int, frame: object) -> None:
        self.stop = "SIGTERM"

    def watch_owner(self) -> None:
        while os.read(0, 4096):
            pass
        self.stop = "the owner is gone"

    def act(self, step: int) -> None:
        if self.fault.get("at") != step:
            return
        how = self.fault["how"]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "helper":  # leaves a child in the session, then dies
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=False)
            (self.run.root / "helper.pid").write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        elif how.startswith("exit"):
            code = int(how[4:])
            if code:
                problems = [{"seen": f"broken on purpose at step {step}", "rule": "", "way_out": "", "where": ""}]
                write_json(
                    self.run.segment(self.segment.id) / "error.json",
                    {"label": "run failed", "problems": problems, "exit_code": code},
                )
            print("last words", flush=True)
            os._exit(code)

    def main(self) -> None:
        self.log.write("start", pid=os.getpid())
        step = self.segment.restored_step
        self.log.write("restored", step=step, checkpoint=self.segment.checkpoint)
        self.act(0)
        while step < self.plan["steps"] and not self.stop:
            time.sleep(self.plan.get("step_seconds", 0.002))
            step += 1
            self.log.write("step", step=step, stage="main", tokens=step * 64, targets=64, loss=2.0, grad_norm=1.0)
            if step == 1:
                self.log.write("evaluation", step=step, loss={"code": 2.0}, tokens=64)
            if step % self.plan.get("save_every", 5) == 0:
                self.save(step)
            self.act(step)
        self.save(step)
        self.log.write("end", step=step, state="stopped" if self.stop else "complete")

    def save(self, step: int) -> None:
        name = f"g{self.segment.id:04d}-s{step:08d}"
        (self.run.checkpoints / name).write_text("whole")
        self.log.write("save", step=step, checkpoint=name)


if __name__ == "__main__":
    root, flag, number = sys.argv[1:]
    StandIn(RunDirectory(Path(root)), int(number)).main()
    print(json.dumps({"done": True}))
