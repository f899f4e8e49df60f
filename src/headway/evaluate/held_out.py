"""Held-out loss: sums over targets, so it does not depend on how the tokens were cut into batches.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

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
    """Sum of the plain cross-entropy (no z-loss) over all targets of ``batches``, of any sizes."""
    nll_sum, targets = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        position_BT, document_BT = torch.as_tensor(batch.position_BT), torch.as_tensor(batch.document_BT)
        context = replace(make_context(position_BT, document_BT, model.spec, rope, model.dtype), ranks=model.ranks)
        hidden_BTD = model.forward(torch.as_tensor(batch.tokens_BT).long(), context)
        targets_BT = torch.as_tensor(batch.targets_BT).long()
        nll_sum = nll_sum + model.loss(hidden_BTD, targets_BT, None, 0.0).nll_sum
        targets += targets_BT.numel()
    return HeldOut(nll_sum=float(model.from_head(nll_sum)), targets=targets)
