"""Short trainings side by side for a sweep (the verb ``mup-trials``): each trains a Spec to its end and leaves one record.

    OUT/trials/ID.json   appears whole when the trial has ended, diverged ones too; what is there is not trained again

A trial is the real step on the real stream, without checkpoints: cut off, it begins anew. Trials do not talk to each other, so
as many run as there are cores, one thread each, the largest first.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.base.digests import sealed
from headway.base.errors import ConfigError
from headway.base.files import read_json, write_json
from headway.base.owner import end_with_starter
from headway.data.stream import Stream
from headway.evaluate.held_out import held_out_loss, windows_at_once
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.train.environment import full_environment
from headway.train.feed import Feed
from headway.train.setup import open_data
from headway.train.step import must_stop, train_step
from headway.train.trainee import Trainee, build_trainee

MICRO_BATCH_TOKENS = 4096
DIVERGED = 3.0
"""A loss so many nats above that of the first step ends a trial: it has nothing more to say."""


@dataclass(frozen=True)
class Job:
    """One trial: what its record repeats, the path of its Spec, where the record goes."""

    trial: dict[str, Any]
    spec: Path
    record: Path
    data: Path


def run_trials(plan: Path, out: Path, data: Path, workers: int) -> dict[str, int]:
    """Train what has no record yet. Returns counts: done (of which failed: diverged), skipped."""
    content = read_json(plan, "mup_plan")
    directory = out / "trials"
    directory.mkdir(parents=True, exist_ok=True)
    jobs = [Job(t, plan.parent / t["spec"], directory / f"{t['id']}.json", data) for t in content["trials"]]
    missing = sorted((job for job in jobs if not job.record.exists()), key=lambda job: -job.trial["width"])
    if workers == 1:
        failed = sum(map(run_trial, missing))
    else:
        with _pool(workers) as pool:
            failed = sum(pool.map(run_trial, missing))
    return {"done": len(missing), "skipped": len(jobs) - len(missing), "failed": failed}


def _pool(workers: int) -> ProcessPoolExecutor:
    """Each worker ends with this process, whatever ends it."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_starter)


def run_trial(job: Job) -> bool:
    """Train one Spec to its end and write its record; True if it diverged."""
    torch.set_num_threads(1)
    spec = Spec.from_json(read_json(job.spec, "spec"))
    start = time.perf_counter()
    reader, _ = open_data(job.data, spec)
    schedule = Schedule(spec)
    feed = Feed(Stream(spec, ()), reader, schedule, MICRO_BATCH_TOKENS)
    trainee = build_trainee(spec)
    losses = train_losses(trainee, feed, schedule)
    finished = len(losses) == schedule.total_steps
    held_out = _held_out(trainee, feed) if finished else math.nan
    diverged = not math.isfinite(held_out)
    tail = losses[-max(1, schedule.total_steps // 10) :]
    record = {
        "kind": "mup_trial",
        "schema_version": 2,
        **{key: value for key, value in job.trial.items() if key != "spec"},
        "spec_digest": spec.digest(),
        "tokens": schedule.tokens_before(len(losses)),
        "steps": len(losses),
        "loss": None if diverged else held_out,
        "train_loss": None if diverged else math.fsum(tail) / len(tail),
        "diverged": diverged,
        "seconds": time.perf_counter() - start,
        "versions": {key: str(value) for key, value in full_environment().items()},
    }
    write_json(job.record, sealed(record))
    return diverged


def train_losses(trainee: Trainee, feed: Feed, schedule: Schedule) -> list[float]:
    """Of every step, up to one that says that the trial has diverged, by the rule that ends a run or by its loss."""
    losses: list[float] = []
    skipped = 0
    for step in range(schedule.total_steps):
        result = train_step(trainee, feed.fetch(step), schedule.rate(step))
        skipped = 0 if result.applied else skipped + 1
        if must_stop(trainee.spec.stability, skipped) or (losses and not result.loss <= losses[0] + DIVERGED):
            break
        losses.append(result.loss)
    return losses


def _held_out(trainee: Trainee, feed: Feed) -> float:
    """Mean nats per target over the held-out text of all sources together."""
    spec, stage = trainee.spec, trainee.spec.stages[-1]
    T, results = stage.sequence_length, []
    for source in spec.sources:
        batches = feed.reader.held_out_batches(source.name, T, windows_at_once(T), spec.evaluation.tokens_per_source)
        results.append(held_out_loss(trainee.compute, batches, stage.rope))
    targets = sum(result.targets for result in results)
    if not targets:
        raise ConfigError(
            "there is no held-out text to judge a trial by",
            "a sweep compares held-out losses",
            "set data.held_out, and evaluation.tokens_per_source to at least one sequence",
        )
    return math.fsum(result.nll_sum for result in results) / targets
