"""Layouts that the engine refuses, each with both numbers, the rule, and the nearest layout of as many processes that works.

    of any layout         layout_rules.py: heads, widths, layers, tokens of a sequence, experts
    of this engine        key-value heads are never copied; every tensor rank holds rows of the vocabulary; norms over all heads
                          and products in float8 stay whole; moments are always shared out (zero 1 to 3); a block is
                          computed again as a whole, or all but its products with weights

A batch may be smaller than the replicas: what is missing is filled with sequences that count for nothing.
``headway run`` asks this before it starts, ``headway prove`` and ``headway dryrun`` before they take a layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError, Problem
from headway.recipe import layout_rules as rules
from headway.recipe.deployment import AXES
from headway.recipe.findings import divisors
from headway.recipe.spec import ModelSpec, PrecisionSpec, Spec
from headway.recipe.trainable import parameter_precisions

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained. ``sequence`` in tokens, ``batch`` in sequences: the smallest of a stage."""

    model: ModelSpec
    precision: PrecisionSpec
    sequence: int
    batch: int

    @staticmethod
    def of(spec: Spec) -> list[Task]:
        """One per stage."""
        return [
            Task(
                model=spec.model,
                precision=spec.precision,
                sequence=stage.sequence_length,
                batch=min(phase.batch_sequences for phase in stage.phases),
            )
            for stage in spec.stages
        ]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a layout, as far as the mathematics could be touched by them; the names are those of the deployment."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    virtual: int = 1
    pipeline: str = "1f1b"
    zero: int = 3
    recompute: str = "none"
    offload: str = "none"

    @staticmethod
    def of(layout: Any) -> Sizes:
        """Of anything that has these names: a deployment's layout, a planner's, a mesh's axes."""
        return Sizes(**{name: _plain(getattr(layout, name)) for name in NAMES})

    @property
    def world(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)

    def __str__(self) -> str:
        """``--layout`` reads it: ``dp_shard=2,tp=2``."""
        default = Sizes()
        return ",".join(f"{n}={getattr(self, n)}" for n in NAMES if getattr(self, n) != getattr(default, n)) or "dp_shard=1"


NAMES = tuple(field.name for field in fields(Sizes))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def refused(task: Task, sizes: Sizes) -> list[Problem]:
    """Everything that keeps the engine from ``sizes``; each way out ends in the nearest layout that works. Empty: it runs."""
    found = list(_broken(task, sizes))
    if not found:
        return []
    hint = f"the nearest that works is {nearest(task, sizes)}"
    return [replace(problem, way_out=f"{problem.way_out}; {hint}" if problem.way_out else hint) for problem in found]


def runs(task: Task, sizes: Sizes) -> bool:
    return next(_broken(task, sizes), None) is None


def check_layouts(deployment: Deployment, spec: Spec) -> None:
    """ConfigError for every stage whose layout the engine refuses."""
    problems: dict[str, Problem] = {}
    for stage, task in zip(spec.stages, Task.of(spec), strict=True):
        for problem in refused(task, Sizes.of(deployment.layout(stage.name))):
            problems.setdefault(problem.seen, replace(problem, where=problem.where or f"layout of stage {stage.name}"))
    if problems:
        raise ConfigError(list(problems.values()))


def _broken(task: Task, sizes: Sizes) -> Iterator[Problem]:
    small = [name for name in (*AXES, "ep", "virtual") if getattr(sizes, name) < 1]
    if small:
        yield Problem(f"{small[0]} {getattr(sizes, small[0])}", "sizes are 1 or more", "leave out axes that are not used")
        return
    for rule in RULES:
        problem = rule(task, sizes)
        if problem is not None:
            yield problem


# --- rules of this engine -----------------------------------------------------------------------------------------------


def _kv_heads(task: Task, sizes: Sizes) -> Problem | None:
    kv, tp = task.model.kv_heads, sizes.tp
    if task.model.latent is not None or kv % tp == 0:
        return None
    rule = "key-value heads are split evenly; this engine does not copy them"
    return Problem(f"tp {tp} for {kv} key-value heads", rule, rules.divisors_hint("tp", kv))


