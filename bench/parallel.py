"""Figures of the parallel engine: what the parallel path costs, what two processes give, beside peers. Prints JSON.

    python bench/parallel.py [--rounds 5] [--steps 6]

17M dense, T = 256, 4,096 tokens per step, bfloat16 compute over float32 weights. One process has as many threads as there are
cores; two ranks have half of them each. Everything is measured in turn within one run:

    alone, mesh of 1, sharded, alone, mesh of 1, ...    in one process, step by step: medians of ratios. A mesh of one rank is
                                                        one process; sharded: the path of several ranks on one
    alone, fsdp2, plain loop, plain loop under fsdp2    blocks of steps, in turn; the ranks wait while others are measured
    fsdp2, sent                                         the same through gloo, as ranks of several machines do
    peak memory of a rank, several layouts              every allocation, over what the plan says

``plain``: ``plain_gpt.py`` with torch's ``fully_shard`` over blocks and root, mixed precision, its own clipping and fused AdamW:
what a user writes from torch's documentation. ``accelerate``: the same model and loop through ``Accelerator`` with its FSDP2
plugin; only when asked: on CPUs its step took five times that of the loop without it, and why was not found. torchtitan's
trainer asks for an accelerator before it builds anything: it cannot be measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import ProfilerActivity, profile

from headway.formulas.activations import Pass
from headway.formulas.rank_memory import Share, rank_quantities
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spec import BatchPhase, PrecisionSpec, Spec
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.step import train_step
from headway.train.trainee import Trainee, build_trainee, sharded
from model_family import DENSE
from plain_gpt import PlainGpt
from training import ADAMW

LENGTH, SEQUENCES = 256, 16
WARM_STEPS = 3
CORES = len(os.sched_getaffinity(0))


def bench_spec() -> Spec:
    draft = resolve(load_recipe("proxy"), None)
    stage = draft.stages[0]
    sequences = 1000 * SEQUENCES
    stage = replace(
        stage,
        tokens=sequences * LENGTH,
        sequence_length=LENGTH,
        sequences=sequences,
        phases=(BatchPhase(0, SEQUENCES),),
        rate=replace(stage.rate, warmup_tokens=10 * SEQUENCES * LENGTH),
    )
    return replace(draft, model=DENSE, stages=(stage,), optimizer=ADAMW, precision=PrecisionSpec("bfloat16"))


def stepper(trainee: Trainee, feed: RandomFeed) -> Callable[[int], float]:
    """Seconds of one step."""

    def step(number: int) -> float:
        batch = feed.fetch(number)
        start = time.perf_counter()
        train_step(trainee, batch, feed.schedule.rate(number))
        return time.perf_counter() - start

    return step


def overhead_of_a_mesh(rounds: int) -> dict[str, float]:
    """The parallel path on one rank against the plain one, step by step in turn."""
    spec = bench_spec()
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", store=dist.FileStore(f"{directory}/store", 1), rank=0, world_size=1)
        alone = stepper(build_trainee(spec), RandomFeed(spec, SEQUENCES))
        meshed = stepper(build_trainee(spec, Mesh(Axes())), RandomFeed(spec, SEQUENCES))
        divided = stepper(sharded(spec, Mesh(Axes())), RandomFeed(spec, SEQUENCES))
        timed = [(alone(n), meshed(n), divided(n)) for n in range(WARM_STEPS + 8 * rounds)]
        dist.destroy_process_group()
    kept = timed[WARM_STEPS:]
    return {
        "mesh_of_1_over_alone": statistics.median(mine / plain for plain, mine, _ in kept),
        "sharded_on_one_rank_over_alone": statistics.median(mine / plain for plain, _, mine in kept),
        "alone_step_ms": 1e3 * statistics.median(plain for plain, *_ in kept),
    }


# --- what a rank measures


def our_rank(spec: Spec, axes: Axes, steps: int) -> dict[str, float]:
    """Median seconds of a step; and what start-up took, by phase."""
    start = time.perf_counter()
    mesh = Mesh(axes)
    meshed = time.perf_counter()
    trainee = build_trainee(spec, mesh)
    built = time.perf_counter()
    step = stepper(trainee, RandomFeed(spec, SEQUENCES // axes.replicas, Replica(mesh.replica, axes.replicas)))
    first = step(0)
    seconds = [step(n) for n in range(1, WARM_STEPS + steps)][WARM_STEPS - 1 :]
    return {"step": statistics.median(seconds), "mesh": meshed - start, "build": built - meshed, "first_step": first}


def our_rank_sent(spec: Spec, axes: Axes, steps: int) -> dict[str, float]:
    """The same without shared memory."""
    with mock.patch.object(Mesh, "shared_memory", return_value=None):
        return our_rank(spec, axes, steps)


def our_alone(spec: Spec, steps: int) -> float:
    step = stepper(build_trainee(spec), RandomFeed(spec, SEQUENCES))
    return statistics.median([step(n) for n in range(WARM_STEPS + steps)][WARM_STEPS:])


def plain_model() -> nn.Module:
    torch.manual_seed(1)
    return PlainGpt(DENSE, LENGTH)


def plain_alone(spec: Spec, steps: int) -> float:
    model = plain_model()
    return plain_seconds(model, RandomFeed(spec, SEQUENCES), steps, cast=True)


def plain_rank(spec: Spec, axes: Axes, steps: int) -> dict[str, float]:
    model, mesh = plain_model(), init_device_mesh("cpu", (axes.world,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    feed = RandomFeed(spec, SEQUENCES // axes.world, Replica(dist.get_rank(), axes.world))
    return {"step": plain_seconds(model, feed, steps, cast=False)}


def plain_seconds(model: nn.Module, feed: RandomFeed, steps: int, *, cast: bool) -> float:
    """``cast``: by autocast, where FSDP does not; the loss is a mean over the rank's own tokens, as such loops have it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for number in range(WARM_STEPS + steps):
        batch = feed.fetch(number).micro_batches[0]
        tokens, targets = torch.from_numpy(batch.tokens_BT), torch.from_numpy(batch.targets_BT)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_STEPS:])


