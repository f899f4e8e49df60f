"""When to save, chosen while the run goes on: Daly's interval for what saves and interruptions really cost this run.

    interruptions.py --> FailureRate --+
    rows "save"      --> Costs --------+--> decide --> Decision --> due after this step?
    the deployment   --> bounds, prior-+      ^ asked again after every save: quiet time lengthens it

Until a save has been measured the deployment's ``every_steps`` counts, between the same bounds. A decision stays in force
until a better one differs by more than a tenth: the losses are flat around the best interval (``FLATNESS``), and every change
is a row. ``decide`` and ``is_due`` are pure; ``Interval`` keeps what a run has shown. Time comes in as readings of the boot clock
of one boot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from headway.base.units import format_seconds
from headway.formulas.checkpoint_interval import daly_interval_seconds
from headway.formulas.failure_estimate import FailureRate, learned_rate
from headway.monitor.interruptions import read_interruptions
from headway.recipe.deployment import Deployment

NEWEST = 8
"""Saves, restarts and steps whose median counts: a change of storage shows after five of them."""
HYSTERESIS = 0.1
"""Share by which a new interval differs before it is adopted: a tenth from the best loses half a per cent of the losses."""
FLUSH_ROOM = 2.0
"""Times that a save takes to become durable, from one save to the next: so that they do not pile up where it varies."""
ASSUMED = FailureRate(interruptions=1, at_risk_seconds=24 * 3600.0)
"""Where nobody states how often the job is interrupted: once a day, with the weight of one interruption seen."""
STATED_WEIGHT = 3
"""Interruptions that a stated rate weighs as much as: rates of whole clusters were 3 to 4 times off for single jobs
(``failure_rates.py``)."""

Bound = Literal["", "least", "most", "flush"]


@dataclass(frozen=True, kw_only=True)
class IntervalPolicy:
    """What the deployment says. ``every_steps`` counts until a save has been measured."""

    least_seconds: float
    most_seconds: float
    every_steps: int
    restart_seconds: float
    """until a restart has been measured"""
    prior: FailureRate

    @staticmethod
    def of(deployment: Deployment) -> IntervalPolicy | None:
        """None: the deployment leaves the interval at a number of steps."""
        adaptive, between = deployment.checkpoints.adaptive, deployment.between_failures
        if adaptive is None:
            return None
        stated = FailureRate(interruptions=STATED_WEIGHT, at_risk_seconds=STATED_WEIGHT * max(between or 0.0, 1.0))
        return IntervalPolicy(
            least_seconds=adaptive.least,
            most_seconds=adaptive.most,
            every_steps=deployment.checkpoints.every_steps,
            restart_seconds=deployment.failures.restart,
            prior=ASSUMED if between is None else stated,
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Medians of the newest, in seconds."""

    save_seconds: float
    """training time that a save takes: the wait for the snapshot, and what the writer slows down"""
    flush_seconds: float
    """until a save is durable; 0: it is when training goes on"""
    restart_seconds: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The interval in force, and what it was derived from."""

    interval_seconds: float
    """training time from one save to the next"""
    between_failures_seconds: float
    between_failures_range: tuple[float, float]
    """80 %"""
    save_seconds: float | None
    """None: no save has been measured yet, every_steps counts"""
    restart_seconds: float
    bound: Bound
    """what the best interval was moved to; "": nothing"""
    reason: str

    def row(self) -> dict:
        """Fields of a row ``interval``, besides its step."""
        return {
            "seconds": self.interval_seconds,
            "between_failures_seconds": self.between_failures_seconds,
            "between_failures_range": list(self.between_failures_range),
            "save_seconds": self.save_seconds,
            "restart_seconds": self.restart_seconds,
            "bound": self.bound,
            "reason": self.reason,
        }


def decide(policy: IntervalPolicy, *, rate: FailureRate, costs: Costs, before: Decision | None = None) -> Decision:
    """Daly's interval within the bounds; ``before``, where that is as good. The bounds win over the room for the writer."""
    best = daly_interval_seconds(costs.save_seconds, rate.between_seconds)
    room = FLUSH_ROOM * costs.flush_seconds
    seconds, bound = _clamped(max(best, room), policy, "flush" if room > best else "")
    if before is not None and _is_as_good(before, seconds, least=min(room, policy.most_seconds)):
        return before
    low, high = rate.between_range_seconds
    between = f"{format_seconds(rate.between_seconds)} (80 %: {format_seconds(low)} to {format_seconds(high)})"
    moved = {
        "": "",
        "least": f"; {format_seconds(best)} would be best, checkpoints.adaptive.least is more",
        "most": f"; {format_seconds(max(best, room))} would be best, checkpoints.adaptive.most is less",
        "flush": f"; {format_seconds(best)} would be best, a save is durable after {format_seconds(costs.flush_seconds)}",
    }[bound]
    return Decision(
        interval_seconds=seconds,
        between_failures_seconds=rate.between_seconds,
        between_failures_range=(low, high),
        save_seconds=costs.save_seconds,
        restart_seconds=costs.restart_seconds,
        bound=bound,
        reason=f"a save costs {format_seconds(costs.save_seconds)}, an interruption comes every {between}{moved}",
    )


