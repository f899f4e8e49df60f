"""The ranks that share the work on one batch of sequences, as the model sees them. Alone, nothing is exchanged.

Tensor parallelism always divides the tokens too (sequence parallelism): between layers a rank has its own tokens, whole; within
a layer it has all tokens, and its part of the heads or of the inner width.

    own tokens  B t D  --all-->  all tokens  B T D  --q, k, v or gate, up-->  own heads  B T h E  --o or down-->  sums of parts
                                                                                                       --own_sum-->  B t D

Context parallelism divides rows before that (``Chunks``): "all tokens" are then those of some chunks of each row, and attention
alone sees across them: its keys and values are gathered, its queries stay. What is small and known before the first layer
(tokens, targets, positions, documents, masks) every rank has of whole rows, so that looking along a row needs no exchange; it is
cut where it is used:

    whole rows  B T  --chunks.mine-->  all tokens of this rank's chunks  B s  --part of tp-->  own tokens  B t    (``own``: both)

``parallel/tensor.py`` and ``parallel/context_parallel.py`` exchange; their backward passes are each other's mirror.
Shapes: B rows, T tokens of a row on the ranks together, s in this rank's chunks, t on this rank alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.columns import Columns


class Chunks:
    """What a rank has of every row: alone, all of it. Every method is the identity."""

    count = 1
    """Ranks that have chunks of the same rows."""

    step = 1
    """A row has a multiple of this many tokens."""

    def mine(self, x_BT: Tensor) -> Tensor:
        """Of whole rows, which all ranks have alike, the tokens of this rank's chunks: B T ... -> B s ... No gradient."""
        return x_BT

    def whole(self, x_Bs: Tensor) -> Tensor:
        """Everybody's chunks in the order of the row: B s ... -> B T ... Its gradient is a sum over ranks: each uses them in
        its own way."""
        return x_Bs

    def sum(self, x: Tensor) -> Tensor:
        """Over the ranks that have the other chunks, for all of them; no gradient."""
        return x

    def columns(self, length: int) -> Columns:
        """Of a row of ``length`` tokens, what ``mine`` keeps."""
        return Columns.whole(length)


WHOLE_ROWS = Chunks()


class Ranks:
    """Alone, or with others that have other ``chunks`` of the same rows. What concerns tensor parallelism is the
    identity."""

    divide_tokens = False
    """Whether tensor parallelism divides layers, and between them the tokens."""

    def __init__(self, chunks: Chunks = WHOLE_ROWS):
        self.chunks = chunks
        self.length_step = chunks.step  # rows have a multiple of this many tokens

    def all(self, x_BtD: Tensor) -> Tensor:
        """Of everybody's tokens -> B T D. Its gradient is a sum over ranks: each uses them in its own way."""
        return x_BtD

    def own_sum(self, x_BTD: Tensor) -> Tensor:
        """The sum over ranks, of this one's tokens -> B t D."""
        return x_BTD

    def own(self, x_BT: Tensor) -> Tensor:
        """This rank's tokens of whole rows, which all ranks have alike: B T ... -> B t ... No gradient."""
        return self.chunks.mine(x_BT)

    def own_columns(self, length: int) -> Columns:
        """Of a row of ``length`` tokens, what ``own`` keeps."""
        return self.chunks.columns(length)

    def first_row(self, rows: int) -> int:
        """Where this rank's part of a matrix begins that is divided by rows."""
        return 0

    def all_columns(self, x_NV: Tensor) -> Tensor:
        """Of everybody's rows of a matrix, what each has multiplied with: N v -> N V. No gradient."""
        return x_NV

    def sum(self, x: Tensor) -> Tensor:
        """Over ranks, for all of them; no gradient."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Over ranks, for all of them; no gradient."""
        return x

    def row_sum(self, x: Tensor) -> Tensor:
        """Over all ranks that have tokens of the same rows (of tp and of chunks), for all of them; x is of own tokens.

        Its gradient is the identity: right where what is made of the sum counts once in the objective, not once per rank. Sums
        of a step are added over ranks with other chunks and not over those of tp (``parallel/sums.py``): what goes into them is
        to be this rank's share of the first, and the same on the second.
        """
        return x if self is ALONE else _RowSum.apply(x, self)


class _RowSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        return ranks.chunks.sum(ranks.sum(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


ALONE = Ranks()
