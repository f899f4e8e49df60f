"""Committed and attempted work. Only committed tokens are progress; replayed steps are work, and counted apart (G4)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.recipe.schedules import Schedule
from headway.rundir.metrics import split_rows
from headway.rundir.segments import Segment


@dataclass(frozen=True)
class Progress:
    """Updates and the tokens that they trained."""

    steps: int
    tokens: int
    lacks_tokens: bool = False  # the row of the last step is lost: tokens are those of an earlier one


def committed_progress(steps: dict[int, list[dict]], chain: list[Segment], schedule: Schedule | None = None) -> Progress:
    """What the newest committed checkpoint of the chain holds.

    Its tokens follow from the schedule. Without one they stand in the row of its step; where that row is torn, those of the
    nearest row before it count (too few, never too many), and ``lacks_tokens`` says so.
    """
    saved = [row["step"] for row in split_rows(steps, chain).kept if row["kind"] == "save"]
    committed = max([*saved, *(segment.restored_step for segment in chain[-1:])], default=0)
    if schedule is not None and committed <= schedule.total_steps:
        return Progress(committed, schedule.tokens_before(committed))
    tokens = tokens_by_step(steps)
    nearest = max(step for step in tokens if step <= committed)
    return Progress(committed, tokens[nearest], lacks_tokens=nearest < committed)


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
