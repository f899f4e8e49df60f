"""What of a model this engine has on the rank that a dry run runs, the first of a pipeline's fullest stage: layers, parameters,
and how they are cut.

whole over tp     gains, routers, ways down to latents, ...                    is_whole
of a tensor rank  the rest divided by tp, experts by ep too                    whole
of a rank         rows over those that share states, padded to as many each    padded
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.stages import chunk_layers
from headway.plan.memory.model import expert_shards
from headway.plan.step.shares import WHOLE, busiest_blocks, routed_blocks, stage_kinds
from headway.plan.work import Layout
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ModelSpec

ALSO_WHOLE = ("norm.", "positions.", "project.", "shared.down.bias", "experts.down.bias")
COLUMNS = ("attention.o.", "ffn.down.", "shared.down.")
"""What tensor parallelism does not cut by its first dimension."""


@dataclass(frozen=True)
class Held:
    """Of one rank of a pipeline stage. Layers of heads for further tokens are like the last."""

    layers: tuple[int, ...]
    routed: int  # blocks of them with experts
    is_first: bool
    is_last: bool
    shapes: tuple[ParameterShape, ...]  # of parameters with gradients

    @property
    def blocks(self) -> int:
        return len(self.layers)

    @property
    def routers(self) -> int:
        """Parameters."""
        return sum(shape.count for shape in self.shapes if ".router." in shape.name)

    @property
    def embeds(self) -> bool:
        return any(shape.name == "embed.weight" for shape in self.shapes)

    def root(self, layout: Layout) -> float:
        """Parameters of a tensor rank outside of blocks."""
        return sum(whole(shape, layout) for shape in self.shapes if kind_of(shape) == "root")


def stage_run(model: ModelSpec, layout: Layout) -> int:
    """The first pipeline stage with as many blocks, and as many of them with experts, as the planner's fullest."""
    most, routed = busiest_blocks(model, layout), routed_blocks(model, layout)
    return stage_kinds(model, layout.pp, layout.virtual).index((most - routed, routed))


@lru_cache(maxsize=64)
def held(model: ModelSpec, layout: Layout) -> Held:
    """On a rank of ``stage_run``."""
    stage = stage_run(model, layout)
    is_first, is_last = stage == 0, stage == layout.pp - 1
    own = [layer for chunk in chunk_layers(model, layout.pp * layout.virtual)[stage :: layout.pp] for layer in chunk]
    further = model.mtp_layers if is_last else 0
    layers = (*own, *[model.layers - 1] * further)
    begins = [f"layers.{layer}." for layer in own]
    begins += ["embed_norm.", "positions."] if is_first else []
    begins += ["embed."] if is_first or (is_last and (model.tied_embeddings or further)) else []
    begins += ["norm.", "head.", "mtp."] if is_last else []
    shapes = [one for one in parameter_shapes(model) if one.role is not Role.BALANCE and one.name.startswith(tuple(begins))]
    return Held(layers, sum(map(model.has_experts, layers)), is_first, is_last, tuple(shapes))


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


def products_per_token(model: ModelSpec, layout: Layout) -> tuple[float, float]:
    """Elements of matrices that a token is multiplied with on this stage: in blocks, and behind them."""
    here, experts = held(model, layout), model.experts
    idle = 1.0 if experts is None else experts.top_k / experts.experts
    matrices = [one for one in here.shapes if one.role in (Role.MATRIX, Role.RESIDUAL, Role.ROUTER) and len(one.shape) > 1]
    inside = sum(one.count * (idle if is_of_experts(one) else 1) for one in matrices)
    return inside, (1 + model.mtp_layers) * model.vocabulary * model.width * here.is_last
