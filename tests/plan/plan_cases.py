"""Recipes and runs that several tests of the plan share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from headway.base.clocks import FakeClock
from headway.plan.plan import Plan, make_plan
from headway.recipe.load import load_deployment, load_recipe, preset_directory
from headway.recipe.placement import settle
from headway.recipe.resolve import DataFacts, SourceFacts, resolve
from headway.recipe.schedules import Schedule
from headway.recipe.spec import ModelSpec, Spec
from headway.rundir.create import RunInfo, create_run
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.segments import Segment, write_segment

LLAMA_405B = ModelSpec(
    layers=126,
    width=16384,
    heads=128,
    kv_heads=8,
    head_width=128,
    ffn_width=53248,
    vocabulary=128256,
    rope_base=5e5,
    norm_epsilon=1e-5,
    qk_norm=False,
    tied_embeddings=False,
    init_std=0.02,
)
CHIP = (
    "accelerator.kind=H100-SXM",
    "nodes=1",
    "processes_per_node=8",
    "layouts.default={dp_shard=8, zero=3}",
)
"""Eight chips of the table, so that a step can be predicted."""
GPT = (
    "model={layers=12, width=768, heads=12, ffn_width=2048, qk_norm=true, tied_embeddings=true}",
    "tokenizer.vocabulary=50304",
    "stages.0.sequence=1024",
    "stages.0.tokens=1B",
    "stages.0.ramp=[{from=0, batch='524288'}]",
    "stages.0.rate.warmup=10M",
    "stages.1.sequence=1024",
    "stages.1.tokens=100M",
    "stages.1.batch='524288'",
    "evaluation.every=100M",
)
"""A model of 124 M parameters in place of the demo's: large enough for a chip."""


def draft(*sets: str, recipe: str = "demo") -> Spec:
    return resolve(load_recipe(recipe, sets), None)


def built(*sets: str, tokens: int = 3_000_000, vocabulary: int = 4096) -> Spec:
    """The demo with data, so that it can be run."""
    sources = tuple(SourceFacts(name, tokens, 4096, 1.0, f"sha256:{name}", "PSF-2.0") for name in ("code", "prose"))
    return resolve(load_recipe("demo", sets), DataFacts("sha256:m", "sha256:t", vocabulary, "<|document|>", sources))


def where(*sets: str, preset: str | None = None) -> Any:
    return settle(load_deployment(preset, sets, runnable=False), "bfloat16")


@cache
def preset(name: str) -> Plan:
    """The plan of a shipped recipe on its own deployment."""
    shipped = (preset_directory() / f"{name}.deployment.toml").is_file()
    return make_plan(draft(recipe=name), where(preset=name if shipped else None))


def told_run(root: Path, spec: Spec, seconds: dict[str, float], deployment: Any, *, last: int | None = None) -> RunDirectory:
    """A run whose steps took ``seconds`` by stage, each attempt's first steps ten times as long; saves 0.25 s, evaluations 2 s.

    Killed after a third and resumed from the beginning of that third, so that some steps were done twice.
    """
    clock, schedule = FakeClock(), Schedule(spec)
    info = RunInfo(data=str(root.parent / "data"), deployment=deployment.resolved(), author="a person")
    run = create_run(root, spec=spec, recipe_text="name = 'demo'\n", info=info, clock=clock)
    end = last or schedule.total_steps
    third = max(1, end // 3)
    _attempt(run, Segment(1, None, 0, None, "start", "automatic", 1, {}), range(1, third + 4), (clock, schedule, seconds))
    _attempt(run, Segment(2, 1, third, None, "crash", "automatic", 1, {}), range(third + 1, end + 1), (clock, schedule, seconds))
    return run


def _attempt(run: RunDirectory, segment: Segment, steps: range, world: tuple[FakeClock, Schedule, dict[str, float]]) -> None:
    clock, schedule, seconds = world
    write_segment(run, segment)
    log = StepLog(run, segment.id, clock)
    log.write("start", pid=1, environment={}, spec_digest=run.spec().digest())
    for step in steps:
        place = schedule.place(step - 1)
        stage = schedule.spec.stages[place.stage]
        clock.advance(seconds[stage.name] * (10 if step < steps.start + 2 else 1) * (0.98, 1.0, 1.02)[step % 3])
        log.mark("productive")
        targets = place.batch_sequences * stage.sequence_length
        log.write("step", step=step, stage=stage.name, tokens=1, targets=targets, loss=1.0, grad_norm=1.0)
        if step % 10 == 0:
            clock.advance(0.25)
            log.write("save", step=step, checkpoint=f"c{step}", bytes=1_000_000, blocking_ns=200_000_000, retention_ns=50_000_000)
        if step % 20 == 0:
            clock.advance(2.0)
            log.write("evaluation", step=step, loss={"code": 1.0}, targets={"code": 3000, "prose": 1000})
    log.close()
