"""What of a model this engine has on the rank that a dry run runs: parameters, and how they are cut.

whole over tp     gains, routers, ways down to latents, ...                    is_whole
of a tensor rank  the rest divided by tp, experts by ep too                    whole
of a rank         rows over those that share states, padded to as many each    padded
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from headway.plan.memory.model import expert_shards
from headway.plan.step.shares import WHOLE, model_parts
from headway.plan.work import Layout
from headway.recipe.layout_rules import blocks
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ModelSpec

ALSO_WHOLE = ("norm.", "positions.", "project.", "shared.down.bias", "experts.down.bias")
COLUMNS = ("attention.o.", "ffn.down.", "shared.down.")
"""What tensor parallelism does not cut by its first dimension."""


@dataclass(frozen=True)
class Held:
    """Blocks, those of them with experts, and parameters with gradients."""

    blocks: int
    routed: int
    shapes: tuple[ParameterShape, ...]

    @property
    def routers(self) -> int:
        """Parameters."""
        return sum(shape.count for shape in self.shapes if ".router." in shape.name)

    def root(self, layout: Layout) -> float:
        """Parameters of a tensor rank outside of blocks."""
        return sum(whole(shape, layout) for shape in self.shapes if kind_of(shape) == "root")


@lru_cache(maxsize=64)
def held(model: ModelSpec, layout: Layout) -> Held:
    shapes = tuple(shape for shape in parameter_shapes(model) if shape.role is not Role.BALANCE)
    return Held(blocks(model), model_parts(model).routed_layers, shapes)


def is_whole(shape: ParameterShape) -> bool:
    """Whether every tensor rank has all of it."""
    return any(part in f"{shape.name}." for part in WHOLE + ALSO_WHOLE)


def is_of_experts(shape: ParameterShape) -> bool:
    return ".experts." in shape.name


def kind_of(shape: ParameterShape) -> str:
    """Of the group in which it is gathered."""
    if not shape.name.startswith(("layers.", "mtp.")):
        return "root"
    return "router" if ".router." in shape.name else "block"


def whole(shape: ParameterShape, layout: Layout) -> float:
    """Elements of a tensor rank before states are shared."""
    return shape.count / (1 if is_whole(shape) else layout.tp) / (layout.ep if is_of_experts(shape) else 1)


@dataclass(frozen=True)
class Padded:
    """Elements that are added: of a tensor rank, by the kind of group, and of a rank."""

    elements: Counter[str]
    of_rank: float


@lru_cache(maxsize=64)
def padded(model: ModelSpec, layout: Layout) -> Padded:
    """So that rows divide over the ranks that share them."""
    elements: Counter[str] = Counter()
    of_rank = 0.0
    for shape in held(model, layout).shapes:
        shards = int(expert_shards(layout)) if is_of_experts(shape) else layout.shards
        rows = _rows(shape, layout, shards)
        added = (-(-rows // shards) * shards - rows) * whole(shape, layout) / rows
        elements[kind_of(shape)] += added  # type: ignore[assignment]
        of_rank += added / shards
    return Padded(elements, of_rank)


def _rows(shape: ParameterShape, layout: Layout, shards: int) -> int:
    """Of the dimension that is cut: the first; of experts that are fewer than ranks the one behind, where that divides."""
    first = shape.shape[0]
    if is_of_experts(shape):
        few, behind = first // layout.ep, shape.shape[1] // (1 if ".down." in shape.name else layout.tp)
        return behind if len(shape.shape) > 2 and few < shards and behind % shards == 0 else few
    return first if is_whole(shape) or any(part in f"{shape.name}." for part in COLUMNS) else -(-first // layout.tp)
