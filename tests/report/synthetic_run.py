"""A run directory as a real run would leave it, made with the real writers on a fake clock.

segment 1   steps 1-57, saves at 20 and 40, SIGKILL after 57
segment 2   restored 40, steps 41-120: the steps 41-57 are executed twice
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headway.base.clocks import FakeClock
from headway.base.digests import digest_json
from headway.plan.plan import make_plan
from headway.recipe.deployment import Deployment
from headway.recipe.roles import parameter_shapes
from headway.recipe.schedules import Schedule, whole_batches
from headway.recipe.spec import (
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RateSpec,
    SourceSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)
from headway.rundir.create import RunInfo, create_run
from headway.rundir.events import EventLog
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.store.admissible import choose
from headway.store.rectangle import Rectangle
from headway.store.save import ManifestFields, commit, saving, write_rank

T = 256
ENVIRONMENT = {
    "torch": "2.13.0+cpu",
    "cpu_capability": "AVX512",
    "onednn": "True",
    "threads": 2,
    "machine": "x86_64",
    "layout": "1 process",
    "code": "0.1.0+0123456789ab",
    "headway": "0.1.0",
    "python": "3.11.2",
    "numpy": "2.1.0",
    "system": "Linux-6.1",
    "processor": "Some Processor @ 2.60GHz",
}
PEAK_BYTES = 700_000_000
COMMIT_NS, RETENTION_NS = 50_000_000, 30_000_000
DEPLOYMENT = {
    "accelerator": {"kind": "cpu"},
    "threads": 2,
    "micro_batch": "4096",
    "checkpoints": {"every_steps": 20, "keep_last": 3, "permanent_every": 0},
    "state_digest_every": 1,
}


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens. ``kill_step`` None: no interruption; ``end_step`` None: to the end of the schedule."""

    kill_step: int | None = 57
    restored_step: int = 40
    end_step: int | None = None
    digest_every: int = 1
    differ_at: int | None = None  # a replayed step that leaves another state than before
    evaluate: bool = True
    sample: bool = True
    finish: bool = True
    hostile: str = ""  # text that is put wherever a file can carry text
    changed_environment: dict = field(default_factory=dict)
    steps: int = 120
    plan: bool = True
    save_every: int = 20
    peak_flops: str | None = None