def _vocabulary(task: Task, sizes: Sizes) -> Problem | None:
    """Parts are equal but for the last, and none may be empty."""
    rows, tp = task.model.vocabulary, sizes.tp
    if (tp - 1) * -(-rows // tp) < rows:
        return None
    most = max(ways for ways in range(1, tp) if (ways - 1) * -(-rows // ways) < rows)
    seen = f"tp {tp} for a vocabulary of {rows:,}"
    return Problem(seen, "each tensor rank has rows of embedding and head", f"tp {most} or less")


def _norms_over_heads(task: Task, sizes: Sizes) -> Problem | None:
    model = task.model
    if sizes.tp == 1 or not model.qk_norm or model.qk_norm_over != "all":
        return None
    seen = f"tp {sizes.tp} for norms over all {model.heads} heads (qk_norm_over all)"
    return Problem(seen, "a norm over all heads needs them on one rank", "tp 1")


def _float8(task: Task, sizes: Sizes) -> Problem | None:
    if sizes.tp == 1 or "float8" not in {task.precision.compute, *task.precision.modules.values()}:
        return None
    count = sum(kind == "float8" for kind in parameter_precisions(task.model, task.precision).values())
    seen = f"tp {sizes.tp} with {count} projections in float8"
    rule = "a scale is that of a whole row of tokens or weights, and tensor ranks have parts of them"
    return Problem(seen, rule, "tp 1, or precision bfloat16") if count else None


SHARED = (1, 2, 3)
"""What zero may be where states are shared."""


def _zero(task: Task, sizes: Sizes) -> Problem | None:
    """Alone, nothing is shared: any will do."""
    if sizes.zero in SHARED or (sizes.zero == 0 and sizes.dp_shard * sizes.cp == 1):
        return None
    rule = "moments are always shared over dp_shard x cp; with zero 2 gradients too, with zero 3 weights too"
    return Problem(f"zero {sizes.zero} over {sizes.dp_shard * sizes.cp} ranks", rule, "zero 1, or dp_replicate for whole copies")


def _recompute(task: Task, sizes: Sizes) -> Problem | None:
    if sizes.recompute == "selective" and sizes.pp > 1 and sizes.pipeline == "zero-bubble":
        rule = "gradients of weights and of activations are two backward passes there, and what was kept serves one"
        return Problem("recompute selective with pipeline zero-bubble", rule, "recompute full or none")
    if sizes.recompute in ("none", "selective", "full"):
        return None
    rule = "a block is computed again as a whole (full), or all but its products with weights (selective)"
    return Problem(f"recompute {sizes.recompute}", rule, "recompute selective")


RULES: tuple[Callable[[Task, Sizes], Problem | None], ...] = (
    rules.heads,
    _kv_heads,
    rules.widths,
    rules.depth,
    lambda task, sizes: rules.pieces(sizes),
    rules.experts,
    rules.context,
    rules.tokens,
    _vocabulary,
    _norms_over_heads,
    _float8,
    _zero,
    _recompute,
)


# --- the nearest that works ---------------------------------------------------------------------------------------------

_WEIGHTS = {"dp_shard": 0.5, "dp_replicate": 0.6, "virtual": 0.8, "ep": 0.9}
"""Of a doubling; 1 for the others, which change every message."""


def nearest(task: Task, sizes: Sizes) -> Sizes:
    """Of as many processes, with the smallest weighted sum of doublings. dp_shard alone always works."""
    world = max(1, sizes.world)
    best, least = Sizes(dp_shard=world, zero=sizes.zero if sizes.zero in SHARED else 1), math.inf
    for candidate in _candidates(sizes, world, task):
        distance = sum(_doublings(sizes, candidate, axis) for axis in (*AXES, "ep", "virtual"))
        if distance < least - 1e-9 and runs(task, candidate):
            best, least = candidate, distance
    return best


def _candidates(sizes: Sizes, world: int, task: Task) -> Iterator[Sizes]:
    """Every split of ``world``; ep and pieces as they were or fewer; zero as it was, or 1."""
    experts = 1 if task.model.experts is None else task.model.experts.experts
    zeros = (sizes.zero, 1) if sizes.zero in SHARED else (1,)
    for pp, replicate, shard, cp, tp in _splits(world, len(AXES)):
        split = replace(sizes, pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp)
        ways = [e for e in divisors(math.gcd(experts, shard * cp)) if e <= max(1, sizes.ep)]
        for ep, virtual, zero in itertools.product(ways, {sizes.virtual, 1}, zeros):
            yield replace(split, ep=ep, virtual=virtual, zero=zero)


def _splits(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``number`` as a product of so many, in order."""
    if parts == 1:
        yield (number,)
        return
    for first in divisors(number):
        yield from ((first, *rest) for rest in _splits(number // first, parts - 1))


def _doublings(sizes: Sizes, candidate: Sizes, axis: str) -> float:
    return _WEIGHTS.get(axis, 1.0) * abs(math.log2(max(1, getattr(candidate, axis)) / max(1, getattr(sizes, axis))))


def shown(problems: Sequence[Problem]) -> str:
    """On one line: what was seen, and the rule."""
    return "; ".join(f"{problem.seen}: {problem.rule}" for problem in problems)
