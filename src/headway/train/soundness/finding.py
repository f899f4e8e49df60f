"""Whom a finding names: as evidence for the supervisor, and in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLICAS, REPEAT = "replicas", "repeat"
"""How a finding was made."""


def who(ranks: Sequence[int], hosts: Sequence[str]) -> dict[str, Any]:
    """``ranks``: under suspicion; ``hosts``: of all ranks. One rank is named; of several, their host if they share it."""
    places = sorted({hosts[rank] for rank in ranks})
    return {
        "rank": ranks[0] if len(ranks) == 1 else None,
        "ranks": list(ranks),
        "host": places[0] if len(places) == 1 else None,
        "hosts": places,
    }


def who_words(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Such as ``rank 3 (node-7)``, or that it is not known which."""
    if not ranks:
        return "no rank in particular"
    shown = ", ".join(f"{rank} ({hosts[rank]})" for rank in list(ranks)[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"one of ranks {shown}; which of them is not known"
