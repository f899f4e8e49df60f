"""Batches for proofs: random tokens, documents of very unequal lengths, from a seed and a step alone.

Every rank makes the whole batch and takes its replica's sequences of it, as ``Feed`` does: the number of micro-batches is the
same for all replicas, and what is missing is filled with sequences that count for nothing.
"""

from __future__ import annotations

import numpy as np

from headway.data.windows import WindowBatch
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.train.feed import Replica, StepBatch


class RandomFeed:
    """``fetch(step)`` as ``Feed`` has it; ``micro_sequences`` of one forward pass."""

    def __init__(self, spec: Spec, micro_sequences: int, replica: Replica | None = None):
        self.spec, self.schedule = spec, Schedule(spec)
        self.micro_sequences, self.replica = micro_sequences, replica or Replica()

    def fetch(self, step: int) -> StepBatch:
        place = self.schedule.place(step)
        length, batch, count = self.spec.stages[place.stage].sequence_length, place.batch_sequences, self.replica.count
        mine = np.arange(batch * self.replica.index // count, batch * (self.replica.index + 1) // count)
        missing = -(-batch // count) - len(mine)
        rows = np.concatenate([mine, np.arange(missing) % batch])
        cuts = [rows[at : at + self.micro_sequences] for at in range(0, len(rows), self.micro_sequences)]
        whole = self._whole(step, batch, length)
        micro = tuple(_rows_of(whole, cut) for cut in cuts)
        return StepBatch(place, micro, batch * length, tuple(tuple(cut.tolist()) for cut in cuts), missing)

    def _whole(self, step: int, batch: int, length: int) -> WindowBatch:
        random = np.random.default_rng((self.spec.data_seed, step))
        tokens = random.integers(0, self.spec.model.vocabulary, (batch, length + 1))
        begins = random.random((batch, length)) < random.choice([0.0, 0.05, 0.3], (batch, 1))
        begins[:, 0] = False
        document = begins.cumsum(1)
        column = np.arange(length)
        position = column - np.maximum.accumulate(np.where(begins, column, 0), 1)
        return WindowBatch(tokens[:, :-1], tokens[:, 1:], document, position, np.zeros(batch, np.int64))


def _rows_of(batch: WindowBatch, rows: np.ndarray) -> WindowBatch:
    parts = (batch.tokens_BT, batch.targets_BT, batch.document_BT, batch.position_BT, batch.source_B)
    return WindowBatch(*(np.ascontiguousarray(part[rows]) for part in parts))
