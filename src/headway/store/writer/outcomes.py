"""What became of each save, as the coordinator's writer tells it: ``segments/NNNN/saves.jsonl``, one writer, many readers.

    sealed     the snapshot is whole and handed over: it will be committed even if the trainer dies now
    committed  its manifest is durable          failed  it was discarded, with the reason

A supervisor reads this before it starts the next segment: what is sealed and has no outcome yet is worth a moment's wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.base.clocks import Clock, is_stamp
from headway.base.records import RecordWriter, read_records
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import is_alive, this_process

SEALED, COMMITTED, FAILED = "sealed", "committed", "failed"


def outcomes_file(run: RunDirectory, segment: int) -> Path:
    return run.segment(segment) / "saves.jsonl"


class OutcomeLog:
    """Opens the file of a segment when its first save is sealed."""

    def __init__(self, run: RunDirectory, clock: Clock):
        self._run, self._clock = run, clock
        self._segment = -1
        self._writer: RecordWriter | None = None
        self._me = this_process()

    def append(self, kind: str, segment: int, checkpoint: str, **fields: Any) -> None:
        if self._writer is None or segment != self._segment:
            self.close()
            self._segment, self._writer = segment, RecordWriter(outcomes_file(self._run, segment))
        record = {"kind": kind, "checkpoint": checkpoint, "stamp": self._clock.stamp().to_json(), **fields}
        self._writer.append(record | ({"writer": self._me} if kind == SEALED else {}))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def read_outcomes(run: RunDirectory, segment: int) -> list[dict[str, Any]]:
    """Whole records, in order."""
    records = read_records(outcomes_file(run, segment)).records
    return [r for r in records if isinstance(r.get("checkpoint"), str) and is_stamp(r.get("stamp"))]


def committed_digests(run: RunDirectory, segments: Iterable[int]) -> dict[str, object]:
    """The digest of the state by checkpoint, of all that writers committed."""
    told = (record for segment in segments for record in read_outcomes(run, segment))
    return {record["checkpoint"]: record.get("digest") for record in told if record.get("kind") == COMMITTED}


def pending(run: RunDirectory, segment: int, host: str, boot_id: str) -> list[str]:
    """Checkpoints that are sealed and have no outcome, unless their writer is known to be dead (of this host and boot)."""
    records = read_outcomes(run, segment)
    done = {record["checkpoint"] for record in records if record["kind"] in (COMMITTED, FAILED)}
    sealed = [record for record in records if record["kind"] == SEALED and record["checkpoint"] not in done]
    return [record["checkpoint"] for record in sealed if not _died(record, host, boot_id)]


def _died(record: dict[str, Any], host: str, boot_id: str) -> bool:
    writer = record.get("writer")
    if not isinstance(writer, dict) or writer.get("host") != host:
        return False
    return record["stamp"]["boot_id"] != boot_id or not is_alive(writer.get("pid", 0), writer.get("start_ticks"))
