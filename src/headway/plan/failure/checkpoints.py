"""When checkpoints are written in a simulated run, and which of them can still be read. One entry per simulated run.

    useful seconds   0------P0------P1------P2--...--T0      writes, over all tiers, in order of position
    wall seconds     0------|c|------|c|------|cc|-...       a write blocks: position stands still while it lasts

A position p at the start of a piece means that every write at a position <= p is done. A tier holds a run of consecutive
multiples of its interval, [first, latest]; it is empty where first > latest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.plan.failure.faults import SimulatedRun, Tier

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """Where a stretch of running ended."""

    position: Floats  # useful seconds
    done: Ints  # writes finished, of all
    writing: Floats  # seconds of the stretch that went into writes
    elapsed: Floats  # seconds of the stretch


@dataclass(frozen=True)
class Restored:
    """Where runs go on from, and what that takes."""

    position: Floats  # useful seconds
    seconds: Floats  # to read it
    tier: Ints  # that it is read from; as many as there are tiers: from the beginning


class Writes:
    """All writes of a run by position, and the way back from time to position."""

    def __init__(self, run: SimulatedRun):
        self.end = run.useful_seconds
        per_tier = [_multiples(tier, run.useful_seconds) for tier in run.tiers]
        self.positions: Floats = np.unique(np.concatenate([*per_tier, [run.useful_seconds]]))
        self.counts: Ints = np.stack([_counts(places, self.positions) for places in per_tier])
        costs = sum(np.diff(counts) * tier.save_seconds for counts, tier in zip(self.counts, run.tiers, strict=True))
        self.costs: Floats = np.asarray(costs, dtype=float)
        self.costs[-1] += run.tiers[-1].save_seconds
        self.spent: Floats = np.concatenate([[0.0], np.cumsum(self.costs)])  # before write j
        self.starts: Floats = self.positions + self.spent[:-1]  # wall seconds of a run without faults

    def done_at(self, position: Floats) -> Ints:
        return np.searchsorted(self.positions, position, side="right")

    def seconds_to_end(self, position: Floats, done: Ints, pace: Floats) -> Floats:
        """Running time that is left, writes included."""
        return (self.end - position) / pace + self.spent[-1] - self.spent[done]

    def finish(self, position: Floats, done: Ints, pace: Floats) -> Piece:
        """The piece that ends with the run."""
        last = np.full(len(position), len(self.positions))
        writing = self.spent[-1] - self.spent[done]
        return Piece(np.full(len(position), self.end), last, writing, self.seconds_to_end(position, done, pace))

    def advance(self, position: Floats, pace: Floats, seconds: Floats, to_end_of_write: Flags) -> Piece:
        """Run for ``seconds``; where ``to_end_of_write``, a write that has begun is finished."""
        before = self.done_at(position)
        begun = self._begun(position, before, pace, seconds)
        last = np.maximum(begun - 1, 0)
        start = (self.positions[last] - position) / pace + self.spent[last] - self.spent[before]
        into = seconds - start  # seconds since the last begun write began
        inside = (begun > before) & (into < self.costs[last])
        extended = np.where(inside & to_end_of_write, start + self.costs[last], seconds)
        inside &= ~to_end_of_write
        done = np.where(inside, last, begun)
        writing = self.spent[done] - self.spent[before] + np.where(inside, into, 0.0)
        place = np.where(inside, self.positions[last], position + pace * (extended - writing))
        floor = np.where(begun > before, self.positions[last], position)
        ceiling = self.positions[np.minimum(begun, len(self.positions) - 1)]
        return Piece(np.clip(place, floor, _below(ceiling, floor, inside)), done, writing, extended)

    def _begun(self, position: Floats, before: Ints, pace: Floats, seconds: Floats) -> Ints:
        """Number of writes begun: by table at full pace, by bisection otherwise."""
        begun = np.searchsorted(self.starts, position + self.spent[before] + seconds, side="right")
        slow = np.flatnonzero(pace != 1.0)
        if len(slow):
            begun[slow] = self._bisect(position[slow], before[slow], pace[slow], seconds[slow])
        return np.maximum(begun, before)

    def _bisect(self, position: Floats, before: Ints, pace: Floats, seconds: Floats) -> Ints:
        low, high = before.copy(), np.full(len(before), len(self.positions))
        while np.any(low < high):
            middle = (low + high) // 2
            at = np.minimum(middle, len(self.positions) - 1)
            started = (self.positions[at] - position) / pace + self.spent[at] - self.spent[before] <= seconds
            started &= middle < high
            low, high = np.where(started, middle + 1, low), np.where(started, high, middle)
        return low


def _below(ceiling: Floats, floor: Floats, inside: Flags) -> Floats:
    """Between two writes a position lies below the next one, so that rounding never skips a write."""
    return np.where(inside, floor, np.maximum(floor, np.nextafter(ceiling, 0.0)))


def _multiples(tier: Tier, end: float) -> Floats:
    """Positions of one tier before the end; the end itself belongs to the last tier, whatever its interval."""
    count = int(np.ceil(end / tier.every_seconds * (1 - 1e-12))) - 1
    return np.arange(1, max(count, 0) + 1, dtype=np.float64) * tier.every_seconds


def _counts(places: Floats, positions: Floats) -> Ints:
    """Writes of one tier among the first j of all."""
    return np.concatenate([[0], np.searchsorted(places, positions, side="right")])


KEEP_ALL = 2**60


class Shelf:
    """Which checkpoints each simulated run can still read. Rows of arrays are tiers, columns are runs."""

    def __init__(self, run: SimulatedRun, runs: int):
        self.tiers = run.tiers
        self.every = np.array([tier.every_seconds for tier in run.tiers])[:, None]
        self.restore = np.array([tier.restore_seconds for tier in run.tiers])
        # of checkpoints as new as each other: the one that is read fastest, else the last tier's
        self.preferred = np.lexsort((-np.arange(len(run.tiers)), self.restore))
        self.keep = np.array([tier.keep or KEEP_ALL for tier in run.tiers])[:, None]
        self.first: Ints = np.ones((len(run.tiers), runs), dtype=np.int64)
        self.latest: Ints = np.zeros((len(run.tiers), runs), dtype=np.int64)
        self.extra: Floats = np.zeros(runs)  # position of the newest planned save, in the last tier

    def written(self, rows: Ints, before: Ints, after: Ints) -> None:
        """Enter what a piece wrote: multiples ``before`` + 1 to ``after``, per tier and run; none where equal."""
        first, latest = self.first[:, rows], self.latest[:, rows]
        new, empty = after > before, first > latest
        latest = np.where(new, after, latest)
        first = np.where(new & empty, before + 1, first)
        self.first[:, rows] = np.maximum(first, latest - self.keep + 1)
        self.latest[:, rows] = latest

    def restore_from(self, rows: Ints, survives: Flags, sound_before: Floats) -> Restored:
        """The newest checkpoint before ``sound_before``; what did not survive is gone.

        What lies behind the position restored to is forgotten: the run writes it anew.
        """
        first, latest = self.first[:, rows], np.where(survives, self.latest[:, rows], -1)
        first = np.where(survives, first, 0)
        sound = np.minimum(np.ceil(sound_before / self.every) - 1, latest).astype(np.int64)
        held = (sound >= first) & (sound > 0)
        places = np.where(held, sound * self.every, 0.0)
        best = self.preferred[np.argmax(places[self.preferred], axis=0)]
        position = places[best, np.arange(len(rows))]
        extra = np.where(survives[-1] & (self.extra[rows] < sound_before), self.extra[rows], 0.0)
        last = len(self.tiers) - 1
        source = np.where((extra > position) | (position <= 0), last, best)
        self._forget(rows, first, np.where(survives, sound, -1))
        self.extra[rows] = extra
        newest = np.maximum(position, extra)
        return Restored(newest, self.restore[source], np.where(newest > 0, source, last + 1))

    def _forget(self, rows: Ints, first: Ints, latest: Ints) -> None:
        empty = (latest < first) | (latest < 1)
        self.first[:, rows] = np.where(empty, 1, first)
        self.latest[:, rows] = np.where(empty, 0, latest)
