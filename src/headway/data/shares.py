"""What a run takes from each source, asked against realised: by stage, over any window of steps, exact.

    sequences, target tokens   closed form: what the mixture's tree has dealt out (``mixture.counts``), skips left out
    documents                  those that begin in the windows that were read, from the document ends: every position is walked

Where windows are padded (best fit), the target tokens of a sequence are the mean over its source.

Shares are of target tokens. ``asked`` is what the recipe or its rule asks for; ``given`` what the stage is mixed by, after caps
have moved it or a transition changed it; ``realised`` what was dealt out. Over a stage the mixture repeats itself every 65,536
sequences, so the worst error of any 10,000 is found by looking at one period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headway.data.mixture import assign
from headway.data.stream import Stream
from headway.recipe.schedules import Schedule
from headway.recipe.spec import QUANTA, Spec, StageSpec

WINDOW = 10_000
"""Sequences over which the worst error is stated (CONTRACTS section 1)."""
AT_A_TIME = 2**17
"""Positions walked at once."""

Documents = Callable[[int, np.ndarray, StageSpec], int]
"""(source, where its windows stand, stage) -> documents that begin in them: ``TokenReader.documents_begun``."""


@dataclass(frozen=True)
class Part:
    """Trained indices [first, end) of a stage."""

    stage: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """Of one source in one part of a run, or in all of it."""

    source: str
    asked: float
    given: float
    realised: float
    sequences: int
    tokens: int  # trained, padding included
    target_tokens: float
    documents: int | None  # that begin here; None: not counted


@dataclass(frozen=True, kw_only=True)
class StageShares:
    """``mixtures``: quanta that were in force, with the seed that deals them out; ``each``: target tokens of a sequence."""

    stage: str
    part: Part
    sequences: int
    sources: tuple[SourceShare, ...]
    mixtures: tuple[tuple[int, ...], ...]
    seed: int
    each: tuple[float, ...]

    @property
    def worst_error(self) -> float:
        """Of any 10,000 stream indices in a row of the stage, as a share of target tokens. A skip or transition in between may
        add as much again. Looked for when it is asked for."""
        return max(worst_share_error(quanta, self.seed, self.each) for quanta in self.mixtures)


def target_tokens_per_sequence(spec: Spec, stage: int, source: int) -> float:
    """What a sequence of ``source`` counts for: the mean over the source."""
    return spec.stages[stage].sequence_length * spec.stages[stage].target_share(source, spec.sources)


def parts(spec: Spec, first_step: int, end_step: int) -> list[Part]:
    """What steps [first_step, end_step), counted from 0, train on, stage by stage."""
    schedule, found = Schedule(spec), []
    for stage in range(len(spec.stages)):
        begins = schedule.first_step(stage)
        ends = begins + schedule.stage_steps(stage)
        a, b = (_index(schedule, stage, min(max(step, begins), ends)) for step in (first_step, end_step))
        if a < b:
            found.append(Part(stage, a, b))
    return found


def _index(schedule: Schedule, stage: int, step: int) -> int:
    if step == schedule.first_step(stage) + schedule.stage_steps(stage):
        return schedule.spec.stages[stage].sequences
    return schedule.place(step).first_sequence


def stage_shares(stream: Stream, part: Part, documents: Documents | None = None) -> StageShares:
    """One part of a run."""
    spec, stage = stream.spec, stream.spec.stages[part.stage]
    taken = np.subtract(stream.trained(part.stage, part.end), stream.trained(part.stage, part.first)).tolist()
    each = [target_tokens_per_sequence(spec, part.stage, k) for k in range(len(spec.sources))]
    asked, given = as_shares(stage.asked_quanta or stage.quanta, each), as_shares(_quanta_over(stream, part), each)
    realised = as_shares(taken, each)
    begun = _documents(stream, part, documents) if documents else [None] * len(taken)
    rows = [
        SourceShare(
            source=source.name,
            asked=asked[k],
            given=given[k],
            realised=realised[k],
            sequences=taken[k],
            tokens=taken[k] * stage.sequence_length,
            target_tokens=taken[k] * each[k],
            documents=begun[k],
        )
        for k, source in enumerate(spec.sources)
    ]
    return StageShares(
        stage=stage.name,
        part=part,
        sequences=part.end - part.first,
        sources=tuple(rows),
        mixtures=tuple(_in_force(stream, part)),
        seed=spec.data_seed,
        each=tuple(each),
    )


def together(stages: Sequence[StageShares]) -> tuple[SourceShare, ...]:
    """All parts as one: shares of the target tokens of the whole."""
    total = sum(row.target_tokens for stage in stages for row in stage.sources)
    made = []
    for rows in zip(*(stage.sources for stage in stages), strict=True):
        of_stage = [sum(row.target_tokens for row in stage.sources) for stage in stages]
        counted = [row.documents for row in rows if row.documents is not None]
        own = sum(row.target_tokens for row in rows)
        made.append(
            SourceShare(
                source=rows[0].source,
                asked=sum(row.asked * size for row, size in zip(rows, of_stage)) / total,
                given=sum(row.given * size for row, size in zip(rows, of_stage)) / total,
                realised=own / total,
                sequences=sum(row.sequences for row in rows),
                tokens=sum(row.tokens for row in rows),
                target_tokens=own,
                documents=sum(counted) if len(counted) == len(rows) else None,
            )
        )
    return tuple(made)


def as_shares(parts: Sequence[float], each: Sequence[float]) -> list[float]:
    """Of target tokens, where sources have so many sequences (or quanta)."""
    tokens = [part * size for part, size in zip(parts, each, strict=True)]
    return [value / sum(tokens) for value in tokens]


def _in_force(stream: Stream, part: Part) -> list[tuple[int, ...]]:
    """The mixtures under which ``part`` is read, in order."""
    return [quanta for quanta, _ in _stretches(stream, part)]


def _quanta_over(stream: Stream, part: Part) -> list[float]:
    """Mean over the sequences of ``part``."""
    weighed = [np.array(quanta) * length for quanta, length in _stretches(stream, part)]
    return (np.sum(weighed, axis=0) / (part.end - part.first)).tolist()


def _stretches(stream: Stream, part: Part) -> Iterator[tuple[tuple[int, ...], int]]:
    """(quanta, trained sequences) of every mixture that ``part`` meets."""
    mixtures = stream.mixtures(part.stage)
    starts = [_trained_before(stream, part.stage, first) for first, _ in mixtures]
    for (_, quanta), start, end in zip(mixtures, starts, [*starts[1:], part.end], strict=True):
        length = min(end, part.end) - max(start, part.first)
        if length > 0:
            yield quanta, length


def _trained_before(stream: Stream, stage: int, n: int) -> int:
    """Trained indices below stream index ``n``."""
    return n - sum(max(0, min(last, n) - first) for first, last in stream.gaps(stage))


@lru_cache(maxsize=256)
def worst_share_error(quanta: tuple[int, ...], seed: int, each: tuple[float, ...], window: int = WINDOW) -> float:
    """Largest deviation of a source's share of target tokens from what ``quanta`` ask, over any ``window`` sequences in a row."""
    source = assign(np.arange(QUANTA + window), quanta, seed).source
    found = np.zeros((len(quanta), QUANTA + 1))
    for k in range(len(quanta)):
        running = np.concatenate([[0], np.cumsum(source == k)])
        found[k] = (running[window:] - running[:-window]) * each[k]
    return float(np.abs(found / found.sum(axis=0) - np.array(as_shares(quanta, each))[:, None]).max())


# --- documents ------------------------------------------------------------------------------------------------------------


def _documents(stream: Stream, part: Part, count: Documents) -> list[int]:
    """Per source, those that begin in what ``part`` reads."""
    begun, stage = [0] * len(stream.shapes), stream.spec.stages[part.stage]
    for first in range(part.first, part.end, AT_A_TIME):
        found = stream.locate(part.stage, np.arange(first, min(first + AT_A_TIME, part.end)))
        for k in np.unique(found.source).tolist():
            begun[k] += count(k, found.token[found.source == k], stage)
    return begun
