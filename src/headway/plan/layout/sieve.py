"""What fits: layouts that can be and need no more memory than is planned for; the others counted, with the closest.

Memory and time come from the planner's models; tests put fakes in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headway.base.errors import Problem
from headway.plan.layout.feasible import broken_rules
from headway.plan.step.shares import busiest_blocks, rank_parameters
from headway.plan.work import Cluster, Layout, Pipeline, Work


class Seconds(Protocol):
    @property
    def seconds(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Bytes(Protocol):
    @property
    def total(self) -> float: ...


USABLE_SHARE = 0.97
"""Of the memory that a chip is sold with, what a process can have: a driver reports 79.1 to 79.6 GiB of an H100's 80, and the
device itself keeps some more."""
MEMORY_ERROR = 1.05
"""Of the memory model on published peaks: what is chosen has to fit with the estimate wrong by as much."""
PLANNED_SHARE = USABLE_SHARE / MEMORY_ERROR

Shape = tuple[int, int, int, int, Pipeline, int]
"""tp, pp, ep, chunks, order, zero: what a stage's layout has in common with those of other lengths."""
Fit = tuple[Layout, float]
"""A layout with the bytes of its fullest rank."""
StepTimeModel = Callable[[Work, Layout, Cluster], Seconds]
MemoryModel = Callable[[Work, Layout, Cluster], Bytes]


@dataclass(frozen=True, slots=True)
class Models:
    """What a layout takes and needs."""

    step_time: StepTimeModel
    peak_memory: MemoryModel


class Sieve:
    """Collects layouts that fit; remembers how many do not, and by how little; and what refused those that cannot be.

    ``share``: of the memory that the chip is sold with, what a layout may need.
    """

    def __init__(
        self, work: Work, cluster: Cluster, models: Models, batches: Sequence[int] = (), share: float = PLANNED_SHARE
    ) -> None:
        self.work, self.cluster, self.models = work, cluster, models
        self.least_batch = min([work.batch, *batches])
        self._works = [work, *(replace(work, batch=batch) for batch in sorted(set(batches) - {work.batch}))]
        self.memory, self.share = float(cluster.chip.memory_bytes), share
        self.kept: list[Fit] = []
        self.too_large = 0
        self.closest: Fit | None = None
        self.among: frozenset[Shape] | None = None  # shapes to look at; None: all
        self.refused: Counter[str] = Counter()
        self.examples: dict[str, Problem] = {}

    def can_be(self, layout: Layout) -> bool:
        """For every batch."""
        for work in self._works:
            problem = next(broken_rules(work, layout, self.cluster), None)
            if problem is not None:
                self.refuse(problem)
                return False
        return True

    def refuse(self, problem: Problem) -> None:
        """One candidate more that ``problem`` forbids; the last of a rule stands for the others."""
        self.refused[problem.rule] += 1
        self.examples[problem.rule] = problem

    def fit(self, layout: Layout) -> Fit | None:
        return self._passing(layout, float(self.models.peak_memory(self.work, layout, self.cluster).total))

    def may_fit(self, shape: Layout) -> bool:
        """Whether states, sharded as far as they can be, and one input per block leave room."""
        return self._passing(shape, least_bytes(self.work, shape)) is not None

    def _passing(self, layout: Layout, need: float) -> Fit | None:
        if need <= self.share * self.memory:
            return layout, need
        self.too_large += 1
        if self.closest is None or need < self.closest[1]:
            self.closest = layout, need
        return None


def least_bytes(work: Work, shape: Layout) -> float:
    """No option needs less: everything sharded that may be, micro-batch 1, full recomputation."""
    optimizer = work.master_bytes + (0.0 if shape.offload.moments else work.moment_bytes)
    sharded, whole = work.weight_bytes + work.gradient_bytes + optimizer, 0
    if shape.pp > 1:  # weights lie whole through the step
        sharded, whole = sharded - work.weight_bytes, work.weight_bytes
    states = sum(rank_parameters(work.model, shape)) * (whole + sharded / shape.shards)
    blocks = busiest_blocks(work.model, shape)
    inputs = 2 * work.sequence / shape.cp * work.model.width / shape.tp * (0 if shape.offload.activations else blocks)
    return states + inputs
