"""The ranks that share the work on one batch of sequences, as the model sees them. Alone, nothing is exchanged.

Tensor parallelism always divides the tokens too (sequence parallelism): between layers a rank has its own tokens, whole; within
a layer it has all tokens, and its part of the heads or of the inner width.

    own tokens  B t D  --all-->  all tokens  B T D  --q, k, v or gate, up-->  own heads  B T h E  --o or down-->  sums of parts
                                                                                                       --own_sum-->  B t D

``parallel/tensor.py`` exchanges; its backward passes are each other's mirror.
Shapes: B rows, T tokens of a row on the ranks together, t on this one.
"""

from __future__ import annotations

from torch import Tensor


class Ranks:
    """Alone. Every method is the identity."""

    divide_tokens = False
    """Whether between layers a rank has a part of the tokens only."""
    size = 1
    """How many they are: the tokens of a row divide by it."""

    def all(self, x_BtD: Tensor) -> Tensor:
        """Of everybody's tokens -> B T D. Its gradient is a sum over ranks: each uses them in its own way."""
        return x_BtD

    def own_sum(self, x_BTD: Tensor) -> Tensor:
        """The sum over ranks, of this one's tokens -> B t D."""
        return x_BTD

    def own(self, x_BT: Tensor) -> Tensor:
        """This rank's tokens of what all ranks have alike: B T ... -> B t ... No gradient."""
        return x_BT

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


ALONE = Ranks()
