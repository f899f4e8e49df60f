"""Thresholds of sources that are held out by what their documents are: they need a rule, and are written as it writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.base.errors import Problem
from headway.base.times import seconds_of
from headway.recipe.findings import Finding

if TYPE_CHECKING:
    from headway.recipe.schema import Data, Source

LARGEST_HASH = 2**63
_FORMS = {"time": 'a time, such as held_out_at = "2024-05-01"'}
_HASH = "the threshold that an earlier build recorded, such as 0x00a3d70a3d70a3d7"


def rule_of(data: Data, source: Source) -> str:
    """How ``source`` is split; order where nothing is held out."""
    return (source.held_out_by or data.held_out_by) if data.held_out else "order"


def threshold_number(by: str, at: str) -> int | None:
    """Seconds since 1970 for time, else a hash up to 2^63; None: it is no threshold of that rule."""
    if by == "time":
        return seconds_of(at)
    try:
        return min(int(at, 16), LARGEST_HASH) if at.startswith("0x") else None
    except ValueError:
        return None


def check_held_out(data: Data) -> Iterator[Finding]:
    for index, source in enumerate(data.sources):
        problem = _problem(source.name, rule_of(data, source), source.held_out_at)
        if problem is not None:
            yield ("data", "sources", index, "held_out_at"), problem


def _problem(name: str, by: str, at: str | None) -> Problem | None:
    if at is None:
        return None
    if by == "order":
        return Problem(
            f"source {name}: held_out_at without a rule that it belongs to",
            "order has no threshold, and nothing is held out with data.held_out = 0",
            "held_out_by is content, repository, time",
        )
    if threshold_number(by, at) is None:
        return Problem(
            f"source {name}: held_out_at = {at!r} with held_out_by = {by!r}",
            f"it is {_FORMS.get(by, _HASH)}",
            "leave it out to have it found for data.held_out tokens",
        )
    return None