def first_decision(policy: IntervalPolicy, *, rate: FailureRate, step_seconds: float, restart_seconds: float) -> Decision:
    """Before any save was measured: as many seconds as the deployment's steps take."""
    seconds, bound = _clamped(policy.every_steps * step_seconds, policy, "")
    words = {"least": "sooner", "most": "later"}
    limit = f", but not {words[bound]} than checkpoints.adaptive.{bound}" if bound in words else ""
    steps = f"{policy.every_steps} step{'s' if policy.every_steps > 1 else ''}"
    return Decision(
        interval_seconds=seconds,
        between_failures_seconds=rate.between_seconds,
        between_failures_range=rate.between_range_seconds,
        save_seconds=None,
        restart_seconds=restart_seconds,
        bound=bound,
        reason=f"no save has been measured yet, so every {steps}{limit}",
    )


def is_due(policy: IntervalPolicy, decision: Decision, *, since_save_seconds: float, step_seconds: float) -> bool:
    """Whether this boundary is the nearest to the interval, or the last before the upper bound, if the next step takes so long.
    Never below the lower bound, also where a step is longer than the room between both."""
    if since_save_seconds < policy.least_seconds:
        return False
    next_seconds = since_save_seconds + step_seconds
    return since_save_seconds + next_seconds >= 2 * decision.interval_seconds or next_seconds > policy.most_seconds


def _clamped(seconds: float, policy: IntervalPolicy, bound: Bound) -> tuple[float, Bound]:
    if seconds < policy.least_seconds:
        return policy.least_seconds, "least"
    return (policy.most_seconds, "most") if seconds > policy.most_seconds else (seconds, bound)


def _is_as_good(before: Decision, seconds: float, least: float) -> bool:
    return before.interval_seconds >= least and abs(seconds / before.interval_seconds - 1) <= HYSTERESIS


# --- in the trainer


def _newest() -> deque[int]:
    return deque(maxlen=NEWEST)


