"""Which blocks of a model each chunk of a pipeline has: one rule, for plans and for training.

    10 blocks over 4 chunks     2 | 3 | 3 | 2       embedding | ... | head, heads for further tokens
    chunk c                     on pipeline rank c mod pp: with ``virtual`` chunks a rank, every pp-th is its

Chunks are filled evenly; what does not divide is taken from the ends first (0, last, 1, last but one, ...): they have embedding
and head beside their blocks (Llama 3: 126 layers over 16 ranks, 7 on the first and on the last, 8 between). Blocks of heads for
further tokens count as blocks and stay with the head.
"""

from __future__ import annotations

from functools import lru_cache

from headway.recipe.spec import ModelSpec


def chunk_blocks(model: ModelSpec, chunks: int) -> tuple[int, ...]:
    """Blocks of each chunk, in the order in which tokens pass; at most ``layout_rules.most_chunks`` of them are asked for."""
    return _spread(model.layers, model.mtp_layers, chunks)


def chunk_layers(model: ModelSpec, chunks: int) -> tuple[range, ...]:
    """The decoder's layers of each chunk, from 0."""
    sizes = list(chunk_blocks(model, chunks))
    sizes[-1] -= model.mtp_layers
    starts = [sum(sizes[:chunk]) for chunk in range(chunks)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


@lru_cache(maxsize=4096)
def _spread(layers: int, further: int, chunks: int) -> tuple[int, ...]:
    sizes = _even(layers + further, chunks)
    if sizes[-1] < further:  # the last chunk has no room beside them: the others share all layers
        sizes = [*_even(layers, chunks - 1), further]
    return tuple(sizes)


def _even(have: int, chunks: int) -> list[int]:
    full = -(-have // chunks)
    sizes = [full] * chunks
    for at in _ends_first(chunks)[: chunks * full - have]:
        sizes[at] -= 1
    return sizes


def _ends_first(count: int) -> list[int]:
    """0, last, 1, last but one, ..."""
    return sorted(range(count), key=lambda at: (min(at, count - 1 - at), at))
