"""Rows on their way to experts of other ranks and back; where expert states lie; what cannot be laid over ranks.

Shapes: M rows of a rank, D width, X experts.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from layout_cases import described
from torch import Tensor

from headway.model.experts import Runs
from headway.parallel.divide import is_of_experts
from headway.parallel.expert import ExpertExchange, make_routes
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ShardedModel
from headway.parallel.state import Rectangle, holds_first_copy, rectangle_of
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import PrecisionSpec

pytestmark = pytest.mark.layouts

D, X = 3, 6
LOADS = {
    "uneven": [[3, 0, 2, 1, 4, 0], [1, 1, 0, 0, 0, 5], [2, 2, 2, 2, 2, 2]],
    "experts without rows": [[0, 0, 7, 0, 0, 1], [0, 0, 3, 0, 0, 0], [0, 0, 0, 0, 0, 2]],
    "ranks without rows": [[0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    "experts of a rank without any": [[2, 0, 0, 0, 3, 1], [0, 4, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1]],
    "nothing at all": [[0] * X] * 3,
}


def runs_of(loads_X: list[int]) -> Runs:
    counts_X = torch.tensor(loads_X)
    return Runs(expert_M=torch.arange(X).repeat_interleave(counts_X), ends_X=counts_X.cumsum(0).int())


def values_of(rank: int, rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(rows * D).view(rows, D) + 100 * rank + 1).to(dtype)


def travel(loads: list[list[int]], dtype: torch.dtype) -> tuple[bool, bool, list[list[float]], list[int]]:
    """Rows times the number of their expert + 1, computed where the experts are; and a second time, the same."""
    rank, exchange = dist.get_rank(), ExpertExchange(dist.group.WORLD)
    runs, first = runs_of(loads[rank]), rank * X // len(loads)
    rows_MD = values_of(rank, len(runs.expert_M), dtype).requires_grad_()
    seen: list[list[float]] = []

    def compute(rows: Tensor, here: Runs) -> Tensor:
        seen.extend(rows.detach().tolist())
        return rows * (here.expert_M + first + 1).to(rows.dtype)[:, None]

    y_MD = exchange(rows_MD, runs, compute)
    (gradient,) = torch.autograd.grad(y_MD, rows_MD, torch.full_like(y_MD, 2))
    factor_M1 = (runs.expert_M + 1).to(dtype)[:, None]
    right = torch.equal(y_MD, rows_MD * factor_M1) and torch.equal(gradient, (2 * factor_M1).expand_as(gradient))
    again = torch.equal(exchange(rows_MD, runs, compute), y_MD)
    return right, again, seen[: len(seen) // 2], make_routes(runs, dist.group.WORLD).runs.ends_X.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loads", LOADS.values(), ids=LOADS)
def test_every_row_is_computed_by_its_expert_and_comes_back(loads, dtype):
    ranks = len(loads)
    found = on_ranks(travel, ranks, loads, dtype)
    rows = [values_of(rank, sum(loads[rank]), dtype).split(loads[rank]) for rank in range(ranks)]
    for rank, (right, again, seen, ends) in enumerate(found):
        assert right, "outputs and gradients"
        assert again
        mine = range(rank * X // ranks, (rank + 1) * X // ranks)
        wanted = [row for expert in mine for source in range(ranks) for row in rows[source][expert].tolist()]
        assert seen == wanted, "in the order of experts, of ranks, of tokens"
        counts = [sum(loads[source][expert] for source in range(ranks)) for expert in mine]
        assert ends == [sum(counts[: i + 1]) for i in range(len(counts))]


# --- where states lie


def rectangles(axes: Axes) -> dict[str, tuple[Rectangle, bool]]:
    """Of this rank's expert parameters, and whether it counts in a norm."""
    spec = described("mixtral-8x7b", ("model.bias=all",))
    model = ShardedModel(spec.model, PrecisionSpec("float32"), spec.seed, Mesh(axes))
    return {
        name: (rectangle_of(parameter), holds_first_copy(parameter))
        for name, parameter in model.parts.sharded.items()
        if is_of_experts(name)
    }


@pytest.mark.parametrize(
    "axes",
    [
        {"dp_shard": 4, "ep": 2},
        {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
        {"dp_shard": 4, "tp": 2, "ep": 2},
        {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "ep": 2},
        {"dp_shard": 8, "tp": 1, "ep": 1},
    ],
    ids=str,
)
def test_first_copies_cover_every_expert_once(axes):
    layout = Axes(**axes)
    found = on_ranks(rectangles, layout.world, layout)
    shapes = {s.name: s.shape for s in parameter_shapes(described("mixtral-8x7b", ("model.bias=all",)).model)}
    for name in found[0]:
        covered = torch.zeros(shapes[name], dtype=torch.int64)
        for place, is_first in (rank[name] for rank in found):
            if is_first:
                covered[tuple(slice(o, o + n) for o, n in zip(place.offset, place.lengths, strict=True))] += 1
        assert bool((covered == 1).all()), name
        copies = sum(math.prod(rank[name][0].lengths) for rank in found) / covered.numel()
        over_tp = layout.tp if name.endswith("down.bias") else 1
        assert copies == layout.dp_replicate * over_tp, name


# --- what cannot be
