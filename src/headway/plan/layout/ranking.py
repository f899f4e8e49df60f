"""What is chosen: of the fastest layouts that fit the simplest, then all in the order of their step time, and why they lose.

A layout whose lower bound is far behind is counted, not priced. Times closer than ``TIE`` are no reason: of those the layout
with the fewest axes is chosen, then one that does not cut sequences, then the faster one: memory in its place would choose a
layout of vTrain's 39 billion model that took 16 % longer than the best measured one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.base.errors import Problem
from headway.base.units import format_bytes
from headway.formulas.chips import dense_peak
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.recompute import hardware_flops_per_token, mfu
from headway.plan.layout.feasible import SEQUENCES_RULE
from headway.plan.layout.sieve import MEMORY_ERROR, USABLE_SHARE, Fit, Sieve
from headway.plan.work import Cluster, Layout, Pipeline, Work
from headway.recipe.deployment import AXES

FAR_BEHIND = 1.5
"""A layout whose lower bound is this many times the best time found is not priced."""
MOST_PRICED = 4000
TIE = 1.03
"""Times the fastest step. The model of a step errs by more than a tenth, so that such a gap between layouts says nothing."""
WITHIN = f"{100 * (TIE - 1):.0f} % of the fastest"
CLOSE = 1.01
"""Of the layouts that stand for a value of an axis the one that differs least is shown, if it is so near to the fastest."""
REPORTED_AXES = ("tp", "cp", "pp", "ep", "dp_replicate", "virtual", "pipeline", "micro_batch", "zero", "recompute")

FEWER_CHIPS = "fewer chips, or a larger batch"
MARGIN = f"a device gives {100 * USABLE_SHARE:.0f} % of it, and estimates err by {100 * (MEMORY_ERROR - 1):.0f} %"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits, with what it costs."""

    layout: Layout
    seconds: float
    low: float
    high: float
    mfu: float  # causal convention
    memory_bytes: float

    @property
    def key(self) -> tuple[float, float, str]:
        return self.seconds, self.memory_bytes, self.layout.shown()

    @property
    def simplicity(self) -> tuple[int, bool, tuple[float, float, str]]:
        """Least first: what is chosen among layouts that are as fast as each other."""
        axes = sum(getattr(self.layout, axis) > 1 for axis in (*AXES, "ep"))
        return axes, self.layout.cp > 1, self.key

    def others(self, chosen: Layout, axis: str) -> list[str]:
        """What beside ``axis`` is not as in ``chosen``, but for replicas, which fill the cluster."""
        fields = [name for name in REPORTED_AXES if name != axis and getattr(self.layout, name) != getattr(chosen, name)]
        follows = axis == "virtual" or "virtual" in fields  # chunks are interleaved: the order says nothing more
        shown = [f"{name.replace('_', ' ')} {getattr(self.layout, name)}" for name in fields if name != "pipeline" or not follows]
        return shown


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best with another value on one axis."""

    axis: str
    value: str
    layouts: int  # that fit
    best: Candidate | None  # None: all of them were so far behind that none was priced
    ratio: float  # of its time to that of what is chosen; with no best a lower bound
    note: str = ""
    changes: tuple[str, ...] = ()  # what else differs between them

    def shown(self) -> str:
        """``16 (crosses the fast links, 23 layouts) 1.31 x with pp 8, recompute full``"""
        inside = f"{self.note}, {self.layouts:,} layouts" if self.note else f"{self.layouts:,} layouts"
        if self.best is None:
            return f"{self.value} ({inside}) {f'at least {self.ratio:.2f} x' if self.ratio > 1 else 'not priced'}"
        behind = "within the model's error" if self.is_tie else f"{self.ratio:.2f} x"
        return f"{self.value} ({inside}) {behind}" + (f" with {', '.join(self.changes)}" if self.changes else "")

    @property
    def is_tie(self) -> bool:
        return self.best is not None and self.ratio <= TIE


@dataclass(frozen=True, slots=True)
class SearchResult:
    """``ranked``: what is chosen, then the others by their time. Layouts that do not fit are counted once per shape and
    options, at their smallest. ``refusals``: rules that forbid candidates, with how many and the last of them."""

    ranked: tuple[Candidate, ...]
    alternatives: tuple[Alternative, ...]
    fitting: int
    priced: int
    too_large: int
    closest: Fit | None  # of those that do not fit the one that needs least
    capacity_bytes: float
    planned_share: float = 1.0  # of the capacity: what a layout may need
    refusals: tuple[tuple[int, Problem], ...] = ()
    shapes: int = 0  # that were looked at, where not all were

    @property
    def best(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None

    def reasons(self) -> tuple[str, ...]:
        """Why the others lose or do not fit, in words: a line per axis, what was not priced, what does not fit."""
        lines = []
        for axis in REPORTED_AXES:
            others = [alternative for alternative in self.alternatives if alternative.axis == axis]
            if others and self.best:
                how = "is chosen" if any(other.is_tie for other in others) else "wins"
                shown = "; ".join(other.shown() for other in others)
                lines.append(f"{axis} {getattr(self.best.layout, axis)} {how}; best of the others: {shown}")
        if self.shapes:
            lines.append(f"looked at: the {self.shapes:,} shapes of the main stage's best layouts, with any cp and replicas")
        if self.fitting > self.priced:
            lines.append(f"{self.fitting - self.priced:,} layouts fit but were not priced: their bounds are far behind")
        if self.closest is not None:
            need, have = (format_bytes(size) for size in (self.closest[1], self.capacity_bytes))
            planned = f", of which {100 * self.planned_share:.0f} % is planned for ({MARGIN})" if self.planned_share < 1 else ""
            over = f"{100 * (self.closest[1] / (self.planned_share * self.capacity_bytes) - 1):.2g} % too much"
            closest = f"the closest needs {need} of {have}{planned}, {over}: {self.closest[0].shown()}"
            lines.append(f"{self.too_large:,} layouts do not fit; {closest}")
        return tuple(lines)

    def why_none(self) -> tuple[str, str]:
        """The rule that refused most candidates with its numbers, and the way out that belongs to it; for a search in vain."""
        count, problem = self.refusals[0] if self.refusals else (0, None)
        if problem is None or self.too_large > count:
            rule = "; ".join(self.reasons()) or "no layout of these axes divides the devices"
            return rule, "more chips or memory, a shorter sequence"
        rule = f"{problem.rule}: {count:,} candidates break this, such as {problem.seen}"
        fits = f"; {self.too_large:,} others do not fit" if self.too_large else ""
        return rule + fits, FEWER_CHIPS if problem.rule == SEQUENCES_RULE else problem.way_out


# --- pricing ---------------------------------------------------------------------------------------------------------------


def least_seconds(work: Work, layout: Layout, cluster: Cluster) -> float:
    """A bound: products at the best rate that anyone has seen on the chip, the bubble, padding, what is computed twice."""
    how, flash = layout.recompute, work.implementation.flash
    flops = hardware_flops_per_token(work.model, work.context, Convention.CAUSAL, how, flash=flash) * work.tokens
    passes = layout.micro_batches(work.batch)
    padding = passes * layout.micro_batch * layout.dp / work.batch
    bubble = 0.0 if layout.pipeline is Pipeline.ZERO_BUBBLE else (layout.pp - 1) / (layout.virtual * passes)
    rate = cluster.chip.achievable.get(work.precision) or dense_peak(cluster.chip, work.precision)
    return flops / (cluster.chips * rate) * padding * (1 + bubble)


def causal_mfu(work: Work, cluster: Cluster, seconds: float) -> float:
    """Of a step of ``seconds``."""
    flops, peak = flops_per_token(work.model, work.context, Convention.CAUSAL), dense_peak(cluster.chip, work.precision)
    return mfu(work.tokens / (seconds * cluster.chips), flops_per_token=flops, peak_flops_per_second=peak)


def rank(sieve: Sieve, limit: int) -> SearchResult:
    bounds = [least_seconds(sieve.work, layout, sieve.cluster) for layout, _ in sieve.kept]
    priced: list[Candidate] = []
    best = float("inf")
    for at in sorted(range(len(bounds)), key=bounds.__getitem__):
        if bounds[at] > FAR_BEHIND * best or len(priced) >= MOST_PRICED:
            break
        priced.append(_priced(sieve, sieve.kept[at]))
        best = min(best, priced[-1].seconds)
    priced.sort(key=lambda candidate: candidate.key)
    if priced:
        priced.insert(0, priced.pop(priced.index(chosen(priced))))
    return SearchResult(
        ranked=tuple(priced[:limit]),
        alternatives=tuple(_alternatives(sieve, bounds, priced)),
        fitting=len(sieve.kept),
        priced=len(priced),
        too_large=sieve.too_large,
        closest=sieve.closest,
        capacity_bytes=sieve.memory,
        planned_share=sieve.share,
        shapes=len(sieve.among or ()),
        refusals=tuple((count, sieve.examples[rule]) for rule, count in sieve.refused.most_common()),
    )


def chosen(candidates: Sequence[Candidate]) -> Candidate:
    """The simplest of those that are as fast as the fastest."""
    fastest = min(candidate.seconds for candidate in candidates)
    return min((one for one in candidates if one.seconds <= TIE * fastest), key=lambda one: one.simplicity)


def _priced(sieve: Sieve, fit: Fit) -> Candidate:
    time = sieve.models.step_time(sieve.work, fit[0], sieve.cluster)
    return Candidate(fit[0], time.seconds, time.low, time.high, causal_mfu(sieve.work, sieve.cluster, time.seconds), fit[1])


def _alternatives(sieve: Sieve, bounds: list[float], priced: list[Candidate]) -> Iterator[Alternative]:
    """Per axis and value other than the winner's: how many fit, the best of them, how far behind."""
    for axis in REPORTED_AXES if priced else ():
        ours: dict[str, list[float]] = {}
        for (layout, _), bound in zip(sieve.kept, bounds, strict=True):
            ours.setdefault(str(getattr(layout, axis)), []).append(bound)
        groups: dict[str, list[Candidate]] = {}
        for candidate in priced:
            groups.setdefault(str(getattr(candidate.layout, axis)), []).append(candidate)
        winner = priced[0]
        for value in sorted(ours, key=lambda v: (len(v), v)):
            if value != str(getattr(winner.layout, axis)):
                best = _nearest(groups[value], winner.layout, axis) if value in groups else None
                seconds = best.seconds if best else min(ours[value])
                note = _note(axis, value, sieve.cluster)
                changes = tuple(best.others(winner.layout, axis)) if best else ()
                yield Alternative(axis, value, len(ours[value]), best, seconds / winner.seconds, note, changes)


def _nearest(group: Sequence[Candidate], layout: Layout, axis: str) -> Candidate:
    """Of the fastest the one that differs least from ``layout``."""
    fastest = min(candidate.seconds for candidate in group)
    near = [candidate for candidate in group if candidate.seconds <= CLOSE * fastest]
    return min(near, key=lambda candidate: (len(candidate.others(layout, axis)), candidate.key))


def _note(axis: str, value: str, cluster: Cluster) -> str:
    return "crosses the fast links" if axis == "tp" and cluster.spans(int(value), 1) > 1 else ""
