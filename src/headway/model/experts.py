"""Mixture of experts: a router sends every token to k of X feed-forwards. None is dropped, whatever an expert's load.

Pairs of token and choice are sorted by expert, so that the rows of one expert lie together and each matrix product runs
over runs of rows. N = 4 tokens, k = 2, X = 3 experts:

    token  choice         row     0  1  2  3  4  5  6  7
    0      2 0            token   0  1  2  3  0  1  2  3         token 0 = .7 row 4 + .3 row 0
    1      0 2       ->   expert  0  0  1  1  2  2  2  2    ->   token 1 = .6 row 1 + .4 row 5
    2      2 1            ends of experts: 2, 4, 8               ...
    3      1 2

A token's way back is a sum over its k rows, taken from known places: its order is fixed, so results repeat bit for bit,
and the gradient of spreading rows is that same sum (and the other way round).

Router: scores are softmax or sigmoid of float32 logits. A balancing bias is added to choose, and never to weigh (Wang et al.
2024, arXiv 2408.15664): it moves once per step against the loads of the whole step (``Loads``, ``update_bias``). The balance
loss of a sequence and the router's z-loss are sums over tokens, as the loss is (``Tally``): the caller divides by the global
count of target tokens, so that neither micro-batches nor ranks can be seen in them.

Shapes: B batch rows, T tokens of a row, N = B T tokens, D width, X experts, k experts of a token, M = N k rows, F inner width of
an expert, I inputs, O outputs, G groups of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from headway.model.feed_forward import GATES, PLAIN
from headway.model.shape_only import is_shape_only
from headway.model.weight import Weight
from headway.recipe.mup import multipliers
from headway.recipe.spec import ExpertsSpec, ModelSpec

LEAST_SUM = 1e-20
"""Added to the sum of chosen scores before it divides (DeepSeek-V3): sigmoids may all be 0."""

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": lambda logits: torch.softmax(logits, -1), "sigmoid": torch.sigmoid}


class Router(Weight):
    """``weight`` X D; ``bias`` X: of balancing where the model has it, else learned where all projections have one."""

    def __init__(self, spec: ModelSpec):
        assert spec.experts is not None
        super().__init__(spec.experts.experts, spec.width)
        self.balances = spec.experts.router_bias
        if self.balances or spec.bias == "all":
            self.bias = nn.Parameter(torch.empty(spec.experts.experts), requires_grad=not self.balances)
        self.spec = spec

    def forward(self, x_BTD: Tensor) -> Routing:  # type: ignore[override]
        return route(x_BTD, self, self.spec)


class Experts(nn.Module):
    """All feed-forwards of a layer, each matrix with a leading axis of experts."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        assert spec.experts is not None
        X, D, F_, biased = spec.experts.experts, spec.width, spec.experts.width, spec.bias == "all"
        if spec.gated:
            self.gate = Weight(X, F_, D, biased=biased)
        self.up, self.down = Weight(X, F_, D, biased=biased), Weight(X, D, F_, biased=biased)


def mixture(
    x_BTD: Tensor,
    router: Router,
    experts: Experts,
    spec: ModelSpec,
    tally: LayerTally | None,
    mask_BT: Tensor | None = None,
) -> Tensor:
    """What the chosen experts give together, B T D. Masked tokens pass like others and are left out of ``tally`` only."""
    routing = router(x_BTD)
    if tally is not None:
        tally.record(routing, mask_BT)
    plan = make_plan(routing.choice_BTk.flatten(0, 1), router.weight.shape[0])
    rows_MD = _Spread.apply(x_BTD.flatten(0, 1), plan.token_M, plan.place_Nk)
    rows_MD = _feed_forward(rows_MD, experts, spec, plan)
    y_ND = _Collect.apply(rows_MD, routing.weight_BTk.flatten(0, 1), plan.token_M, plan.place_Nk)
    return y_ND.view_as(x_BTD)


# --- the router


@dataclass(frozen=True, eq=False, kw_only=True)
class Routing:
    """What a router says of each token; float32 (or wider) but for the choice."""

    logits_BTX: Tensor
    scores_BTX: Tensor
    choice_BTk: Tensor  # int64, the best first; equal ones by their number
    weight_BTk: Tensor  # of the chosen in the sum


