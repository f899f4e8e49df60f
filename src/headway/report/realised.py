"""What the run has taken from each source so far: a closed form of the stream's mixture, not a count of records."""

from __future__ import annotations

from dataclasses import dataclass

from headway.data.mixture import counts
from headway.recipe.schedules import Schedule
from headway.recipe.spec import QUANTA, Spec


@dataclass(frozen=True)
class SourceUse:
    """``sequences`` trained by stage. ``planned_share``: of the target tokens that the quanta ask for up to here."""

    name: str
    tokens_available: int
    trained_tokens: int
    target_tokens: float
    realised_share: float
    planned_share: float
    by_stage: tuple[int, ...]

    @property
    def passes(self) -> float:
        """Trained tokens over the source's tokens."""
        return self.trained_tokens / self.tokens_available


def source_use(spec: Spec, step: int, skips: tuple[dict, ...] = ()) -> tuple[SourceUse, ...]:
    """Per source, after ``step`` updates of the history, under the skip records in force."""
    done = _sequences_done(spec, step)
    taken = [_trained_counts(spec, stage, count, skips) for stage, count in enumerate(done)]
    lengths = [stage.sequence_length for stage in spec.stages]
    shares = [[stage.target_share(k, spec.sources) for stage in spec.stages] for k in range(len(spec.sources))]
    target = [[c[k] * t * s for c, t, s in zip(taken, lengths, of, strict=True)] for k, of in enumerate(shares)]
    wanted = [
        [
            count * stage.quanta[k] / QUANTA * stage.sequence_length * share
            for count, stage, share in zip(done, spec.stages, of, strict=True)
        ]
        for k, of in enumerate(shares)
    ]
    all_target, all_wanted = sum(map(sum, target)), sum(map(sum, wanted))
    return tuple(
        SourceUse(
            name=source.name,
            tokens_available=source.tokens,
            trained_tokens=sum(c[k] * t for c, t in zip(taken, lengths, strict=True)),
            target_tokens=sum(target[k]),
            realised_share=sum(target[k]) / all_target if all_target else 0.0,
            planned_share=sum(wanted[k]) / all_wanted if all_wanted else 0.0,
            by_stage=tuple(c[k] for c in taken),
        )
        for k, source in enumerate(spec.sources)
    )


def _sequences_done(spec: Spec, step: int) -> list[int]:
    place = Schedule(spec).place(min(step, Schedule(spec).total_steps))
    return [
        s.sequences if index < place.stage else place.first_sequence if index == place.stage else 0
        for index, s in enumerate(spec.stages)
    ]


def _trained_counts(spec: Spec, stage: int, sequences: int, skips: tuple[dict, ...]) -> list[int]:
    """Counts over the trained indices [0, sequences): those over the stream, less what the skips jumped over."""
    end, jumped = sequences, []
    for skip in sorted((s for s in skips if s.get("stage") == stage), key=lambda s: s["first"]):
        if skip["first"] < end:
            end += skip["count"]
            jumped.append((skip["first"], skip["first"] + skip["count"]))
    quanta, seed = spec.stages[stage].quanta, spec.data_seed
    total = list(counts(end, quanta, seed))
    for first, last in jumped:
        total = [t - b + a for t, a, b in zip(total, counts(first, quanta, seed), counts(last, quanta, seed), strict=True)]
    return total
