"""Spikes as the loop sees them: each step is judged once, the same on all ranks; what a run does about one stands in its recipe.

    off, roll_back, stop    judged after the update, from numbers that are on record anyway
    skip_update             judged before it: the step waits for the device once more

The leader's statistics decide, and go into checkpoints; the others learn what it learns.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from headway.data.stream import Stream
from headway.monitor.spikes import Reading, SpikeDetector
from headway.recipe.schedules import Schedule
from headway.recipe.spike_rules import OnSpike, SpikeRules
from headway.rundir.segments import ACCEPTED, Segment
from headway.train.crew import Crew
from headway.train.step import StepResult, Veto


class SpikeWatch:
    """Of one rank. Steps are global and counted from 1, as in records."""

    def __init__(self, segment: Segment, stream: Stream, schedule: Schedule, crew: Crew):
        self._rules = SpikeRules.of(stream.spec)
        self._segment, self._stream, self._schedule, self._crew = segment, stream, schedule, crew
        self._detector = SpikeDetector()
        self._reading, self._flagged = Reading(), False  # of the newest step

    def restore(self, saved: Any) -> None:
        """``saved``: of a checkpoint; None: it has none."""
        self._detector = SpikeDetector.restored(saved)

    def state(self) -> dict[str, Any]:
        """For a checkpoint of the step that was looked at last."""
        return self._detector.to_json()

    @property
    def ends(self) -> bool:
        """Whether a spike ends the segment."""
        return self._rules.policy in (OnSpike.ROLL_BACK, OnSpike.STOP)

    @property
    def skips_updates(self) -> bool:
        return self._rules.policy is OnSpike.SKIP_UPDATE

    def veto(self, step: int) -> Veto | None:
        """What leaves the update of ``step`` out; None: nothing does before it is made."""
        return (lambda loss, grad_norm: self._judge(step, loss, grad_norm)) if self.skips_updates else None

    def look(self, step: int, result: StepResult) -> dict[str, Any] | None:
        """Of the step just done: what is known of it where it is a spike. Learns it where it is sound."""
        if not self.skips_updates:
            self._judge(step, result.loss, result.grad_norm)
        if not self._flagged:
            if result.applied:
                self._detector.learn(result.loss, result.grad_norm)
            return None
        place = self._schedule.place(step - 1)
        ends = np.array([place.first_sequence, place.end_sequence - 1])
        first, last = self._stream.stream_index(place.stage, ends).tolist()
        batch = {"stage": place.stage, "first": place.first_sequence, "sequences": place.batch_sequences}
        numbers = {"loss": result.loss, "grad_norm": result.grad_norm, "threshold": self._rules.threshold}
        return {"step": step, **numbers, "reading": asdict(self._reading), "batch": batch, "stream": [first, last + 1]}

    def _judge(self, step: int, loss: float, grad_norm: float) -> bool:
        self._reading = self._detector.judge(self._regime(step), loss, grad_norm)
        flagged = self._reading.exceeds(self._rules.threshold)
        self._flagged = flagged if self._rules.policy is OnSpike.OFF else bool(self._crew.told(flagged))
        return self._flagged

    def _regime(self, step: int) -> str:
        """Steps of one are judged by one another: of a stage, a mixture, since the last spike that a person accepted."""
        place = self._schedule.place(step - 1)
        n = int(self._stream.stream_index(place.stage, np.array([place.first_sequence]))[0])
        mixtures = sum(one.stage == place.stage and one.first <= n for one in self._stream.transitions)
        accepted = sum(one["action"] == ACCEPTED and one["step"] <= step for one in self._segment.spikes)
        return f"{place.stage}/{mixtures}/{accepted}"