@dataclass(kw_only=True)
class Interval:
    """Asked by the trainer after each step, told of each save. One per attempt; what came before is in the records."""

    policy: IntervalPolicy
    rate: FailureRate
    """right after the last interruption"""
    quiet_seconds: float
    """at risk since then, when this attempt began"""
    restart_seconds: float
    began_ns: int
    """when the state was restored"""
    decision: Decision | None = None
    """None: not before the second step of a run without a save"""
    _save_ns: deque[int] = field(default_factory=_newest)
    _flush_ns: deque[int] = field(default_factory=_newest)
    _slowed_ns: deque[int] = field(default_factory=_newest)
    _step_ns: deque[int] = field(default_factory=_newest)
    _steps: int = 0  # since the last save
    _saved_ns: int = field(init=False)  # training went on from a state that is saved
    _went_on_ns: int = field(init=False)  # ... or from the end of a step
    _not_before_ns: int = 0
    _told: Decision | None = None

    def __post_init__(self) -> None:
        self._saved_ns = self._went_on_ns = self.began_ns

    @classmethod
    def start(cls, policy: IntervalPolicy, *, events: list[dict], steps: dict[int, list[dict]], now_ns: int) -> Interval:
        """Once the state is restored. ``events``: the chain (``read_events``); ``steps``: all rows (``read_all_steps``)."""
        seen = read_interruptions(events, steps)
        interval = cls(
            policy=policy,
            rate=learned_rate(policy.prior, seen.gaps),
            quiet_seconds=seen.quiet,
            restart_seconds=median(seen.restarts[-NEWEST:]) if seen.restarts else policy.restart_seconds,
            began_ns=now_ns,
        )
        interval._learn(row for _, rows in sorted(steps.items()) for row in rows if row["kind"] == "save")
        interval._decide(now_ns)
        return interval

    def after_step(self, now_ns: int) -> bool:
        """Whether to save now."""
        self._step_ns.append(now_ns - self._went_on_ns)
        self._went_on_ns = now_ns
        self._steps += 1
        if self.decision is None and len(self._step_ns) > 1:  # the first step of an attempt is longer: memory, compilation
            self.decision = first_decision(
                self.policy,
                rate=self._rate(now_ns),
                step_seconds=min(self._step_ns) / 1e9,
                restart_seconds=self.restart_seconds,
            )
        return now_ns >= self._not_before_ns and self._is_due((now_ns - self._saved_ns) / 1e9, median(self._step_ns) / 1e9)

    def saved(self, now_ns: int, *, blocking_ns: int, flush_ns: int | None = None) -> None:
        """A save was taken, and training goes on now. ``blocking_ns``: all that it waited. ``flush_ns`` None: ``durable`` will
        tell, or the save is durable already."""
        self._saved_ns = self._went_on_ns = now_ns
        self._steps = 0
        self._save_ns.append(blocking_ns)
        if flush_ns is not None:
            self._flush_ns.append(flush_ns)
        self._decide(now_ns)

    def durable(self, now_ns: int, *, flush_ns: int, slowed_ns: int = 0) -> None:
        """The writer is done, ``flush_ns`` after the snapshot; steps meanwhile took ``slowed_ns`` more than usual."""
        self._flush_ns.append(flush_ns)
        self._slowed_ns.append(slowed_ns)
        self._decide(now_ns)

    def left_out(self, now_ns: int) -> None:
        """A save that was due failed, or the one before is still being written: the next try comes after the least interval."""
        self._went_on_ns = now_ns
        self._not_before_ns = now_ns + round(self.policy.least_seconds * 1e9)

    def change(self) -> dict | None:
        """Fields of a row ``interval`` where the interval changed since the last call; else None."""
        if self.decision is self._told or self.decision is None:
            return None
        self._told = self.decision
        return self.decision.row()

    def _is_due(self, since_seconds: float, step_seconds: float) -> bool:
        if self._save_ns and self.decision is not None:
            return is_due(self.policy, self.decision, since_save_seconds=since_seconds, step_seconds=step_seconds)
        over = since_seconds + step_seconds > self.policy.most_seconds
        return since_seconds >= self.policy.least_seconds and (over or self._steps >= self.policy.every_steps)

    def _learn(self, saves: Iterable[dict]) -> None:
        """From rows; those of synchronous saves hold the time of deleting old ones apart."""
        for row in saves:
            if type(row.get("blocking_ns")) is int:
                self._save_ns.append(row["blocking_ns"] + (row.get("retention_ns") or 0))
            if type(row.get("flush_ns")) is int:
                self._flush_ns.append(row["flush_ns"])
                self._slowed_ns.append(row.get("slowed_ns") or 0)

    def _decide(self, now_ns: int) -> None:
        if not self._save_ns:
            return
        measured = self.decision is not None and self.decision.save_seconds is not None
        costs = Costs(
            save_seconds=(median(self._save_ns) + _median(self._slowed_ns)) / 1e9,
            flush_seconds=_median(self._flush_ns) / 1e9,
            restart_seconds=self.restart_seconds,
        )
        before = self.decision if measured else None
        self.decision = decide(self.policy, rate=self._rate(now_ns), costs=costs, before=before)

    def _rate(self, now_ns: int) -> FailureRate:
        return self.rate.after_quiet(self.quiet_seconds + (now_ns - self.began_ns) / 1e9)


def _median(values: deque[int]) -> float:
    return median(values) if values else 0.0
