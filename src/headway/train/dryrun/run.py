"""One rank's step without the others: which depths and passes are run, and what follows from them.

    layers   two depths that differ by one period of the model's pattern      ->  the rest by the difference between them
    passes   the first micro-batch of a step, one between, the last           ->  the rest as the one between
             of a pipeline as many as it has ranks, and a round more          ->  the rest by the difference between them

All is counted, not estimated: each layer, and each pass between, does what its neighbour does. A model of few layers is run
whole, and so are the layers of a pipeline's rank. Sums over ranks behind the backward pass (norm, losses) are read by the host:
they are named, not run.
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
from headway.model.objective import MicroBatch, MicroBatches, training_sums
from headway.parallel.group import pretend
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.stages import TAKES_CHUNKS, equal_rounds
from headway.recipe.engine_layouts import Sizes, Task, refused
from headway.recipe.offload import Offload
from headway.recipe.spec import ModelSpec, Spec
from headway.train.dryrun.pipelined import PipelineOfShapes
from headway.train.dryrun.seen import Exchange, Tally, Watch
from headway.train.dryrun.shapes import ShapesOnly

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
    pipeline_stage: int = 0

    @property
    def rank(self) -> int:
        """The first of the stage."""
        return self.pipeline_stage * (self.axes.world // self.axes.pp)

    @property
    def shape(self) -> tuple[int, int]:
        return self.micro_batch, self.spec.stages[self.stage].sequence_length


def dry_run(request: Request) -> dict[str, Any]:
    """What a rank does in a step, and holds. ConfigError for a layout that the engine refuses."""
    began = time.monotonic()
    problems = refused(Task.of(request.spec)[request.stage], Sizes.of(request.axes))
    if problems:
        raise ConfigError(problems)
    model = request.spec.model
    depths = _depths(model) if request.axes.pp == 1 else (model.layers,)
    rounds = _rounds(request)
    at_once = 1 if request.axes.pp == 1 else rounds[0]
    with pretend(request.rank, request.axes.world):
        if request.axes.pp > 1:
            runs = [_run_pipeline(request, count) for count in rounds]
            step = runs[0] if len(runs) == 1 else _extended(runs, rounds, request.passes)
        else:
            runs = [_run(request, layers) for layers in depths]
            step = runs[0] if len(runs) == 1 else _extended(runs, depths, model.layers)
    return {
        "kind": "dryrun",
        "schema_version": 1,
        "world": request.axes.world,
        "rank": request.rank,
        "layers_run": list(depths),
        "layers": request.spec.model.layers,
        "passes_run": list(rounds),
        "passes": request.passes,
        "exchanges": [asdict(exchange) | {"calls": calls} for exchange, calls in step.exchanges.items()],
        "not_run": NOT_RUN if request.axes.world > 1 else {},
        "assumed": [EVEN] if request.spec.model.experts is not None else [],
        "order": {"layers": depths[-1], "passes": at_once, "seen": _order(runs[0 if at_once > 1 else -1].order)},
        "parameters": step.parameters,
        "state_bytes": _state_bytes(
            step, summed=(request.passes > 1 and not request.axes.scatters_each_pass) or request.axes.pp > 1
        ),
        "host_bytes": _host_bytes(step, request.axes.offload),
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
    moved: Counter[str]
    order: list[Exchange]  # of the first pass
    parameters: int


def _state_bytes(step: _Step, *, summed: bool) -> dict[str, int]:
    """Float32. Gradients that are ``summed`` over micro-batches are whole until they are scattered behind the last."""
    whole = FLOAT32_BYTES * step.parameters
    gradients = whole
    if summed:  # what is scattered is whole before; what one rank has alone stays as it is
        scattered = [(calls * one.payload_bytes, one.group) for one, calls in step.exchanges.items() if _is_scatter(one)]
        gradients += sum(size - size // ranks for size, ranks in scattered)
    return {
        "weights": whole,
        "gradients until they are scattered": gradients,
        "moments": MOMENTS * whole,
    }


def _host_bytes(step: _Step, offload: Offload) -> dict[str, int]:
    """Over the host's link in a step, each way; moments are those that lie there too."""
    moments = MOMENTS * FLOAT32_BYTES * step.parameters if offload.moments else 0
    ways = {f"activations {way}": size for way, size in step.moved.items()}
    return {name: size for name, size in {"moments each way": moments, **ways}.items() if size}


def _is_scatter(one: Exchange) -> bool:
    """Of gradients to those that share states."""
    return (one.axis, one.kind) == ("dp_shard", "reduce_scatter")


