"""``headway demo``: the whole story of a run in a few minutes, and a proof at its end.

    plan -> data -> train, killed in step k -> restart from the last checkpoint -> the end -> proof -> samples -> report

The kill is real: SIGKILL, in a step drawn at random when the demo starts and announced before training. The proof is what
the records hold: every step that was executed twice left the same digest of weights and moments both times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_OK, ConfigError
from headway.cli.chaos import FLEET

PRESET = "demo"
EARLIEST, LATEST = 0.35, 0.75  # share of the run in which a kill that is drawn falls
LEAST_AGAIN = 2  # steps that a kill that is drawn leaves to be done again
INTERRUPTED = 130
SLOW_SECONDS = 600.0
"""Of training: it takes a quarter of that on two cores that nothing else wants."""


def demo(
    *,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="Where to write. Default: headway-demo, with -2, -3, ... where it is taken.")
    ] = None,
    twin: Annotated[
        bool, Parameter(negative="", help="Also train the run once without a kill, and compare the final states.")
    ] = False,
    kill_at: Annotated[
        int | None,
        Parameter(
            metavar="STEP",
            help="The step to be killed in: after the first checkpoint, and not the one right after a checkpoint, since then "
            "no step is done again and nothing can be compared. Default: drawn at random.",
        ),
    ] = None,
    chaos: Annotated[
        bool,
        Parameter(
            negative="",
            help="Train on two nodes of this machine and kill, one after the other: a rank, one that only stops, a node, the "
            "store where ranks meet, the supervisor. About six minutes on two cores.",
        ),
    ] = False,
    json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print the result as JSON; the course of things goes to stderr.")
    ] = False,
) -> int:
    """Plan, train, kill, resume and report a small real run.

    Trains a small language model on the Python standard library of this machine, in about three minutes on two cores. It
    needs no network and no GPU. In the middle the trainer is killed with SIGKILL; its supervisor restarts it from the last
    committed checkpoint, and the end state is exactly that of a run that was never killed. The exit code is 0 only if that
    is proven.
    """
    import contextlib
    import sys

    from headway.cli.engine import require_engine
    from headway.cli.output import print_json
    from headway.cli.run import free_directory

    require_engine()
    root = out or free_directory(Path("headway-demo"))
    if root.exists() and any(root.iterdir()):
        raise ConfigError(
            f"{root} is not empty", "the demo writes into a directory of its own", "name another with --out, or remove that one"
        )
    if chaos and kill_at is not None:
        raise ConfigError("--chaos with --kill-at", "chaos has times of its own", "leave one of them out")
    scenes = _Demo(root, twin=twin, kill_at=kill_at, chaos=chaos)
    if not json:
        return scenes.play()[0]
    with contextlib.redirect_stdout(sys.stderr):
        code, result = scenes.play()
    print_json(result)
    return code


@dataclass(frozen=True)
class _Demo:
    """The scenes, in order."""

    root: Path
    twin: bool
    kill_at: int | None
    chaos: bool = False

    def play(self) -> tuple[int, dict[str, Any]]:
        from headway.base.clocks import SystemClock
        from headway.cli.describe import describe

        begin = SystemClock().stamp().boot_ns
        description = describe(PRESET, FLEET if self.chaos else None, None)
        kill_step = None if self.chaos else choose_kill(description, self.kill_at)
        calibration = self.show_plan(description)
        manifest = self.build_data(description)
        run = self.create_run(description, manifest, calibration, kill_step)
        title = "3. Training, killed five times" if self.chaos else "3. Training, with a kill in the middle"
        if (self.suffer(run, title) if self.chaos else self.train(run, title)) != "complete":
            return INTERRUPTED, {"kind": "demo", "schema_version": 1, "run": str(run.root), "state": "stopped"}
        twin = self.train_twin(description, manifest) if self.twin else None
        proof = self.show_proof(run, twin)
        self.show_samples(run)
        paths = self.write_report(run)
        seconds = (SystemClock().stamp().boot_ns - begin) / 1e9
        return EXIT_OK, self.conclude(run, proof, paths, seconds)

    # -- the scenes

    def show_plan(self, description: Any) -> dict[str, Any]:
        """Returns the measurement that the plan's times stand on."""
        from headway.cli.output import heading, say
        from headway.cli.plan import measure, show
        from headway.plan.plan import make_plan
        from headway.recipe.resolve import resolve

        heading("1. The plan")
        say("Measuring this machine with real training steps, about 10 seconds ...")
        draft = resolve(description.loaded, None)
        calibration = measure(draft, description.deployment)
        say()
        plan = make_plan(draft, description.deployment, calibration)
        show(plan)
        for line in slow_words(plan.known()["predicted_seconds"].value):
            say(line)
        return calibration

    def build_data(self, description: Any) -> Any:
        from headway.cli.data import show, tell
        from headway.cli.output import heading, say
        from headway.data.build import build_data

        heading("2. The data")
        say("Training a tokenizer on the Python standard library, and writing token shards, about 10 seconds ...")
        manifest = build_data(description.loaded, self.root / "data", progress=tell)
        show(manifest, self.root / "data")
        return manifest

    def create_run(self, description: Any, manifest: Any, calibration: dict[str, Any], kill_step: int | None) -> Any:
        from headway.cli.run import create

        faults = [] if kill_step is None else [{"point": "step.gradients", "action": "kill", "step": kill_step}]
        run, data = self.root / "run", self.root / "data"
        return create(description, data, manifest, root=run, faults=faults, calibration=calibration)

    def suffer(self, run: Any, title: str) -> str:
        """Train under chaos, from outside; returns the state the run ended in."""
        from headway.cli.chaos import Chaos
        from headway.cli.output import heading, say
        from headway.cli.progress import Screen, is_terminal, progress_of

        heading(title)
        progress = progress_of(run.spec(), run.info()["deployment"]["log"]["every_steps"])
        return Chaos(run, Screen(progress, live=is_terminal()).show, say, progress.schedule.total_steps).play()

    def train(self, run: Any, title: str) -> str:
        """Supervise ``run`` with its progress on the screen; returns the state it ended in."""
        from headway.cli.output import heading, say
        from headway.cli.run import follow_to_end

        heading(title)
        for fault in planned_faults(run):
            say(f"This run will be killed with SIGKILL in step {fault['step']}. Its supervisor knows nothing of that.")
        outcome = follow_to_end(run)
        if outcome.state == "stopped":
            say(f"The demo was stopped. Its run can go on: headway resume {run.root}")
        return outcome.state

    def train_twin(self, description: Any, manifest: Any) -> Any:
        from headway.cli.run import create

        twin = create(description, self.root / "data", manifest, root=self.root / "twin", faults=[])
        return twin if self.train(twin, "The twin: the same run, never killed") == "complete" else None

    def show_proof(self, run: Any, twin: Any) -> dict[str, Any]:
        from headway.cli.output import heading, say
        from headway.cli.proof import failure, proof_lines, prove

        heading("4. The proof")
        proof = prove(run, twin)
        for line in proof_lines(proof):
            say(line)
        if not proof["holds"]:
            raise failure(proof, run.root)
        return proof

    def show_samples(self, run: Any) -> None:
        from headway.cli.output import heading, say
        from headway.report.facts import gather

        heading("5. What it learned: the same prompts before and after")
        samples = [sample for sample in gather(run).samples if sample.kept]
        if not samples:
            return
        for before, after in zip(samples[0].texts, samples[-1].texts, strict=True):
            say(f"{before['prompt']!r}")
            say(f"   step {samples[0].step:>4}: {one_line(before['text'])}")
            say(f"   step {samples[-1].step:>4}: {one_line(after['text'])}")

    def write_report(self, run: Any) -> list[str]:
        from headway.cli.report import pages
        from headway.report.report import write_report

        return pages(write_report(run, run.report))

    def conclude(self, run: Any, proof: dict[str, Any], paths: list[str], seconds: float) -> dict[str, Any]:
        from headway.base.units import format_count, format_seconds
        from headway.cli.output import heading, say
        from headway.monitor.summary import summarise

        summary = summarise(run)
        first = first_loss(run)
        held_out = ", ".join(f"{name} {loss:.3f}" for name, loss in summary.held_out.items())
        heading("Summary")
        tokens, trained = format_count(summary.total_tokens), format_seconds(summary.ledger.total_ns / 1e9)
        say(f"trained    {summary.total_steps} steps, {tokens} tokens, in {trained}")
        say(f"loss       {first:.3f} at step 1, {summary.loss:.3f} at the end; held out: {held_out}")
        blows = f"{summary.restarts} times" if self.chaos else f"in step {proof['killed_in_step']}"
        say(f"killed     {blows}; " + ("it went on" if self.chaos else f"went on from step {proof['restored_step']}"))
        say(f"proven     {proof['equal']} steps done twice, equal to the bit")
        for path in paths:
            say(f"report     {path}")
        say(f"all of it  {format_seconds(seconds)}, under {self.root}")
        result = {
            "kind": "demo",
            "schema_version": 1,
            "run": str(run.root),
            "state": summary.state,
            "seconds": seconds,
            "proof": proof,
        }
        return result | {"first_loss": first, "last_loss": summary.loss, "held_out": summary.held_out, "report": paths}


