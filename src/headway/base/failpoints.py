"""Named failpoints: the places where a fault can be injected, in drills only.

A failpoint acts only when ``arm`` loaded its plan from the ``drill.json`` of a run directory that was created as a drill
(``"drill": true`` in its ``run.json``). Nothing else arms one: no environment variable, no flag, and a ``drill.json``
that turns up in a production run is refused aloud. A fault that fires is written to ``drill-fired.jsonl`` before it
acts, so that it fires once and not again after the restart.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.base.errors import ConfigError
from headway.base.files import read_json
from headway.base.records import RecordWriter, read_records

SAVE_POINTS = (
    "save.begin",
    "save.data_partial",
    "save.data_written",
    "save.data_renamed",
    "save.receipt_written",
    "save.manifest_partial",
    "save.manifest_renamed",
    "save.committed",
)
"""Every stage of a save in the writer, in order. Fault tests enumerate this tuple."""

SNAPSHOT_POINTS = ("snapshot.begin", "snapshot.copied", "snapshot.sealed")
"""Every stage of a save in the trainer, in order."""

STEP_POINTS = ("step.begin", "step.gradients", "step.updated", "step.recorded")
"""Every stage of a step, in order."""

EVALUATION_POINTS = ("evaluation.begin",)

BUILD_POINTS = (
    "build.source_read",
    "build.source_sealed",
    "build.tokenizer_written",
    "build.part_begin",
    "build.part_written",
    "build.part_sealed",
    "build.source_assembled",
    "build.assembled",
    "build.published",
)
"""Every stage of a data build, in order. A build belongs to no run: its tests arm a drill of their own."""

ALL = SAVE_POINTS + SNAPSHOT_POINTS + STEP_POINTS + EVALUATION_POINTS + BUILD_POINTS
ACTIONS = ("kill", "disk_full", "quota", "io_error", "raise", "hang", "terminate", "sleep", "block", "memory", "slow", "flip")
"""``hang``: SIGSTOP. ``sleep``: in Python, for ever. ``block``: in a read that never returns. ``memory``: there is none left.
``slow``: from here on every step takes longer by ``share`` of its forward and backward passes."""
FLIP_POINTS = ("step.begin", "step.gradients", "step.updated")
"""Where memory is at hand: weights and moments, or at ``step.gradients`` the gradients."""

Memory = Callable[[str], memoryview]
"""The bytes of a tensor by its name, to be written to."""


@dataclass(frozen=True)
class Fault:
    """What happens where: ``action`` at failpoint ``point``, in step ``step`` (None: at the first pass), on rank ``rank``.

    ``share``: of ``slow`` alone; 1.0 is twice as slow. A flip turns bit ``bit`` of the memory of ``tensor`` on that rank, counted
    from the first byte's lowest.
    """

    point: str
    action: str
    step: int | None = None
    rank: int = 0
    share: float = 1.0
    tensor: str = ""
    bit: int = 0

    def key(self) -> str:
        whose = f"/{self.rank}" if self.rank else ""
        return f"{self.point}/{self.action}/{self.step}{whose}" + (f"/{self.tensor}/{self.bit}" if self.tensor else "")


_armed: list[Fault] = []
_fired: RecordWriter | None = None
_slow_share, _step_began = 0.0, 0.0


def drill_file(run_directory: Path) -> Path:
    return run_directory / "drill.json"


def is_drill(run_directory: Path) -> bool:
    """Whether this run was created as a drill."""
    run_file = run_directory / "run.json"
    description = read_json(run_file, "run description") if run_file.exists() else None
    return isinstance(description, dict) and description.get("drill") is True


def parse_faults(entries: list[dict]) -> list[Fault]:
    """Check a list of {point, action, step, rank, tensor, bit} and name the nearest way out for each unknown word."""
    faults = []
    for entry in entries:
        where = {key: entry[key] for key in ("step", "rank", "share", "tensor", "bit") if key in entry}
        fault = Fault(entry.get("point", ""), entry.get("action", "kill"), **where)
        if fault.point not in ALL:
            raise ConfigError(f"unknown failpoint {fault.point!r}", f"known: {', '.join(ALL)}")
        if fault.action not in ACTIONS:
            raise ConfigError(f"unknown fault {fault.action!r}", f"known: {', '.join(ACTIONS)}")
        if fault.action == "flip" and (fault.point not in FLIP_POINTS or not fault.tensor):
            rule = f"a flip names its tensor, and happens at one of {', '.join(FLIP_POINTS)}"
            raise ConfigError(f"no bit can be flipped at {fault.point} in {fault.tensor!r}", rule)
        faults.append(fault)
    return faults


def guard(run_directory: Path) -> None:
    """Refuse faults in a production run."""
    if drill_file(run_directory).exists() and not is_drill(run_directory):
        raise ConfigError(
            f"{drill_file(run_directory)} asks for faults in a run that is not a drill",
            "faults act only in runs that were created as drills",
            "delete that file, or create a new run with --drill",
        )


def arm(run_directory: Path, rank: int = 0) -> list[Fault]:
    """Load the faults of a drill that concern ``rank`` and have not fired yet; a production run has none."""
    global _fired
    disarm()
    guard(run_directory)
    if not is_drill(run_directory):
        return []
    log = run_directory / "drill-fired.jsonl"
    gone = {record["fault"] for record in read_records(log).records}
    faults = parse_faults(read_json(drill_file(run_directory), "drill plan").get("faults", []))
    _armed.extend(fault for fault in faults if fault.rank == rank and fault.key() not in gone)
    if _armed:
        _fired = RecordWriter(log, durable=True)
    return list(_armed)


def disarm() -> None:
    global _fired, _slow_share
    _armed.clear()
    _slow_share = 0.0
    if _fired is not None:
        _fired.close()
        _fired = None


def hit(point: str, step: int, memory: Memory | None = None) -> None:
    """Pass the failpoint ``point`` in step ``step``; costs two truth tests when nothing is armed. ``memory``: what may flip."""
    if _slow_share:
        _slow_down(point)
    if not _armed:
        return
    assert point in ALL, point
    for fault in list(_armed):
        if fault.point == point and fault.step in (None, step):
            _armed.remove(fault)
            assert _fired is not None
            _fired.append({"fault": fault.key(), "step": step})
            _act(fault, memory)


def _act(fault: Fault, memory: Memory | None) -> None:
    global _slow_share, _step_began
    if fault.action == "flip":
        assert memory is not None, fault.point
        memory(fault.tensor)[fault.bit // 8] ^= 1 << fault.bit % 8
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is asynchronous: never run on past it
    if fault.action == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if fault.action == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault.action == "disk_full":
        raise OSError(errno.ENOSPC, "No space left on device (drill)")
    if fault.action == "quota":
        raise OSError(errno.EDQUOT, "Disk quota exceeded (drill)")
    if fault.action == "io_error":
        raise OSError(errno.EIO, "Input/output error (drill)")
    if fault.action == "raise":
        raise RuntimeError(f"drill: fault at {fault.point}")
    if fault.action == "sleep":
        while True:
            time.sleep(1.0)
    if fault.action == "block":
        nobody_writes, _ = os.pipe()
        os.read(nobody_writes, 1)
    if fault.action == "memory":
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**20, resource.RLIM_INFINITY))
        bytearray(2**30)
    if fault.action == "slow":
        _slow_share, _step_began = fault.share, time.monotonic()


def _slow_down(point: str) -> None:
    """A rank that computes slower than the others, as a hot or throttled device does."""
    global _step_began
    if point == "step.begin":
        _step_began = time.monotonic()
    elif point == "step.gradients":
        time.sleep(_slow_share * (time.monotonic() - _step_began))