def accelerate_rank(spec: Spec, axes: Axes, steps: int) -> dict[str, float]:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(axes.world), "LOCAL_RANK": str(dist.get_rank())}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group exists already
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        mixed_precision_policy=policy,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
    )
    threads = torch.get_num_threads()
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    torch.set_num_threads(threads)  # it takes all cores for each process, which is ten times as slow
    model = accelerator.prepare(plain_model())
    feed = RandomFeed(spec, SEQUENCES // axes.world, Replica(dist.get_rank(), axes.world))
    return {"step": plain_seconds(model, feed, steps, cast=False)}


# --- memory

MEMORY_LAYOUTS: dict[str, tuple[dict[str, int], int]] = {
    "fsdp2": ({"dp_shard": 2}, 8),
    "fsdp2_2_passes": ({"dp_shard": 2}, 4),
    "fsdp2_whole_gradients": ({"dp_shard": 2, "zero": 1}, 4),
    "tp2": ({"tp": 2}, 16),
    "cp2": ({"cp": 2}, 8),
    "fsdp2_x_tp2": ({"dp_shard": 2, "tp": 2}, 4),
}
"""Sizes of axes, and sequences of a micro-batch."""


def peak_rank(spec: Spec, axes: Axes, rows: int) -> int:
    """Most bytes of tensors at once, of two steps. What gloo's own threads give back counts on: so it is a little too much."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        mesh = Mesh(axes)
        step = stepper(build_trainee(spec, mesh), RandomFeed(spec, rows, Replica(mesh.replica, axes.replicas)))
        step(0), step(1)
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def memory_over_plan() -> dict[str, float]:
    """Measured over planned, of the fullest rank."""
    spec, found = bench_spec(), {}
    for name, (sizes, rows) in MEMORY_LAYOUTS.items():
        axes = Axes(**sizes)
        one = Pass(model=spec.model, compute=spec.precision.compute, sequence_length=LENGTH, rows=rows)
        passes = SEQUENCES // (axes.replicas * rows)
        share = Share(tp=axes.tp, cp=axes.cp, shards=axes.dp_shard * axes.cp, zero=axes.zero, passes=passes)
        parts = rank_quantities(one, share, spec.optimizer)
        planned = sum(parts[part].number() for part in ("state", "gradients", "gathered", "activations", "working"))
        found[name] = round(max(on_ranks(peak_rank, axes.world, spec, axes, rows)) / planned, 3)
    return found


def in_turn(rounds: int, steps: int, *, with_accelerate: bool = False) -> dict[str, Any]:
    spec, axes = bench_spec(), Axes(dp_shard=2)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("alone", "fsdp2", "sent_fsdp2", "plain", "plain_fsdp2", "accelerate_fsdp2")
    }
    ranks: dict[str, Any] = {"fsdp2": our_rank, "sent_fsdp2": our_rank_sent, "plain_fsdp2": plain_rank}
    if with_accelerate:
        ranks["accelerate_fsdp2"] = accelerate_rank
    startup, refused = {}, {}
    threads = max(1, CORES // axes.world)
    for _ in range(rounds):
        seconds["alone"].append(our_alone(spec, steps))
        seconds["plain"].append(plain_alone(spec, steps))
        for name, task in list(ranks.items()):
            try:
                answers = on_ranks(task, axes.world, spec, axes, steps, threads=threads)
            except Exception as error:
                refused[name] = str(error)[:300]
                del ranks[name]
                continue
            seconds[name].append(max(answer["step"] for answer in answers))
            if name == "fsdp2":
                startup = {key: max(a[key] for a in answers) for key in answers[0] if key != "step"}
    medians = {name: statistics.median(found) for name, found in seconds.items() if found}
    figures: dict[str, Any] = {f"{name}_step_ms": 1e3 * value for name, value in medians.items()}
    figures["fsdp2_over_alone_tokens"] = medians["alone"] / medians["fsdp2"]
    figures |= {f"ours_over_{name}_tokens": medians[name] / medians["fsdp2"] for name in medians if name.endswith("_fsdp2")}
    figures["plain_fsdp2_over_plain_tokens"] = medians["plain"] / medians["plain_fsdp2"] if "plain_fsdp2" in medians else None
    return figures | {"startup_s": startup, "not_measured": refused}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accelerate", action="store_true", help="measure it too: minutes")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(CORES)
    figures = overhead_of_a_mesh(asked.rounds) | in_turn(asked.rounds, asked.steps, with_accelerate=asked.accelerate)
    print(json.dumps(figures | {"peak_memory_over_planned": memory_over_plan()}))


if __name__ == "__main__":
    main(sys.argv[1:])
