r"""Which rank is slower than its peers: two rules over blocks of steps (``monitor/blocks.py``).

*Ratio*: work at least twice that of the peers' median, three blocks in a row. It finds what is broken at once.

*Change point*: a node that is 6 % slow costs the whole run 6 % and never meets a ratio. Per rank a one-sided cumulative sum of
the excess x = log(own work / peers' work) over what noise may be (Page 1954; the sequential test of a shift of 2 x DRIFT):

    S = max(0, S + min(x, cap) - DRIFT)         alarm: S > sigma^2 ln(1/p) / (2 DRIFT)
                                                       and five blocks in a row above DRIFT, with a median of at least LEAST

p is the chance of a false alarm, one in a million blocks over all ranks together; sigma is the noise of x, measured from the
blocks before the sum left zero and from those since (apart, where either are enough): deviations from their median, robust (MAD),
the larger of the rank's own and the typical one, made larger where neighbouring blocks resemble each other (lag-1 correlation)
and where they are few. So a noisy machine is judged later, not wrongly. From the 24th block on.

How long it takes (``delay_blocks``): a rank 6 % slow among four is named after 5 blocks where sigma is 2 % or less (40 steps, or
5 s where steps are shorter than 1/8 s), after 9 where it is 3 %; twice as slow: after 3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, exp, log, sqrt
from statistics import median
from typing import Any

from headway.monitor.blocks import Block

RATIO, RATIO_BLOCKS = 2.0, 3
DRIFT, LEAST, LEAST_BLOCKS = 0.025, 0.035, 5
FALSE_BLOCKS = 1e6
SIGMA_FLOOR, CAP = 0.005, 0.1
HISTORY, LEARN_BLOCKS = 128, 24
_MAD = 1.4826


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """``rule``: ratio or change. ``slow``: share of work above the peers', since block ``since_step``; ``sigma``: its noise."""

    rank: int
    rule: str
    step: int
    since_step: int
    blocks: int
    slow: float
    sigma: float
    work_ns: int
    peers_ns: int

    def words(self, host: str = "") -> str:
        where = f" on {host}" if host else ""
        how = f"{1 + self.slow:.1f} times" if self.rule == "ratio" else f"{self.slow:.1%} longer than"
        found = "" if self.rule == "ratio" else f" (noise {self.sigma:.1%})"
        return (
            f"rank {self.rank}{where} is slow: it works {how} its peers in a step since step {self.since_step}{found}, "
            f"{self.work_ns / 1e6:.1f} ms against {self.peers_ns / 1e6:.1f} ms; all others wait for it"
        )

    def fields(self) -> dict[str, Any]:
        names = ("rank", "rule", "step", "since_step", "blocks", "work_ns", "peers_ns")
        return {name: getattr(self, name) for name in names} | {"slow": round(self.slow, 4), "sigma": round(self.sigma, 4)}


@dataclass
class _Rank:
    """What is remembered of one rank."""

    excess: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))  # of blocks that were not flagged
    stretch: list[float] = field(default_factory=list)  # blocks since the sum left zero
    since_step: int = 0
    sum: float = 0.0
    slow_blocks: int = 0  # in a row, by the ratio rule
    above: int = 0  # blocks in a row above DRIFT
    below: int = 0  # the same, below
    named: bool = False

    def take(self, x: float, block: Block) -> None:
        if not self.named:
            self.excess.append(x)
        if not self.stretch:
            self.since_step = block.first
        self.sum = max(0.0, self.sum + min(x, CAP) - DRIFT)
        self.stretch = [*self.stretch, x][-HISTORY:] if self.sum else []
        self.slow_blocks = self.slow_blocks + 1 if x >= log(RATIO) else 0
        self.above, self.below = (self.above + 1, 0) if x > DRIFT else (0, self.below + 1)
        if self.named and self.below >= LEAST_BLOCKS:
            self.named, self.sum, self.stretch = False, 0.0, []

    @property
    def is_suspect(self) -> bool:
        return not self.named and (self.slow_blocks >= RATIO_BLOCKS or self.above >= LEAST_BLOCKS)


class Stragglers:
    """Fed with block after block; a rank is named once, and again only after it was as fast as the others."""

    def __init__(self, world: int):
        self._ranks = [_Rank() for _ in range(world)]

    def take(self, block: Block) -> list[Straggler]:
        if len(self._ranks) < 2:
            return []
        for rank, x in zip(self._ranks, block.excess, strict=True):
            rank.take(x, block)
        suspects = [place for place, rank in enumerate(self._ranks) if rank.is_suspect]
        return [found for place in suspects if (found := self._judge(place, block)) is not None]

    def _judge(self, place: int, block: Block) -> Straggler | None:
        rank, sigma = self._ranks[place], self._sigma(place)
        mean = median(rank.stretch) if rank.stretch else 0.0
        changed = rank.sum > threshold(sigma, len(self._ranks)) and mean >= LEAST and rank.above >= LEAST_BLOCKS
        changed = changed and len(rank.excess) >= LEARN_BLOCKS
        twice = rank.slow_blocks >= RATIO_BLOCKS
        if not (twice or changed):
            return None
        rank.named = True
        return Straggler(
            rank=place,
            rule="ratio" if twice else "change",
            step=block.last,
            since_step=rank.since_step,
            blocks=len(rank.stretch),
            slow=exp(mean) - 1,
            sigma=sigma,
            work_ns=block.work_ns[place],
            peers_ns=round(block.work_ns[place] / exp(block.excess[place])),
        )

    def _sigma(self, place: int) -> float:
        """Noise that the shift of rank ``place`` is no part of."""
        length = len(self._ranks[place].stretch)
        noises = [max(map(_noise, _apart(list(rank.excess), length))) for rank in self._ranks]
        return max(SIGMA_FLOOR, median(noises), noises[place])


def _apart(excess: list[float], stretch: int) -> list[list[float]]:
    """The blocks before the stretch and those of it, each where they are enough; else all."""
    parts = (excess[: len(excess) - stretch], excess[len(excess) - stretch :])
    return [part for part in parts if len(part) >= LEARN_BLOCKS] or [excess]


def threshold(sigma: float, ranks: int) -> float:
    """Of the sum: where the odds for a shift of 2 x DRIFT against none reach one in a million blocks, over all ranks."""
    return sigma**2 * log(FALSE_BLOCKS * ranks) / (2 * DRIFT)


def delay_blocks(slow: float, sigma: float, ranks: int) -> int:
    """Blocks from the first slow one until a rank is named that works longer by the share ``slow`` > DRIFT."""
    x = log(1 + slow)
    if x >= log(RATIO):
        return RATIO_BLOCKS
    return max(LEAST_BLOCKS, ceil(threshold(max(sigma, SIGMA_FLOOR), ranks) / (x - DRIFT)))


def _noise(values: list[float]) -> float:
    """Robust standard deviation, of independent blocks: correlation makes sums of blocks noisier than their spread says."""
    if len(values) < LEARN_BLOCKS:
        return 0.0
    middle = median(values)
    spread = _MAD * median(abs(x - middle) for x in values)
    step = _MAD * median(abs(b - a) for a, b in pairwise(values)) / sqrt(2)
    if spread == 0.0:
        return step
    alike = min(0.9, max(0.0, 1 - (step / spread) ** 2))
    longer = (1 + alike) / (1 - alike)
    return spread * sqrt(longer) * (1 + 3 * longer / len(values))  # of few independent values a spread comes out too small
