"""From a step to its batch: position arithmetic, windows, micro-batches. Nothing is remembered between steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

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
    padded: int = 0  # last sequences of all micro-batches together that are there to fill them, and count for nothing

    def scored(self, index: int) -> torch.Tensor | None:
        """bool, B T: which tokens of micro-batch ``index`` count; None: all."""
        micro = self.micro_batches[index]
        own = None if micro.scored_BT is None else torch.from_numpy(micro.scored_BT)
        if not self.padded:
            return own
        tokens_BT = micro.tokens_BT
        before, real = sum(len(rows) for rows in self.rows[:index]), sum(map(len, self.rows)) - self.padded
        counts_B = torch.arange(before, before + len(tokens_BT)) < real
        real_BT = counts_B[:, None].expand(tokens_BT.shape)
        return real_BT if own is None else real_BT & own

    def evened(self, count: int) -> StepBatch:
        """The same batch as ``count`` micro-batches (or the more that it has) of as many sequences as its first: what is
        missing is filled with sequences of the first, which count for nothing."""
        first, places = self.micro_batches[0], self.rows[0]
        more = max(0, count - len(self.rows))
        micro_batches, rows = [*self.micro_batches, *[_first_rows(first, 0)] * more], [*self.rows, *[()] * more]
        missing = [len(places) - len(part) for part in rows]
        return replace(
            self,
            micro_batches=tuple(_joined(part, _first_rows(first, n)) for part, n in zip(micro_batches, missing, strict=True)),
            rows=tuple(part + places[:n] for part, n in zip(rows, missing, strict=True)),
            padded=self.padded + sum(missing),
        )


@dataclass(frozen=True)
class Replica:
    """One of ``count`` groups of ranks that take a batch's sequences among them."""

    index: int = 0
    count: int = 1


class Feed:
    """``fetch(step)`` for any 0-based step, in any order: the same step always gives the same batch."""

    def __init__(
        self, stream: Stream, reader: TokenReader, schedule: Schedule, micro_batch_tokens: int, replica: Replica | None = None
    ):
        self.stream, self.reader, self.schedule = stream, reader, schedule
        self.micro_batch_tokens, self.replica = micro_batch_tokens, replica or Replica()

    def micro_sequences(self, sequence_length: int) -> int:
        """Sequences of one forward pass."""
        return max(1, self.micro_batch_tokens // sequence_length)

    def fetch(self, step: int) -> StepBatch:
        place = self.schedule.place(step)
        stage = self.schedule.spec.stages[place.stage]
        replica = self.replica
        share = self.stream.share(place.stage, place.first_sequence, place.batch_sequences, replica.index, replica.count)
        u = share.u
        positions = self.stream.locate(place.stage, u)
        if self.reader.is_remote:
            self.reader.expect(self.stream.chunks_at(place.stage, place.end_sequence))
        size = self.micro_sequences(stage.sequence_length)
        micro_batches = tuple(
            self.reader.stage_batch(_cut(positions, start, start + size), stage) for start in range(0, len(u), size)
        )
        rows = tuple(tuple((u[start : start + size] - place.first_sequence).tolist()) for start in range(0, len(u), size))
        return StepBatch(place, micro_batches, self._targets(place), rows, share.padded)

    def _targets(self, place: StepPlace) -> int:
        """Of the whole batch, on all replicas."""
        stage = self.schedule.spec.stages[place.stage]
        if not stage.packed:
            return place.batch_sequences * stage.sequence_length
        u = np.arange(place.first_sequence, place.first_sequence + place.batch_sequences)
        return self.reader.targets(self.stream.locate(place.stage, u), stage)


def _cut(positions: Positions, start: int, stop: int) -> Positions:
    part = slice(start, stop)
    return Positions(np.asarray(positions.source)[part], np.asarray(positions.epoch)[part], np.asarray(positions.token)[part])


def _first_rows(batch: WindowBatch, count: int) -> WindowBatch:
    return _each(lambda part: part[:count], batch)


def _joined(batch: WindowBatch, more: WindowBatch) -> WindowBatch:
    if not len(more.tokens_BT):
        return batch
    return _each(lambda *parts: np.concatenate(parts), batch, more)


def _each(change: Callable[..., np.ndarray], *batches: WindowBatch) -> WindowBatch:
    """A batch of ``change`` of each array of ``batches``; what they lack, it lacks."""
    parts = zip(*([getattr(batch, part.name) for part in fields(batch)] for batch in batches), strict=True)
    changed: list[Any] = [None if part[0] is None else change(*part) for part in parts]
    return WindowBatch(*changed)
