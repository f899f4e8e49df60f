"""Committed and attempted work. Only committed tokens are progress; replayed steps are work, and counted apart (G4)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.rundir.metrics import split_rows
from headway.rundir.segments import Segment


@dataclass(frozen=True)
class Progress:
    """Updates and the tokens that they trained."""

    steps: int
    tokens: int


def committed_progress(steps: dict[int, list[dict]], chain: list[Segment]) -> Progress:
    """What the newest committed checkpoint of the chain holds."""
    saved = [row["step"] for row in split_rows(steps, chain).kept if row["kind"] == "save"]
    committed = max([*saved, *(segment.restored_step for segment in chain[-1:])], default=0)
    return Progress(committed, tokens_by_step(steps).get(committed, 0))


def attempted_progress(steps: dict[int, list[dict]]) -> Progress:
    """Every update that was executed, replays included."""
    tokens = tokens_by_step(steps)
    rows = [row for of_segment in steps.values() for row in of_segment if row["kind"] == "step"]
    return Progress(len(rows), sum(step_tokens(row, tokens) for row in rows))


def tokens_by_step(steps: dict[int, list[dict]]) -> dict[int, int]:
    """Tokens trained by the end of each step. The stream is a pure function of position: every segment agrees."""
    tokens = {0: 0}
    for rows in steps.values():
        tokens |= {row["step"]: row["tokens"] for row in rows if row["kind"] == "step"}
    return tokens


def step_tokens(row: dict, tokens: dict[int, int]) -> int:
    """Tokens of one step; its targets where the row before it was lost (at most a document's first token differs)."""
    before = tokens.get(row["step"] - 1)
    return row["tokens"] - before if before is not None else row["targets"]