def make_spec(name: str = "demo", steps: int = 120, hostile: str = "") -> Spec:
    main, phases = whole_batches(steps * 3 // 4 * 16 * T, T, [(0, 16 * T)])
    anneal, anneal_phases = whole_batches(steps // 4 * 16 * T, T, [(0, 16 * T)])
    total = (steps * 3 // 4) * 16 * T
    sources = ("code" + hostile, "prose")
    return Spec(
        name=name,
        seed=7,
        data_seed=11,
        objective={"purpose": "demonstration"},
        tokenizer=TokenizerSpec("bpe", 1024, "<|document|>", digest_json("tokenizer")),
        model=ModelSpec(2, 64, 4, 2, 16, 160, 1024, 10_000.0, 1e-6, True, True, 0.02),
        sources=tuple(SourceSpec(s, 1_700_000, 16_384, 1.0, digest_json(s), None, "PSF-2.0") for s in sources),
        stages=(
            StageSpec(
                "main",
                steps * 3 // 4 * 16 * T,
                T,
                main,
                phases,
                RateSpec(total // 8, "constant", 1.0, 1.0),
                (45_875, 19_661),
                10_000.0,
            ),
            StageSpec(
                "anneal",
                steps // 4 * 16 * T,
                T,
                anneal,
                anneal_phases,
                RateSpec(0, "one_minus_sqrt", 1.0, 0.0),
                (26_214, 39_322),
                10_000.0,
            ),
        ),
        optimizer=OptimizerSpec("adamw", 3e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(1e-4),
        precision=PrecisionSpec("bfloat16"),
        evaluation=EvaluationSpec(steps * 16 * T // 10, 32_768, ("def main(", "The "), 24),
        manifest_digest=digest_json("data"),
        recipe_digest=digest_json("recipe"),
    )


def loss_at(spec: Spec, step: int) -> float:
    tokens = Schedule(spec).tokens_before(step)
    noise = np.random.default_rng(step).normal() * 0.05
    late = max(0.0, step - 0.75 * Schedule(spec).total_steps) / Schedule(spec).total_steps
    return 2.4 + 5.9 * math.exp(-tokens / 60_000) + 1.1 * (1 + tokens / 30_000) ** -0.5 - 0.5 * late + noise


class Teller:
    """Writes one story into a run directory."""

    def __init__(self, root: Path, story: Story):
        self.story, self.clock = story, FakeClock()
        self.spec = make_spec("demo" + story.hostile, story.steps, story.hostile)
        self.schedule = Schedule(self.spec)
        given = DEPLOYMENT | {"accelerator": {"kind": "cpu", "peak_flops": story.peak_flops}}
        deployment = Deployment.model_validate(given)
        info = RunInfo(
            data="/data/demo", deployment=deployment.model_dump(mode="json"), recipe_path="recipes/demo.toml" + story.hostile,
            versions={"headway": "0.1.0", "python": "3.11.2"}, author="a person",
        )  # fmt: skip
        calibration = {
            "tokens_per_second": 15_900.0,
            "low": 15_000.0,
            "high": 16_800.0,
            "steps_timed": 12,
            "seconds_per_evaluation": 0.8,
            "seconds_per_save": 0.06,
            "digest_seconds": 0.002,
        }
        plan = make_plan(self.spec, deployment, calibration).to_json() if story.plan else None
        faults = [{"point": "step.recorded", "action": "kill", "step": story.kill_step}] if story.kill_step else None
        self.run = create_run(
            root, spec=self.spec, recipe_text="name = 'demo'\n", info=info, drill_faults=faults, plan=plan, clock=self.clock
        )
        self.events = EventLog(self.run, 1, self.clock)
        self.random = np.random.default_rng(3)

    def segment(self, number: int, **fields: object) -> None:
        defaults = {
            "parent": None,
            "restored_step": 0,
            "checkpoint": None,
            "reason": "start",
            "author": "automatic",
            "epoch": 1,
            "layout": {"processes": 1},
        }
        write_segment(self.run, Segment(id=number, **(defaults | fields)))  # type: ignore[arg-type]
        self.clock.advance(0.4)
        self.events.append("launch", segment=number, pid=1000 + number)
        self.clock.advance(3.1)

    def steps(self, number: int, first: int, last: int, checkpoint: str | None = None) -> StepLog:
        log = StepLog(self.run, number, self.clock)
        environment = ENVIRONMENT | (self.story.changed_environment if number > 1 else {})
        log.write("start", pid=1000 + number, environment=environment, spec_digest=self.spec.digest())
        self.clock.advance(0.6)
        log.mark("init")
        self.clock.advance(0.25 if checkpoint else 0.01)
        log.mark("restore")
        changed = [f"{k}: {ENVIRONMENT[k]} -> {v}" for k, v in self.story.changed_environment.items()] if number > 1 else []
        log.write(
            "restored",
            step=first - 1,
            checkpoint=checkpoint,
            determinism="within tolerance" if changed else "bitwise",
            differences=changed,
        )
        if first == 1 and self.story.sample:
            self._sample(log, 0)
        for step in range(first, last + 1):
            self._step(log, number, step)
            if self.story.evaluate and self.schedule.evaluation_due(step):
                self._evaluate(log, step)
            if step % self.story.save_every == 0:
                self.save(log, number, step)
        return log

    def _step(self, log: StepLog, number: int, step: int) -> None:
        place = self.schedule.place(step - 1)
        self.clock.advance(0.0005 + 0.0005 * self.random.random())
        log.mark("data_stall")
        self.clock.advance(0.24 + 0.03 * self.random.random())
        log.mark("productive")
        other = number > 1 and self.story.differ_at is not None and step >= self.story.differ_at
        loss = loss_at(self.spec, step) + (1e-9 if other else 0.0)
        digest = "xxh3_128:" + digest_json([step, other])[7:39] if step % self.story.digest_every == 0 else None
        norm = 0.4 + 2.2 * math.exp(-step / 12) + 0.1 * math.sin(step * 1.7) ** 2
        targets = place.batch_sequences * T
        log.write(
            "step", step=step, stage=self.spec.stages[place.stage].name, u=place.end_sequence, sequences=place.batch_sequences,
            targets=targets, tokens=self.schedule.tokens_before(step), loss=loss, z_loss=0.02, grad_norm=norm, clipped=norm > 1.0,
            applied=True, rate=self.schedule.rate(step - 1), digest=digest,
        )  # fmt: skip

    def _evaluate(self, log: StepLog, step: int) -> None:
        self.clock.advance(0.9)
        base = loss_at(self.spec, step)
        code, prose = (source.name for source in self.spec.sources)
        log.write(
            "evaluation",
            step=step,
            tokens=self.schedule.tokens_before(step),
            loss={code: base - 0.32, prose: base + 0.41},
            targets={code: 32_768, prose: 32_768},
            bytes={code: 130_000, prose: 150_000},
            bits_per_byte={code: (base - 0.32) / 2.75, prose: (base + 0.41) / 3.17},
            by_position={name: buckets_of(loss) for name, loss in ((code, base - 0.32), (prose, base + 0.41))},
        )

    def _sample(self, log: StepLog, step: int) -> None:
        self.clock.advance(0.3)
        says = " the the self. self" if step == 0 else " self, name: str) -> None:\n    return name\n" + self.story.hostile
        log.write(
            "sample", step=step, texts=[{"prompt": p + self.story.hostile, "text": says} for p in self.spec.evaluation.prompts]
        )

    def save(self, log: StepLog, number: int, step: int) -> None:
        with saving(self.run.checkpoints, number, step) as directory:
            tensors = [
                Rectangle(
                    name=f"{kind}/{p.name}", dtype="F32", global_shape=p.shape, shape=p.shape, offset=(0,) * len(p.shape),
                    data=np.full(p.count, step, np.float32).view(np.uint8),
                )
                for kind in ("param", "m", "v")
                for p in parameter_shapes(self.spec.model)
            ]  # fmt: skip
            receipt = write_rank(directory, tensors, number, step, 0, 1)
            manifest = commit(directory, ManifestFields(segment=number, step=step, world=1, state={"updates": step}))
        self.clock.advance((COMMIT_NS + RETENTION_NS) / 1e9)
        log.write(
            "save",
            step=step,
            checkpoint=directory.name,
            bytes=receipt.file_bytes,
            blocking_ns=COMMIT_NS,
            retention_ns=RETENTION_NS,
            digest=manifest.state_digest,
        )

    def end(self, log: StepLog, step: int, state: str) -> None:
        self._sample(log, step) if self.story.sample else None
        if step % self.story.save_every:
            self.save(log, read_segments(self.run)[-1].id, step)
        self.clock.advance(0.02)
        digest = "xxh3_128:" + digest_json([step, False])[7:39]
        log.write("end", step=step, state=state, reason=None, digest=digest, peak_bytes=PEAK_BYTES)
        log.close()


def tell(root: Path, story: Story | None = None) -> RunDirectory:
    """Create the run of ``story`` under ``root``."""
    story = story or Story()
    teller = Teller(root, story)
    last = story.end_step if story.end_step is not None else teller.schedule.total_steps
    number, first, checkpoint = 1, 1, None
    teller.segment(1)
    if story.kill_step:
        teller.steps(1, 1, story.kill_step).close()
        teller.clock.advance(0.08)
        teller.events.append("exit", segment=1, code=None, signal=9, reason="killed by SIGKILL" + story.hostile)
        number, first, checkpoint = 2, story.restored_step + 1, f"g0001-s{story.restored_step:08d}"
        rejected = ({"checkpoint": "g0001-s00000060" + story.hostile, "reason": "MANIFEST.json is missing"},)
        teller.segment(
            2,
            parent=1,
            restored_step=story.restored_step,
            checkpoint=checkpoint,
            reason="restart after SIGKILL",
            rejected=rejected,
        )
    log = teller.steps(number, first, last, checkpoint)
    if story.finish:
        teller.end(log, last, "complete" if last == teller.schedule.total_steps else "stopped")
        teller.clock.advance(0.1)
        teller.events.append("exit", segment=number, code=0, signal=None, reason="done")
        teller.clock.advance(0.02)
        teller.events.append(
            "finish", state="complete" if last == teller.schedule.total_steps else "stopped", reason="all stages done"
        )
    log.close()
    teller.events.close()
    return teller.run


def tell_attempts(root: Path, last_steps: list[int], *, exits: dict | None = None) -> RunDirectory:
    """Attempts of a run of 24 steps, saved every 8, each killed after one of ``last_steps``; the last one ends at its own.

    The segments are written as the supervisor writes them: what is restored is what ``choose`` finds on the disk, and the
    parent is the segment that wrote it (none: initial weights). ``exits``: fields of the exit record instead of a SIGKILL.
    """
    teller = Teller(root, Story(steps=24, save_every=8, evaluate=False, sample=False))
    for number, last in enumerate(last_steps, 1):
        choice = choose(teller.run, current_chain(read_segments(teller.run)))
        reason = "restart: ended by SIGKILL" if number > 1 else "start"
        teller.segment(number, parent=choice.segment, restored_step=choice.step, checkpoint=choice.checkpoint, reason=reason)
        log = teller.steps(number, choice.step + 1, last, choice.checkpoint)
        if number == len(last_steps):
            teller.end(log, last, "complete" if last == 24 else "stopped")
        log.close()
        teller.clock.advance(0.08)
        killed = {"code": None, "signal": 9, "reason": "ended by SIGKILL"} | (exits or {})
        teller.events.append("exit", segment=number, **({"code": 0, "signal": None} if number == len(last_steps) else killed))
    teller.events.close()
    return teller.run


def buckets_of(loss: float) -> dict:
    """Targets and nats by position, of a model that uses what stands before; the third bucket of documents has no target."""
    window = [16 * max(1, 2 ** (bucket - 1)) for bucket in range(10)]
    document = [40, 160, 0, *[16 * 2 ** (bucket - 1) for bucket in range(3, 12)]]
    return {
        name: {"targets": targets, "nll": [n * (loss + 0.9 - 0.1 * b) for b, n in enumerate(targets)], "bytes": targets}
        for name, targets in (("window", window), ("document", document))
    }
