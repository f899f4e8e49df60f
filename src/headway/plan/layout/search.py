"""Every layout that can be, ranked by step time, and why the others lose or do not fit.

    shapes    tp, cp, pp, ep, replicas                  divisors that the model and the links allow
      cut     states and one input per block             bytes that no option can save: nothing below is looked at
    options   zero, shards, micro-batch, chunks           of these, all
              recomputation                               only the least that fits: more is never faster
      price   the step-time model, cheapest bound first   a layout whose bound is far behind is counted, not priced

What there is to choose from stands in ``shapes``, what fits in ``sieve``, what wins in ``ranking``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headway.plan.cluster import largest_batch, work_of
from headway.plan.layout.ranking import SearchResult, rank
from headway.plan.layout.shapes import Pins, checked_pins, options, shape_of, shapes, tensor_sizes
from headway.plan.layout.sieve import Models, Shape, Sieve
from headway.plan.memory.model import peak_memory
from headway.plan.step.step_time import step_time
from headway.plan.work import Cluster, Layout, Work

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.recipe.spec import Spec, StageSpec

PLANNER_MODELS = Models(step_time, peak_memory)


def search(
    work: Work,
    cluster: Cluster,
    *,
    fixed: Pins | None = None,
    batches: Sequence[int] = (),
    limit: int = 10,
    models: Models | None = None,
    among: frozenset[Shape] | None = None,
) -> SearchResult:
    """Rank what can be on ``cluster``.

    ``fixed`` pins fields of the layout, such as ``{"tp": 8, "zero": 1}``. ``batches``: others, of a ramp, that the layout has to
    serve as well. ``models``: the planner's own where no others are given. ``among``: shapes that are looked at; all
    where none is given.
    """
    pins = checked_pins(fixed or {})
    sieve = Sieve(work, cluster, models or PLANNER_MODELS, batches)
    sieve.among = among
    for tps in tensor_sizes(work, cluster, pins):
        for shape in shapes(sieve, pins, tps):
            sieve.kept += options(shape, pins, sieve)
        if sieve.kept:
            break
    return rank(sieve, limit)


BEST = 40
"""Layouts of the main stage whose shapes the other stages choose from: of published recipes none chose otherwise among all."""


@lru_cache(maxsize=256)
def searched(work: Work, cluster: Cluster, batches: tuple[int, ...] = (), among: frozenset[Shape] | None = None) -> SearchResult:
    """``search`` without pins by the planner's own models, once."""
    return search(work, cluster, batches=batches, limit=BEST, among=among)


def search_stage(spec: Spec, stage: StageSpec, deployment: Deployment, cluster: Cluster) -> SearchResult:
    """For the largest batch of a training stage; the layout has to serve the smaller ones too. Searched once.

    All shapes are looked at for the stage with most tokens. Stages of other lengths or batches choose among those of its best
    layouts, with any cp, data ranks, micro-batch and recomputation; where none of these can be, among all.
    """
    main = searched_for(spec, max(spec.stages, key=lambda one: one.sequences * one.sequence_length), deployment)
    wanted = searched_for(spec, stage, deployment)
    if wanted != main:
        shapes = frozenset(shape_of(candidate.layout) for candidate in searched(main[0], cluster, main[1]).ranked)
        found = searched(wanted[0], cluster, wanted[1], shapes) if shapes else None
        if found is not None and found.best is not None:
            return found
    return searched(wanted[0], cluster, wanted[1])


def searched_for(spec: Spec, stage: StageSpec, deployment: Deployment) -> tuple[Work, tuple[int, ...]]:
    """The step of ``stage`` with its largest batch, and the smaller batches that its layout has to serve as well: of its own
    ramp and of the other stages of that length and batch. These stages share one layout: another would cost a restart."""
    most = largest_batch(stage)
    alike = [s for s in spec.stages if (s.sequence_length, largest_batch(s)) == (stage.sequence_length, most)]
    smaller = {phase.batch_sequences for other in alike for phase in other.phases} - {most}
    return work_of(spec, stage, deployment), tuple(sorted(smaller))


def rank_layouts(
    work: Work, cluster: Cluster, layouts: Iterable[Layout], *, limit: int = 10, models: Models | None = None
) -> SearchResult:
    """The same over given layouts: those that cannot be are left out, those that need more than the chip has are counted."""
    sieve = Sieve(work, cluster, models or PLANNER_MODELS, share=1.0)
    fits = (sieve.fit(layout) for layout in layouts if sieve.can_be(layout))
    sieve.kept += [fit for fit in fits if fit is not None]
    return rank(sieve, limit)
