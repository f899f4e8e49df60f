"""Pipeline parallelism: pieces of the decoder on the ranks of axis pp, micro-batches through them by torch's schedules.

    rank 0   embed, layers 0-1    F0 F1 F2 F3          B0    B1 B2 B3           stream  --->  to the next chunk
    rank 1   layers 2-3, head        F0 B0 F1 B1 F2 B2 F3 B3                    its gradient  <---

Every rank builds the micro-batches itself (they are a function of position); only streams and their gradients travel. All have
one shape, so a smaller last one comes filled with sequences that count for nothing.

What a loss is made of arises on several ranks, and is divided once, by the global count of targets:

    head's losses        on the last chunk, whose output is their sum
    routers' losses      on the chunk of their layer: ``schedule.Carried`` adds them to the backward pass of what it sends on
    embedding            held by the first chunk, and by the last where head or further tokens read it too: the two gradients
                         are added, so that both make the same update; the first one's counts in norms and is saved

Weights stay gathered through a step, whatever ``zero`` says: a zero-bubble schedule, which computes gradients of weights apart
from those of streams, would find weights that were freed, and lose gradients without a word (torch 2.13).

Shapes: B rows, T tokens of a row, t of them on this rank (of tensor parallelism), D width, N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from headway.model.context import Context
from headway.model.decoder import Decoder, Hidden
from headway.model.loss import LossSums
from headway.model.objective import MicroBatch, MicroBatches
from headway.parallel.mesh import Mesh
from headway.parallel.model import ShardedModel
from headway.parallel.schedule import Add, Schedule
from headway.parallel.stages import equal_rounds, rank_pieces
from headway.parallel.state import LocalParts
from headway.recipe.spec import ModelSpec, PrecisionSpec

EMBEDDING = "embed.weight"
KEPT_SCHEDULES = 4
"""Of the last shapes of a step: a batch ramp has new ones, and buffers of old ones would stay."""


class Pipeline:
    """This rank's pieces; ``precision.Computes`` for evaluations, ``objective.Passes`` for steps.

    ``forward`` and ``loss`` give their results on the last rank, zeros elsewhere (``from_head`` tells all); ``logits`` on all.
    ``model_type`` and ``schedule_type`` are what a dry run replaces.
    """

    model_type: type[ShardedModel] = ShardedModel
    schedule_type: type[Schedule] = Schedule

    def __init__(self, spec: ModelSpec, precision: PrecisionSpec, seed: int, mesh: Mesh):
        self.spec, self.mesh, self.group = spec, mesh, mesh.group("pp")
        self.rank = dist.get_rank(self.group)
        pieces = rank_pieces(spec, mesh.axes, self.rank)
        self.chunks = {at: self.model_type(spec, precision, seed, mesh, piece) for at, piece in pieces.items()}
        first = next(iter(self.chunks.values()))
        self.dtype, self.ranks = first.dtype, first.ranks
        self.is_last = self.rank == mesh.axes.pp - 1
        self.parts = self._parts()
        self._schedules: dict[tuple[int, ...], Schedule] = {}
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def _parts(self) -> LocalParts:
        copies = {EMBEDDING} if self.is_last and self.head.decoder.embed is not None else set()
        return LocalParts(self.mesh.stage, *self.decoders, copies=frozenset(copies))

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
            self._schedules[key] = self.schedule_type(self.chunks, self.mesh, work.count, self._stream_like(micro))
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

    def token_losses(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor | None:
        """Of each target on the last rank, None on the others."""
        return self.head.token_losses(hidden_BTD, targets_BT) if self.is_last else None

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
