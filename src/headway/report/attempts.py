"""Attempts: each segment with its records, and which of its steps the run kept.

Rows of a segment that a later restore went back behind were executed but are not part of the run's history:

    segment 1   steps  1 ... 40 | 41 ... 57 x      kept 1-40, rolled back 41-57
    segment 2                     41 ... 120        restored 40: kept 41-120
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import HeadwayError
from headway.base.files import read_json
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import is_kept, last_kept_steps, read_step_rows
from headway.rundir.segments import Segment, current_chain, read_segments


@dataclass(frozen=True)
class SegmentFacts:
    """One attempt with its records. ``kept_until``: the last step of it that is part of the run; None: all (so far)."""

    segment: Segment
    on_chain: bool
    kept_until: int | None
    records: tuple[dict, ...]
    exit: dict | None  # the supervisor's record of the trainer's exit
    error: dict | None  # error.json, where the trainer failed with a message

    def first(self, kind: str) -> dict | None:
        return next((record for record in self.records if record.get("kind") == kind), None)

    def last(self, kind: str) -> dict | None:
        return next((record for record in reversed(self.records) if record.get("kind") == kind), None)

    def keeps(self, step: int) -> bool:
        """Whether what this segment did at ``step`` is part of the run's history."""
        return self.on_chain and is_kept({"step": step}, self.kept_until)

    @property
    def environment(self) -> dict[str, Any]:
        """What the trainer recorded of versions, processor and threads; empty when it did not get so far."""
        start = self.first("start")
        found = start.get("environment") if start else None
        return found if isinstance(found, dict) else {}

    @property
    def ended_by_itself(self) -> bool:
        """Whether its own last word is there. Without it the trainer was cut off, whatever the exit record can say."""
        return self.last("end") is not None

    @property
    def error_is_secondary(self) -> bool:
        """Whether ``error`` is of another rank than the one that ended first: it noticed the end, and did not cause it."""
        ranks = (self.error or {}).get("rank"), (self.exit or {}).get("rank")
        return None not in ranks and ranks[0] != ranks[1]

    @property
    def killed(self) -> bool:
        """Whether it ended other than by its own decision.

        After a take-over its exit status is not known, but its last word is missing.
        """
        if self.exit is None:
            return False
        return self.exit.get("signal") is not None or self.exit.get("code") not in (0, None) or not self.ended_by_itself


def attempt(read: Callable[[], Any], what: str, path: Path, missing: list[str]) -> Any:
    """``read()``, or None with a line in ``missing`` that names what could not be had and why."""
    if not path.exists():
        missing.append(f"{what} is not there")
        return None
    try:
        return read()
    except (HeadwayError, AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        missing.append(f"{what} could not be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        return None


def read_attempts(run: RunDirectory, events: tuple[dict, ...], missing: list[str]) -> tuple[SegmentFacts, ...]:
    known = attempt(lambda: read_segments(run), "the record of segments", run.segments, missing) or []
    chain = attempt(lambda: current_chain(known), "the chain of segments", run.segments, missing) or []
    kept_until = last_kept_steps(chain)
    return tuple(_read_one(run, segment, kept_until, events, missing) for segment in known)


def _read_one(
    run: RunDirectory, segment: Segment, kept_until: dict[int, int | None], events: tuple[dict, ...], missing: list[str]
) -> SegmentFacts:
    lines = read_step_rows(run, segment.id)
    if lines.damaged_lines:
        missing.append(f"{lines.damaged_lines} torn or altered lines in the records of segment {segment.id} were left out")
    exits = [event for event in events if event.get("kind") == "exit" and event.get("segment") == segment.id]
    error_file = run.segment(segment.id) / "error.json"
    error = attempt(lambda: read_json(error_file, "error"), "error.json", error_file, missing) if error_file.exists() else None
    return SegmentFacts(
        segment=segment,
        on_chain=segment.id in kept_until,
        kept_until=kept_until.get(segment.id),
        records=tuple(lines.rows),
        exit=exits[-1] if exits else None,
        error=error if isinstance(error, dict) else None,
    )
