"""How long a run stands still: a worker that is killed, a node that dies. Prints JSON.

    worker kill -> first new step     against interpreter + import of torch + restore, measured in the same run
    node loss   -> first new step     a spare takes its place

The demo's recipe, small: what is measured is the supervisor's share. Times come from the records and from the moment of the
signal, both of this machine's boot clock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HEADWAY = [sys.executable, "-m", "headway.cli.main"]
SMALL = (
    "deployment.threads=1",
    "deployment.checkpoints.every_steps=10",
    "deployment.log.every_steps=1000",
    "deployment.state_digest_every=0",
)
FLEET = (
    "deployment.nodes=2",
    "deployment.layouts.default.dp_shard=2",
    'deployment.fleet.hosts=["a","b","spare"]',
    "deployment.fleet.start=[]",
)
KILL_AFTER_STEPS = 24


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def build(root: Path) -> None:
    subprocess.run([*HEADWAY, "data", "build", "demo", "--out", str(root / "data")], check=True, stdout=subprocess.DEVNULL)


def interrupted(root: Path, name: str, sets: tuple[str, ...], strike: Any) -> dict[str, Any]:
    """Run until the first new step after ``strike``; seconds of each part."""
    arguments = [part for key in sets for part in ("--set", key)]
    where = ["--data", str(root / "data"), "--run", str(root / name)]
    with subprocess.Popen([*HEADWAY, "run", "demo", *where, *arguments, "--json"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        launch: dict[str, Any] = {}
        best, struck_ns, marks = 0, 0, dict[str, int]()
        for line in process.stdout:
            record = json.loads(line)
            if record["kind"] == "launch":
                launch = record
            if struck_ns and record["kind"] in ("exit", "launch", "start", "restored"):
                marks.setdefault(record["kind"], record["stamp"]["boot_ns"])
                if record["kind"] == "restored":
                    restored = record
            if record["kind"] == "step" and struck_ns and record["stamp"]["boot_ns"] > marks.get("restored", 2**63):
                marks["step"] = record["stamp"]["boot_ns"]
                break
            if record["kind"] == "step" and not struck_ns and record["step"] >= KILL_AFTER_STEPS:
                best, struck_ns = record["step"], now_ns()
                strike(launch)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    at = {name: (ns - struck_ns) / 1e9 for name, ns in marks.items()}
    parts = {name: ns / 1e9 for name, ns in restored["phases_ns"].items()}
    return {"first_step_s": at["step"], "marks_s": at, "phases_s": parts, "struck_after_step": best}


def kill_worker(launch: dict[str, Any]) -> None:
    os.kill(launch["pid"], signal.SIGKILL)


def kill_node(launch: dict[str, Any]) -> None:
    rank = launch["ranks"][1]
    os.kill(rank["pid"], signal.SIGKILL)
    os.kill(rank["agent"], signal.SIGKILL)


def import_seconds(repeats: int = 3) -> float:
    """Interpreter and import of torch, alone."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        build(root)
        rows: dict[str, list[dict[str, Any]]] = {"worker": [], "node": []}
        floors = []
        for repeat in range(asked.repeats):
            floors.append(import_seconds())
            rows["worker"].append(interrupted(root, f"worker-{repeat}", SMALL, kill_worker))
            rows["node"].append(interrupted(root, f"node-{repeat}", (*SMALL, *FLEET), kill_node))
    floor = [alone + row["phases_s"]["restore"] for alone, row in zip(floors, rows["worker"], strict=True)]
    ratios = [row["first_step_s"] / least for row, least in zip(rows["worker"], floor, strict=True)]
    print(
        json.dumps(
            {
                "interpreter_and_import_s": round(statistics.median(floors), 3),
                "worker_kill_to_first_step_s": round(statistics.median(row["first_step_s"] for row in rows["worker"]), 3),
                "worker_kill_over_import_and_restore": round(statistics.median(ratios), 3),
                "node_loss_to_first_step_s": round(statistics.median(row["first_step_s"] for row in rows["node"]), 3),
                "runs": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
