"""The supervisor's records: what happened to the run, one durable file per lease epoch.

    events/epoch-000001.jsonl   open, launch, hang, exit, ... finish
    events/epoch-000002.jsonl   open {previous: digest of the record before, gap, clock}, launch, ...

Each record may name the category of the interval that it ``closes``: the time since the record before it in the chain. The
first record of an epoch ties the epochs together: on the same boot the gap is a boot-time difference, else a realtime one.
``n`` counts the records of the whole chain, so that a line that is lost between two others shows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from headway.base.clocks import Clock, is_stamp
from headway.base.digests import digest_json
from headway.base.files import make_directory
from headway.base.records import RecordWriter, read_records
from headway.rundir.categories import Category, is_category
from headway.rundir.layout import RunDirectory, epoch_of
from headway.rundir.lease import last_sign
from headway.rundir.queued import queued_ns

_CLOSES = {
    "hang": Category.HANG,
    "exit": Category.DETECTION_TO_STOP,
    "pause": Category.RECONFIGURE,
    "resume": Category.PLANNED_PAUSE,
    "finish": Category.RECONFIGURE,
}
_FIELDS: dict[str, dict[str, type]] = {
    "open": {"epoch": int},
    "launch": {"segment": int, "pid": int},
    "hang": {"segment": int},
    "straggler": {"segment": int, "rank": int, "step": int, "text": str},
    "memory_growth": {"segment": int, "rank": int, "step": int, "text": str},
    "slow_data": {"segment": int, "rank": int, "step": int, "text": str},
    "exit": {"segment": int},
    "checkpoint_rejected": {"checkpoint": str, "reason": str},
    "quarantine": {"source": str, "token": int, "tokens": int},
    "corruption": {"segment": int, "step": int, "reason": str},
    "mixture": {"stage": int, "first": int, "weights": dict, "reason": str},
    "spike": {"segment": int, "step": int, "action": str},
    "pause": {"reason": str},
    "resume": {"reason": str},
    "node": {"host": str, "state": str, "reason": str},
    "group": {"segment": int, "group": int, "state": str, "reason": str},
    "finish": {"state": str, "reason": str},
    "note": {"text": str},
}
"""Fields that readers rely on, by kind."""

KINDS = tuple(_FIELDS)

REQUEUED = "requeued"
"""State of a finish after which a scheduler, not a person, brings the run back: the time until then is queue."""


class EventLog:
    """Writes the events of one epoch, into a file that nobody had before; creating it writes ``open``."""

    def __init__(self, run: RunDirectory, epoch: int, clock: Clock):
        self._clock = clock
        before = read_events(run)
        make_directory(run.events, "events directory")
        self._launched = any(event["kind"] == "launch" for event in before)
        self._next = before[-1].get("n", len(before) - 1) + 1 if before else 0
        self._writer = RecordWriter(run.events / f"epoch-{epoch:06d}.jsonl", durable=True, fresh=True)
        stamp = clock.stamp().to_json()
        previous = _link(before[-1], stamp) if before else None
        waited = queued_ns(os.environ, stamp["real_ns"], before[-1]["stamp"]["real_ns"] if before else None)
        parts = {name: ns for name, ns in (("queued_ns", waited), ("paused_ns", pause_so_far_ns(run, before))) if ns}
        self.opened = self._write(
            {"kind": "open", "stamp": stamp, "epoch": epoch, "previous": previous, "closes": _pause_of(before), **parts}
        )

    def append(self, kind: str, **fields: Any) -> dict:
        """Stamp and write one record; returns it. ``closes`` follows from the kind."""
        assert kind in KINDS, kind
        closes: Category | None = _CLOSES.get(kind)
        if kind == "launch":
            closes = Category.RECONFIGURE if self._launched else Category.PROVISION
            self._launched = True
        return self._write({"kind": kind, "stamp": self._clock.stamp().to_json(), "closes": closes, **fields})

    def close(self) -> None:
        self._writer.close()

    def _write(self, record: dict) -> dict:
        whole = {key: value for key, value in record.items() if value is not None or key != "closes"} | {"n": self._next}
        self._writer.append(whole)
        self._next += 1
        return whole


def _link(last: dict, stamp: dict) -> dict:
    """Ties an epoch to the record before it. Realtime may have been set back: a gap is never negative."""
    same_boot = last["stamp"]["boot_id"] == stamp["boot_id"]
    field = "boot_ns" if same_boot else "real_ns"
    gap_ns = max(0, stamp[field] - last["stamp"][field])
    return {"digest": digest_json(last), "gap_ns": gap_ns, "clock": "boottime" if same_boot else "realtime"}


def _pause_of(before: list[dict]) -> Category | None:
    if not before:
        return None
    state = before[-1]["state"] if before[-1]["kind"] == "finish" else None
    after: dict[str | None, Category] = {
        "stopped": Category.PLANNED_PAUSE,
        "complete": Category.PLANNED_PAUSE,
        REQUEUED: Category.QUEUE,
    }
    return after.get(state, Category.UNKNOWN)


@dataclass(frozen=True)
class EventChain:
    """``chain``: what happened, over all epochs in order. ``late``: written by an owner that had lost its lease.

    ``damaged_lines``: lines of all epochs that are torn, altered or no event; a crash may leave one torn line per epoch.
    """

    chain: list[dict]
    late: list[dict]
    damaged_lines: int = 0


def read_events(run: RunDirectory) -> list[dict]:
    """The chain of whole records over all epochs, in order."""
    return read_event_chain(run).chain


def read_event_chain(run: RunDirectory) -> EventChain:
    """Events and late events.

    An owner that lost its lease may still write to its own file. Whatever stands there after the record that the next
    owner linked to is no part of the chain, but it stays visible.
    """
    chain: list[dict] = []
    late: list[dict] = []
    damaged_lines = 0
    paths = [path for path in run.events.glob("epoch-*.jsonl") if epoch_of(path)] if run.events.is_dir() else []
    for path in sorted(paths, key=epoch_of):
        file = read_records(path)
        records = [record for record in file.records if is_event(record)]
        damaged_lines += file.damaged_lines + len(file.records) - len(records)
        if records and records[0].get("previous"):
            keep = _position(chain, records[0])
            late += chain[keep:]
            del chain[keep:]
        chain += records
    return EventChain(chain, late, damaged_lines)


def _position(chain: list[dict], opened: dict) -> int:
    """How many records stand up to and with the linked one. When it is lost, all those with a lower number."""
    for index in range(len(chain) - 1, -1, -1):
        if digest_json(chain[index]) == opened["previous"]["digest"]:
            return index + 1
    return sum(record.get("n", 0) < opened.get("n", 1) for record in chain)


def is_event(value: dict) -> bool:
    """Whether a whole record is an event that readers can rely on."""
    fields = _FIELDS.get(value["kind"]) if isinstance(value.get("kind"), str) else None
    if fields is None or not is_stamp(value.get("stamp")):
        return False
    previous = value.get("previous")
    return (
        all(type(value.get(name)) is cls for name, cls in fields.items())
        and is_category(value.get("closes", Category.UNKNOWN))
        and type(value.get("n", 0)) is int
        and (previous is None or (isinstance(previous, dict) and type(previous.get("gap_ns")) is int and "digest" in previous))
    )


def pause_so_far_ns(run: RunDirectory, events: list[dict]) -> int:
    """ns of a pause that nobody ended: up to the last sign of life of its owner. 0: ``events`` do not end with a pause."""
    if not events or events[-1]["kind"] != "pause":
        return 0
    began, epoch = events[-1]["stamp"], next((event["epoch"] for event in reversed(events) if event["kind"] == "open"), 0)
    sign = last_sign(run, epoch)
    return max(0, sign.boot_ns - began["boot_ns"]) if sign is not None and sign.boot_id == began["boot_id"] else 0


def with_open_pause(run: RunDirectory, events: list[dict]) -> list[dict]:
    """``events`` for who accounts for time: a pause that lasts is closed where its owner was last known to live."""
    ns = pause_so_far_ns(run, events)
    if not ns:
        return events
    began = events[-1]["stamp"]
    stamp = began | {"boot_ns": began["boot_ns"] + ns, "real_ns": began["real_ns"] + ns}
    return [*events, {"kind": "note", "stamp": stamp, "text": "paused up to here", "closes": Category.PLANNED_PAUSE.value}]


def unfinished_launch(events: list[dict]) -> dict | None:
    """The launch of a trainer whose exit nobody recorded: it may still run."""
    pending = None
    for event in events:
        if event["kind"] in ("launch", "exit"):
            pending = event if event["kind"] == "launch" else None
    return pending
