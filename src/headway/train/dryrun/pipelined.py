"""A rank's step of a pipeline, run dry: torch's schedule over chunks without values, and what it hands on.

    schedule  --what is sent and received next-->  ``Watch.send``: of which phase it is  --> dispatched, counted

All micro-batches are one: a schedule asks for each by its place, which is a value.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.stage import InferenceMode

from headway.model.objective import MicroBatch, MicroBatches
from headway.parallel.model import ShardedModel
from headway.parallel.pipeline import Pipeline
from headway.parallel.schedule import ChunkStage, Schedule
from headway.train.dryrun.seen import Watch
from headway.train.dryrun.shapes import ShapesOnly


class WatchedStage(ChunkStage):
    """One chunk; its schedule's watch is told what a message belongs to."""

    schedule: WatchedSchedule

    @property
    def watch(self) -> Watch:
        return self.schedule.watch

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self.watch.send(super().get_fwd_send_ops(fwd_chunk_id), "forward")

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self.watch.send(super().get_fwd_recv_ops(fwd_chunk_id), "forward")

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self.watch.send(super().get_bwd_send_ops(bwd_chunk_id), "backward")

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self.watch.send(super().get_bwd_recv_ops(bwd_chunk_id), "backward")

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        with self.watch.phase("backward"):
            super().perform_reduce_grad(grad_scale_factor)


class WatchedSchedule(Schedule):
    watch: Watch

    def _stage(self, at: int, chunk: ShardedModel, *rest: Any) -> WatchedStage:
        return WatchedStage(self, at, chunk, *rest)

    def run(self, work: MicroBatches, first: MicroBatch, add: Any) -> None:
        """Shapes are stated, so nothing is asked of neighbours; their answer would be a value."""
        self._micro_batch = first
        self._order._warmup_p2p = _agreed
        super().run(work, first, add)

    def micro_batch(self, place_1: Tensor, chunk: int) -> MicroBatch:
        return self._micro_batch


def _agreed(stages: list[WatchedStage], *_: Any) -> None:
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class PipelineOfShapes(Pipeline):
    """The chunks of a rank, without memory."""

    model_type = ShapesOnly

    def allocate(self, watch: Watch) -> None:
        """Under a FakeTensorMode: tensors that have sizes only; ``watch`` sees what is exchanged of them."""
        for chunk in self.chunks.values():
            assert isinstance(chunk, ShapesOnly)
            chunk.allocate()
        self.parts = self._parts()
        self.schedule_type = type("Watched", (WatchedSchedule,), {"watch": watch})
