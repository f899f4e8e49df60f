"""What watching costs a step: heartbeats, timed waits, the pulse's thread, the supervisor's own looks. Prints one JSON object.

    python bench/supervise.py [--pairs 60]

Two ways that check each other. Parts: each is timed alone, many times, and set against the step. Whole: the same training steps
with a heartbeat and without, alternating in one process; the median of the pairs' ratios with its 95 % interval (bootstrap).
CPU time of the process counts in both, so that others on the machine do not; it holds the step, the pulse's thread and all.

The step is the demo's with 1,024 tokens: shorter than any that trains a real model, so the shares are upper bounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from headway.base.clocks import SystemClock
from headway.parallel.waits import _timed
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.schedules import Schedule
from headway.rundir.heartbeats import DATA, STEP, Blocked, Heart
from headway.rundir.layout import RunDirectory
from headway.supervise.options import SuperviseOptions
from headway.supervise.patience import Patience
from headway.supervise.ranks import RankWatch
from headway.train.calibrate import random_batch
from headway.train.step import train_step
from headway.train.trainee import build_trainee

TOKENS, WARM_UP, CALLS, RANKS = 1024, 5, 5000, 8
WAITS_PER_STEP = 200
"""More than the demo has on any layout: two per layer and pass, and those of norms, sums and loads."""
QUIET_SECONDS = 5.0


def of_parts(run: RunDirectory) -> dict[str, float]:
    """CPU microseconds per call, and CPU seconds per second of what goes on beside the steps."""
    heart = Heart.start(run, 1, 0, 1)
    began = time.thread_time()
    for step in range(CALLS):
        heart.enter(DATA, step)
        heart.enter(STEP, step)
        heart.stepped(step + 1, data_ns=1)
    per_step = (time.thread_time() - began) / CALLS
    timed = _timed(lambda: None, Blocked())
    began = time.thread_time()
    for _ in range(CALLS * 20):
        timed()
    per_wait = (time.thread_time() - began) / (CALLS * 20)
    began = time.process_time()
    time.sleep(QUIET_SECONDS)
    pulse = (time.process_time() - began) / QUIET_SECONDS
    heart.close()
    return {"heartbeat_us_per_step": 1e6 * per_step, "wait_us": 1e6 * per_wait, "pulse_cpu_share": pulse}


def of_looks(run: RunDirectory) -> dict[str, float]:
    """The supervisor's: one look at each rank per second, while each does ten steps in it."""
    hearts = [Heart.start(run, 2, rank, RANKS) for rank in range(RANKS)]
    options = SuperviseOptions(beat_seconds=0.0)
    patience = Patience(floor_seconds=120.0, factor=8.0, generous_seconds=1800.0)
    clock = SystemClock()
    now = SimpleNamespace(run=run, options=options, patience=patience, clock=clock, record=lambda kind, **fields: None)
    watch = SimpleNamespace(**vars(now), now_ns=lambda: clock.stamp().boot_ns)
    ranks, spent, looks = RankWatch(watch, 2, RANKS), 0.0, 100  # type: ignore[arg-type]
    for step in range(10 * looks):
        for heart in hearts:
            heart.enter(STEP, step)
            heart.stepped(step + 1, data_ns=1)
        if step % 10 == 9:
            began = time.thread_time()
            ranks._look(watch.now_ns())
            spent += time.thread_time() - began
    ranks.close()
    for heart in hearts:
        heart.close()
    return {"look_us_per_rank": 1e6 * spent / looks / RANKS}


def of_steps(run: RunDirectory, pairs: int) -> dict[str, Any]:
    """CPU time of whole steps with a heartbeat over that without, in pairs whose order alternates."""
    recipe = load_recipe("demo", [f"stages.0.ramp=[{{from='0', batch='{TOKENS}'}}]"])
    spec = resolve(recipe, None)
    batch, trainee = random_batch(spec, Schedule(spec), TOKENS), build_trainee(spec)
    heart, step = Heart.start(run, 3, 0, 1), 0
    ratios, plain = list[float](), list[float]()

    def one(beats: bool) -> float:
        nonlocal step
        began = time.process_time()
        if beats:
            heart.enter(DATA, step)
            heart.enter(STEP, step)
        train_step(trainee, batch, rate=0.0)
        if beats:
            heart.stepped(step + 1, data_ns=1)
        step += 1
        return time.process_time() - began

    for pair in range(WARM_UP + pairs):
        first = pair % 2 == 0
        times = {first: one(first)}
        times[not first] = one(not first)
        if pair >= WARM_UP:
            ratios.append(times[True] / times[False])
            plain.append(times[False])
    heart.close()
    draws = np.random.default_rng(0).choice(ratios, size=(2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return {
        "pairs": pairs,
        "step_cpu_ms": 1e3 * statistics.median(plain),
        "with_over_without": statistics.median(ratios),
        "with_over_without_interval": {"low": float(low), "high": float(high)},
    }


def measure(pairs: int) -> dict[str, Any]:
    torch.set_num_threads(1)  # CPU time of several varies with how long they wait for each other
    with TemporaryDirectory() as root:
        run = RunDirectory(Path(root))
        for segment in (1, 2, 3):
            run.segment(segment).mkdir(parents=True)
        parts, looks, steps = of_parts(run), of_looks(run), of_steps(run, pairs)
    in_step = parts["heartbeat_us_per_step"] + WAITS_PER_STEP * parts["wait_us"]
    return {
        "bench": "supervise",
        "tokens_per_step": TOKENS,
        "heartbeats": parts | looks | {"waits_per_step": WAITS_PER_STEP},
        "steps": steps,
        "overhead_share_of_parts": in_step / (1e3 * steps["step_cpu_ms"])
        + parts["pulse_cpu_share"]
        + 1e-6 * looks["look_us_per_rank"],
        "overhead_share_allowed": 0.005,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    json.dump(measure(parser.parse_args().pairs), sys.stdout, indent=1)
