"""How far the planner's predictions are from published measurements. Prints JSON for ``make bench``.

Step times (``fit_step_time.py``), days of whole runs (``plan_runs.py``), choice among measured layouts, and how long a plan and a
search take. Memory has its own table (``plan_memory.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fit_step_time import judge, summary
from headway.plan.failure.faults import Nodes, Pauses, SimulatedRun, Tier, published_faults
from headway.plan.failure.simulate import simulate
from headway.plan.layout.search import rank_layouts, search
from headway.plan.work import Work
from plan_rows import LLAMA, cluster, vtrain
from plan_runs import predicted_days, runs

ROOT = Path(__file__).resolve().parents[1]


def whole_runs() -> dict[str, Any]:
    """Every run with its convention."""
    rows = [(run, predicted_days(run)) for run in runs()]
    found = np.array([days / run.days - 1 for run, days in rows])
    table = [
        [run.name, round(run.days, 2), round(days, 2), round(100 * (days / run.days - 1), 1), run.convention, run.layout_from]
        for run, days in rows
    ]
    return summary(found) | {"rows_published_predicted_percent": table}


def choices(reference: Path) -> dict[str, float]:
    """Per vtrain model: measured time of the layout that the search chooses, over the best measured one."""
    rows, found = vtrain(reference), {}
    for family in dict.fromkeys(row.family for row in rows):
        measured = [row for row in rows if row.family == family]
        work, where = measured[0].work, measured[0].cluster
        best = rank_layouts(work, where, [row.layout for row in measured]).best
        assert best is not None
        chosen = min(row.seconds for row in measured if row.layout == best.layout)
        found[f"{family} chosen over best measured"] = round(chosen / min(row.seconds for row in measured), 3)
    return found


def seconds_of(action: Any, repeats: int = 3) -> float:
    """Least of some repeats."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


DEVICES = 16_384
DAY, HOUR = 86_400.0, 3_600.0


def long_run() -> SimulatedRun:
    """70 useful days on 16,384 devices, a fault every three hours of the classes that such a run met, tiers and shrinking."""
    host = Tier(name="host memory", every_seconds=120.0, save_seconds=0.2, restore_seconds=5.0, survives=ONLY_PROCESSES, keep=2)
    kept = Tier(name="storage, kept for good", every_seconds=4 * HOUR, restore_seconds=10.0)
    newest = Tier(name="storage", every_seconds=1_800.0, save_seconds=3.0, restore_seconds=10.0, keep=2)
    return SimulatedRun(
        useful_seconds=70 * DAY,
        between_seconds=3 * HOUR,
        tiers=(host, kept, newest),
        restart_seconds=360.0,
        faults=published_faults(detection_seconds=30.0),
        nodes=Nodes(standby=16, repair_seconds=DAY, shrunken_pace=1 - 8 / DEVICES, reconfigure_seconds=90.0),
        pauses=(Pauses(what="firmware", every_seconds=30 * DAY, seconds=4 * HOUR),),
    )


ONLY_PROCESSES = {fault.name: float(fault.name == "process") for fault in published_faults()}


def speed() -> dict[str, float]:
    """After imports, on one core."""
    from headway.cli.describe import describe, spec_of
    from headway.plan.plan import make_plan

    description = describe("beacon", (), None, runnable=False)
    spec = spec_of(description, None)
    run = long_run()
    work, where = Work(model=LLAMA["405B"], sequence=8192, batch=2048), cluster("H100-SXM", DEVICES)
    return {
        "beacon_plan_ms": round(1e3 * seconds_of(lambda: make_plan(spec, description.deployment).to_json(), 5), 1),
        "search_16384_s": round(seconds_of(lambda: search(work, where)), 2),
        "simulate_1000_runs_s": round(seconds_of(lambda: simulate(run, runs=1_000), 1), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = os.environ.get("HEADWAY_REFERENCE", str(ROOT.parent / "shared" / "reference"))
    parser.add_argument("--reference", type=Path, default=Path(default))
    options = parser.parse_args()
    found = judge(options.reference)
    json.dump(found | {"whole_runs": whole_runs(), "choices": choices(options.reference), "speed": speed()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
