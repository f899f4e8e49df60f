"""Held-out loss: sums over targets, so it does not depend on how the tokens were cut into batches, nor on who scored which.

    batches   0  1  2 | 3  4  5 | 6  (6) (6)      three replicas: each scores one of a round, and those that find none left
              r0 r1 r2  r0 r1 r2  r0  r1  r2      run the last once more, for nothing: all run as many passes (D15)

Shapes: B batch, T time, t of it on this rank (alone: all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.base.errors import RunError
from headway.model.context import make_context
from headway.model.precision import Computes
from headway.recipe.spec import RopeSpec


class TokenBatch(Protocol):
    """What a batch must offer, all B T integers (``data.reader.WindowBatch`` does)."""

    @property
    def tokens_BT(self) -> np.ndarray: ...
    @property
    def targets_BT(self) -> np.ndarray: ...
    @property
    def document_BT(self) -> np.ndarray: ...
    @property
    def position_BT(self) -> np.ndarray: ...


@dataclass(frozen=True)
class HeldOut:
    """``nll_sum`` in nats over ``targets`` target tokens."""

    nll_sum: float
    targets: int

    @property
    def loss(self) -> float:
        """Mean nats per target token."""
        if self.targets == 0:
            raise RunError("a held-out loss over no targets has no value", "evaluation needs at least one target token")
        return self.nll_sum / self.targets

    def to_json(self) -> dict:
        return {"nll_sum": self.nll_sum, "targets": self.targets}


@dataclass(frozen=True, kw_only=True)
class Share:
    """The replica ``index`` of ``count`` scores its share. ``total``: the sum of a number over all ranks' own tokens;
    ``goes_on``: asked before every round, and answered alike on all ranks."""

    index: int = 0
    count: int = 1
    total: Callable[[float], float] = float
    goes_on: Callable[[], bool] = lambda: True


@torch.no_grad()
def held_out_loss(model: Computes, batches: Iterable[TokenBatch], rope: RopeSpec, share: Share | None = None) -> HeldOut:
    """Sum of the plain cross-entropy (no z-loss) over all targets of ``batches``, of any sizes; of those up to a break.

    Without a ``share`` all ranks score the same batches, and have the same answer.
    """
    share, rounds = share or Share(total=partial(_over_ranks, model)), iter(batches)
    nll_sum, targets = 0.0, 0
    while taken := list(islice(rounds, share.count)):
        if not share.goes_on():
            break
        nll_sum += _scored(model, taken, rope, share.index)
        targets += sum(np.asarray(batch.targets_BT).size for batch in taken)
    return HeldOut(nll_sum=share.total(nll_sum), targets=targets)


def _over_ranks(model: Computes, nll_sum: float) -> float:
    return float(model.ranks.chunks.sum(model.from_head(torch.tensor(nll_sum, dtype=torch.float64))))


def _scored(model: Computes, taken: list[TokenBatch], rope: RopeSpec, index: int) -> float:
    """The one of a round that is this replica's: over this rank's chunks of it."""
    batch, ranks = taken[min(index, len(taken) - 1)], model.ranks
    missing = -batch.targets_BT.shape[1] % ranks.length_step
    kinds = (batch.position_BT, batch.document_BT, batch.tokens_BT, batch.targets_BT)
    position_BT, document_BT, tokens_BT, targets_BT = (filled(torch.as_tensor(kind).long(), missing) for kind in kinds)
    counts_BT = filled(torch.ones(batch.targets_BT.shape, dtype=torch.bool), missing) if missing else None
    context = make_context(position_BT, document_BT, model.spec, rope, model.dtype, ranks)
    hidden_BtD = model.forward(tokens_BT, context)
    nll_sum = model.loss(hidden_BtD, targets_BT, counts_BT, 0.0).nll_sum
    return float(nll_sum) if index < len(taken) else 0.0


def filled(x_BT: Tensor, missing: int) -> Tensor:
    """With ``missing`` zeros behind each row, for ranks that could not divide it: no token before them sees them."""
    return F.pad(x_BT, (0, missing)) if missing else x_BT
