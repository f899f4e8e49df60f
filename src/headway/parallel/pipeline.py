"""Pipeline parallelism: pieces of the decoder on the ranks of axis pp, micro-batches through them by torch's schedules.

    rank 0   embed, layers 0-1    F0 F1 F2 F3          B0    B1 B2 B3           stream  --->  to the next chunk
    rank 1   layers 2-3, head        F0 B0 F1 B1 F2 B2 F3 B3                    its gradient  <---

Every rank builds the micro-batches itself (they are a function of position); only streams and their gradients travel. All have
one shape, so a smaller last one comes filled with sequences that count for nothing.

What a loss is made of arises on several ranks, and is divided once, by the global count of targets:

    head's losses        on the last chunk, whose output is their sum
    routers' losses      on the chunk of their layer: ``_Carried`` adds them to the backward pass of what it sends on
    embedding            held by the first chunk, and by the last where head or further tokens read it too: the two gradients
                         are added, so that both make the same update; the first one's counts in norms and is saved

Weights stay gathered through a step, whatever ``zero`` says: a zero-bubble schedule, which computes gradients of weights apart
from those of streams, would find weights that were freed, and lose gradients without a word (torch 2.13).

Shapes: B rows, T tokens of a row, t of them on this rank (of tensor parallelism), D width, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

from headway.model.context import Context
from headway.model.decoder import Decoder, Hidden
from headway.model.loss import LossSums
from headway.model.objective import MicroBatch, MicroBatches, TrainingSums, objective_sums, routing_sums, with_tally
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ShardedModel
from headway.parallel.stages import equal_rounds, rank_pieces
from headway.parallel.state import LocalParts
from headway.recipe.spec import ModelSpec, PrecisionSpec

SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
OF_CHUNKS = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}

EMBEDDING = "embed.weight"
KEPT_SCHEDULES = 4
"""Of the last shapes of a step: a batch ramp has new ones, and buffers of old ones would stay."""

Add = Callable[[TrainingSums], None]


class Pipeline:
    """This rank's pieces; ``precision.Computes`` for evaluations, ``objective.Passes`` for steps.

    ``forward`` and ``loss`` give their results on the last rank, zeros elsewhere (``from_head`` tells all); ``logits`` on all.
    """

    def __init__(self, spec: ModelSpec, precision: PrecisionSpec, seed: int, mesh: Mesh):
        self.spec, self.mesh, self.group = spec, mesh, mesh.group("pp")
        self.rank = dist.get_rank(self.group)
        pieces = rank_pieces(spec, mesh.axes, self.rank)
        self.chunks = {at: ShardedModel(spec, precision, seed, mesh, piece) for at, piece in pieces.items()}
        first = next(iter(self.chunks.values()))
        self.dtype, self.ranks = first.dtype, first.ranks
        self.is_last = self.rank == mesh.axes.pp - 1
        copies = {EMBEDDING} if self.is_last and self.head.decoder.embed is not None else set()
        self.parts = LocalParts(*self.decoders, copies=frozenset(copies))
        self._schedules: dict[tuple[int, ...], _Schedule] = {}
        self._sent: list[tuple[dist.Work, Tensor]] = []

    @property
    def decoders(self) -> list[Decoder]:
        """Of all pieces on this rank, in the order in which tokens pass."""
        return [chunk.decoder for chunk in self.chunks.values()]

    @property
    def decoder(self) -> Decoder:
        """The first of them."""
        return self.decoders[0]

    @property
    def head(self) -> ShardedModel:
        """The model of the last piece, on the last rank."""
        assert self.is_last, "the head lies on another rank"
        return self.chunks[max(self.chunks)]

    # --- steps

    def takes(self, count: int) -> int:
        """Into how many equal micro-batches the schedule wants ``count`` to be filled up."""
        return equal_rounds(count, self.mesh.axes)

    def run(self, work: MicroBatches, add: Add) -> None:
        """Forward and backward passes of all, by the layout's schedule; ``add`` gets the sums of every chunk."""
        micro = work.make(0)
        rows, length = micro.tokens_BT.shape
        key = (work.count, rows, length)
        if key not in self._schedules:
            while len(self._schedules) >= KEPT_SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[key] = _Schedule(self, work.count, self._stream_like(micro))
        self._schedules[key].run(work, micro, add)

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """The schedule says when gradients are summed over ranks."""

    def take_gradients(self) -> None:
        """After the last backward pass: into ``.grad`` of the parts that the update changes."""
        self.parts.take_gradients()
        self._share_embedding()

    def _share_embedding(self) -> None:
        """The gradient of both holders is the sum of theirs. a + b = b + a bit for bit, so the two stay equal."""
        if not (self.rank == 0 or self.is_last) or not self._embedding_is_shared:
            return
        gradient = self.parts.local[EMBEDDING].grad
        assert gradient is not None
        gradient, other = gradient.contiguous(), torch.empty_like(gradient, memory_format=torch.contiguous_format)
        peer = dist.get_global_rank(self.group, self.mesh.axes.pp - 1 if self.rank == 0 else 0)
        if gradient.numel():  # shards of few rows may be empty, on both
            ops = [dist.P2POp(dist.isend, gradient, peer, self.group), dist.P2POp(dist.irecv, other, peer, self.group)]
            for request in dist.batch_isend_irecv(ops):
                request.wait()
        self.parts.local[EMBEDDING].grad = gradient + other

    @property
    def _embedding_is_shared(self) -> bool:
        return self.spec.tied_embeddings or self.spec.mtp_layers > 0

    def refresh(self) -> None:
        """After a change of the weights: nothing that was gathered before it is read again."""
        for chunk in self.chunks.values():
            chunk.refresh()

    # --- evaluations: batch after batch, a rank begins the next while those behind it compute

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        """Hidden states after the final norm, B t D. Without gradients."""
        like_BtD = self._stream_like(MicroBatch(tokens_BT, tokens_BT, context))
        self._let_go()
        hidden_BtD = like_BtD
        with torch.no_grad():
            for at, chunk in self.chunks.items():
                stream_BtD = None if at == 0 else self._received(like_BtD)
                hidden_BtD = chunk.decoder(tokens_BT, context, stream_BtD)
                if not chunk.decoder.piece.is_last:
                    self._send(hidden_BtD)
        return hidden_BtD if self.is_last else torch.zeros_like(like_BtD)

    def hidden(self, tokens_BT: Tensor, context: Context) -> Hidden:
        raise AssertionError("hidden states of a step do not leave their rank: see run")

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor, mask_BT: Tensor | None, z_weight: float) -> LossSums:
        """Sums over targets on the last rank, zeros on the others."""
        if self.is_last:
            return self.head.loss(hidden_BTD, targets_BT, mask_BT, z_weight)
        zero = torch.zeros((), dtype=torch.float64, device=hidden_BTD.device)
        return LossSums(zero, zero, zero)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """N V, float32, on all ranks."""
        if self.is_last:
            return self.from_head(self.head.logits(hidden_ND))
        return self.from_head(hidden_ND.new_zeros((*hidden_ND.shape[:-1], self.spec.vocabulary), dtype=torch.float32))

    def from_head(self, x: Tensor) -> Tensor:
        """What the last rank has, on all."""
        self._let_go()
        x = x.detach().contiguous()
        dist.broadcast(x, group=self.group, group_src=self.mesh.axes.pp - 1)
        return x

    def _received(self, like_BtD: Tensor) -> Tensor:
        stream_BtD = torch.empty_like(like_BtD)
        dist.recv(stream_BtD, group=self.group, group_src=(self.rank - 1) % self.mesh.axes.pp)
        return stream_BtD

    def _send(self, stream_BtD: Tensor) -> None:
        """Kept until it has arrived."""
        stream_BtD = stream_BtD.contiguous()
        work = dist.isend(stream_BtD, group=self.group, group_dst=(self.rank + 1) % self.mesh.axes.pp)
        assert work is not None
        self._sent.append((work, stream_BtD))

    def _let_go(self) -> None:
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _stream_like(self, micro: MicroBatch) -> Tensor:
        """B t D, of what passes between chunks of this rank's tokens."""
        rows, tokens = self.ranks.own(micro.tokens_BT).shape
        return torch.empty(rows, tokens, self.spec.width, dtype=self.dtype, device=self.mesh.device)


