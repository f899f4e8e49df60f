"""Accelerators: dense peaks, memory, links. One table; no chip is ever given another's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device as frameworks see it. Rates are per second, bandwidths one direction; None: unknown."""

    name: str
    peaks: Mapping[str, float]  # precision -> dense FLOP/s
    memory_bytes: int
    memory_bandwidth: float  # bytes/s
    link_bandwidth: float | None  # bytes/s to neighbours in the same domain
    domain: int  # chips that the fast links join
    network_bandwidth: float | None  # bytes/s per chip beyond the domain, as usually built
    watts: float | None = None
    achievable: Mapping[str, float] = field(default_factory=dict)  # precision -> best FLOP/s that a GEMM was seen to reach
    sparse_peaks: Mapping[str, float] = field(default_factory=dict)  # headline figures that are no dense rates
    verified: bool = False
    source: str = ""
    note: str = ""

    def __hash__(self) -> int:
        return hash(self.name)
