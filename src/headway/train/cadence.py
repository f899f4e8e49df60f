"""When a save is due: every so many steps, or at the interval that costs this run least (``monitor.interval``)."""

from __future__ import annotations

from typing import Any

from headway.base.clocks import Clock
from headway.monitor.slowdown import Slowdown
from headway.rundir.events import read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog, read_all_steps


class Cadence:
    """Asked after every step, told of every save. Each change of an adaptive interval is a row."""

    def __init__(self, run: RunDirectory, deployment: dict[str, Any], clock: Clock, log: StepLog):
        self._run, self._deployment, self._clock, self._log = run, deployment, clock, log
        self._every_steps: int = deployment["checkpoints"]["every_steps"]
        self._interval: Any = None
        self._slowdown, self._went_on_ns = Slowdown(), self._now()

    def begin(self, step: int) -> None:
        """Once the state is restored."""
        self._went_on_ns = self._now()
        if self._deployment["checkpoints"].get("adaptive") is None:
            return
        from headway.monitor.interval import Interval, IntervalPolicy  # it needs the deployment's own schema
        from headway.recipe.deployment import Deployment

        policy = IntervalPolicy.of(Deployment.of_resolved(self._deployment))
        assert policy is not None
        self._interval = Interval.start(
            policy, events=read_events(self._run), steps=read_all_steps(self._run), now_ns=self._now()
        )
        self._tell(step)

    @property
    def by_the_clock(self) -> bool:
        """Whether what is due depends on more than the step."""
        return self._deployment["checkpoints"].get("adaptive") is not None

    def is_due(self, step: int) -> bool:
        self._went_on_ns = self._now()
        if self._interval is None:
            return step % self._every_steps == 0
        due = self._interval.after_step(self._now())
        self._tell(step)
        return due

    def step_done(self) -> None:
        """Its update is on record; evaluations and saves come after it."""
        self._slowdown.step(self._now() - self._went_on_ns)

    def slowed_ns(self) -> int:
        """What the steps of the flush that has just ended took longer than others."""
        return self._slowdown.ends()

    def snapshot_taken(self, step: int, blocking_ns: int) -> None:
        self._slowdown.begins()
        self._went_on_ns = self._now()
        if self._interval is not None:
            self._interval.saved(self._now(), blocking_ns=blocking_ns)
            self._tell(step)

    def committed(self, step: int, flush_ns: int, slowed_ns: int) -> None:
        if self._interval is not None:
            self._interval.durable(self._now(), flush_ns=flush_ns, slowed_ns=slowed_ns)
            self._tell(step)

    def left_out(self) -> None:
        if self._interval is not None:
            self._interval.left_out(self._now())

    def _now(self) -> int:
        return self._clock.stamp().boot_ns

    def _tell(self, step: int) -> None:
        change = self._interval.change()
        if change is not None:
            self._log.write("interval", step=step, **change)
