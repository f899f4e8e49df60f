"""Held-out loss, by source and by position, the same however the tokens were cut into batches and whoever scored which.

    batches   0  1  2 | 3  4  5 | 6  (6) (6)      three replicas: each scores one of a round, and those that find none left
              r0 r1 r2  r0 r1 r2  r0  r1  r2      run the last once more, for nothing: all run as many passes (D15)

    position  0 | 1 | 2 3 | 4 ... 7 | 8 ... 15 | ...        bucket b: positions from 2^(b-1) to 2^b - 1, and 0 alone
              in the window: tokens before the target, less one        in the document: 0 is the document token

The loss of each target is rounded to 2^-24 nats and summed as a whole number, so the order of the sum does not matter: batches,
replicas and ranks may share it as they like. What is left is the arithmetic of the model itself, which rounds in another way
where a matrix has other rows beside a row: ``windows_at_once`` depends on the length of a window alone, so micro-batches and
replicas of a run change nothing, to the bit; other layouts agree to about 1e-6.

Bytes are those that a target token stands for, of a document token none. Bits per byte: all nats of a source over all its bytes.

Shapes: B batch, T time, t of it on this rank (alone: all), s in this rank's chunks of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.base.errors import RunError
from headway.model.context import make_context
from headway.model.precision import Computes
from headway.recipe.spec import RopeSpec

TOKENS_AT_ONCE = 4_096
BUCKETS = 48
_SCALE = 2**24
"""Of nats. 2^63 / 2^24 nats are more than any held-out text has."""
_TARGETS, _NLL, _BYTES = range(3)


class TokenBatch(Protocol):
    """What a batch must offer, all B T integers (``data.windows.HeldOutBatch`` does, and more). ``scored_BT``, where a batch has
    it and it is not None, says which targets count."""

    @property
    def tokens_BT(self) -> np.ndarray: ...
    @property
    def targets_BT(self) -> np.ndarray: ...
    @property
    def document_BT(self) -> np.ndarray: ...
    @property
    def position_BT(self) -> np.ndarray: ...


def windows_at_once(sequence_length: int) -> int:
    """Of one forward pass: nothing of a deployment counts."""
    return max(1, TOKENS_AT_ONCE // sequence_length)


@dataclass(frozen=True)
class Buckets:
    """By position, the last one that has targets is the last: counts, nats, bytes."""

    targets: tuple[int, ...]
    nll: tuple[float, ...]
    bytes: tuple[int, ...]

    @staticmethod
    def of(sums_b3: np.ndarray) -> Buckets:
        kept = sums_b3[: int(np.flatnonzero(sums_b3[:, _TARGETS]).max(initial=-1)) + 1]
        targets, nll, size = (tuple(kept[:, kind].tolist()) for kind in (_TARGETS, _NLL, _BYTES))
        return Buckets(targets, tuple(value / _SCALE for value in nll), size)

    def to_json(self) -> dict[str, list]:
        return {"targets": list(self.targets), "nll": list(self.nll), "bytes": list(self.bytes)}


@dataclass(frozen=True)
class HeldOut:
    """``nll_sum`` in nats over ``targets`` target tokens of ``bytes`` (0: not asked for). ``in_document`` None: batches say
    nothing of it."""

    nll_sum: float
    targets: int
    bytes: int = 0
    in_window: Buckets | None = None
    in_document: Buckets | None = None

    @property
    def loss(self) -> float:
        """Mean nats per target token."""
        if self.targets == 0:
            raise RunError("a held-out loss over no targets has no value", "evaluation needs at least one target token")
        return self.nll_sum / self.targets

    @property
    def bits_per_byte(self) -> float | None:
        """None: the targets stand for no text."""
        return self.nll_sum / math.log(2) / self.bytes if self.bytes else None

    def by_position(self) -> dict[str, Any]:
        """For the record."""
        parts = {"window": self.in_window, "document": self.in_document}
        return {name: buckets.to_json() for name, buckets in parts.items() if buckets is not None}


@dataclass(frozen=True, kw_only=True)
class Share:
    """The replica ``index`` of ``count`` scores its share. ``total``: the sum over all ranks' own tokens, of whole numbers;
    ``goes_on``: asked before every round, and answered alike on all ranks."""

    index: int = 0
    count: int = 1
    total: Callable[[Tensor], Tensor] = lambda sums: sums
    goes_on: Callable[[], bool] = lambda: True


@torch.no_grad()
def held_out_loss(
    model: Computes,
    batches: Iterable[TokenBatch],
    rope: RopeSpec,
    share: Share | None = None,
    token_bytes: np.ndarray | None = None,
) -> HeldOut:
    """Sums of the plain cross-entropy (no z-loss) over all targets of ``batches``, of any sizes; of those up to a break.

    Without a ``share`` all ranks score the same batches, and have the same answer. ``token_bytes``: by id; None: not counted.
    """
    share, rounds = share or Share(total=partial(_over_ranks, model)), iter(batches)
    table_V = None if token_bytes is None else torch.as_tensor(token_bytes)
    total: Tensor | None = None
    has_documents = True
    while taken := list(islice(rounds, share.count)):
        if not share.goes_on():
            break
        has_documents = has_documents and all(hasattr(batch, "in_document_BT") for batch in taken)
        sums = _scored(model, taken, rope, share.index, table_V)
        total = sums if total is None else total + sums
    return _held_out(
        np.zeros((2 * BUCKETS + 1, 3), np.int64) if total is None else share.total(total).cpu().numpy(), has_documents
    )


def _held_out(sums_b3: np.ndarray, has_documents: bool) -> HeldOut:
    in_window, in_document, (not_finite, *_) = sums_b3[:BUCKETS], sums_b3[BUCKETS:-1], sums_b3[-1]
    targets, nll, size = in_window.sum(axis=0).tolist()
    return HeldOut(
        nll_sum=math.nan if not_finite else nll / _SCALE,
        targets=targets,
        bytes=size,
        in_window=Buckets.of(in_window),
        in_document=Buckets.of(in_document) if has_documents else None,
    )


def _over_ranks(model: Computes, sums: Tensor) -> Tensor:
    return model.ranks.chunks.sum(model.from_head(sums))


def _scored(model: Computes, taken: list[TokenBatch], rope: RopeSpec, index: int, table_V: Tensor | None) -> Tensor:
    """Sums of the batch of a round that is this replica's, over this rank's chunks of it: per bucket of the window, then of the
    document, then how many losses are no number: targets, nats / 2^24, bytes."""
    batch, ranks = taken[min(index, len(taken) - 1)], model.ranks
    missing = -batch.targets_BT.shape[1] % ranks.length_step
    kinds = (batch.position_BT, batch.document_BT, batch.tokens_BT, batch.targets_BT)
    position_BT, document_BT, tokens_BT, targets_BT = (filled(torch.as_tensor(kind).long(), missing) for kind in kinds)
    context = make_context(position_BT, document_BT, model.spec, rope, model.dtype, ranks)
    hidden_BtD = model.forward(tokens_BT, context)
    nll_Bs = model.token_losses(hidden_BtD, targets_BT)
    sums_b3 = torch.zeros(2 * BUCKETS + 1, 3, dtype=torch.int64, device=hidden_BtD.device)
    if nll_Bs is None or index >= len(taken):
        return sums_b3
    counts_N = ranks.chunks.mine(filled(torch.as_tensor(_counted(batch)), missing)).reshape(-1)
    targets_N, nll_N = ranks.chunks.mine(targets_BT).reshape(-1)[counts_N], nll_Bs.reshape(-1)[counts_N].double()
    finite_N = nll_N.isfinite()
    whole_N = torch.where(finite_N, nll_N, 0).mul(_SCALE).round().long()
    bytes_N = torch.zeros_like(targets_N) if table_V is None else table_V.to(targets_N.device)[targets_N]
    values_N3 = torch.stack([torch.ones_like(targets_N), whole_N, bytes_N], -1)
    window_BT = np.broadcast_to(np.arange(batch.targets_BT.shape[1]), batch.targets_BT.shape)
    for place, at_BT in enumerate((window_BT, getattr(batch, "in_document_BT", None))):
        if at_BT is not None:
            bucket_BT = filled(torch.as_tensor(place * BUCKETS + bucket_of(at_BT)), missing)
            sums_b3.index_add_(0, ranks.chunks.mine(bucket_BT).reshape(-1)[counts_N], values_N3)
    sums_b3[-1, 0] = (~finite_N).sum()
    return sums_b3


def _counted(batch: TokenBatch) -> np.ndarray:
    """bool, B T: padding is no target."""
    scored_BT = getattr(batch, "scored_BT", None)
    return np.ones(batch.targets_BT.shape, bool) if scored_BT is None else scored_BT


def bucket_of(position: np.ndarray) -> np.ndarray:
    """0 for 0, and 1 + floor(log2 position): the number of binary digits."""
    return np.where(position > 0, np.frexp(np.maximum(position, 1).astype(np.float64))[1], 0).astype(np.int64)


def filled(x_BT: Tensor, missing: int) -> Tensor:
    """With ``missing`` zeros behind each row, for ranks that could not divide it: no token before them sees them."""
    return F.pad(x_BT, (0, missing)) if missing else x_BT
