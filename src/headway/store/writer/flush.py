"""The thread of a writer that turns sealed snapshots into checkpoints: hash and write, commit, ask for a copy, prune."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.clocks import Clock
from headway.base.errors import HeadwayError, RunError
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import current_chain, read_segments
from headway.store.manifest import Manifest, Receipt
from headway.store.mirror.copier import Mirroring
from headway.store.names import CheckpointName
from headway.store.rectangle import Rectangle, file_header, in_file_order, places
from headway.store.retention import carry_out, plan_retention
from headway.store.save import Image, ManifestFields, discard, enter_save, write_rank
from headway.store.writer.coordinate import Patience, commit_when_complete, leave_failure
from headway.store.writer.memory import Memory
from headway.store.writer.outcomes import COMMITTED, FAILED
from headway.store.writer.protocol import Attachment, Seal

LOWEST_PRIORITY = 19


@dataclass(frozen=True, kw_only=True)
class Job:
    """A sealed snapshot on its way."""

    attachment: Attachment
    seal: Seal
    began_ns: int

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.attachment.segment, self.seal.step, self.seal.attempt)


class Pace:
    """Holds pieces back so that they leave no faster than ``speed``; ``hurry`` lets go at once."""

    def __init__(self, speed: float | None, clock: Clock, hurry: threading.Event):
        self._speed, self._clock, self._hurry = speed, clock, hurry
        self._began_ns, self._sent = clock.stamp().boot_ns, 0

    def __call__(self, nbytes: int) -> None:
        self._sent += nbytes
        if self._speed:
            ahead = self._sent / self._speed - (self._clock.stamp().boot_ns - self._began_ns) / 1e9
            if ahead > 0:
                self._hurry.wait(ahead)


class Flusher:
    """The thread that writes. ``tell`` is called from it with every outcome."""

    def __init__(self, run: RunDirectory, rank: int, clock: Clock, tell: Any):
        self._run, self._rank, self._clock, self._tell = run, rank, clock, tell
        self._jobs: queue.Queue[tuple[Job, Memory]] = queue.Queue()
        self._hurry = threading.Event()
        self.busy = 0  # jobs not done: being written, committed or pruned
        self._lock = threading.Lock()
        self.mirroring = Mirroring(run, clock, tell)
        threading.Thread(target=self._work, daemon=True, name="flush").start()

    def put(self, job: Job, memory: Memory) -> None:
        with self._lock:
            self.busy += 1
        self._jobs.put((job, memory))

    def hurry(self, on: bool) -> None:
        (self._hurry.set if on else self._hurry.clear)()

    def _work(self) -> None:
        _lower_priority()
        while True:
            job, memory = self._jobs.get()
            try:
                self._flush(job, memory)
            except BaseException as error:
                self._tell(job, "crashed", error=f"{type(error).__name__}: {error}")
            with self._lock:
                self.busy -= 1
            self._tell(job, "done")

    def _flush(self, job: Job, memory: Memory) -> None:
        directory = self._run.checkpoints / str(job.name)
        try:
            if not self._run.run_file.is_file():  # moved, or its filesystem has gone: never made anew
                raise RunError("the run directory is not there any more", f"path: {self._run.root}", "put it back")
            enter_save(self._run.checkpoints, job.name)
            receipt = self._write(directory, job, memory)
            self._tell(job, "written", bytes=receipt.file_bytes, flush_ns=self._since(job))
            if self._rank == 0:
                manifest = self._commit(directory, job)
                self._tell(job, COMMITTED, digest=manifest.state_digest, bytes=receipt.file_bytes, flush_ns=self._since(job))
        except (HeadwayError, RuntimeError) as error:  # RuntimeError: a drill's own fault
            self._give_up(directory, job, error)
            return
        if self._rank == 0:
            self._mirror(job)
            self._prune(job)

    def _write(self, directory: Path, job: Job, memory: Memory) -> Receipt:
        pace = Pace(job.attachment.flush_speed, self._clock, self._hurry)
        return write_snapshot(directory, job, memory, self._rank, pace)

    def _commit(self, directory: Path, job: Job) -> Manifest:
        seal = job.seal
        fields = ManifestFields(
            segment=job.attachment.segment,
            step=seal.step,
            world=job.attachment.world,
            state=seal.state,
            mesh=seal.mesh,
            placements=seal.placements,
        )
        patience = Patience(seconds=job.attachment.commit_seconds, clock=self._clock)
        return commit_when_complete(directory, fields, patience)

    def _give_up(self, directory: Path, job: Job, error: Exception) -> None:
        if self._rank == 0:
            discard(directory)
        else:
            leave_failure(directory, self._rank, error if isinstance(error, HeadwayError) else RunError(str(error)))
        self._tell(job, FAILED, error=str(error))

    def _mirror(self, job: Job) -> None:
        url, ordinal = job.attachment.mirror, job.seal.state.get("ordinal", 0)
        if url is not None and isinstance(ordinal, int) and ordinal % max(1, job.attachment.mirror_every) == 0:
            self.mirroring.ask(job, url)

    def _prune(self, job: Job) -> None:
        began_ns = self._clock.stamp().boot_ns
        try:
            chain = current_chain(read_segments(self._run))
            if chain and chain[-1].id != job.attachment.segment:
                return  # the trainer was replaced: the checkpoints belong to a newer segment now
            plan = plan_retention(self._run, chain, job.attachment.retention())
            plan = replace(plan, going=tuple(item for item in plan.going if item.name not in self.mirroring.needed))
            gone = carry_out(self._run, plan)
        except (HeadwayError, OSError, ValueError) as error:  # the save before it stands, whatever it is
            self._tell(job, "retention_failed", error=str(error))
            return
        self._tell(job, "pruned", deleted=gone, retention_ns=self._clock.stamp().boot_ns - began_ns)
        if plan.note:
            self._tell(job, "over_budget", error=plan.note)

    def _since(self, job: Job) -> int:
        return self._clock.stamp().boot_ns - job.began_ns


def write_snapshot(directory: Path, job: Job, memory: Memory, rank: int, pace: Any) -> Receipt:
    """Hash and write the data file that lies in ``memory``; leaves the receipt."""
    ordered = in_file_order(list(job.attachment.parts))
    header = file_header(ordered, job.attachment.segment, job.seal.step, rank)
    at = places(ordered, len(header))
    total = at[-1] + ordered[-1].nbytes if ordered else len(header)
    image = memoryview(memory.map)[:total]
    data = np.frombuffer(image, np.uint8)
    rectangles = [Rectangle(**vars(part), data=data[a : a + part.nbytes]) for part, a in zip(ordered, at)]
    place = (job.attachment.segment, job.seal.step, rank, job.attachment.world)
    return write_rank(directory, rectangles, *place, image=Image(memory=image, pace=pace))


def _lower_priority() -> None:
    """Of this thread alone, as Linux has it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
