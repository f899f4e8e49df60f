r"""A step carried out again from the state before it: on one build, with as many threads and one layout, its bits repeat.

    keep the state --> step, noted --> restore --> step, noted --> equal: the state is that of the first run, training goes on
                                                              \-> not: restore, a third time, to see which of the two was wrong

The notes of a run on a rank, in order: state before, what it brings to others (``exchanges``), its own loss sums, weights and
gradients when the passes are done, what it brings again, state after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.checkpoint.checksum import checksums
from headway.train.feed import StepBatch
from headway.train.soundness.exchanges import Exchanges
from headway.train.step import StepResult, Sums, train_step
from headway.train.trainee import Trainee

Note = tuple[str, tuple[int, ...] | None]


class Kept:
    """The state of this rank before a step, in host memory: as large as what a checkpoint holds of it."""

    def __init__(self, trainee: Trainee):
        self._values = {name: t.detach().to("cpu", copy=True) for name, t in trainee.own_state().items()}
        self._updates = trainee.updates

    @torch.no_grad()
    def restore(self, trainee: Trainee) -> None:
        for name, tensor in trainee.own_state().items():
            tensor.copy_(self._values[name])
        trainee.updates = self._updates
        trainee.optimizer.restore_step(self._updates)
        trainee.compute.refresh()


@dataclass
class Noted:
    """One run of a step. ``notes``: (name, checksums) in order; None: nothing of this rank's."""

    notes: list[Note] = field(default_factory=list)

    def own(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        self.notes += [(f"{kind}/{name}", (value,)) for name, value in checksums(tensors).items()]

    def meeting(self, name: str, brought: Sequence[Tensor] | None) -> None:
        parts = None if brought is None else checksums({str(place): tensor for place, tensor in enumerate(brought)})
        self.notes.append((name, None if parts is None else tuple(parts.values())))

    def passes(self, trainee: Trainee, sums: Sums) -> None:
        if sums.losses is not None:
            self.own("losses", {"": sums.losses})
        weights = {name: value for name, value in trainee.own_state().items() if name.startswith("param/")}
        self.own("weights", weights)
        self.own("gradients", trainee.gradients())


@dataclass(frozen=True)
class NotedStep:
    result: StepResult
    notes: list[Note]


class AskedOnce:
    """A wish travels with the sums of a step: all its runs send what was wished first, whoever asks to stop meanwhile."""

    def __init__(self, wish: Callable[[], bool]):
        self._wish, self._answer = wish, list[bool]()

    def __call__(self) -> bool:
        if not self._answer:
            self._answer.append(self._wish())
        return self._answer[0]


def noted_step(trainee: Trainee, batch: StepBatch, rate: float, wish: Callable[[], bool] = lambda: False) -> NotedStep:
    """As ``train_step``, with notes."""
    noted = Noted()
    noted.own("before", trainee.own_state())
    with Exchanges(noted.meeting):
        result = train_step(trainee, batch, rate, wish, lambda sums: noted.passes(trainee, sums))
    noted.own("state", trainee.own_state())
    return NotedStep(result, noted.notes)
