"""A short measurement of this machine on the real shapes of a Spec (the verb ``calibrate``).

Whole updates of the real step on random tokens: what it times is what will run. The spread of the steps gives the range.
"""

from __future__ import annotations

import secrets
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from headway.base.errors import EnvironmentFault
from headway.base.files import write_json
from headway.checkpoint.digest import state_digest
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.data.windows import WindowBatch
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import peak_bytes
from headway.train.feed import StepBatch
from headway.train.step import context_of, train_step
from headway.train.trainee import Trainee, build_trainee

WARM_UP_STEPS, REPEATS, SAVES = 2, 7, 3


def calibrate(spec: Spec, *, seconds: float, threads: int, micro_batch_tokens: int) -> dict[str, Any]:
    """Time whole updates for about ``seconds``. Rates are tokens per second; low and high are the 10th and 90th percentile."""
    torch.set_num_threads(threads)
    trainee = build_trainee(spec)
    schedule = Schedule(spec)
    batch = random_batch(spec, schedule, micro_batch_tokens)
    times = time_steps(trainee, batch, seconds)
    tokens = batch.targets
    return {
        "kind": "calibration",
        "schema_version": 1,
        "tokens_per_second": tokens / float(np.median(times)),
        "low": tokens / float(np.quantile(times, 0.9)),
        "high": tokens / float(np.quantile(times, 0.1)),
        "steps_timed": len(times),
        "tokens_per_step": tokens,
        "evaluation_tokens_per_second": evaluation_rate(trainee, batch),
        "seconds_per_save": seconds_per_save(trainee),
        "digest_seconds": median_seconds(lambda: state_digest(trainee.state())),
        "peak_bytes": peak_bytes(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def random_batch(spec: Spec, schedule: Schedule, micro_batch_tokens: int) -> StepBatch:
    """A batch of the longest phase's size, each row one document; its values do not matter."""
    place = schedule.place(schedule.total_steps // 2)
    T = spec.stages[place.stage].sequence_length
    size = max(1, micro_batch_tokens // T)
    generator = np.random.default_rng(0)

    def window(rows: int) -> WindowBatch:
        tokens_BT1 = generator.integers(0, spec.model.vocabulary, (rows, T + 1), dtype=np.int64)
        document_BT = np.repeat(np.arange(2, dtype=np.int32), [T // 2, T - T // 2])[None].repeat(rows, 0)
        position_BT = np.concatenate([np.arange(T // 2), np.arange(T - T // 2)]).astype(np.int64)[None].repeat(rows, 0)
        source_B = np.zeros(rows, np.int64)
        return WindowBatch(tokens_BT1[:, :-1], tokens_BT1[:, 1:], document_BT, position_BT, source_B)

    rows = place.batch_sequences
    parts = [range(at, min(at + size, rows)) for at in range(0, rows, size)]
    return StepBatch(place, tuple(window(len(part)) for part in parts), rows * T, tuple(map(tuple, parts)))


def time_steps(trainee: Trainee, batch: StepBatch, seconds: float) -> list[float]:
    for _ in range(WARM_UP_STEPS):
        train_step(trainee, batch, rate=0.0)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        times.append(timed(lambda: train_step(trainee, batch, rate=0.0)))
    return times


def evaluation_rate(trainee: Trainee, batch: StepBatch) -> float:
    micro = batch.micro_batches[0]
    rope = trainee.spec.stages[batch.place.stage].rope

    def forward() -> None:
        with torch.no_grad():
            hidden_BTD = trainee.compute.forward(torch.from_numpy(micro.tokens_BT), context_of(trainee.compute, micro, rope))
            trainee.compute.loss(hidden_BTD, torch.from_numpy(micro.targets_BT), None, 0.0)

    forward()
    return micro.tokens_BT.size / median_seconds(forward)


def seconds_per_save(trainee: Trainee) -> float | None:
    """How long training stands still for a save, by real ones beside the runs to come. None where nothing can be written here."""
    try:
        with TemporaryDirectory(dir=".", prefix=".headway-calibrate-") as root:
            return statistics.median(blocking_seconds(trainee, RunDirectory(Path(root))))
    except (OSError, EnvironmentFault):
        return None


def blocking_seconds(trainee: Trainee, run: RunDirectory) -> list[float]:
    """Of a few saves; each is written and deleted before the next, so that the disk never holds two for long."""
    nothing: dict[str, Any] = {"name": "calibration", "drill": False, "data": "", "deployment": {}, "spec_digest": ""}
    write_json(run.run_file, {"kind": "run", "schema_version": 1, "run_id": secrets.token_hex(8), **nothing})
    saver = Saver(Place(run=run, segment=1), SavePolicy(keep_last=1))
    try:
        saver.attach(trainee.state())
        saver.prepare()
        seconds = []
        for step in range(1, SAVES + 1):
            snapshot = saver.save(step, trainee.state(), {})
            saver.settle()
            assert snapshot is not None, "nothing is under way"
            seconds.append(snapshot.blocking_ns / 1e9)
            shutil.rmtree(run.checkpoints / snapshot.name)
        return seconds
    finally:
        saver.close(stays=False)


def median_seconds(work: Callable[[], object]) -> float:
    """Of a few repeats: one that the machine disturbed must not be scaled up to a whole run."""
    return statistics.median(timed(work) for _ in range(REPEATS))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
