"""Held-out loss: sums over targets, so it does not depend on how the tokens were cut into batches.

Shapes: B batch, T time, t of it on this rank (alone: all).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@torch.no_grad()
def held_out_loss(model: Computes, batches: Iterable[TokenBatch], rope: RopeSpec) -> HeldOut:
    """Sum of the plain cross-entropy (no z-loss) over all targets of ``batches``, of any sizes.

    Ranks that divide rows or layers all call this with the same batches, and have the same answer.
    """
    nll_sum, targets, ranks = 0.0, 0, model.ranks
    for batch in batches:
        missing = -batch.targets_BT.shape[1] % ranks.length_step
        kinds = (batch.position_BT, batch.document_BT, batch.tokens_BT, batch.targets_BT)
        position_BT, document_BT, tokens_BT, targets_BT = (filled(torch.as_tensor(kind).long(), missing) for kind in kinds)
        counts_BT = filled(torch.ones(batch.targets_BT.shape, dtype=torch.bool), missing) if missing else None
        context = make_context(position_BT, document_BT, model.spec, rope, model.dtype, ranks)
        hidden_BtD = model.forward(tokens_BT, context)
        nll_sum += float(ranks.chunks.sum(model.loss(hidden_BtD, targets_BT, counts_BT, 0.0).nll_sum))
        targets += batch.targets_BT.size
    return HeldOut(nll_sum=nll_sum, targets=targets)


def filled(x_BT: Tensor, missing: int) -> Tensor:
    """With ``missing`` zeros behind each row, for ranks that could not divide it: no token before them sees them."""
    return F.pad(x_BT, (0, missing)) if missing else x_BT
