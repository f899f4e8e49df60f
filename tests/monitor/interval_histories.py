"""Virtual histories of failures, and what a policy of saving loses in them. Nothing is slept for.

    attempt |step|step|step|save|step|step|save|step|st  <- the gap ends: the trainer dies
            \\____ durable: this stays _______/ \\_ lost_/      lost = gap - durable work = saves + replay

All policies meet the same gaps (times that trainers run until they are interrupted), so the wall time is the same and the lost
time tells them apart. Restarts cost every policy the same; they are left out, which makes a comparison by ratio stricter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from headway.formulas.failure_estimate import FailureRate
from headway.monitor.interval import Interval, IntervalPolicy

SECOND = 10**9


def policy(
    least: float = 1e-6, most: float = 1e9, every_steps: int = 100, prior: FailureRate | None = None, restart: float = 60.0
) -> IntervalPolicy:
    return IntervalPolicy(
        least_seconds=least,
        most_seconds=most,
        every_steps=every_steps,
        restart_seconds=restart,
        prior=prior or FailureRate(interruptions=1, at_risk_seconds=86_400.0),
    )


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run meets. Seconds."""

    gaps: Sequence[float]
    save: float
    step: float
    flush: float = 0.0
    restart: float = 30.0


def gaps(between: float | Sequence[float], count: int, seed: int) -> list[float]:
    """Exponential; several means: one part of the history after the other."""
    means = [between] if isinstance(between, int | float) else list(between)
    randomness = random.Random(seed)
    return [randomness.expovariate(1 / mean) for mean in means for _ in range(count // len(means))]


# --- a fixed number of steps


def fixed_lost(world: World, steps: int) -> float:
    """Seconds. The k-th save is taken at k cycles, and counts once it is durable."""
    cycle = steps * world.step + world.save
    kept = sum(max(0, math.floor((gap - world.flush) / cycle)) for gap in world.gaps)
    return sum(world.gaps) - kept * steps * world.step


def best_fixed(world: World) -> tuple[int, float]:
    """(steps, lost seconds) of the best interval for this history in hindsight: 5 % apart, refined around the best."""
    most = max(2, math.ceil(max(world.gaps) / world.step))
    coarse = {max(1, round(1.05**power)) for power in range(math.ceil(math.log(most, 1.05)) + 1)}
    steps = min(coarse, key=lambda count: fixed_lost(world, count))
    near = range(max(1, math.floor(steps / 1.05)), math.ceil(steps * 1.05) + 1)
    steps = min(near, key=lambda count: fixed_lost(world, count))
    return steps, fixed_lost(world, steps)


# --- the trainer's choice


@dataclass
class Told:
    """A run that uses ``Interval`` as a trainer does, restarted with its own records after each gap."""

    world: World
    policy: IntervalPolicy

    def __post_init__(self) -> None:
        self.events: list[dict] = []
        self.steps: dict[int, list[dict]] = {}
        self.now_ns = 0
        self.lost: list[float] = []  # by gap
        self.intervals: list[float | None] = []  # in force at the end of each gap
        self.spacings: list[float] = []  # training time between saves
        self.changes: list[dict] = []
        for number, gap in enumerate(self.world.gaps, 1):
            self._attempt(number, round(gap * SECOND))

    def _attempt(self, number: int, gap_ns: int) -> None:
        world, began_ns = self.world, self.now_ns
        began = {"boot_ns": began_ns, "boot_id": "a", "real_ns": 0}
        self.events.append({"kind": "launch", "segment": number, "stamp": began, "pid": 1})
        step_ns, save_ns, flush_ns = (round(seconds * SECOND) for seconds in (world.step, world.save, world.flush))
        interval = Interval.start(self.policy, events=self.events, steps=self.steps, now_ns=began_ns)
        rows, alive_ns, now_ns, ends_ns = list[dict](), began_ns, began_ns, began_ns + gap_ns
        work_ns, saved_work_ns, durable_ns, flushing = 0, 0, 0, None
        while now_ns + step_ns <= ends_ns:
            now_ns = alive_ns = now_ns + step_ns
            work_ns += step_ns
            if flushing is not None and flushing <= now_ns:
                interval.durable(now_ns, flush_ns=flush_ns)
                rows.append({"kind": "save", "step": 1, "blocking_ns": save_ns, "flush_ns": flush_ns, "split": {}})
                durable_ns, flushing = saved_work_ns, None
            due = interval.after_step(now_ns)
            if (change := interval.change()) is not None:
                self.changes.append(change)
            if not due:
                continue
            if flushing is not None:
                interval.left_out(now_ns)
                continue
            if now_ns + save_ns > ends_ns:
                break
            now_ns = alive_ns = now_ns + save_ns
            self.spacings.append((work_ns - saved_work_ns) / SECOND)
            saved_work_ns = work_ns
            interval.saved(now_ns, blocking_ns=save_ns)
            if flush_ns:
                flushing = now_ns + flush_ns
            else:
                durable_ns = work_ns
                rows.append({"kind": "save", "step": 1, "blocking_ns": save_ns, "split": {}})
        if flushing is not None and flushing <= ends_ns:
            durable_ns = saved_work_ns
            rows.append({"kind": "save", "step": 1, "blocking_ns": save_ns, "flush_ns": flush_ns, "split": {}})
        self.lost.append((gap_ns - durable_ns) / SECOND)
        self.intervals.append(interval.decision.interval_seconds if interval.decision else None)
        self._record(number, rows[-8:], alive_ns - began_ns, ends_ns)

    def _record(self, number: int, saves: list[dict], alive_ns: int, ends_ns: int) -> None:
        """One row stands for all steps, the newest saves for all."""
        began = {"boot_ns": self.now_ns, "boot_id": "a", "real_ns": 0}
        step = [{"kind": "step", "step": 1, "stamp": began, "split": {"productive": alive_ns}}] if alive_ns else []
        self.steps[number] = step + saves
        self.now_ns = ends_ns
        stamp = began | {"boot_ns": ends_ns}
        self.events.append({"kind": "exit", "segment": number, "stamp": stamp, "code": None, "signal": 9, "reason": "killed"})
        self.now_ns += round(self.world.restart * SECOND)
