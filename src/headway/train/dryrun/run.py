"""One rank's step without the others: which depths and passes are run, and what follows from them.

    layers   two depths that differ by one period of the model's pattern      ->  the rest by the difference between them
    passes   the first micro-batch of a step, one between, the last           ->  the rest as the one between

Both are counted, not estimated: each layer, and each pass between, does what its neighbour does. A model of few layers is run
whole. Sums over ranks behind the backward pass (norm, losses) are read by the host: they are named, not run.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headway.base.errors import ConfigError
from headway.model.context import Context, make_context
from headway.model.objective import training_sums
from headway.parallel.group import pretend
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.model import ShardedModel
from headway.parallel.state import LocalParts
from headway.recipe.engine_layouts import Sizes, Task, refused
from headway.recipe.spec import ModelSpec, Spec
from headway.train.dryrun.seen import Exchange, Tally, Watch

RUN_WHOLE_LAYERS = 4
"""A model of no more layers is run as it is."""
MOMENTS, FLOAT32_BYTES = 2, 4
NOT_RUN = {"gradient norm": 8, "losses": 32}
"""Sums behind the backward pass, bytes each: float64, one and four of them."""
EVEN = "every expert gets as many tokens"
"""Which only values would tell (``model/shape_only.py``)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """``stage`` of the recipe; ``micro_batch`` sequences in each of ``passes`` forward and backward passes of a replica."""

    spec: Spec
    axes: Axes
    stage: int = 0
    micro_batch: int = 1
    passes: int = 1


class ShapesOnly(ShardedModel):
    """The model of a rank, without memory: nothing is filled."""

    def _initialise(self, seed: int) -> None:
        """There is nothing to fill."""

    def allocate(self) -> None:
        """Under a FakeTensorMode: tensors that have sizes only."""
        self.decoder.to_empty(device="cpu")
        self.parts = LocalParts(self.mesh.stage, self.decoder)


def dry_run(request: Request) -> dict[str, Any]:
    """What a rank does in a step, and holds. ConfigError for a layout that the engine refuses."""
    began = time.monotonic()
    problems = refused(Task.of(request.spec)[request.stage], Sizes.of(request.axes))
    if problems:
        raise ConfigError(problems)
    with pretend(0, request.axes.world):
        depths = _depths(request.spec.model)
        runs = [_run(request, layers) for layers in depths]
    at = depths[-1]
    step = runs[-1] if len(runs) == 1 else _extended(runs, depths, request.spec.model.layers)
    return {
        "kind": "dryrun",
        "schema_version": 1,
        "world": request.axes.world,
        "layers_run": list(depths),
        "layers": request.spec.model.layers,
        "passes_run": min(3, request.passes),
        "passes": request.passes,
        "exchanges": [asdict(exchange) | {"calls": calls} for exchange, calls in step.exchanges.items()],
        "not_run": NOT_RUN if request.axes.world > 1 else {},
        "assumed": [EVEN] if request.spec.model.experts is not None else [],
        "order": {"layers": at, "first_pass": _order(runs[-1].order)},
        "parameters": step.parameters,
        "state_bytes": _state_bytes(step, request.passes),
        "flops": dict(step.flops),
        "attention_flops": dict(step.attention_flops),
        "seconds": round(time.monotonic() - began, 2),
    }


@dataclass
class _Step:
    """Of all passes of a step."""

    exchanges: Counter[Exchange]
    flops: Counter[str]
    attention_flops: Counter[str]
    order: list[Exchange]  # of the first pass
    parameters: int


