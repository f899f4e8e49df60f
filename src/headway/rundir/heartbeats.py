"""What every rank says of itself while it runs: one small file of fixed size per rank, overwritten in place.

    segments/0001/ranks/00001.beat
      slot 0   who     once            rank, world, host, pid, start_ticks, boot_id, memory of its machine
      slot 1   state   training thread phase, the step it works at, how often it moved, since when
      slot 2   pulse   a thread, 1/s   what the training thread is in: a collective, or which lines of Python; memory
      slot 3.. steps   training thread the newest steps: its own times and memory, at the slot of step % STEPS

A slot is one record with its checksum (``base/records.py``), padded with spaces: whoever reads while it is written sees no
record there, and looks again later. Plain writes, no fsync: a heartbeat tells of now, and a crash of the machine leaves
other traces. Whatever fails here is left out: a heartbeat never ends a run. Times are of the boot clock of that machine.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.base.clocks import SystemClock
from headway.base.records import decode_record, encode_record
from headway.rundir.layout import RunDirectory
from headway.rundir.processes import machine_bytes, peak_bytes, resident_bytes, this_process

INIT, RESTORE, RECORD, EVALUATION, SAVE, DATA, COMPILE, STEP, END = PHASES = (
    "init",
    "restore",
    "record",
    "evaluation",
    "save",
    "data",
    "compile",
    "step",
    "end",
)
"""In the order in which a rank goes through them, as long as its count of steps stays the same: what follows a step belongs to
its number, what begins the next one too. ``compile`` is the first step of a segment and of a stage: new shapes."""

STEPS = 64
"""Newest steps that a file holds."""
DUMP_SIGNAL = signal.SIGUSR2
"""On it a rank writes the Python stacks of all its threads to its log."""
_HEAD, _STEP = 1024, 256
_SLOTS = {"who": 0, "state": _HEAD, "pulse": 2 * _HEAD}
_SIZE = 3 * _HEAD + STEPS * _STEP
_FRAMES, _FRAME_LETTERS = 8, 90


def beat_file(run: RunDirectory, segment: int, rank: int) -> Path:
    return run.segment(segment) / "ranks" / f"{rank:05d}.beat"


@dataclass
class Blocked:
    """Time that the training thread was blocked waiting for other ranks, as ``parallel.waits`` counts it."""

    total_ns: int = 0
    count: int = 0  # waits that have ended
    since_ns: int = 0  # of the wait that goes on; 0: none


class Heart:
    """One rank's; silent where its file cannot be written. ``blocked``: filled by whoever can tell."""

    def __init__(self, blocked: Blocked | None = None):
        self.blocked = blocked or Blocked()
        self._fd = -1
        self._phase, self._step, self._moves, self._since_ns = INIT, 0, 0, now_ns()
        self._step_began_ns, self._blocked_at = 0, 0
        self._rss, self._thread = resident_bytes(), threading.get_ident()
        self._done = threading.Event()

    @staticmethod
    def start(run: RunDirectory, segment: int, rank: int, world: int, *, every_seconds: float = 1.0) -> Heart:
        """With its thread, and with the signal that asks for stacks. Called by the thread that trains."""
        heart = Heart()
        path = beat_file(run, segment, rank)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            heart._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            os.ftruncate(heart._fd, _SIZE)
        boot_id, memory = SystemClock().stamp().boot_id, machine_bytes()
        dumps = int(DUMP_SIGNAL) if _answers_with_stacks() else None
        heart._put("who", this_process() | {"rank": rank, "world": world, "boot_id": boot_id, "dumps": dumps, "memory": memory})
        heart._state()
        threading.Thread(target=heart._beat, args=(every_seconds,), daemon=True, name="heartbeat").start()
        return heart

    def enter(self, phase: str, step: int) -> None:
        """A phase begins; ``step``: updates done."""
        self._phase, self._step, self._since_ns = phase, step, now_ns()
        if phase in (STEP, COMPILE):
            self._step_began_ns, self._blocked_at = self._since_ns, self.blocked.total_ns
        self._state()

    def tick(self) -> None:
        """It goes on within its phase."""
        self._state()

    def stepped(self, step: int, data_ns: int) -> None:
        """The step that was entered last is done; its batch was waited for ``data_ns``.

        ``work_ns`` is the wall time of the step without ``wait_ns``, which it was blocked in waits for other ranks.
        """
        now, wait_ns = now_ns(), self.blocked.total_ns - self._blocked_at
        row = {"step": step, "data_ns": data_ns, "wait_ns": wait_ns, "end_ns": now, "rss": self._rss, "peak": peak_bytes()}
        row |= {"work_ns": max(0, now - self._step_began_ns - wait_ns), "first": self._phase == COMPILE}
        self._write(3 * _HEAD + step % STEPS * _STEP, _STEP, row)
        self.enter(RECORD, step)

    def close(self) -> None:
        self._done.set()
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _state(self) -> None:
        self._moves += 1
        state = {"phase": self._phase, "step": self._step, "moves": self._moves, "since_ns": self._since_ns}
        self._put("state", state)

    def _beat(self, every_seconds: float) -> None:
        while self._fd >= 0:
            self._rss = resident_bytes()
            waits = {"waits": self.blocked.count, "wait_since_ns": self.blocked.since_ns}
            self._put("pulse", {"at_ns": now_ns(), **waits, "frames": self._frames(), "rss": self._rss})
            if self._done.wait(every_seconds):
                return

    def _frames(self) -> list[str]:
        """Of the training thread, the innermost first."""
        frame = sys._current_frames().get(self._thread)
        found: list[str] = []
        while frame is not None and len(found) < _FRAMES:
            code = frame.f_code
            where = "/".join(code.co_filename.rsplit("/", 2)[-2:])
            found.append(f"{code.co_name} ({where}:{frame.f_lineno})"[-_FRAME_LETTERS:])
            frame = frame.f_back
        return found

    def _put(self, slot: str, value: dict[str, Any]) -> None:
        self._write(_SLOTS[slot], _HEAD, value)

    def _write(self, at: int, size: int, value: dict[str, Any]) -> None:
        if self._fd < 0:
            return
        line = encode_record(value)[:-1]
        if len(line) < size:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, line.ljust(size - 1) + b"\n", at)


