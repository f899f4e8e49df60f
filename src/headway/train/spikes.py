"""Spikes as the loop sees them: each step is judged once, the same on all ranks; what a run does about one stands in its recipe.

    off, roll_back, stop    judged after the update, from numbers that are on record anyway
    skip_update             judged before it: the step waits for the device once more

A gradient norm that stands out once, beside a loss as usual, is clipped and gone: roll_back and stop wait for LASTING_STEPS in a
row. A loss that stands out is enough for any.

The leader's statistics decide, and go into checkpoints; the others learn what it learns.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import IntEnum
from typing import Any

import numpy as np

from headway.data.stream import Stream
from headway.monitor.spikes import Reading, SpikeDetector
from headway.recipe.schedules import Schedule
from headway.recipe.spike_rules import OnSpike, SpikeRules
from headway.rundir.segments import ACCEPTED, Segment
from headway.train.crew import Crew
from headway.train.step import StepResult
from headway.train.trainee import Veto

LASTING_STEPS = 3
"""Of gradient norms that stand out."""


class Verdict(IntEnum):
    """About a step. ENDS: the segment ends with it."""

    SOUND = 0
    MARKED = 1
    ENDS = 2


class SpikeWatch:
    """Of one rank. Steps are global and counted from 1, as in records."""

    def __init__(self, segment: Segment, stream: Stream, schedule: Schedule, crew: Crew):
        self._rules = SpikeRules.of(stream.spec)
        self._segment, self._stream, self._schedule, self._crew = segment, stream, schedule, crew
        self._detector = SpikeDetector()
        self._reading, self._verdict = Reading(), Verdict.SOUND  # of the newest step

    def restore(self, saved: Any) -> None:
        """``saved``: of a checkpoint; None: it has none."""
        self._detector = SpikeDetector.restored(saved)

    def state(self) -> dict[str, Any]:
        """For a checkpoint of the step that was looked at last."""
        return self._detector.to_json()

    @property
    def ends(self) -> bool:
        """Whether the newest step ends the segment."""
        return self._verdict is Verdict.ENDS

    @property
    def skips_updates(self) -> bool:
        return self._rules.policy is OnSpike.SKIP_UPDATE

    @property
    def veto(self) -> Veto | None:
        """What leaves updates out; None: nothing does before they are made."""
        return self._judge if self.skips_updates else None

    def look(self, step: int, result: StepResult) -> dict[str, Any] | None:
        """Of the step just done: what is known of it where it is a spike. Learns it where it is sound."""
        if not self.skips_updates:
            self._judge(step, result.loss, result.grad_norm)
        if self._verdict is Verdict.SOUND:
            if result.applied:
                self._detector.learn(result.loss, result.grad_norm)
            return None
        self._detector.flag()
        place = self._schedule.place(step - 1)
        ends = np.array([place.first_sequence, place.end_sequence - 1])
        first, last = self._stream.stream_index(place.stage, ends).tolist()
        batch = {"stage": place.stage, "first": place.first_sequence, "sequences": place.batch_sequences}
        numbers: dict[str, Any] = {"loss": result.loss, "grad_norm": result.grad_norm, "threshold": self._rules.threshold}
        numbers |= {"reading": asdict(self._reading), "in_a_row": self._detector.in_a_row}
        return {"step": step, **numbers, "batch": batch, "stream": [first, last + 1]}

    def _judge(self, step: int, loss: float, grad_norm: float) -> bool:
        """Whether it is a spike."""
        self._reading = self._detector.judge(self._regime(step), loss, grad_norm)
        own = self._own_verdict()
        self._verdict = own if self._rules.policy is OnSpike.OFF else Verdict(self._crew.told(own))
        return self._verdict is not Verdict.SOUND

    def _own_verdict(self) -> Verdict:
        reading, threshold = self._reading, self._rules.threshold
        if not reading.exceeds(threshold):
            return Verdict.SOUND
        lasts = self._detector.in_a_row + 1 >= LASTING_STEPS
        is_loss = reading.loss is not None and reading.loss > threshold
        acts = self._rules.policy in (OnSpike.ROLL_BACK, OnSpike.STOP)
        return Verdict.ENDS if acts and (is_loss or lasts) else Verdict.MARKED

    def _regime(self, step: int) -> str:
        """Steps of one are judged by one another: of a stage, a mixture, since the last spike that a person accepted."""
        place = self._schedule.place(step - 1)
        n = int(self._stream.stream_index(place.stage, np.array([place.first_sequence]))[0])
        mixtures = sum(one.stage == place.stage and one.first <= n for one in self._stream.transitions)
        accepted = sum(one["action"] == ACCEPTED and one["step"] <= step for one in self._segment.spikes)
        return f"{place.stage}/{mixtures}/{accepted}"
