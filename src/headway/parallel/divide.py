"""Which parameter tensor parallelism cuts, and along which dimension; every other is whole on all of its ranks.

    q, k, v, kv, gate, up      rows: heads, or the inner width      o, down     columns: what they multiply
    embed, head                rows: the vocabulary                 experts     the inner width, behind the axis of experts

A bias of rows is cut as its rows are; a bias that is added to the sum of all ranks is whole. Parts are those of ``torch.chunk``:
equal but for the last, so a vocabulary need not divide.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS = ("attention.q", "attention.k", "attention.v", "attention.kv", "ffn.gate", "ffn.up", "shared.gate", "shared.up")
COLUMNS = ("attention.o", "ffn.down", "shared.down")
EXPERT_ROWS, EXPERT_COLUMNS = ("experts.gate", "experts.up"), ("experts.down",)
VOCABULARY = ("embed", "head")


def cut_dimension(name: str) -> int | None:
    """The dimension that is cut of the parameter ``name``, as ``recipe/roles.py`` names it; None: it is whole everywhere."""
    module, _, leaf = name.rpartition(".")
    if module in VOCABULARY or _ends(module, ROWS):
        return 0
    if _ends(module, EXPERT_ROWS):
        return 1
    if leaf == "bias":
        return None
    if _ends(module, COLUMNS):
        return 1
    return 2 if _ends(module, EXPERT_COLUMNS) else None


def is_of_experts(name: str) -> bool:
    """Whether the parameter ``name`` has a leading axis of experts, which expert parallelism cuts."""
    return _ends(name.rpartition(".")[0], EXPERT_ROWS + EXPERT_COLUMNS)


def _ends(module: str, parts: Sequence[str]) -> bool:
    return any(module.endswith("." + part) for part in parts)


def part(length: int, index: int, parts: int) -> slice:
    """The ``index``-th of ``parts`` of a dimension, by the rule of ``torch.chunk``."""
    size = -(-length // parts)
    return slice(min(index * size, length), min((index + 1) * size, length))
