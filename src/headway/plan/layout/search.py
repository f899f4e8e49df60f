"""Every layout that can be, ranked by step time, and why the others lose or do not fit.

    shapes    tp, cp, pp, ep, replicas                  divisors that the model and the links allow
      cut     states and one input per block             bytes that no option can save: nothing below is looked at
    options   zero, shards, micro-batch, chunks           of these, all
              recomputation                               only the least that fits: more is never faster
      price   the step-time model, cheapest bound first   a layout whose bound is far behind is counted, not priced

Memory and time come from the planner's models; tests put fakes in their place. The order is deterministic: equal times are
ordered by memory, then by the layout itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from headway.base.errors import ConfigError
from headway.base.units import format_bytes
from headway.formulas.chips import dense_peak
from headway.formulas.flops import Convention, flops_per_token
from headway.plan.cluster import work_of
from headway.plan.layout.feasible import SIZES, divisors, is_feasible
from headway.plan.step.shares import busiest_blocks, most_chunks, rank_parameters
from headway.plan.work import Cluster, Layout, Pipeline, Recompute, Work

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec, StageSpec

LONG_PART_TOKENS = 4096
"""A sequence is not cut into parts shorter than this: attention between ranks would cost more than it saves."""
MOST_CHUNKS = 8
"""Of a pipeline rank: more are not looked at. Each adds messages that nothing hides on real networks (Llama 3 had 8)."""
FAR_BEHIND = 1.5
"""A layout whose lower bound is this many times the best time found is not priced."""
MOST_PRICED = 4000
REPORTED_AXES = ("tp", "cp", "pp", "ep", "dp_replicate", "virtual", "micro_batch", "zero", "recompute")


class Seconds(Protocol):
    @property
    def seconds(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Bytes(Protocol):
    @property
    def total(self) -> float: ...


Fit = tuple[Layout, float]
"""A layout with the bytes of its fullest rank."""
StepTimeModel = Callable[[Work, Layout, Cluster], Seconds]
MemoryModel = Callable[[Work, Layout, Cluster], Bytes]


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


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best with another value on one axis."""

    axis: str
    value: str
    layouts: int  # that fit
    best: Candidate | None  # None: all of them were so far behind that none was priced
    ratio: float  # of its time to the winner's; with no best a lower bound
    note: str = ""

    def shown(self) -> str:
        """``16 (crosses the fast links, 23 layouts) 1.31 x``"""
        inside = f"{self.note}, {self.layouts:,} layouts" if self.note else f"{self.layouts:,} layouts"
        if self.best is None:
            return f"{self.value} ({inside}) {f'at least {self.ratio:.2f} x' if self.ratio > 1 else 'not priced'}"
        return f"{self.value} ({inside}) {self.ratio:.2f} x"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """``ranked`` is best first. Layouts that do not fit are counted once per shape and options, at their smallest."""

    ranked: tuple[Candidate, ...]
    alternatives: tuple[Alternative, ...]
    fitting: int
    priced: int
    too_large: int
    closest: Fit | None  # of those that do not fit the one that needs least
    capacity_bytes: float

    @property
    def best(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None

    def reasons(self) -> tuple[str, ...]:
        """Why the others lose or do not fit, in words: a line per axis, what was not priced, what does not fit."""
        lines = []
        for axis in REPORTED_AXES:
            others = [alternative.shown() for alternative in self.alternatives if alternative.axis == axis]
            if others and self.best:
                lines.append(f"{axis} {getattr(self.best.layout, axis)} wins; best of the others: {', '.join(others)}")
        if self.fitting > self.priced:
            lines.append(f"{self.fitting - self.priced:,} layouts fit but were not priced: their bounds are far behind")
        if self.closest is not None:
            need, have = (format_bytes(size) for size in (self.closest[1], self.capacity_bytes))
            over = f"{100 * (self.closest[1] / self.capacity_bytes - 1):.2g} % too much"
            closest = f"the closest needs {need} of {have}, {over}: {self.closest[0].shown()}"
            lines.append(f"{self.too_large:,} layouts do not fit; {closest}")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class Models:
    """What a layout takes and needs."""

    step_time: StepTimeModel
    peak_memory: MemoryModel


def search(
    work: Work,
    cluster: Cluster,
    *,
    fixed: Mapping[str, object] | None = None,
    batches: Sequence[int] = (),
    limit: int = 10,
    models: Models | None = None,
) -> SearchResult:
    """Rank what can be on ``cluster``.

    ``fixed`` pins fields of the layout, such as ``{"tp": 8, "zero": 1}``. ``batches``: others, of a ramp, that the layout has to
    serve as well. ``models``: the planner's own where no others are given.
    """
    pins = checked_pins(fixed or {})
    sieve = _Sieve(work, cluster, models or planner_models(), batches)
    for tps in _tensor_sizes(work, cluster, pins):
        for shape in _shapes(sieve, pins, tps):
            sieve.kept += _options(shape, pins, sieve)
        if sieve.kept:
            break
    return _rank(sieve, limit)


@lru_cache(maxsize=64)
def searched(work: Work, cluster: Cluster, batches: tuple[int, ...] = ()) -> SearchResult:
    """``search`` without pins by the planner's own models, once."""
    return search(work, cluster, batches=batches)


def search_stage(spec: Spec, stage: StageSpec, deployment: Deployment, cluster: Cluster) -> SearchResult:
    """For the largest batch of a training stage; the layout has to serve the smaller ones of its ramp too. Searched once."""
    work = work_of(spec, stage, deployment)
    smaller = {phase.batch_sequences for phase in stage.phases} - {work.batch}
    return searched(work, cluster, tuple(sorted(smaller)))


def rank_layouts(
    work: Work, cluster: Cluster, layouts: Iterable[Layout], *, limit: int = 10, models: Models | None = None
) -> SearchResult:
    """The same over given layouts: those that cannot be are left out, those that do not fit are counted."""
    sieve = _Sieve(work, cluster, models or planner_models())
    fits = (sieve.fit(layout) for layout in layouts if sieve.can_be(layout))
    sieve.kept += [fit for fit in fits if fit is not None]
    return _rank(sieve, limit)


def planner_models() -> Models:
    """Imported late: the search is of use without them."""
    from headway.plan.memory.rank_memory import peak_memory
    from headway.plan.step.step_time import step_time

    return Models(step_time, peak_memory)


def checked_pins(fixed: Mapping[str, object]) -> dict[str, object]:
    known = Layout.__dataclass_fields__
    for name in fixed:
        if name not in known:
            raise ConfigError(f"a layout has no field {name!r}", f"fields: {', '.join(known)}", "name one of them")
    return dict(fixed)


# --- what there is to choose from ------------------------------------------------------------------------------------------


def _tensor_sizes(work: Work, cluster: Cluster, pins: Mapping[str, object]) -> Iterator[list[int]]:
    """First those within a domain and one doubling beyond, to say what it would cost; further ones only if nothing fits."""
    sizes = [t for t in divisors(work.model.heads) if cluster.chips % t == 0]
    if "tp" in pins:
        yield [t for t in sizes if t == pins["tp"]]
        return
    yield [t for t in sizes if t <= 2 * cluster.domain]
    yield [t for t in sizes if t > 2 * cluster.domain]


def _shapes(sieve: _Sieve, pins: Mapping[str, object], tps: list[int]) -> Iterator[Layout]:
    """Mesh axes that the model and the batch allow; data ranks all share states at first."""
    work, cluster = sieve.work, sieve.cluster
    base = replace(Layout(), **{k: v for k, v in pins.items() if k not in SIZES})  # type: ignore[arg-type]
    for tp in tps:
        for cp in _pinned(pins, "cp", _context_sizes(work, cluster.chips // tp)):
            most = min(most_chunks(work.model), cluster.chips // (tp * cp))
            for pp in _pinned(pins, "pp", [p for p in divisors(cluster.chips // (tp * cp)) if p <= most]):
                if cluster.chips % (tp * cp * pp):
                    continue
                dp = cluster.chips // (tp * cp * pp)
                if dp <= sieve.least_batch:
                    yield from _with_experts(work, replace(base, tp=tp, cp=cp, pp=pp, dp_shard=dp), pins)


def _context_sizes(work: Work, chips: int) -> list[int]:
    return [c for c in divisors(chips) if c == 1 or (work.sequence % (2 * c) == 0 and work.sequence // c >= LONG_PART_TOKENS)]


def _with_experts(work: Work, shape: Layout, pins: Mapping[str, object]) -> Iterator[Layout]:
    experts = work.model.experts
    sizes = [e for e in divisors(experts.experts) if shape.shards % e == 0] if experts else [1]
    for ep in _pinned(pins, "ep", sizes):
        yield replace(shape, ep=ep)


def _options(shape: Layout, pins: Mapping[str, object], sieve: _Sieve) -> Iterator[Fit]:
    """Layouts of one shape that fit, each with the least recomputation that lets it."""
    if not sieve.may_fit(shape):
        return
    for split in _splits(shape, pins):
        for zero in _zeros(split, pins):
            for chunked in _chunkings(sieve.work, replace(split, zero=zero), pins):
                yield from _micro_batches(chunked, pins, sieve)


def _splits(shape: Layout, pins: Mapping[str, object]) -> Iterator[Layout]:
    """States over all data ranks, or replicated groups of 8, 64, ... of them: every factor of eight."""
    dp = shape.dp_shard
    shards = [s for s in divisors(dp) if s == dp or _is_power_of(s, 8)]
    for size in _pinned(pins, "dp_shard", shards):
        if dp % size == 0 and pins.get("dp_replicate", dp // size) == dp // size:
            yield replace(shape, dp_shard=size, dp_replicate=dp // size)


def _is_power_of(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1


def _zeros(split: Layout, pins: Mapping[str, object]) -> list[int]:
    """A pipeline holds weights and gradients through the step: there 2 and 3 do what 1 does."""
    if "zero" in pins:
        return [int(str(pins["zero"]))]
    if split.shards == 1:
        return [0]
    return [1, 2, 3] if split.pp == 1 else [1]


def _chunkings(work: Work, split: Layout, pins: Mapping[str, object]) -> Iterator[Layout]:
    """One chunk a rank, or interleaved ones: powers of two, and one layer each."""
    if split.pp == 1 or pins.get("pipeline", Pipeline.INTERLEAVED) is not Pipeline.INTERLEAVED:
        yield from (replace(split, virtual=v) for v in _pinned(pins, "virtual", [1]))
        return
    most = most_chunks(work.model) // split.pp
    sizes = [v for v in range(1, min(most, MOST_CHUNKS) + 1) if v & (v - 1) == 0 or v == most]
    for virtual in _pinned(pins, "virtual", sizes):
        order = Pipeline.INTERLEAVED if virtual > 1 else pins.get("pipeline", Pipeline.ONE_F_ONE_B)
        yield replace(split, virtual=virtual, pipeline=order)  # type: ignore[arg-type]


def _micro_batches(chunked: Layout, pins: Mapping[str, object], sieve: _Sieve) -> Iterator[Fit]:
    share = -(-sieve.least_batch // chunked.dp)
    sizes = [2**k for k in range(share.bit_length()) if 2**k <= share]
    for size in _pinned(pins, "micro_batch", sizes):
        layout = replace(chunked, micro_batch=size)
        if not sieve.can_be(layout):
            continue
        fits = (sieve.fit(kept) for kept in _recomputing(sieve.work, layout, pins))
        least = next((fit for fit in fits if fit is not None), None)
        if least is None:
            return  # a larger one needs more
        yield least


def _recomputing(work: Work, layout: Layout, pins: Mapping[str, object]) -> Iterator[Layout]:
    """From none to full. Where scores never reach memory, selective saves nothing."""
    if "recompute" in pins:
        yield layout
        return
    flash = work.implementation.flash
    saves = [Recompute.NONE, *([Recompute.LIGHT, Recompute.OPS] if flash else [Recompute.SELECTIVE]), Recompute.FULL]
    yield from (replace(layout, recompute=kind) for kind in saves)


def _pinned(pins: Mapping[str, object], name: str, sizes: list[int]) -> list[int]:
    return [int(str(pins[name]))] if name in pins else sizes


# --- what fits -------------------------------------------------------------------------------------------------------------


class _Sieve:
    """Collects layouts that fit; remembers how many do not, and by how little."""

    def __init__(self, work: Work, cluster: Cluster, models: Models, batches: Sequence[int] = ()) -> None:
        self.work, self.cluster, self.models = work, cluster, models
        self.least_batch = min([work.batch, *batches])
        self._works = [work, *(replace(work, batch=batch) for batch in sorted(set(batches) - {work.batch}))]
        self.capacity = float(cluster.chip.memory_bytes)
        self.kept: list[Fit] = []
        self.too_large = 0
        self.closest: Fit | None = None

    def can_be(self, layout: Layout) -> bool:
        """For every batch."""
        return all(is_feasible(work, layout, self.cluster) for work in self._works)

    def fit(self, layout: Layout) -> Fit | None:
        return self._passing(layout, float(self.models.peak_memory(self.work, layout, self.cluster).total))

    def may_fit(self, shape: Layout) -> bool:
        """Whether states, sharded as far as they can be, and one input per block leave room."""
        return self._passing(shape, least_bytes(self.work, shape)) is not None

    def _passing(self, layout: Layout, need: float) -> Fit | None:
        if need <= self.capacity:
            return layout, need
        self.too_large += 1
        if self.closest is None or need < self.closest[1]:
            self.closest = layout, need
        return None


def least_bytes(work: Work, shape: Layout) -> float:
    """No option needs less: everything sharded that may be, micro-batch 1, full recomputation."""
    optimizer = 0 if shape.offload else work.optimizer_bytes
    sharded, whole = work.weight_bytes + work.gradient_bytes + optimizer, 0
    if shape.pp > 1:  # weights lie whole through the step
        sharded, whole = sharded - work.weight_bytes, work.weight_bytes
    states = sum(rank_parameters(work.model, shape)) * (whole + sharded / shape.shards)
    inputs = 2 * work.sequence / shape.cp * work.model.width / shape.tp * busiest_blocks(work.model, shape)
    return states + inputs


# --- what wins -------------------------------------------------------------------------------------------------------------


def least_seconds(work: Work, layout: Layout, cluster: Cluster) -> float:
    """A bound: products at the best rate that anyone has seen on the chip, the bubble, padding, what is computed twice."""
    flops = flops_per_token(work.model, work.context, Convention.CAUSAL) * work.tokens
    passes = layout.micro_batches(work.batch)
    padding = passes * layout.micro_batch * layout.dp / work.batch
    bubble = 0.0 if layout.pipeline is Pipeline.ZERO_BUBBLE else (layout.pp - 1) / (layout.virtual * passes)
    again = 4 / 3 if layout.recompute is Recompute.FULL else 1.0
    rate = cluster.chip.achievable.get(work.precision) or dense_peak(cluster.chip, work.precision)
    return flops / (cluster.chips * rate) * padding * (1 + bubble) * again


def causal_mfu(work: Work, cluster: Cluster, seconds: float) -> float:
    """Of a step of ``seconds``."""
    flops = flops_per_token(work.model, work.context, Convention.CAUSAL) * work.tokens
    return flops / (seconds * cluster.chips * dense_peak(cluster.chip, work.precision))


def _rank(sieve: _Sieve, limit: int) -> SearchResult:
    bounds = [least_seconds(sieve.work, layout, sieve.cluster) for layout, _ in sieve.kept]
    priced: list[Candidate] = []
    best = float("inf")
    for at in sorted(range(len(bounds)), key=bounds.__getitem__):
        if bounds[at] > FAR_BEHIND * best or len(priced) >= MOST_PRICED:
            break
        priced.append(_priced(sieve, sieve.kept[at]))
        best = min(best, priced[-1].seconds)
    priced.sort(key=lambda candidate: candidate.key)
    return SearchResult(
        ranked=tuple(priced[:limit]),
        alternatives=tuple(_alternatives(sieve, bounds, priced)),
        fitting=len(sieve.kept),
        priced=len(priced),
        too_large=sieve.too_large,
        closest=sieve.closest,
        capacity_bytes=sieve.capacity,
    )


def _priced(sieve: _Sieve, fit: Fit) -> Candidate:
    time = sieve.models.step_time(sieve.work, fit[0], sieve.cluster)
    return Candidate(fit[0], time.seconds, time.low, time.high, causal_mfu(sieve.work, sieve.cluster, time.seconds), fit[1])


def _alternatives(sieve: _Sieve, bounds: list[float], priced: list[Candidate]) -> Iterator[Alternative]:
    """Per axis and value other than the winner's: how many fit, the best of them, how far behind."""
    for axis in REPORTED_AXES if priced else ():
        ours: dict[str, list[float]] = {}
        for (layout, _), bound in zip(sieve.kept, bounds, strict=True):
            ours.setdefault(str(getattr(layout, axis)), []).append(bound)
        bests: dict[str, Candidate] = {}
        for candidate in priced:
            bests.setdefault(str(getattr(candidate.layout, axis)), candidate)
        winner = priced[0]
        for value in sorted(ours, key=lambda v: (len(v), v)):
            if value != str(getattr(winner.layout, axis)):
                best = bests.get(value)
                seconds = best.seconds if best else min(ours[value])
                note = _note(axis, value, sieve.cluster)
                yield Alternative(axis, value, len(ours[value]), best, seconds / winner.seconds, note)


def _note(axis: str, value: str, cluster: Cluster) -> str:
    return "crosses the fast links" if axis == "tp" and cluster.spans(int(value), 1) > 1 else ""
