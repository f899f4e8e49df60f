r"""Which rank is slower than its peers: two rules over blocks of steps (``monitor/blocks.py``).

*Ratio*: work at least twice that of the peers' median, three blocks in a row. It finds what is broken at once.

*Change point*: a node that is 6 % slow costs the whole run 6 % and never meets a ratio. Per rank a one-sided cumulative sum of
the excess x = log(own work / peers' work) over what noise may be (Page 1954; the sequential test of a shift of 2 x DRIFT):

    S = max(0, S + min(x, cap) - DRIFT)         alarm: S > sigma^2 ln(1/p) / (2 DRIFT)
                                                       and five blocks in a row above DRIFT, with a median of at least LEAST

p is the chance of a false alarm, one in a million blocks over all ranks together; sigma is the noise of x, measured from the
blocks themselves, sixteen at least: deviations from the rank's own median, robust (MAD), the larger of the rank's own and the
typical one, made larger where neighbouring blocks resemble each other (lag-1 correlation) and where they are few. So a noisy
machine is judged later, not wrongly.

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
HISTORY, LEARN_BLOCKS = 64, 16
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


class Stragglers:
    """Fed with block after block; a rank is named once, and again only after it was as fast as the others."""

    def __init__(self, world: int):
        self._ranks = [_Rank() for _ in range(world)]

    def take(self, block: Block) -> list[Straggler]:
        if len(self._ranks) < 2:
            return []
        for rank, x in zip(self._ranks, block.excess, strict=True):
            if not rank.named:
                rank.excess.append(x)
        noises = [_noise(rank.excess) for rank in self._ranks]
        sigmas = [max(SIGMA_FLOOR, median(noises), noise) for noise in noises]
        for rank, x, sigma in zip(self._ranks, block.excess, sigmas, strict=True):
            self._sum_up(rank, x, block, sigma)
        found = [self._judge(place, block, sigma) for place, sigma in enumerate(sigmas)]
        return [straggler for straggler in found if straggler is not None]

    def _sum_up(self, rank: _Rank, x: float, block: Block, sigma: float) -> None:
        if not rank.stretch:
            rank.since_step = block.first
        rank.sum = max(0.0, rank.sum + min(x, max(CAP, 3 * sigma)) - DRIFT)
        rank.stretch = [*rank.stretch, x][-HISTORY:] if rank.sum else []
        rank.slow_blocks = rank.slow_blocks + 1 if x >= log(RATIO) else 0
        rank.above, rank.below = (rank.above + 1, 0) if x > DRIFT else (0, rank.below + 1)
        if rank.named and rank.below >= LEAST_BLOCKS:
            rank.named, rank.sum, rank.stretch = False, 0.0, []

    def _judge(self, place: int, block: Block, sigma: float) -> Straggler | None:
        rank = self._ranks[place]
        if rank.named:
            return None
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


def threshold(sigma: float, ranks: int) -> float:
    """Of the sum: where the odds for a shift of 2 x DRIFT against none reach one in a million blocks, over all ranks."""
    return sigma**2 * log(FALSE_BLOCKS * ranks) / (2 * DRIFT)


def delay_blocks(slow: float, sigma: float, ranks: int) -> int:
    """Blocks from the first slow one until a rank is named that works longer by the share ``slow`` > DRIFT."""
    x = log(1 + slow)
    if x >= log(RATIO):
        return RATIO_BLOCKS
    return max(LEAST_BLOCKS, ceil(threshold(max(sigma, SIGMA_FLOOR), ranks) / (x - DRIFT)))


def _noise(excess: deque[float]) -> float:
    """Robust standard deviation, of independent blocks: correlation makes sums of blocks noisier than their spread says."""
    if len(excess) < LEARN_BLOCKS:
        return 0.0
    values = list(excess)
    middle = median(values)
    spread = _MAD * median(abs(x - middle) for x in values)
    step = _MAD * median(abs(b - a) for a, b in pairwise(values)) / sqrt(2)
    if spread == 0.0:
        return step
    alike = min(0.9, max(0.0, 1 - (step / spread) ** 2))
    longer = (1 + alike) / (1 - alike)
    return spread * sqrt(longer) * (1 + 2 * longer / len(values))  # of few independent values a spread comes out too small
