"""From a step to its batch: position arithmetic, windows, micro-batches. Nothing is remembered between steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.data.reader import TokenReader, WindowBatch
from headway.data.stream import Positions, Stream
from headway.recipe.schedules import Schedule, StepPlace


@dataclass(frozen=True)
class StepBatch:
    """Everything one update trains on. ``targets`` is the global count of target tokens: the loss's one divisor."""

    place: StepPlace
    micro_batches: tuple[WindowBatch, ...]
    targets: int
    rows: tuple[tuple[int, ...], ...]  # of each micro-batch, their places in the step's batch


class Feed:
    """``fetch(step)`` for any 0-based step, in any order: the same step always gives the same batch."""

    def __init__(self, stream: Stream, reader: TokenReader, schedule: Schedule, micro_batch_tokens: int):
        self.stream, self.reader, self.schedule = stream, reader, schedule
        self.micro_batch_tokens = micro_batch_tokens

    def micro_sequences(self, sequence_length: int) -> int:
        """Sequences of one forward pass."""
        return max(1, self.micro_batch_tokens // sequence_length)

    def fetch(self, step: int) -> StepBatch:
        place = self.schedule.place(step)
        stage = self.schedule.spec.stages[place.stage]
        u = self.stream.rank_sequences(place.stage, place.first_sequence, place.batch_sequences, rank=0, world=1)
        positions = self.stream.locate(place.stage, u)
        size = self.micro_sequences(stage.sequence_length)
        micro_batches = tuple(
            self.reader.window_batch(_cut(positions, start, start + size), stage.sequence_length)
            for start in range(0, len(u), size)
        )
        rows = tuple(tuple((u[start : start + size] - place.first_sequence).tolist()) for start in range(0, len(u), size))
        return StepBatch(place, micro_batches, len(u) * stage.sequence_length, rows)


def _cut(positions: Positions, start: int, stop: int) -> Positions:
    part = slice(start, stop)
    return Positions(np.asarray(positions.source)[part], np.asarray(positions.epoch)[part], np.asarray(positions.token)[part])