@dataclass
class Beat:
    """What the reader of one file knows. Times are of that machine's boot clock: compare them with each other alone."""

    rank: int
    who: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    pulse: dict[str, Any] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        return str(self.state.get("phase", INIT))

    @property
    def step(self) -> int:
        return int(self.state.get("step", 0))


class BeatReader:
    """Follows one rank's file."""

    def __init__(self, path: Path, rank: int):
        self._path, self._fd, self._seen = path, -1, 0
        self.beat = Beat(rank)

    def poll(self) -> list[dict[str, Any]]:
        """Look again; returns the steps that were done since, oldest first (those that were overwritten meanwhile are lost)."""
        if not self._open():
            return []
        try:
            head = os.pread(self._fd, 3 * _HEAD, 0)
        except OSError:
            return []
        beat = self.beat
        for name, at in _SLOTS.items():
            value = decode_record(head[at : at + _HEAD].rstrip(b" \n\0"))
            if value is not None and _is_slot(name, value):
                setattr(beat, name, value)
        done = beat.step if beat.state else 0
        if self._seen == 0:
            self._seen = max(0, done - STEPS)
        found = [row for step in range(max(self._seen + 1, done - STEPS + 1), done + 1) if (row := self._step(step)) is not None]
        self._seen = max(self._seen, done)
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd >= 0

    def _step(self, step: int) -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            row = decode_record(os.pread(self._fd, _STEP, 3 * _HEAD + step % STEPS * _STEP).rstrip(b" \n\0"))
            if row is not None and row.get("step") == step and all(type(row.get(name)) is int for name in _TIMES):
                return row
        return None


_TIMES = ("data_ns", "work_ns", "wait_ns", "end_ns", "rss", "peak")
_FIELDS: dict[str, dict[str, type]] = {
    "who": {"rank": int, "host": str, "pid": int, "boot_id": str},
    "state": {"phase": str, "step": int, "moves": int, "since_ns": int},
    "pulse": {"at_ns": int, "waits": int, "wait_since_ns": int, "frames": list},
}


def _is_slot(name: str, value: dict[str, Any]) -> bool:
    return all(type(value.get(key)) is kind for key, kind in _FIELDS[name].items())


def now_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _answers_with_stacks() -> bool:
    """Where stderr is a file: without one there is nowhere to write."""
    try:
        faulthandler.register(DUMP_SIGNAL, file=sys.stderr, all_threads=True)
    except (AttributeError, ValueError, OSError, RuntimeError):
        return False
    return True
