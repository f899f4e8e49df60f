"""What a recipe or a run takes from its sources: asked, given, realised; epochs, caps, unread chunks; what repeats are worth.

    Spec or draft (+ records, + how far a run is)  -->  a row per stage and source, a row per source for the whole

Nothing is measured: all follows from the stream's own arithmetic. Documents alone need the data, and every position of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.base.errors import ConfigError
from headway.data.shares import (
    Documents,
    SourceShare,
    StageShares,
    as_shares,
    parts,
    stage_shares,
    target_tokens_per_sequence,
    together,
)
from headway.data.stream import Coverage, Stream, UnreadChunk, stream_coverage
from headway.formulas.repetition import REPETITION_SCALE_ALONE, effective_tokens
from headway.recipe.schedules import Schedule
from headway.recipe.spec import QUANTA, Spec


@dataclass(frozen=True)
class Worth:
    """Of so many tokens read of a source, as new ones; ``low``: were only the value of data to fade."""

    tokens: float
    effective: float
    low: float


@dataclass(frozen=True, kw_only=True)
class SourceOutlook:
    """One source in the whole run, as planned. None: not known before the data is built, or the source has no cap."""

    source: str
    unique_tokens: int | None
    target_share: float
    tokens: float  # that the stages read
    passes: float | None  # tokens / unique tokens
    cap_epochs: float | None
    coverage: Coverage | None  # in chunks; None: a draft
    slots_now: int | None  # first chunk slot that is untouched where the run is; None: no run
    unread: tuple[UnreadChunk, ...]
    worth: Worth | None


@dataclass(frozen=True, kw_only=True)
class StageMixture:
    """One stage. ``asked`` and ``given`` are shares of target tokens by source; ``shares`` None: not begun, or not built."""

    stage: int
    asked: tuple[float, ...]
    given: tuple[float, ...]
    shares: StageShares | None


@dataclass(frozen=True, kw_only=True)
class MixtureReport:
    """``stream`` None: a draft. ``steps``: those that ``shares`` speak of, [first, end), from 0."""

    spec: Spec
    stream: Stream | None
    steps: tuple[int, int]
    stages: tuple[StageMixture, ...]
    whole: tuple[SourceShare, ...]  # over these steps; empty: none is trained
    sources: tuple[SourceOutlook, ...]


def report(
    spec: Spec, stream: Stream | None, steps: tuple[int, int], documents: Documents | None = None, done: int | None = None
) -> MixtureReport:
    """``done``: steps of a run so far; None: no run. ConfigError for steps that there are not."""
    total = Schedule(spec).total_steps
    if not 0 <= steps[0] <= steps[1] <= total:
        raise ConfigError(
            f"there are no steps {steps[0] + 1:,} to {steps[1]:,}", f"the run has steps 1 to {total:,}, as its records count them"
        )
    found = [stage_shares(stream, part, documents) for part in parts(spec, *steps)] if stream else []
    by_stage = {shares.part.stage: shares for shares in found}
    stages = tuple(_stage(spec, index, by_stage.get(index)) for index in range(len(spec.stages)))
    return MixtureReport(
        spec=spec,
        stream=stream,
        steps=steps,
        stages=stages,
        whole=together(found) if found else (),
        sources=tuple(_outlooks(spec, stream, done)),
    )


def _stage(spec: Spec, index: int, shares: StageShares | None) -> StageMixture:
    stage, each = spec.stages[index], [target_tokens_per_sequence(spec, index, k) for k in range(len(spec.sources))]
    asked = as_shares(stage.asked_quanta or stage.quanta, each)
    given = [row.given for row in shares.sources] if shares else as_shares(stage.quanta, each)
    return StageMixture(stage=index, asked=tuple(asked), given=tuple(given), shares=shares)


def _outlooks(spec: Spec, stream: Stream | None, done: int | None) -> list[SourceOutlook]:
    coverage: Sequence[Coverage | None] = stream_coverage(stream) if stream else [None] * len(spec.sources)
    unread, now = stream.unread_chunks() if stream else [], _slots_now(spec, stream, done)
    made = []
    for k, source in enumerate(spec.sources):
        tokens, unique = _tokens(spec, stream, k), source.tokens or None
        made.append(
            SourceOutlook(
                source=source.name,
                unique_tokens=unique,
                target_share=source.target_share,
                tokens=tokens,
                passes=tokens / unique if unique else None,
                cap_epochs=source.cap_epochs,
                coverage=coverage[k],
                slots_now=now[k] if now else None,
                unread=tuple(chunk for chunk in unread if chunk.source == source.name),
                worth=worth(tokens, unique) if unique else None,
            )
        )
    return made


def worth(tokens: float, unique: int) -> Worth:
    """By the published law (``formulas/repetition.py``)."""
    return Worth(tokens, effective_tokens(tokens, unique), effective_tokens(tokens, unique, REPETITION_SCALE_ALONE))


def _tokens(spec: Spec, stream: Stream | None, k: int) -> float:
    """Without padding. Exact where there is a stream; of a draft by shares."""
    each = [target_tokens_per_sequence(spec, stage, k) for stage in range(len(spec.stages))]
    if stream is None:
        return sum(s.sequences * size * s.quanta[k] for s, size in zip(spec.stages, each)) / QUANTA
    return float(sum(stream.trained(i, s.sequences)[k] * each[i] for i, s in enumerate(spec.stages)))


def _slots_now(spec: Spec, stream: Stream | None, done: int | None) -> tuple[int, ...] | None:
    if stream is None or done is None:
        return None
    place = Schedule(spec).place(done)
    return stream.slots_at_end(place.stage, stream.reached(place.stage, place.first_sequence))
