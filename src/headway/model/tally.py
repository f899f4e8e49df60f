"""What routers did: sums of a micro-batch for the objective, loads of a step for the record and for the balancing bias.

    router, each layer --record--> Tally (a micro-batch) --objective_sum--> the loss
                                          |
                                          '--add--> Loads (a step) --over all ranks--> statistics, update_bias

The balance loss of a sequence and the router's z-loss are sums over tokens, as the loss is: the caller divides by the global
count of target tokens, so that neither micro-batches nor ranks can be seen in them. Ranks that share a row have each its own
tokens of it. Its loads f are counted over the whole row; the shares P are a sum over tokens, and so is f P: each rank adds the
terms of its own tokens, and together they are the row's.

Shapes: B batch rows, T tokens of a row (of this rank), X experts, k experts of a token, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.model.ranks import ALONE, Ranks
from headway.model.routing import LEAST_SUM, SCORES, Router, Routing
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class _Entry:
    """One layer's, of one micro-batch."""

    counts_X: Tensor  # int64
    balance_sum: Tensor  # float64 scalars with gradients
    z_sum: Tensor


class Tally:
    """What the routers of one micro-batch did, by layer (a block's name): make one per micro-batch.

    A layer that runs twice, because it is computed again for its gradients, is written twice and counts once.
    """

    def __init__(self, spec: ModelSpec):
        assert spec.experts is not None, "a tally is of a model with experts"
        self.options = spec.experts
        self._entries: dict[str, _Entry] = {}

    def of(self, layer: str) -> LayerTally:
        return LayerTally(self, layer)

    @property
    def counts(self) -> dict[str, Tensor]:
        """By layer: kept tokens sent to each expert, int64, X."""
        return {layer: entry.counts_X for layer, entry in self._entries.items()}

    @property
    def balance_sum(self) -> Tensor:
        """Float64: over layers and sequences of T kept tokens, T times the balance loss; 1 per token where loads are even."""
        return _total([entry.balance_sum for entry in self._entries.values()])

    @property
    def z_sum(self) -> Tensor:
        """Float64: over layers and kept tokens, logsumexp(logits)^2."""
        return _total([entry.z_sum for entry in self._entries.values()])

    def objective_sum(self) -> Tensor:
        """Float64 with a gradient: what the routers add to the sum of losses over tokens, before it is divided."""
        weighted = ((self.options.balance_loss, self.balance_sum), (self.options.z_loss, self.z_sum))
        return _total([weight * sum_ for weight, sum_ in weighted if weight])  # 0 x inf would be NaN

    def write(self, layer: str, entry: _Entry) -> None:
        self._entries[layer] = entry


def _total(sums: list[Tensor]) -> Tensor:
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class LayerTally:
    """The line of one layer."""

    tally: Tally
    layer: str

    def record(self, routing: Routing, mask_BT: Tensor | None = None, ranks: Ranks = ALONE) -> None:
        """Masked tokens are chosen away before anything is computed of them: 0 x inf would be NaN.

        ``ranks`` share the rows; of the mask and of what is routed, each gives its own tokens.
        """
        options, logits_BTX, scores_BTX = self.tally.options, routing.logits_BTX, routing.scores_BTX
        if mask_BT is None:
            mask_BT = torch.ones(logits_BTX.shape[:-1], dtype=torch.bool, device=logits_BTX.device)
        else:
            logits_BTX = torch.where(mask_BT[..., None], logits_BTX, 0)
            scores_BTX = SCORES[options.score](logits_BTX)
        chosen_BTX = torch.zeros_like(logits_BTX, dtype=torch.bool).scatter_(-1, routing.choice_BTk, True)
        counts_BX = (chosen_BTX & mask_BT[..., None]).sum(1)
        share_BTX = torch.where(mask_BT[..., None], scores_BTX / (scores_BTX.sum(-1, keepdim=True) + LEAST_SUM), 0)
        z_BT = torch.where(mask_BT, logits_BTX.logsumexp(-1).square(), 0)
        balance_sum = _balance_sum(ranks.row_sum(counts_BX), share_BTX.sum(1))
        z_sum = z_BT.sum(dtype=torch.float64)
        self.tally.write(self.layer, _Entry(counts_X=counts_BX.sum(0), balance_sum=balance_sum, z_sum=z_sum))


