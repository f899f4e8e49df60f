"""Goodput of a simulated 16,384-GPU run that is interrupted as often as Llama 3's: 419 times in 54 days (arXiv 2407.21783).

    python bench/goodput.py [--runs 400]

    ours                     every save in host memory and on the storage, at Daly's interval for what a save costs
    one 30-minute tier       the storage alone, training stands while it is written; all else alike
    ... and a 6-minute restart, as the Beacon plan has it: what such a run is usually planned with

Costs are put together from parts that were measured (docs/results/checkpoint.json, and how long an interpreter takes to import
the engine, measured here) and parts that a run of that size has and this machine has not; those are named under "assumed".
Goodput is first passes over the data in all time; input waits and evaluations are no part of the simulation. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.formulas.checkpoint_interval import daly_interval_seconds
from headway.formulas.failure_rates import LLAMA_3_DAYS, LLAMA_3_INTERRUPTIONS
from headway.formulas.parameters import count_parameters
from headway.monitor.interval import FLUSH_ROOM
from headway.plan.failure.faults import FaultClass, Nodes, Pauses, SimulatedRun, Tier, published_faults
from headway.plan.failure.outcome import CATEGORIES
from headway.plan.failure.simulate import simulate
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve

DAY, GIB = 86_400.0, 2**30
DEVICES, PER_NODE = 16_384, 8
BYTES_PER_PARAMETER = 12  # fp32 weights and two moments, as this engine writes them
TARGET = 0.97

ASSUMED = {
    "storage_bytes_per_second": 2e12,  # arXiv 2407.21783: sustained 2 TB/s
    "group_seconds": 30.0,  # arXiv 2402.15627: "under 30 seconds" for more than 10,000 GPUs
    "first_step_seconds": 30.0,  # memory, kernels, the pipeline fills
    "exit_seen_seconds": 10.0,  # a process or a node that is gone: keep-alives
    "hang_seen_seconds": 120.0,  # network faults stop without a word: supervise.hang_floor
    "silent_seen_seconds": 600.0,  # replicas' digests compared every 100 steps of 5.9 s
    "standby_nodes": 16,
    "repair_seconds": DAY,
}
PLAN_SILENT_SECONDS = 4 * 3600.0  # what plans assume of a run without such a comparison
PLANNED, PAUSE_SECONDS = 47, 300.0  # interruptions that were planned, beside the 419; their length is not published: assumed
BEACON_RESTART = 360.0
HALF_HOUR = 1800.0


def import_seconds() -> float:
    """The quickest of three interpreters that import what a trainer imports."""

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import headway.train.loop"], check=True)
        return time.perf_counter() - began

    return min(once() for _ in range(3))


def stored(name: str) -> dict[str, Any]:
    path = Path(__file__).resolve().parents[1] / "docs" / "results" / f"{name}.json"
    return json.loads(path.read_text())["figures"]


def costs() -> dict[str, float]:
    """Seconds. The ranks of a node share its memory and its cores, so a node's part is charged as if they took turns."""
    checkpoint = stored("checkpoint")
    one = checkpoint["speeds_1_gib"]["seconds_of_each"]
    parameters = count_parameters(resolve(load_recipe("llama3-405b"), None).model).total
    state_bytes = parameters * BYTES_PER_PARAMETER
    node_gib = state_bytes / DEVICES * PER_NODE / GIB
    moved = state_bytes / ASSUMED["storage_bytes_per_second"]
    imports = import_seconds()
    found = {
        "state_bytes": float(state_bytes),
        "node_gib": node_gib,
        "import_seconds": imports,
        "snapshot_seconds": one["save_blocking"] * node_gib,
        "flush_slows_seconds": checkpoint["training_1_gib"]["lost_seconds_per_gib_median"] * node_gib,
        "flush_seconds": max(moved, one["save_durable"] * node_gib) + checkpoint["many_ranks"]["commit_seconds"],
        "load_seconds": max(moved, one["load"] * node_gib),
        "write_standing_seconds": moved,
        "restart_seconds": imports + ASSUMED["group_seconds"] + ASSUMED["first_step_seconds"],
        "between_seconds": LLAMA_3_DAYS * DAY / LLAMA_3_INTERRUPTIONS,
    }
    save = found["snapshot_seconds"] + found["flush_slows_seconds"]
    best = daly_interval_seconds(save, found["between_seconds"])
    return found | {"save_seconds": save, "interval_seconds": max(best, FLUSH_ROOM * found["flush_seconds"])}


