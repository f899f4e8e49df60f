"""A change of the mixture while a run goes on: from a step on, to the end of its stage, by record (CONTRACTS sections 1 and 2).

    u   0 ........... 4,096 ........... M          the recipe's mixture, then the one on record
                      checkpoint that the new segment restores

The recipe allows it or not (``interventions.mixture``). What was consumed of each source up to there stands in the record, so
that whoever chose the weights, a person or a program, can be held against what they knew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.base.errors import ConfigError
from headway.data.stream import Stream, Transition, stream_coverage
from headway.recipe.checks import nearest_hint
from headway.recipe.mixture_rules import mixture_quanta
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

ADAPTIVE = "adaptive"


@dataclass(frozen=True, kw_only=True)
class MixtureChange:
    """As asked for: shares of target tokens at any scale, sources left out get nothing."""

    weights: Mapping[str, float]
    reason: str


def check_change(spec: Spec, change: MixtureChange) -> None:
    """What can be said of it before its place is known."""
    if spec.interventions.get("mixture", "fixed") != ADAPTIVE:
        raise ConfigError(
            "this run's mixture is fixed",
            "a recipe says beforehand whether its mixture may change while it runs; else a change is a new recipe and a new run",
            'interventions.mixture = "adaptive" in the recipe of a new run',
        )
    names = [source.name for source in spec.sources]
    for name in change.weights:
        if name not in names:
            hint = nearest_hint(name, names)
            raise ConfigError(f"{name!r} is no source of this run", f"sources are {', '.join(names)}", hint, "--mixture")
    wrong = [name for name, weight in change.weights.items() if not (math.isfinite(weight) and weight >= 0)]
    if wrong or not sum(change.weights.values()) > 0:
        seen = f"the weight of {wrong[0]} is {change.weights[wrong[0]]:g}" if wrong else "no source has a weight"
        raise ConfigError(seen, "weights are zero or more, at least one above zero", "such as code=0.6,prose=0.4", "--mixture")
    if not change.reason.strip():
        raise ConfigError(
            "the mixture changes without a reason",
            "every intervention is recorded with reason and author",
            '--reason "why"',
            "--mixture",
        )


def with_change(stream: Stream, step: int, change: MixtureChange, author: str) -> tuple[Transition, ...]:
    """All transitions of the run once it goes on after ``step`` updates under ``change``; the new one is the last.

    Those that would have come later in the same stage give way. ConfigError where nothing is left to train, or caps forbid it.
    """
    spec, schedule = stream.spec, Schedule(stream.spec)
    check_change(spec, change)
    place = schedule.place(step)
    if step >= schedule.total_steps:
        raise ConfigError(
            "nothing is left to train", "a change of the mixture is for steps to come", "start a new run", "--mixture"
        )
    first = int(stream.stream_index(place.stage, np.array([place.first_sequence]))[0])
    weights = [float(change.weights.get(source.name, 0.0)) for source in spec.sources]
    new = Transition(
        stage=place.stage,
        first=first,
        quanta=mixture_quanta(weights, [spec.stages[place.stage].target_share(k, spec.sources) for k in range(len(weights))]),
        weights=dict(change.weights),
        reason=change.reason,
        author=author,
        consumed=consumed(stream, step),
    )
    kept = tuple(one for one in stream.transitions if (one.stage, one.first) < (place.stage, first) or one.stage > place.stage)
    changed = Stream(spec, stream.skips, stream.quarantines, (*kept, new))
    for coverage in stream_coverage(changed):
        if not coverage.within_cap:
            raise ConfigError(
                f"with this mixture source {coverage.source} is read for {coverage.epochs:.3f} epochs, its cap is "
                f"{coverage.cap_epochs:g} (chunks: {coverage.final_slot} needed, {coverage.allowed_slots} allowed)",
                "a source is not read beyond its cap; a chunk that was begun counts as read",
                f"give {coverage.source} less weight",
                "--mixture",
            )
    return changed.transitions


def consumed(stream: Stream, step: int) -> dict[str, int]:
    """Trained tokens of each source after ``step`` updates."""
    spec, place = stream.spec, Schedule(stream.spec).place(step)
    total = np.zeros(len(spec.sources), np.int64)
    for index, stage in enumerate(spec.stages[: place.stage + 1]):
        done = stage.sequences if index < place.stage else place.first_sequence
        total += np.array(stream.trained(index, done)) * stage.sequence_length
    return {source.name: int(tokens) for source, tokens in zip(spec.sources, total)}