def route(x_BTD: Tensor, router: Router, spec: ModelSpec) -> Routing:
    """Scores, choice and weights of every token, computed in float32 whatever the model computes in."""
    options = spec.experts
    assert options is not None
    learned_X = None if router.balances else router.added()
    learned_X = None if learned_X is None else _wide(learned_X)
    logits_BTX = F.linear(_wide(x_BTD), _wide(router.matrix()), learned_X) * multipliers(spec).router
    scores_BTX = SCORES[options.score](logits_BTX)
    with torch.no_grad():
        balance_X = router.bias if router.balances else None
        choice_BTk = _choose(scores_BTX if balance_X is None else scores_BTX + balance_X, options)
    weight_BTk = scores_BTX.gather(-1, choice_BTk)
    if options.normalise:
        weight_BTk = weight_BTk / (weight_BTk.sum(-1, keepdim=True) + LEAST_SUM)
    return Routing(logits_BTX=logits_BTX, scores_BTX=scores_BTX, choice_BTk=choice_BTk, weight_BTk=weight_BTk * options.scale)


def _choose(value_BTX: Tensor, options: ExpertsSpec) -> Tensor:
    """The ``top_k`` largest, from the best groups where they are limited."""
    if options.groups_per_token > 0:
        value_BTX = _best_groups(value_BTX, options)
    return _largest(value_BTX, options.top_k)


def _best_groups(value_BTX: Tensor, options: ExpertsSpec) -> Tensor:
    """-inf outside the best groups. A group is worth its two best experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    value_BTGX = value_BTX.unflatten(-1, (options.groups, -1))
    worth_BTG = value_BTGX.topk(min(2, value_BTGX.shape[-1])).values.sum(-1)
    kept_BTG = torch.zeros_like(worth_BTG, dtype=torch.bool).scatter_(-1, _largest(worth_BTG, options.groups_per_token), True)
    return torch.where(kept_BTG[..., None], value_BTGX, -torch.inf).flatten(-2)


def _largest(value_NX: Tensor, count: int) -> Tensor:
    """Indices of the largest, equal ones by their number: ``topk`` promises no order, and a stable sort takes longer."""
    left_NX, found = value_NX.clone(), []
    for _ in range(count):
        found.append(left_NX.argmax(-1, keepdim=True))
        left_NX.scatter_(-1, found[-1], -torch.inf)
    return torch.cat(found, -1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


# --- the experts


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Which row is whose."""

    token_M: Tensor  # int64
    expert_M: Tensor  # int64, ascending
    place_Nk: Tensor  # int64: row of a token's j-th choice
    ends_X: Tensor  # int32: rows of experts 0 to x


def make_plan(choice_Nk: Tensor, experts: int) -> Plan:
    """Rows in the order of experts, of one expert in the order of tokens. Nothing is read back from the device."""
    expert_M, order_M = choice_Nk.flatten().sort(stable=True)
    place_M = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
    ends_X = torch.searchsorted(expert_M, torch.arange(experts, device=expert_M.device), right=True, out_int32=True)
    return Plan(token_M=order_M // choice_Nk.shape[-1], expert_M=expert_M, place_Nk=place_M.view_as(choice_Nk), ends_X=ends_X)


class _Spread(Function):
    """Rows of tokens; its gradient is the sum over a token's rows."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, token_M: Tensor, place_Nk: Tensor) -> Tensor:
        ctx.save_for_backward(place_Nk)
        return x_ND.index_select(0, token_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
        (place_Nk,) = ctx.saved_tensors
        return _sum_rows(grad_MD, place_Nk, None), None, None


class _Collect(Function):
    """The weighted sum over a token's rows; its gradient is spread."""

    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, weight_Nk: Tensor, token_M: Tensor, place_Nk: Tensor) -> Tensor:
        ctx.save_for_backward(rows_MD, weight_Nk, token_M, place_Nk)
        return _sum_rows(rows_MD, place_Nk, weight_Nk)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        rows_MD, weight_Nk, token_M, place_Nk = ctx.saved_tensors
        weight_M = weight_Nk.new_empty(place_Nk.numel()).scatter_(0, place_Nk.flatten(), weight_Nk.flatten())
        grad_MD = _wide(grad_ND.index_select(0, token_M))
        grad_weight_M = torch.linalg.vecdot(grad_MD, _wide(rows_MD))
        return grad_MD.mul_(weight_M[:, None]).to(rows_MD.dtype), grad_weight_M[place_Nk], None, None


def _sum_rows(rows_MD: Tensor, place_Nk: Tensor, weight_Nk: Tensor | None) -> Tensor:
    """Sum over k of rows at their places, in float32 with one rounding."""
    sum_ND: Tensor | None = None
    for choice in range(place_Nk.shape[-1]):
        row_ND = _wide(rows_MD.index_select(0, place_Nk[:, choice]))
        if weight_Nk is not None:
            row_ND.mul_(weight_Nk[:, choice, None])
        sum_ND = row_ND if sum_ND is None else sum_ND.add_(row_ND)
    assert sum_ND is not None
    return sum_ND.to(rows_MD.dtype)