def _state_bytes(step: _Step, passes: int) -> dict[str, int]:
    """Float32. Of several micro-batches gradients are summed whole, and scattered behind the last."""
    whole = FLOAT32_BYTES * step.parameters
    gradients = whole
    if passes > 1:  # what is scattered is whole before; what one rank has alone stays as it is
        scattered = [(calls * one.payload_bytes, one.group) for one, calls in step.exchanges.items() if _is_scatter(one)]
        gradients += sum(size - size // ranks for size, ranks in scattered)
    return {
        "weights": whole,
        "gradients until they are scattered": gradients,
        "moments": MOMENTS * whole,
    }


def _is_scatter(one: Exchange) -> bool:
    """Of gradients to those that share states."""
    return (one.axis, one.kind) == ("dp_shard", "reduce_scatter")


def _run(request: Request, layers: int) -> _Step:
    """At a depth of ``layers``."""
    spec, stage = replace(request.spec.model, layers=layers), request.spec.stages[request.stage]
    mesh = Mesh(request.axes, "cpu")
    mesh.device = "meta"
    model = ShapesOnly(spec, request.spec.precision, request.spec.seed, mesh)
    mesh.device = "cpu"
    shape = (request.micro_batch, stage.sequence_length)
    position_BT = torch.arange(shape[1]).expand(shape).contiguous()
    document_BT, z_weight = torch.zeros(shape, dtype=torch.long), request.spec.stability.z_loss
    context = make_context(position_BT, document_BT, spec, stage.rope, model.dtype, model.ranks)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.allocate()
        parameters = sum(part.numel() for part in model.parts.local.values())
        kinds = _passes(request.passes)
        tallies = [_pass(model, context, z_weight, shape, is_last=last) for last, _ in kinds]
        model.take_gradients()
    total = _Step(Counter(), Counter(), Counter(), tallies[0].order, parameters)
    for tally, (_, times) in zip(tallies, kinds, strict=True):
        for name in ("exchanges", "flops", "attention_flops"):
            counted, into = getattr(tally, name), getattr(total, name)
            for key, value in counted.items():
                into[key] += value * times
    return total


def _passes(count: int) -> list[tuple[bool, int]]:
    """(whether it is the last, how many are like it), in order."""
    if count < 3:
        return [(at == count - 1, 1) for at in range(count)]
    return [(False, 1), (False, count - 2), (True, 1)]


def _pass(model: ShapesOnly, context: Context, z_weight: float, shape: tuple[int, int], *, is_last: bool) -> Tally:
    """As ``step.accumulate`` runs one."""
    watch = Watch(model.mesh.axes)
    tokens_BT, targets_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    model.begin_micro_batch(is_last=is_last)
    with watch.phase("forward"):
        sums = training_sums(model, tokens_BT, targets_BT, context, z_weight)
    with watch.phase("backward"):
        (sums.objective_sum / tokens_BT.numel()).backward()
    return watch.tally


def _depths(model: ModelSpec) -> tuple[int, ...]:
    """Two depths whose difference is one period of the pattern of layers, or the model's own."""
    experts = model.experts
    period = math.lcm(max(1, model.full_attention_every), max(1, model.nope_every), 1 if experts is None else experts.every)
    first = 1 + (0 if experts is None else experts.dense_layers)
    first += (model.layers - first) % period
    if first < 2:
        first += period
    return (first, first + period) if first + period < model.layers > RUN_WHOLE_LAYERS else (model.layers,)


def _extended(runs: list[_Step], depths: tuple[int, ...], layers: int) -> _Step:
    """Every count grows by the same number from period to period."""
    (few, more), times = runs, (layers - depths[0]) // (depths[1] - depths[0])
    extend: Callable[[Counter, Counter], Counter] = lambda a, b: Counter(  # noqa: E731
        {key: a[key] + times * (b[key] - a[key]) for key in a.keys() | b.keys()}
    )
    return _Step(
        extend(few.exchanges, more.exchanges),
        extend(few.flops, more.flops),
        extend(few.attention_flops, more.attention_flops),
        more.order,
        few.parameters + times * (more.parameters - few.parameters),
    )


def _order(seen: list[Exchange]) -> list[dict[str, Any]]:
    """Runs of the same exchange together."""
    return [asdict(exchange) | {"times": len(list(run))} for exchange, run in groupby(seen)]
