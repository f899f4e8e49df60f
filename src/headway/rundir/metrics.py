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

from headway.base.clocks import Clock, is_stamp
from headway.base.records import RecordWriter, read_records
from headway.rundir.categories import Category, is_category
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, read_segments

_REST = {
    "restored": Category.RESTORE,
    "step": Category.PRODUCTIVE,
    "evaluation": Category.EVALUATION,
    "sample": Category.EVALUATION,
    "snapshot": Category.BLOCKING_SAVE,
    "save": Category.BLOCKING_SAVE,
    "save_skipped": Category.BLOCKING_SAVE,
    "waiting": Category.BLOCKING_SAVE,
    "save_failed": Category.BLOCKING_SAVE,
    "retention_failed": Category.BLOCKING_SAVE,
    "over_budget": Category.BLOCKING_SAVE,
    "mirrored": Category.BLOCKING_SAVE,
    "mirror_failed": Category.BLOCKING_SAVE,
    "interval": Category.BLOCKING_SAVE,
    "stall": Category.DATA_STALL,
    "delivery": Category.PRODUCTIVE,
    "check": Category.VALIDATION_REPLAY,
    "located": Category.VALIDATION_REPLAY,
    "groups": Category.RECONFIGURE,
    "repeated": Category.ROLLED_BACK,
    "end": Category.RECONFIGURE,
}
"""Where the unmarked rest of an interval goes, by kind of row."""

_WORDS = {"kind", "stage", "state", "texts", "error", "environment", "checkpoint", "digest", "spec_digest", "stamp"}
_WORDS |= {"shard", "reason", "determinism", "differences", "bound", "by", "parameter", "host"}
"""Fields of text: a prompt that reads "nan" stays a prompt."""

_NUMBER = (int, float)
_Fields = dict[str, type | tuple[type, ...]]
_STEP: _Fields = {"step": int}
_FIELDS: dict[str, _Fields] = {
    "start": {"pid": int},
    "restored": _STEP,
    "step": {**_STEP, "tokens": int, "targets": int, "loss": _NUMBER, "grad_norm": _NUMBER},
    "evaluation": {**_STEP, "loss": dict},
    "sample": _STEP,
    "stall": {**_STEP, "waited_ns": int, "shard": str},
    "delivery": {**_STEP, "loader": dict, "sources": dict},
    "retention_failed": {**_STEP, "error": str},
    "over_budget": {**_STEP, "error": str},
    "mirrored": {**_STEP, "checkpoint": str},
    "mirror_failed": {**_STEP, "error": str},
    "snapshot": {**_STEP, "checkpoint": str},
    "save": _STEP,
    "save_skipped": {**_STEP, "reason": str},
    "waiting": {**_STEP, "reason": str},
    "save_failed": {**_STEP, "error": str},
    "interval": {**_STEP, "seconds": _NUMBER},
    "check": {**_STEP, "by": str},
    "located": {**_STEP, "of_segment": int, "parameter": str},
    "groups": {**_STEP, "groups": list, "lost": list, "back": list},
    "repeated": {**_STEP, "reason": str},
    "end": {**_STEP, "state": str},
}
"""Fields that readers rely on, by kind. A step is never negative."""

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


def as_row(record: dict) -> dict | None:
    """A record as a row that readers can rely on, decoded; None when it is none, whatever its checksum says."""
    row = decode_row(record)
    fields = _FIELDS.get(row["kind"]) if isinstance(row.get("kind"), str) else None
    if fields is None or not is_stamp(row.get("stamp")) or not _is_split(row.get("split", {})):
        return None
    right = all(isinstance(row.get(name), cls) and not isinstance(row[name], bool) for name, cls in fields.items())
    return row if right and row.get("step", 0) >= 0 and _are_losses(row.get("loss", 0.0)) else None


def _is_split(value: Any) -> bool:
    return isinstance(value, dict) and all(is_category(name) and type(ns) is int and ns >= 0 for name, ns in value.items())


def _are_losses(value: Any) -> bool:
    return all(type(loss) in _NUMBER for loss in value.values()) if isinstance(value, dict) else type(value) in _NUMBER


@dataclass(frozen=True)
class StepRows:
    """``damaged_lines``: torn, altered, or no row."""

    rows: list[dict]
    damaged_lines: int


def read_step_rows(run: RunDirectory, segment: int) -> StepRows:
    """All rows of one segment, in the order in which they were written, and how many lines were none."""
    file = read_records(run.steps_file(segment))
    rows = [row for record in file.records if (row := as_row(record)) is not None]
    return StepRows(rows, file.damaged_lines + len(file.records) - len(rows))


def read_steps(run: RunDirectory, segment: int) -> list[dict]:
    """As ``read_step_rows``, the rows alone."""
    return read_step_rows(run, segment).rows


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
    """By segment of the chain: the last step that counts (the restored step of its child); None: all do.

    The child alone decides: its checkpoint was admissible, so it lies beyond the step that its parent had restored, and
    restored steps grow along a chain. A segment that committed nothing is nobody's parent and stands on no chain.
    """
    children: list[Segment | None] = [*chain[1:], None]
    return {segment.id: child.restored_step if child else None for segment, child in zip(chain, children)}


def is_kept(row: dict, last_step: int | None) -> bool:
    """Whether a row lies at or before ``last_step``. Rows without a step (``start``) belong to no step and are kept on chain."""
    return last_step is None or step_of(row) <= last_step


def step_of(row: dict) -> int:
    """The step that a row is part of. A ``stall`` names the steps done so far, and waits for the data of the next."""
    return row.get("step", 0) + (row.get("kind") == "stall")