def _feed_forward(rows_MD: Tensor, experts: Experts, spec: ModelSpec, plan: Plan) -> Tensor:
    up_MF = project_each(rows_MD, experts.up, plan)
    if spec.gated:
        gate_MF = project_each(rows_MD, experts.gate, plan)
        return project_each(GATES[spec.ffn](gate_MF, up_MF), experts.down, plan)
    return project_each(PLAIN[spec.ffn](up_MF), experts.down, plan)


def project_each(x_MI: Tensor, module: Weight, plan: Plan) -> Tensor:
    """x W' + b with each row's own expert -> M O; types as in ``weight.project``."""
    weight_XOI, bias_XO = module.matrix(), module.added()
    on_device = x_MI.is_cuda or is_shape_only(x_MI)
    way = product_grouped if on_device and _is_aligned(weight_XOI) else product_in_loop
    y_MO = way(x_MI.to(weight_XOI.dtype), weight_XOI, plan.ends_X)
    if bias_XO is not None:  # as a product: its gradient sums rows in a fixed order on every device
        y_MO = y_MO + F.one_hot(plan.expert_M, len(bias_XO)).to(bias_XO.dtype) @ bias_XO
    return y_MO.to(x_MI.dtype)


def _is_aligned(weight_XOI: Tensor) -> bool:
    """What the grouped kernel asks for."""
    bytes_ = weight_XOI.element_size()
    return weight_XOI.dtype == torch.bfloat16 and all(size * bytes_ % 16 == 0 for size in weight_XOI.shape[1:])


def product_grouped(x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One kernel for all experts; the host waits for nothing."""
    return F.grouped_mm(x_MI, weight_XOI.transpose(1, 2), offs=ends_X)


def product_in_loop(x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
    """One product per expert, in any dtype. On a CPU as fast as the grouped kernel, which is such a loop there."""
    return _Loop.apply(x_MI, weight_XOI, ends_X)


class _Loop(Function):
    """Gradients of weights are written in place: autograd's own of a slice is as large as all experts together."""

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, weight_XOI: Tensor, ends_X: Tensor) -> Tensor:
        ctx.save_for_backward(x_MI, weight_XOI, ends_X)
        y_MO = x_MI.new_empty(x_MI.shape[0], weight_XOI.shape[1])
        for expert, rows in enumerate(_runs(ends_X)):
            torch.mm(x_MI[rows], weight_XOI[expert].t(), out=y_MO[rows])
        return y_MO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor | None, ...]:
        x_MI, weight_XOI, ends_X = ctx.saved_tensors
        grad_x_MI, grad_weight_XOI = torch.empty_like(x_MI), torch.empty_like(weight_XOI)
        for expert, rows in enumerate(_runs(ends_X)):  # an expert without rows gets a gradient of zeros
            torch.mm(grad_MO[rows], weight_XOI[expert], out=grad_x_MI[rows])
            torch.mm(grad_MO[rows].t(), x_MI[rows], out=grad_weight_XOI[expert])
        return grad_x_MI, grad_weight_XOI, None


def _runs(ends_X: Tensor) -> list[slice]:
    ends = ends_X.tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


# --- sums of a micro-batch, loads of a step


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

    def record(self, routing: Routing, mask_BT: Tensor | None = None) -> None:
        """Masked tokens are chosen away before anything is computed of them: 0 x inf would be NaN."""
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
        balance_sum = _balance_sum(counts_BX, share_BTX.sum(1), mask_BT.sum(1))
        z_sum = z_BT.sum(dtype=torch.float64)
        self.tally.write(self.layer, _Entry(counts_X=counts_BX.sum(0), balance_sum=balance_sum, z_sum=z_sum))


def _balance_sum(counts_BX: Tensor, share_BX: Tensor, tokens_B: Tensor) -> Tensor:
    """Sum over sequences of T sum_i f_i P_i, f_i = X / (k T) counts_i, P_i = share_i / T (arXiv 2412.19437, equations 17-20).

    f carries no gradient. A sequence without kept tokens adds nothing.
    """
    chosen_B = counts_BX.sum(-1).clamp(min=1)  # k T
    f_BX = counts_BX.shape[-1] * counts_BX.double() / chosen_B[:, None]
    return (f_BX * share_BX.double()).sum()


class Loads:
    """Tokens sent to each expert in one step, by layer. ``counts`` may be summed over ranks before it is used."""

    def __init__(self) -> None:
        self.counts: dict[str, Tensor] = {}

    def add(self, tally: Tally) -> None:
        """Once per micro-batch, after its backward pass."""
        for layer, counts_X in tally.counts.items():
            self.counts[layer] = self.counts[layer] + counts_X if layer in self.counts else counts_X

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