def choose_kill(description: Any, asked: int | None) -> int:
    """The step to be killed in, as asked or drawn. Refused before anything starts: one that leaves nothing to compare."""
    from headway.recipe.resolve import resolve
    from headway.recipe.schedules import Schedule

    total = Schedule(resolve(description.loaded, None)).total_steps
    every = description.deployment.checkpoints.every_steps
    if asked is None:
        return draw_kill(random.SystemRandom(), total, every)
    if not 1 <= asked <= total or done_again(asked, every) < 1:
        raise refused_kill(asked, total, every)
    return asked


def slow_words(predicted_seconds: object) -> list[str]:
    """Where the demo will take much longer than its help says."""
    from headway.base.units import format_seconds

    if not isinstance(predicted_seconds, float | int) or predicted_seconds < SLOW_SECONDS:
        return []
    return [
        "",
        f"This machine is slow, or busy with something else: training will take about {format_seconds(predicted_seconds)}.",
    ]


def done_again(kill_step: int, checkpoint_every_steps: int) -> int:
    """How many steps are done twice after a kill in ``kill_step``; 0 also where no checkpoint stands yet to go on from."""
    done = kill_step - 1
    return done % checkpoint_every_steps if done >= checkpoint_every_steps else 0


def draw_kill(randomness: random.Random, total_steps: int, checkpoint_every_steps: int) -> int:
    """A step in the middle of the run, well after a checkpoint; where there is none, any that leaves enough to do again."""
    every = checkpoint_every_steps
    useful = [step for step in range(1, total_steps + 1) if done_again(step, every) >= LEAST_AGAIN]
    first, last = round(total_steps * EARLIEST), round(total_steps * LATEST)
    best = [step for step in useful if first <= step <= last and done_again(step, every) >= every // 4]
    if not useful:
        raise ConfigError(
            f"a run of {total_steps} steps with a checkpoint every {every} has no step to be killed in",
            f"a kill must fall after the first checkpoint and leave {LEAST_AGAIN} steps to be done again",
            "a longer run, or checkpoints less often",
        )
    return randomness.choice(best or useful)


def refused_kill(asked: int, total_steps: int, every: int) -> ConfigError:
    """Why not that step, and the nearest one that will do."""
    done = asked - 1
    if not 1 <= asked <= total_steps:
        seen = f"--kill-at {asked}: the run has the steps 1 to {total_steps}"
    elif done < every:
        seen = f"--kill-at {asked}: no checkpoint stands yet, the first is saved after step {every}"
    else:
        seen = f"--kill-at {asked}: step {done} has just been saved, so no step would be done again"
    rule = f"only what is done twice can be compared: kill after the first checkpoint, not right after one (every {every} steps)"
    possible = [step for step in range(1, total_steps + 1) if done_again(step, every) >= 1]
    nearest = min(possible, key=lambda step: abs(step - asked), default=None)
    drawn = "leave it out: then a step is drawn"
    return ConfigError(seen, rule, drawn if nearest is None else f"--kill-at {nearest}, or {drawn}")


def planned_faults(run: Any) -> list[dict[str, Any]]:
    """The faults of a drill; none in a production run."""
    from headway.base.failpoints import drill_file, is_drill
    from headway.base.files import read_json

    return read_json(drill_file(run.root), "drill plan")["faults"] if is_drill(run.root) else []


def first_loss(run: Any) -> float:
    """Training loss of the first step."""
    from headway.report.facts import gather

    steps = gather(run).kept
    return float(steps.loss[0])


def one_line(text: str, width: int = 88) -> str:
    """A decoded text on one line, cut to fit."""
    shown = text.replace("\n", "\\n")
    return shown if len(shown) <= width else shown[: width - 3] + "..."
