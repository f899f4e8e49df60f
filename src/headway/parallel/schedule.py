"""A rank's chunks of a pipeline under one of torch's schedules: what it calls to run a chunk, and what it differentiates.

    stream of the chunk before  -->  chunk  -->  stream, with the losses of its routers in the backward pass    (``Carried``)
                                            or, of the last chunk, the objective of the micro-batch, divided

Shapes: B rows, t tokens of a row on this rank, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

from headway.model.context import Context
from headway.model.objective import MicroBatch, MicroBatches, TrainingSums, objective_sums, routing_sums, with_tally
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ShardedModel

SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
OF_CHUNKS = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}

Add = Callable[[TrainingSums], None]


class Schedule:
    """One order of so many micro-batches of one shape; torch's stages keep a buffer for each. ``_stage`` is what a dry run
    replaces."""

    def __init__(self, chunks: Mapping[int, ShardedModel], mesh: Mesh, count: int, like_BtD: Tensor):
        """``chunks``: of this rank, by their numbers; ``like_BtD``: what passes between them."""
        stages = [self._stage(at, chunk, mesh, like_BtD) for at, chunk in chunks.items()]
        self._count, self._last_chunk = count, max(chunks)
        self._order = _order(stages, count, mesh.axes)

    def _stage(self, at: int, chunk: ShardedModel, mesh: Mesh, like_BtD: Tensor) -> ChunkStage:
        return ChunkStage(self, at, chunk, mesh, like_BtD)

    def run(self, work: MicroBatches, first: MicroBatch, add: Add) -> None:
        self.work, self.add = work, add
        self._made = {0: first}
        places = torch.arange(self._count)
        self._order.step(place=places, target=places, return_outputs=False)
        del self.work, self.add
        self._made = {}

    def micro_batch(self, place_1: Tensor, chunk: int) -> MicroBatch:
        """Built by the first chunk of the rank that meets it, let go by the last: the backward pass keeps what it needs."""
        place = int(place_1)
        if place not in self._made:
            self._made[place] = self.work.make(place)
        return self._made.pop(place) if chunk == self._last_chunk else self._made[place]


def _order(stages: list[ChunkStage], count: int, axes: Axes) -> Any:
    """torch's schedule. Losses are sums that were divided: nothing is scaled again."""
    if axes.pipeline in OF_CHUNKS:
        return OF_CHUNKS[axes.pipeline](list(stages), count, loss_fn=_output, scale_grads=False)
    fills = count >= axes.pp  # fewer micro-batches than ranks pass in one order only
    return SINGLE[axes.pipeline if fills else "gpipe"](stages[0], count, loss_fn=_output, scale_grads=False)


def _output(output: Tensor, _: Tensor) -> Tensor:
    """The last chunk's output is its loss."""
    return output


class ChunkStage(PipelineStage):
    """One chunk. Its module is the decoder itself, so that torch gathers weights and sums gradients when the schedule says so."""

    def __init__(self, schedule: Schedule, at: int, chunk: ShardedModel, mesh: Mesh, like_BtD: Tensor):
        self.chunk, self.schedule = chunk, schedule
        is_last = chunk.decoder.piece.is_last
        stream = like_BtD.detach().requires_grad_()
        super().__init__(
            chunk.decoder,
            at,
            mesh.axes.pp * mesh.axes.virtual,
            like_BtD.device,
            input_args=() if at == 0 else (stream,),
            output_args=(like_BtD.new_zeros((), dtype=torch.float64).requires_grad_(),) if is_last else (stream,),
            group=mesh.group("pp"),
        )

    def forward_maybe_with_nosync(self, *stream_BtD: Tensor, place: Tensor) -> Tensor:
        """What torch calls to run the chunk. Returns the stream, or of the last chunk the divided objective."""
        micro = self.schedule.micro_batch(place, self.stage_index)
        context, stream = with_tally(self.chunk.spec, micro.context), stream_BtD[0] if stream_BtD else None
        if self.chunk.decoder.piece.is_last:
            return self._objective(micro, context, stream)
        out_BtD = self.chunk.decoder(micro.tokens_BT, context, stream)
        if context.tally is None or not context.tally.counts:
            return out_BtD
        sums = routing_sums(context.tally)
        self.schedule.add(sums)
        return Carried.apply(out_BtD, sums.objective_sum / self.schedule.work.targets)

    def _objective(self, micro: MicroBatch, context: Context, stream_BtD: Tensor | None) -> Tensor:
        work, decoder = self.schedule.work, self.chunk.decoder
        hidden = decoder.hidden(micro.tokens_BT, context, stream_BtD)
        sums = objective_sums(self.chunk, hidden, micro.targets_BT, context, work.z_weight)
        self.schedule.add(sums)
        return sums.objective_sum / work.targets


class Carried(Function):
    """``x``, with a loss that its backward pass begins from too. A copy: torch's schedules detach outputs in place."""

    @staticmethod
    def forward(ctx: Any, x_BtD: Tensor, loss: Tensor) -> Tensor:
        ctx.loss_dtype = loss.dtype
        return x_BtD.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BtD: Tensor) -> tuple[Tensor, Tensor]:
        return grad_BtD, torch.ones((), dtype=ctx.loss_dtype, device=grad_BtD.device)
