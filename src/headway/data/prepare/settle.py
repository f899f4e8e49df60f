"""What the steps that look at one document alone make of it: any process may do this, in any order.

    Piece -> the first steps, until none changes it any more -> Settled: the piece, or why it is left out, and all events

The steps that compare are measured for it here too (``Comparing.measure``), since that takes the piece and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.data.prepare.steps import Comparing, Measured, Piece, Step, Verdict

MOST_PASSES = 12
"""Of one document: every change takes something away, so two or three are usual. One that needs more is left out."""


@dataclass(frozen=True)
class Event:
    """``step`` (its number) left a document of ``before`` bytes out, or changed it to ``after`` bytes; no text in the verdict."""

    step: int
    verdict: Verdict
    before: int
    after: int


@dataclass(frozen=True)
class Settled:
    """``dropped``: why ``piece`` is left out. ``measured``: of each step that compares; none where nothing was measured."""

    piece: Piece
    dropped: str
    events: tuple[Event, ...]
    passes: int
    measured: tuple[Measured, ...] = ()


def parted(steps: Sequence[Step]) -> tuple[list[Step], list[Comparing]]:
    """Those that look at one document alone, and those that compare, which come after them."""
    comparing = [step for step in steps if isinstance(step, Comparing)]
    looking = [step for step in steps if not isinstance(step, Comparing)]
    assert [*looking, *comparing] == list(steps)
    return looking, comparing


def settled(piece: Piece, looking: Sequence[Step], most_passes: int = MOST_PASSES) -> Settled:
    """A document that was changed passes again the steps up to the last that did, and all where one of these changed it."""
    events: list[Event] = []
    end = len(looking)
    for number in range(1, most_passes + 1):
        last_change = 0
        for at in range(end):
            verdict = checked(looking[at], piece)
            if verdict.dropped:
                events.append(_event(at, verdict, piece))
                return Settled(piece, verdict.dropped, tuple(events), number)
            if verdict.text != piece.text:
                events.append(_event(at, verdict, piece))
                piece, last_change = dataclasses.replace(piece, text=verdict.text), at + 1
        if not last_change:
            return Settled(piece, "", tuple(events), number)
        end = last_change if end == len(looking) else len(looking)  # those behind have not seen what a shorter pass changed
    events.append(_event(max(0, end - 1), unstable(piece), piece))
    return Settled(piece, "unstable", tuple(events), most_passes)


def measured_of(piece: Piece, comparing: Iterable[Comparing]) -> tuple[Measured, ...]:
    return tuple(step.measure(piece) for step in comparing)


def checked(step: Step, piece: Piece) -> Verdict:
    """A step that would leave nothing of a document leaves it out."""
    verdict = step.check(piece)
    if not verdict.text.strip() and not verdict.dropped:
        return Verdict(piece.text, "empty", "of what the step left")
    return verdict


def unstable(piece: Piece) -> Verdict:
    return Verdict(piece.text, "unstable", f"still changing after {MOST_PASSES} passes")


def _event(step: int, verdict: Verdict, piece: Piece) -> Event:
    return Event(step, dataclasses.replace(verdict, text=""), size_of(piece.text), size_of(verdict.text))


def size_of(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