def classes(silent_seconds: float) -> tuple[FaultClass, ...]:
    """Of the published log, with the time until each is seen."""
    seen = {"network": ASSUMED["hang_seen_seconds"], "silent": silent_seconds}
    made = published_faults(ASSUMED["exit_seen_seconds"])
    return tuple(replace(one, detection_seconds=seen.get(one.name, one.detection_seconds)) for one in made)


def run_of(tiers: tuple[Tier, ...], cost: Mapping[str, float], restart: float, silent: float) -> SimulatedRun:
    return SimulatedRun(
        useful_seconds=LLAMA_3_DAYS * DAY * TARGET,
        between_seconds=cost["between_seconds"],
        tiers=tiers,
        restart_seconds=restart,
        faults=classes(silent),
        nodes=Nodes(standby=int(ASSUMED["standby_nodes"]), repair_seconds=ASSUMED["repair_seconds"]),
    )


def our_tiers(cost: Mapping[str, float]) -> tuple[Tier, ...]:
    """One save passes both places; memory outlives processes alone, and every half hour one is kept for good."""
    every, load = cost["interval_seconds"], cost["load_seconds"]
    gone = {"node": 0.0, "network": 0.0, "silent": 0.0}
    return (
        Tier(name="host memory", every_seconds=every, save_seconds=cost["save_seconds"], survives=gone, keep=1),
        Tier(name="kept for good", every_seconds=HALF_HOUR, restore_seconds=load),
        Tier(name="storage", every_seconds=every, restore_seconds=load, keep=2),
    )


def one_tier(cost: Mapping[str, float]) -> tuple[Tier, ...]:
    return (
        Tier(
            name="storage",
            every_seconds=HALF_HOUR,
            save_seconds=cost["write_standing_seconds"],
            restore_seconds=cost["load_seconds"],
        ),
    )


def told(run: SimulatedRun, runs: int) -> dict[str, Any]:
    outcome = simulate(run, runs=runs, seed=8)
    wall = float(outcome.wall_seconds.mean())
    return {
        "goodput_share": outcome.goodput.mean,
        "goodput_share_p5": outcome.goodput.p5,
        "goodput_share_p95": outcome.goodput.p95,
        "days": wall / DAY,
        "interruptions": outcome.interruptions.mean,
        "lost": {name: outcome.time(name).mean / wall for name in CATEGORIES if name != "productive" and outcome.time(name).mean},
    }


def longest(run_with: Callable[[float], SimulatedRun], most: float, runs: int) -> float:
    """Seconds with which the mean goodput is still ``TARGET``, to a hundredth of ``most``."""
    low, high = 0.0, most
    while high - low > most / 100:
        middle = (low + high) / 2
        goodput = simulate(run_with(middle), runs=runs, seed=8).goodput.mean
        low, high = (middle, high) if goodput >= TARGET else (low, middle)
    return low


def measure(runs: int) -> dict[str, Any]:
    cost = costs()
    restart, silent = cost["restart_seconds"], ASSUMED["silent_seen_seconds"]
    ours, single = run_of(our_tiers(cost), cost, restart, silent), run_of(one_tier(cost), cost, restart, silent)
    pauses = (Pauses(every_seconds=LLAMA_3_DAYS * DAY / PLANNED, seconds=PAUSE_SECONDS),)
    few = max(50, runs // 5)
    return {
        "bench": "goodput",
        "devices": DEVICES,
        "runs": runs,
        "measured_costs": cost,
        "assumed": ASSUMED,
        "ours": told(ours, runs),
        "one_30_minute_tier": told(single, runs),
        "one_30_minute_tier_6_minute_restart": told(replace(single, restart_seconds=BEACON_RESTART), runs),
        "ours_with_planned_pauses": told(replace(ours, pauses=pauses), runs),
        "ours_silent_faults_seen_after_4_hours": told(run_of(our_tiers(cost), cost, restart, PLAN_SILENT_SECONDS), runs),
        "longest_restart_seconds_for_97_percent": longest(lambda seconds: replace(ours, restart_seconds=seconds), 600.0, few),
        "latest_silent_fault_seen_seconds_for_97_percent": longest(
            lambda seconds: run_of(our_tiers(cost), cost, restart, seconds), PLAN_SILENT_SECONDS, few
        ),
        "spare_nodes_share": ASSUMED["standby_nodes"] * PER_NODE / DEVICES,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="simulated histories of each variant")
    json.dump(measure(parser.parse_args().runs), sys.stdout, indent=1)
