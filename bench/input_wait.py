"""How long a training step waits for its input: the real loop's prefetcher, on the demo's shape and on built data.

    prefetch thread:  position -> windows -> queue          trainer:  get (timed) -> whole update

Prints one JSON object. The share is the time blocked in ``get`` over the time of the steps; the first step, which has
nothing to overlap with, is left out and shown apart.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.prefetch import Prefetcher
from headway.data.reader import TokenReader
from headway.data.stream import Stream
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.train.feed import Feed
from headway.train.setup import PREFETCH_STEPS
from headway.train.step import train_step
from headway.train.trainee import build_trainee

STEPS, MICRO_BATCH_TOKENS = 40, 8192


def measure() -> dict:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with TemporaryDirectory() as root:
        recipe = load_recipe("demo", ["stages.0.ramp=[{from='0', batch='4096'}]"])
        manifest = build_data(recipe, Path(root) / "data")
        spec = freeze(recipe, manifest)
        schedule = Schedule(spec)
        feed = Feed(Stream(spec), TokenReader.open(Path(root) / "data", spec), schedule, MICRO_BATCH_TOKENS)
        trainee = build_trainee(spec)
        waits, times = [], []
        with Prefetcher(feed.fetch, 0, PREFETCH_STEPS, end=STEPS) as batches:
            for step in range(STEPS):
                began = time.perf_counter_ns()
                batch, waited_ns = batches.get(step)
                train_step(trainee, batch, schedule.rate(step))
                waits.append(waited_ns)
                times.append(time.perf_counter_ns() - began)
    return {
        "bench": "input_wait",
        "steps": STEPS,
        "tokens_per_step": schedule.place(0).batch_sequences * spec.stages[0].sequence_length,
        "wait_over_step": sum(waits[1:]) / sum(times[1:]),
        "first_wait_ms": waits[0] / 1e6,
        "step_ms": sum(times[1:]) / len(times[1:]) / 1e6,
    }


if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=1)
