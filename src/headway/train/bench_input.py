"""Which limits a run: its input or its step. Three measurements on the real shapes (the verb ``bench-input``).

    resident   whole updates on one real batch that stays in memory: what the step takes when input is always there
    loader     batches alone, one after the other, on this thread: first over tokens never touched, then over the same again
    real       whole updates, each on its own batch from the prefetcher, as the loop of a run takes them

Resident and real take turns, a few updates each, so that what the machine does besides meets both alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headway.base.errors import ConfigError
from headway.data.place import CacheOptions
from headway.data.prefetch import Prefetcher
from headway.data.stream import Stream
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.train.feed import Feed, StepBatch
from headway.train.setup import PREFETCH_STEPS, TrainPolicy, open_data
from headway.train.step import train_step
from headway.train.trainee import Trainee, build_trainee

WARM_UP_STEPS, ROUNDS = 2, 4
MOST_LOADER_STEPS = 64


@dataclass(frozen=True)
class Request:
    """``first_step``: of the run, where to measure, 0-based. ``deployment`` resolved. ``seconds`` in all, about."""

    spec: Spec
    data: str
    deployment: dict[str, Any]
    first_step: int
    seconds: float

    @staticmethod
    def of(asked: dict[str, Any]) -> Request:
        return Request(**asked | {"spec": Spec.from_json(asked["spec"])})


def bench_input(request: Request) -> dict[str, Any]:
    """Plain numbers; what they say is for the desk. Rates are target tokens per second."""
    spec, policy = request.spec, TrainPolicy.of(request.deployment)
    torch.set_num_threads(policy.threads)
    schedule = Schedule(spec)
    if not 0 <= request.first_step < schedule.total_steps:
        raise ConfigError(f"there is no step {request.first_step + 1}", f"the run has steps 1 to {schedule.total_steps}")
    reader, _ = open_data(request.data, spec, CacheOptions.of(request.deployment))
    feed = Feed(Stream(spec), reader, schedule, policy.micro_batch_tokens)
    trainee = build_trainee(spec)
    steps = range(request.first_step, min(request.first_step + MOST_LOADER_STEPS, schedule.total_steps))
    cold = loader_alone(feed, steps, request.seconds / 6)
    warm = loader_alone(feed, range(steps.start, steps.start + cold["steps"]), request.seconds / 6)
    turns = take_turns(trainee, feed, request.first_step, request.seconds * 2 / 3)
    reader.close()
    place = schedule.place(request.first_step)
    return {
        "kind": "input_bench",
        "schema_version": 1,
        "first_step": request.first_step + 1,
        "sequence_length": spec.stages[place.stage].sequence_length,
        "batch_sequences": place.batch_sequences,
        "threads": torch.get_num_threads(),
        "loader": {"first_touch": cold, "again": warm},
        **turns,
        "sources": reader.traffic(),
        "remote": reader.is_remote,
    }


def loader_alone(feed: Feed, steps: range, seconds: float) -> dict[str, Any]:
    """At most ``steps``, until ``seconds`` are over."""
    began, cpu, done, targets = time.perf_counter(), time.thread_time(), 0, 0
    for step in steps:
        targets += feed.fetch(step).targets
        done += 1
        if time.perf_counter() - began >= seconds:
            break
    took, cpu_took = time.perf_counter() - began, time.thread_time() - cpu
    return {"steps": done, "seconds": took, "tokens_per_second": targets / took, "cpu_share": cpu_took / took}


def take_turns(trainee: Trainee, feed: Feed, first: int, seconds: float) -> dict[str, Any]:
    """Resident and real updates in turns; medians over all of each."""
    schedule = feed.schedule
    batch = feed.fetch(first)
    for _ in range(WARM_UP_STEPS):
        timed_update(trainee, batch, schedule, first)
    once = timed_update(trainee, batch, schedule, first)
    steps = max(2, min(round(seconds / (2 * ROUNDS * once)), (schedule.total_steps - first) // ROUNDS))
    resident: list[float] = []
    real: list[float] = []
    waits: list[float] = []
    at = first
    with Prefetcher(feed.fetch, first, PREFETCH_STEPS, end=schedule.total_steps) as batches:
        for _ in range(ROUNDS):
            resident += [timed_update(trainee, batch, schedule, first) / batch.targets for _ in range(steps)]
            for _ in range(min(steps, schedule.total_steps - at)):
                began = time.perf_counter()
                mine, wait_ns = batches.get(at)
                train_step(trainee, mine, schedule.rate(at))
                real.append((time.perf_counter() - began) / mine.targets)
                waits.append(wait_ns / 1e9 / mine.targets)
                at += 1
        counts = batches.counts()
    return {"resident": rates(resident), "real": rates(real) | {"wait_share": sum(waits) / sum(real)}, "prefetcher": counts}


def timed_update(trainee: Trainee, batch: StepBatch, schedule: Schedule, step: int) -> float:
    began = time.perf_counter()
    train_step(trainee, batch, schedule.rate(step))
    return time.perf_counter() - began


def rates(seconds_per_token: list[float]) -> dict[str, Any]:
    """Median, and the 10th and 90th percentile."""
    low, median, high = (1 / float(np.quantile(seconds_per_token, q)) for q in (0.9, 0.5, 0.1))
    return {"steps": len(seconds_per_token), "tokens_per_second": median, "low": low, "high": high}