class _Schedule:
    """One order of so many micro-batches of one shape; torch's stages keep a buffer for each."""

    def __init__(self, pipeline: Pipeline, count: int, like_BtD: Tensor):
        stages = [_Stage(self, pipeline, at, like_BtD) for at in pipeline.chunks]
        self._count, self._last_chunk = count, max(pipeline.chunks)
        self._order = _order(stages, count, pipeline.mesh.axes)

    def run(self, work: MicroBatches, first: MicroBatch, add: Add) -> None:
        self.work, self.add = work, add
        self._made = {0: first}
        places = torch.arange(self._count)
        self._order.step(place=places, target=places, return_outputs=False)
        del self.work, self.add
        self._made = {}

    def micro_batch(self, place: int, chunk: int) -> MicroBatch:
        """Built by the first chunk of the rank that meets it, let go by the last: the backward pass keeps what it needs."""
        if place not in self._made:
            self._made[place] = self.work.make(place)
        return self._made.pop(place) if chunk == self._last_chunk else self._made[place]


def _order(stages: list[_Stage], count: int, axes: Axes) -> Any:
    """torch's schedule. Losses are sums that were divided: nothing is scaled again."""
    if axes.pipeline in OF_CHUNKS:
        return OF_CHUNKS[axes.pipeline](list(stages), count, loss_fn=_output, scale_grads=False)
    fills = count >= axes.pp  # fewer micro-batches than ranks pass in one order only
    return SINGLE[axes.pipeline if fills else "gpipe"](stages[0], count, loss_fn=_output, scale_grads=False)


