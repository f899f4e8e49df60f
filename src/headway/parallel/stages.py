"""The pieces of a decoder that one pipeline rank holds, and what a layout needs for that. The rule: ``formulas/stages.py``.

chunks in order      0   1   2   3        pp 2, virtual 2: rank 0 has chunks 0 and 2, rank 1 has 1 and 3
on rank              0   1   0   1
"""

from __future__ import annotations

from headway.base.errors import ConfigError
from headway.formulas.stages import chunk_layers
from headway.model.decoder import Piece
from headway.parallel.mesh import Axes
from headway.recipe.layout_rules import blocks, most_chunks
from headway.recipe.spec import ModelSpec

PIPELINES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
TAKES_CHUNKS = ("interleaved", "zero-bubble")


def rank_pieces(model: ModelSpec, axes: Axes, rank: int) -> dict[int, Piece]:
    """By the number of the chunk, what pipeline rank ``rank`` holds. ConfigError where the layout cannot be had."""
    refuse_pipeline(model, axes)
    chunks = axes.pp * axes.virtual
    layers = chunk_layers(model, chunks)
    return {at: Piece(layers[at], is_first=at == 0, is_last=at == chunks - 1) for at in range(rank, chunks, axes.pp)}


def refuse_pipeline(model: ModelSpec, axes: Axes) -> None:
    """ConfigError where chunks would be empty, or more on a rank than the order of micro-batches can alternate between."""
    chunks, most = axes.pp * axes.virtual, most_chunks(model)
    if axes.pipeline not in PIPELINES:
        raise ConfigError(f"pipeline {axes.pipeline!r}", f"orders of micro-batches: {', '.join(PIPELINES)}", "choose one of them")
    if chunks > most:
        raise ConfigError(
            f"{blocks(model)} layers for pp {axes.pp} x virtual {axes.virtual} = {chunks} chunks",
            "a chunk holds a layer at least; the first and the last may have none",
            f"at most {most} chunks",
        )
    if axes.virtual > 1 and axes.pipeline not in TAKES_CHUNKS:
        raise ConfigError(
            f"virtual {axes.virtual} with pipeline {axes.pipeline}",
            "several chunks a rank need an order of micro-batches that alternates between them",
            f"virtual 1, or pipeline {TAKES_CHUNKS[0]}",
        )


def equal_rounds(micro_batches: int, axes: Axes) -> int:
    """The least number from ``micro_batches`` on that the layout's order takes: chunks pass in rounds of equal length."""
    if axes.pipeline not in TAKES_CHUNKS:
        return micro_batches
    while micro_batches % max(1, micro_batches // axes.pp):
        micro_batches += 1
    return micro_batches
