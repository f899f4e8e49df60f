"""What of a model lies on one rank of a layout: blocks of its pipeline stage, parameters of each block.

    tensor parallelism    splits matrices; gains, routers and down-projections of latent attention lie on every rank whole
    grouped queries       keys and values are split over at most kv_heads ranks, copied beyond
    experts               lie ep ways over data and context ranks, and are split by tensor parallelism like other matrices
    pipeline              126 blocks over 16 stages: 7 on the first and the last, which hold embedding and head, 8 between

Sharding of states (ZeRO) is not in here: these are the parameters that a rank computes with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.stages import chunk_blocks
from headway.plan.work import Layout
from headway.recipe.layout_rules import blocks
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ModelSpec

WHOLE = ("attention.q_down.", "attention.kv_down.", "router.", "attention.o.bias", "ffn.down.bias")
"""Beside the gains: what every tensor-parallel rank holds."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parameters of one block by the way they are split."""

    split: int = 0  # over tp
    kv: int = 0  # over at most kv_heads of tp
    whole: int = 0  # on every tp rank
    experts: int = 0  # over ep and tp

    def dense(self, model: ModelSpec, layout: Layout) -> float:
        """On one rank, without experts."""
        return self.split / layout.tp + self.kv / kv_ways(model, layout.tp) + self.whole

    def routed(self, layout: Layout) -> float:
        """Of experts, on one rank."""
        return self.experts / (layout.ep * layout.tp)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Blocks of both kinds, their numbers, and what lies on the end stages."""

    dense: Parts
    routed: Parts
    routed_layers: int
    embedding: int
    positions: int  # a learned table, on every tensor rank whole
    head: int  # 0: tied
    ends: int  # other parameters of the end stages: norms, projections of mtp heads


def kv_ways(model: ModelSpec, tp: int) -> int:
    """Into how many parts keys and values are split: beyond kv_heads ranks hold copies."""
    return max(1, min(tp, model.kv_heads))


@lru_cache(maxsize=64)
def model_parts(model: ModelSpec) -> ModelParts:
    """Sizes of ``model``'s blocks; blocks of mtp heads are blocks of the last kind."""
    shapes = parameter_shapes(model)
    routed = [layer for layer in range(model.layers) if model.has_experts(layer)]
    dense = [layer for layer in range(model.layers) if not model.has_experts(layer)]
    named = {role: sum(s.count for s in shapes if s.role is role) for role in (Role.EMBEDDING, Role.HEAD)}
    last = f"layers.{model.layers - 1}."
    in_mtp = sum(s.count for s in shapes if s.name.startswith("mtp.")) - model.mtp_layers * _total(shapes, last)
    around = sum(s.count for s in shapes if not s.name.startswith(("layers.", "mtp.")))
    positions = _total(shapes, "positions.")
    return ModelParts(
        dense=_parts(s for s in shapes if dense and s.name.startswith(f"layers.{dense[0]}.")),
        routed=_parts(s for s in shapes if routed and s.name.startswith(f"layers.{routed[0]}.")),
        routed_layers=len(routed) + (model.mtp_layers if model.has_experts(model.layers - 1) else 0),
        embedding=named[Role.EMBEDDING] - positions,
        positions=positions,
        head=named[Role.HEAD],
        ends=around - sum(named.values()) + in_mtp,
    )


def stage_blocks(model: ModelSpec, layout: Layout) -> tuple[int, ...]:
    """Blocks of each pipeline rank. With ``virtual`` chunks a rank, chunks and not ranks are filled evenly."""
    sizes = chunk_blocks(model, layout.pp * layout.virtual)
    return sizes if layout.virtual == 1 else tuple(sum(sizes[rank :: layout.pp]) for rank in range(layout.pp))


def busiest_blocks(model: ModelSpec, layout: Layout) -> int:
    """Blocks of the pipeline rank that has most."""
    if blocks(model) % (layout.pp * layout.virtual) == 0:
        return blocks(model) // layout.pp
    return max(stage_blocks(model, layout))


def routed_blocks(model: ModelSpec, layout: Layout) -> int:
    """Of the busiest rank's blocks, those with experts; of several such ranks, of the one that has most."""
    if model.experts is None or layout.pp == 1:
        return model_parts(model).routed_layers
    return max(stage_kinds(model, layout.pp, layout.virtual), key=lambda kinds: (sum(kinds), kinds[1]))[1]


@lru_cache(maxsize=4096)
def stage_kinds(model: ModelSpec, pp: int, virtual: int) -> tuple[tuple[int, int], ...]:
    """Blocks without and with experts of every pipeline rank; those of heads for further tokens are like the last."""
    chunks = chunk_blocks(model, pp * virtual)
    routed = [model.has_experts(min(at, model.layers - 1)) for at in range(sum(chunks))]
    found, first = [(0, 0)] * pp, 0
    for chunk, size in enumerate(chunks):
        with_experts = sum(routed[first : first + size])
        dense, sparse = found[chunk % pp]
        found[chunk % pp] = (dense + size - with_experts, sparse + with_experts)
        first += size
    return tuple(found)


def rank_parameters(model: ModelSpec, layout: Layout) -> tuple[float, float]:
    """On a rank of the stage with most blocks: outside experts, and of experts. With one stage also embedding and head."""
    parts, have = model_parts(model), busiest_blocks(model, layout)
    routed = routed_blocks(model, layout)
    dense = (have - routed) * parts.dense.dense(model, layout) + routed * parts.routed.dense(model, layout)
    if layout.pp == 1:
        dense += (parts.embedding + parts.head) / layout.tp + parts.positions + parts.ends
    return dense, routed * parts.routed.routed(layout)


def _total(shapes: Iterable[ParameterShape], prefix: str) -> int:
    return sum(s.count for s in shapes if s.name.startswith(prefix))


def _parts(shapes: Iterable[ParameterShape]) -> Parts:
    sums = {"split": 0, "kv": 0, "whole": 0, "experts": 0}
    for shape in shapes:
        sums[_way(shape)] += shape.count
    return Parts(**sums)


def _way(shape: ParameterShape) -> str:
    if shape.role is Role.GAIN or "norm." in shape.name or any(part in shape.name for part in WHOLE):
        return "whole"
    if ".experts." in shape.name:
        return "experts"
    return "kv" if ".attention.k." in shape.name or ".attention.v." in shape.name else "split"
