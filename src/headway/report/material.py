"""What the sections are made of: the facts and what follows from them, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from headway.formulas.parameters import count_parameters
from headway.report.facts import RunFacts
from headway.report.replay import Interruption, Replay, interruptions, replay


@dataclass(frozen=True)
class Material:
    """Facts, the proof of the replay, and every interruption."""

    facts: RunFacts
    proof: Replay
    breaks: tuple[Interruption, ...]

    @staticmethod
    def of(facts: RunFacts) -> Material:
        return Material(facts=facts, proof=replay(facts), breaks=interruptions(facts))

    @property
    def restarts(self) -> int:
        return max(0, len(self.facts.segments) - 1)

    @property
    def parameters(self) -> int | None:
        return count_parameters(self.facts.spec.model).total if self.facts.spec else None

    @property
    def inner_parameters(self) -> int | None:
        """Without token embedding and output head."""
        return count_parameters(self.facts.spec.model).non_embedding if self.facts.spec else None

    @property
    def steps_done(self) -> int:
        """Steps of the history so far."""
        kept = self.facts.kept
        return int(kept.step[-1]) if len(kept) else 0

    @property
    def tokens_done(self) -> int:
        kept = self.facts.kept
        return int(kept.tokens[-1]) if len(kept) else 0