def _run(request: Request, layers: int) -> _Step:
    """At a depth of ``layers``."""
    mesh = Mesh(request.axes, "cpu")
    mesh.device = "meta"
    spec = replace(request.spec.model, layers=layers)
    model = ShapesOnly(spec, request.spec.precision, request.spec.seed, mesh)
    mesh.device = "cpu"
    context, z_weight, shape = _context(request, model), request.spec.stability.z_loss, request.shape
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.allocate()
        parameters = sum(part.numel() for part in model.parts.local.values())
        kinds = _passes(request.passes)
        tallies = [_pass(model, context, z_weight, shape, is_last=last) for last, _ in kinds]
        model.take_gradients()
    total = _Step(Counter(), Counter(), Counter(), Counter(), tallies[0].order, parameters)
    for tally, (_, times) in zip(tallies, kinds, strict=True):
        for name in ("exchanges", "flops", "attention_flops", "moved"):
            counted, into = getattr(tally, name), getattr(total, name)
            for key, value in counted.items():
                into[key] += value * times
    return total


def _context(request: Request, model: ShapesOnly | PipelineOfShapes) -> Context:
    """Of whole rows of one document."""
    position_BT = torch.arange(request.shape[1]).expand(request.shape).contiguous()
    document_BT, rope = torch.zeros(request.shape, dtype=torch.long), request.spec.stages[request.stage].rope
    return make_context(position_BT, document_BT, model.spec, rope, model.dtype, model.ranks)


def _run_pipeline(request: Request, passes: int) -> _Step:
    """Of ``passes`` micro-batches."""
    mesh, watch, spec = Mesh(request.axes, "cpu"), Watch(request.axes), request.spec
    mesh.device = "meta"
    model = PipelineOfShapes(spec.model, spec.precision, spec.seed, mesh)
    mesh.device = "cpu"
    context = _context(request, model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.allocate(watch)
        tokens_BT = torch.zeros(request.shape, dtype=torch.long)
        micro = MicroBatch(tokens_BT, tokens_BT, context)
        work = MicroBatches(passes, lambda place: micro, spec.stability.z_loss, tokens_BT.numel() * passes)
        with watch, watch.phase("forward"):
            model.run(work, lambda sums: None)
        with watch, watch.phase("step"):
            model.take_gradients()
    parameters = sum(part.numel() for part in model.parts.local.values())
    tally, moved = watch.tally, Counter[str]()
    for chunk in model.chunks.values():
        assert isinstance(chunk, ShapesOnly)
        moved += chunk.moved()
    return _Step(tally.exchanges, tally.flops, tally.attention_flops, moved, tally.order, parameters)


def _rounds(request: Request) -> tuple[int, ...]:
    """Numbers of micro-batches that are run."""
    axes, passes = request.axes, request.passes
    if axes.pp == 1:
        return (min(3, passes),)
    if equal_rounds(passes, axes) != passes:
        seen, rule = f"{passes} micro-batches of a step over pp {axes.pp}", "chunks pass in rounds of equal length"
        raise ConfigError(seen, rule, f"a batch of {equal_rounds(passes, axes)} micro-batches, which a run fills it up to")
    step = axes.pp if axes.pipeline in TAKES_CHUNKS else 1
    few = axes.pp + (passes - axes.pp) % step
    return (few, few + step) if few + step < passes else (passes,)


def _passes(count: int) -> list[tuple[bool, int]]:
    """(whether it is the last, how many are like it), in order."""
    if count < 3:
        return [(at == count - 1, 1) for at in range(count)]
    return [(False, 1), (False, count - 2), (True, 1)]


def _pass(model: ShapesOnly, context: Context, z_weight: float, shape: tuple[int, int], *, is_last: bool) -> Tally:
    """As ``step.accumulate`` runs one."""
    watch = Watch(model.mesh.axes)
    tokens_BT, targets_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    before = model.moved()
    model.begin_micro_batch(is_last=is_last)
    with watch, watch.phase("forward"):
        sums = training_sums(model, tokens_BT, targets_BT, context, z_weight)
    with watch, watch.phase("backward"):
        (sums.objective_sum / tokens_BT.numel()).backward()
    watch.tally.moved = model.moved() - before
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
    """Every count grows by the same number from period to period (of layers), or from round to round (of micro-batches)."""
    (few, more), times = runs, (layers - depths[0]) // (depths[1] - depths[0])
    extend: Callable[[Counter, Counter], Counter] = lambda a, b: Counter(  # noqa: E731
        {key: a[key] + times * (b[key] - a[key]) for key in a.keys() | b.keys()}
    )
    return _Step(
        extend(few.exchanges, more.exchanges),
        extend(few.flops, more.flops),
        extend(few.attention_flops, more.attention_flops),
        extend(few.moved, more.moved),
        more.order,
        few.parameters + times * (more.parameters - few.parameters),
    )


def _order(seen: list[Exchange]) -> list[dict[str, Any]]:
    """Runs of the same exchange together."""
    return [asdict(exchange) | {"times": len(list(run))} for exchange, run in groupby(seen)]