def _output(output: Tensor, _: Tensor) -> Tensor:
    """The last chunk's output is its loss."""
    return output


class _Stage(PipelineStage):
    """One chunk. Its module is the decoder itself, so that torch gathers weights and sums gradients when the schedule says so."""

    def __init__(self, schedule: _Schedule, pipeline: Pipeline, at: int, like_BtD: Tensor):
        axes, self.chunk, self.schedule = pipeline.mesh.axes, pipeline.chunks[at], schedule
        is_last = self.chunk.decoder.piece.is_last
        stream = like_BtD.detach().requires_grad_()
        super().__init__(
            self.chunk.decoder,
            at,
            axes.pp * axes.virtual,
            like_BtD.device,
            input_args=() if at == 0 else (stream,),
            output_args=(like_BtD.new_zeros((), dtype=torch.float64).requires_grad_(),) if is_last else (stream,),
            group=pipeline.group,
        )

    def forward_maybe_with_nosync(self, *stream_BtD: Tensor, place: Tensor) -> Tensor:
        """What torch calls to run the chunk. Returns the stream, or of the last chunk the divided objective."""
        micro = self.schedule.micro_batch(int(place), self.stage_index)
        context, stream = with_tally(self.chunk.spec, micro.context), stream_BtD[0] if stream_BtD else None
        if self.chunk.decoder.piece.is_last:
            return self._objective(micro, context, stream)
        out_BtD = self.chunk.decoder(micro.tokens_BT, context, stream)
        if context.tally is None or not context.tally.counts:
            return out_BtD
        sums = routing_sums(context.tally)
        self.schedule.add(sums)
        return _Carried.apply(out_BtD, sums.objective_sum / self.schedule.work.targets)

    def _objective(self, micro: MicroBatch, context: Context, stream_BtD: Tensor | None) -> Tensor:
        work, decoder = self.schedule.work, self.chunk.decoder
        hidden = decoder.hidden(micro.tokens_BT, context, stream_BtD)
        sums = objective_sums(self.chunk, hidden, micro.targets_BT, context, work.z_weight)
        self.schedule.add(sums)
        return sums.objective_sum / work.targets


class _Carried(Function):
    """``x``, with a loss that its backward pass begins from too. A copy: torch's schedules detach outputs in place."""

    @staticmethod
    def forward(ctx: Any, x_BtD: Tensor, loss: Tensor) -> Tensor:
        ctx.loss_dtype = loss.dtype
        return x_BtD.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BtD: Tensor) -> tuple[Tensor, Tensor]:
        return grad_BtD, torch.ones((), dtype=ctx.loss_dtype, device=grad_BtD.device)