def _balance_sum(counts_BX: Tensor, share_BX: Tensor) -> Tensor:
    """Sum over sequences of T sum_i f_i P_i, f_i = X / (k T) counts_i, P_i = share_i / T (arXiv 2412.19437, equations 17-20).

    ``counts_BX`` of whole sequences, ``share_BX`` of those tokens of them that are this rank's. f carries no gradient. A
    sequence without kept tokens adds nothing.
    """
    chosen_B = counts_BX.sum(-1).clamp(min=1)  # k T
    f_BX = counts_BX.shape[-1] * counts_BX.double() / chosen_B[:, None]
    return (f_BX * share_BX.double()).sum()


class Loads:
    """Tokens sent to each expert in one step, by layer: those of this rank, until ``sum_over`` makes them everybody's."""

    def __init__(self) -> None:
        self.counts: dict[str, Tensor] = {}

    def add(self, tally: Tally) -> None:
        """Once per micro-batch, after its backward pass."""
        for layer, counts_X in tally.counts.items():
            self.counts[layer] = self.counts[layer] + counts_X if layer in self.counts else counts_X

    def sum_over(self, everybody: Callable[[Tensor], Tensor]) -> None:
        """Once per step, after its last micro-batch: ``everybody`` sums a tensor over the ranks that have tokens of their own."""
        if self.counts:
            self.counts = dict(zip(self.counts, everybody(torch.stack(list(self.counts.values()))), strict=True))

    def clear(self) -> None:
        """Also after a step that updates nothing."""
        self.counts = {}

    def statistics(self) -> dict[str, LayerLoad]:
        """By layer; read back from the device at once."""
        if not self.counts:
            return {}
        counts_LX = torch.stack(list(self.counts.values())).double()
        over_LX = counts_LX / counts_LX.mean(-1, keepdim=True).clamp(min=LEAST_SUM)  # 1: the mean load
        dropped = [(over_LX - capacity).clamp(min=0).mean(-1) for capacity in (1.0, 1.25)]
        columns = torch.stack([over_LX.amax(-1), (counts_LX == 0).double().mean(-1), *dropped], -1)
        return {layer: LayerLoad(*row) for layer, row in zip(self.counts, columns.tolist())}


@dataclass(frozen=True)
class LayerLoad:
    """How even the loads of one layer were in a step. Nothing is dropped here; ``dropped`` is what fixed capacities would."""

    largest: float  # largest load / mean load; 1: even
    idle: float  # share of experts without a token
    dropped_at_1: float  # share of pairs of token and expert beyond a capacity of the mean load
    dropped_at_1_25: float  # beyond 1.25 times the mean load


def balance_biases(model: nn.Module) -> dict[str, Tensor]:
    """By layer, as a tally names it: the biases of routers that balance, to be given to ``update_bias``."""
    routers = ((name, module) for name, module in model.named_modules() if isinstance(module, Router) and module.balances)
    return {name.removesuffix(".router"): router.bias for name, router in routers if router.bias is not None}


@torch.no_grad()
def update_bias(biases: dict[str, Tensor], loads: Loads, rate: float) -> None:
    """Once per step: raise the bias of experts below the mean load by ``rate``, lower those above (arXiv 2408.15664), in place.

    Then the loads start again.
    """
    for layer, bias_X in biases.items():
        assert layer in loads.counts, f"no loads of {layer}"
        counts_X = loads.counts[layer]
        direction_X = (counts_X.sum() - len(counts_X) * counts_X).sign()  # in integers: equal loads are equal
        bias_X.add_(direction_X.to(bias_X.dtype), alpha=rate)
    loads.clear()
