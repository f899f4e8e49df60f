"""The trainer's records: one row per step, with the time since the row before it split by category.

    start | restored |  step 41            | step 42            | evaluation | ...
          |  restore  data_stall productive  data_stall productive  evaluation
    Each row closes the interval since the row before: the splits leave no hole and no overlap.

Losses may be NaN or infinite, which JSON cannot hold: they travel as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headway.base.clocks import Clock
from headway.base.records import RecordWriter, read_records
from headway.rundir.categories import Category
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, read_segments

_REST = {
    "restored": Category.RESTORE,
    "step": Category.PRODUCTIVE,
    "evaluation": Category.EVALUATION,
    "sample": Category.EVALUATION,
    "save": Category.BLOCKING_SAVE,
    "save_failed": Category.BLOCKING_SAVE,
    "end": Category.RECONFIGURE,
}
"""Where the unmarked rest of an interval goes, by kind of row."""

_WORDS = {"kind", "stage", "state", "texts", "error", "environment", "checkpoint", "digest", "spec_digest", "stamp"}
"""Fields of text: a prompt that reads "nan" stays a prompt."""

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class StepLog:
    """Writes the rows of one segment. Plain writes: a crash may lose the last rows, never more than a torn line."""

    def __init__(self, run: RunDirectory, segment: int, clock: Clock):
        self._clock = clock
        self._writer = RecordWriter(run.steps_file(segment))
        self._previous_ns: int | None = None
        self._marked_ns = 0
        self._split: dict[str, int] = {}

    def mark(self, category: Category | str) -> None:
        """The time since the last mark (or row) was ``category``. Before the first row all time is ``init`` anyway."""
        if self._previous_ns is not None:
            self._close(Category(category), self._clock.stamp().boot_ns)

    def write(self, kind: str, *, rest: Category | str | None = None, **fields: Any) -> dict:
        """Stamp and write one row, and return it. Time since the last mark goes to ``rest`` (default: by kind)."""
        stamp = self._clock.stamp()
        row = {"kind": kind, "stamp": stamp.to_json(), **fields}
        if self._previous_ns is not None:
            self._close(Category(rest or _REST[kind]), stamp.boot_ns)
            row["split"] = self._split
        self._previous_ns = self._marked_ns = stamp.boot_ns
        self._split = {}
        self._writer.append(encode_row(row))
        return row

    def close(self) -> None:
        self._writer.close()

    def _close(self, category: Category, now_ns: int) -> None:
        if now_ns > self._marked_ns:
            self._split[category.value] = self._split.get(category.value, 0) + now_ns - self._marked_ns
            self._marked_ns = now_ns


def encode_row(value: Any) -> Any:
    """Non-finite floats as words, everywhere in ``value``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: encode_row(item) for key, item in value.items()}
    return [encode_row(item) for item in value] if isinstance(value, list | tuple) else value


def decode_row(value: Any) -> Any:
    """The inverse of ``encode_row``, for every field but those that hold text."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: item if key in _WORDS else decode_row(item) for key, item in value.items()}
    return [decode_row(item) for item in value] if isinstance(value, list) else value


def read_steps(run: RunDirectory, segment: int) -> list[dict]:
    """All whole rows of one segment, in the order in which they were written."""
    return [decode_row(row) for row in read_records(run.steps_file(segment)).records]


def read_all_steps(run: RunDirectory) -> dict[int, list[dict]]:
    """Rows by segment, for every segment of the run, on the chain or not."""
    return {segment.id: read_steps(run, segment.id) for segment in read_segments(run)}


@dataclass(frozen=True)
class ChainRows:
    """``kept``: the history of the current chain. ``discarded``: what was rolled back. Each row carries its ``segment``."""

    kept: list[dict]
    discarded: list[dict]


def read_chain_rows(run: RunDirectory, chain: list[Segment]) -> ChainRows:
    """The rows of ``chain`` without rolled-back tails, and those tails apart (also of segments off the chain)."""
    return split_rows(read_all_steps(run), chain)


def split_rows(steps: dict[int, list[dict]], chain: list[Segment]) -> ChainRows:
    """As ``read_chain_rows``, from rows that were read already."""
    last = last_kept_steps(chain)
    kept: list[dict] = []
    discarded: list[dict] = []
    for segment, rows in sorted(steps.items()):
        for row in rows:
            target = kept if is_kept(row, last.get(segment, -1)) else discarded
            target.append({**row, "segment": segment})
    return ChainRows(kept, discarded)


def last_kept_steps(chain: list[Segment]) -> dict[int, int | None]:
    """By segment of the chain: the last step that counts (the restored step of its child); None: all do."""
    children: list[Segment | None] = [*chain[1:], None]
    return {segment.id: child.restored_step if child else None for segment, child in zip(chain, children)}


def is_kept(row: dict, last_step: int | None) -> bool:
    """Whether a row lies at or before ``last_step``. Rows without a step (``start``) belong to no step and are kept on chain."""
    if last_step is None:
        return True
    return row.get("step", 0) <= last_step
