"""What the run has taken from each source so far: a closed form of the stream's mixture, not a count of records."""

from __future__ import annotations

from dataclasses import dataclass

from headway.data.shares import parts, stage_shares, together
from headway.data.stream import Stream
from headway.recipe.schedules import Schedule


@dataclass(frozen=True)
class SourceUse:
    """``sequences`` trained by stage. Shares are of target tokens: as the recipe asks, as the stages so far are mixed (caps and
    transitions move it), as dealt out."""

    name: str
    tokens_available: int
    trained_tokens: int
    target_tokens: float
    realised_share: float
    given_share: float
    planned_share: float
    by_stage: tuple[int, ...]

    @property
    def passes(self) -> float:
        """Trained tokens over the source's tokens."""
        return self.trained_tokens / self.tokens_available


def source_use(stream: Stream, step: int) -> tuple[SourceUse, ...]:
    """Per source, after ``step`` updates of the history."""
    spec = stream.spec
    stages = [stage_shares(stream, part) for part in parts(spec, 0, min(step, Schedule(spec).total_steps))]
    whole = together(stages)
    by_stage = {stage.part.stage: [row.sequences for row in stage.sources] for stage in stages}
    return tuple(
        SourceUse(
            name=source.name,
            tokens_available=source.tokens,
            trained_tokens=whole[k].tokens if whole else 0,
            target_tokens=whole[k].target_tokens if whole else 0.0,
            realised_share=whole[k].realised if whole else 0.0,
            given_share=whole[k].given if whole else 0.0,
            planned_share=whole[k].asked if whole else 0.0,
            by_stage=tuple(by_stage[s][k] if s in by_stage else 0 for s in range(len(spec.stages))),
        )
        for k, source in enumerate(spec.sources)
    )
