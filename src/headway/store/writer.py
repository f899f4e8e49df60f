r"""The writer: a process without torch that turns sealed snapshots into checkpoints, also after its trainer's death.

    trainer                                writer (one per rank, in a session of its own)
    attach: names and shapes          ->   memory file, filled in advance        -> ready + descriptor
    begin; copies its state; seal     ->   hash and write, receipt               -> written: the memory is free again
                                           rank 0: all receipts? manifest        -> committed
                                           reads it back, deletes what may go    -> pruned
    dies  (end of file)                    before the seal: nothing. After it: finishes at full speed, then keeps the
                                           memory for the next trainer for a while (hello, lend, attach)

One thread speaks with trainers, another writes. While training goes on the second one runs at the lowest priority, and no faster
than it is told to. Nothing it is sent is executed; its socket belongs to one user (``store.wire``).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.base import failpoints
from headway.base.clocks import Clock, SystemClock
from headway.base.errors import HeadwayError, RunError, from_os_error
from headway.base.plain import from_plain
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import current_chain, read_segments
from headway.store.coordinate import Patience, commit_when_complete, leave_failure
from headway.store.manifest import Manifest, Receipt
from headway.store.memory import Memory
from headway.store.mirroring import Mirroring
from headway.store.names import CheckpointName
from headway.store.outcomes import COMMITTED, FAILED, SEALED, OutcomeLog
from headway.store.rectangle import Part, Rectangle, file_header, in_file_order, places
from headway.store.retention import Retention, carry_out, plan_retention
from headway.store.save import Image, ManifestFields, discard, enter_save, write_rank
from headway.store.wire import Channel, Message, readable

LOWEST_PRIORITY = 19
FINISH_SECONDS = 600.0
"""A sealed save of a dead trainer is given up after this long: the storage has gone, and the next attempt needs the memory."""


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """What a trainer says about itself and its saves, once."""

    segment: int
    world: int
    parts: tuple[Part, ...]  # that this rank writes
    keep_last: int
    permanent_every: int = 0
    keep_best: int = 0
    budget: int | None = None
    linger_seconds: float = 300.0
    commit_seconds: float = 120.0  # for the slowest rank, after the coordinator's own receipt
    flush_speed: float | None = None  # bytes per second while training goes on
    mirror: str | None = None  # URL of the second place
    mirror_every: int = 1  # of the committed ones, by their ordinal

    def retention(self) -> Retention:
        return Retention(
            keep_last=self.keep_last,
            permanent_every=self.permanent_every,
            keep_best=self.keep_best,
            budget_bytes=self.budget,
        )


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A whole snapshot lies in the memory. ``attempt``: how often this trainer saved that step before."""

    step: int
    attempt: int
    state: dict[str, Any]
    mesh: dict[str, Any] = field(default_factory=dict)
    placements: dict[str, Any] = field(default_factory=dict)


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


class Writer:
    """The process: trainers come and go, the memory stays."""

    def __init__(self, run: RunDirectory, rank: int, listener: socket.socket, clock: Clock):
        self._run, self._rank, self._listener, self._clock = run, rank, listener, clock
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._outbox: deque[tuple[Job, str, dict[str, Any]]] = deque()
        self._flusher = Flusher(run, rank, clock, self._tell)
        self._log = OutcomeLog(run, clock)
        self._visitors: list[Channel] = []
        self._trainer: Channel | None = None
        self._attachment: Attachment | None = None
        self._waiting: tuple[Channel, Attachment] | None = None  # wants the memory that is still being written
        self._memory: Memory | None = None
        self._held: str | None = None  # the checkpoint whose whole data file lies in memory
        self._in_use = 0  # sealed snapshots whose bytes are still needed
        self._last_freed: Job | None = None
        self._ending = False
        self._alone_since_ns = clock.stamp().boot_ns

    def serve(self) -> None:
        """Until there is nothing left to do and nobody to do it for."""
        while not self._is_over():
            sockets: list[Any] = [self._listener, self._wake_read, *self._visitors]
            for ready in readable(sockets, 1.0):
                if ready is self._listener:
                    self._welcome()
                elif ready == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif ready in self._visitors:
                    self._hear(ready)
            self._pass_on()
            self._attach_who_waits()

    def _is_over(self) -> bool:
        alone_ns = self._clock.stamp().boot_ns - self._alone_since_ns if self._trainer is None else 0
        linger_seconds = self._attachment.linger_seconds if self._attachment else 30.0
        if self._flusher.busy or self._flusher.mirroring.busy or self._outbox:
            return self._trainer is None and alone_ns > FINISH_SECONDS * 1e9
        if self._trainer is not None or self._waiting is not None or (self._visitors and not self._ending):
            return False  # a visitor may be reading the memory, and about to attach
        return self._ending or alone_ns > linger_seconds * 1e9

    def _welcome(self) -> None:
        with contextlib.suppress(HeadwayError, OSError):
            self._visitors.append(Channel(self._listener.accept()[0]))

    def _hear(self, channel: Channel) -> None:
        """What it has said, whole; half a message waits for its other half, and nobody waits for it."""
        messages, ended = channel.drain()
        for message in messages:
            for descriptor in message.descriptors:  # nobody sends a writer any
                os.close(descriptor)
            if channel not in self._visitors:
                return
            try:
                self._answer(channel, message)
            except TimeoutError:
                self._lose(channel)
            except OSError:
                pass  # it has gone in the middle of an answer; its end comes by itself
            except HeadwayError as error:
                self._send(channel, "refused", error=str(error))
        if ended:
            self._lose(channel)

    def _answer(self, channel: Channel, message: Message) -> None:
        body = {key: value for key, value in message.body.items() if key != "kind"}
        if message.kind == "hello":
            capacity = self._memory.nbytes if self._memory else 0
            self._send(channel, "hello", pid=os.getpid(), held=self._held, capacity=capacity, busy=bool(self._flusher.busy))
        elif message.kind == "lend":
            self._lend(channel)
        elif message.kind == "attach":
            self._wants_in(channel, from_plain(Attachment, body, "attach"))
        elif message.kind == "end":
            self._ending = True
            self._flusher.hurry(True)
        elif channel is self._trainer:
            self._obey(message.kind, body)

    def _obey(self, kind: str, body: dict[str, Any]) -> None:
        """What only the trainer may say."""
        assert self._attachment is not None
        assert self._memory is not None
        if kind == "begin":
            self._held = None
        elif kind == "seal":
            seal = from_plain(Seal, body, "seal")
            job = Job(attachment=self._attachment, seal=seal, began_ns=self._clock.stamp().boot_ns)
            self._held, self._in_use = str(job.name), self._in_use + 1
            self._note(SEALED, job)
            self._flusher.put(job, self._memory)
        elif kind == "hurry":
            self._flusher.hurry(bool(body.get("on", True)))

    def _lend(self, channel: Channel) -> None:
        if self._memory is None:
            self._send(channel, "refused", error="nothing is held")
            return
        descriptor = self._memory.read_only()
        try:
            channel.send("lent", (descriptor,), held=self._held)
        finally:
            os.close(descriptor)

    def _wants_in(self, channel: Channel, attachment: Attachment) -> None:
        """A newer segment takes the place of an older one; an older one is refused (its supervisor was replaced)."""
        in_file_order(list(attachment.parts))  # refused now, not when there is room
        now = self._attachment if self._trainer is not None else None
        others = [other for other in (now, self._waiting[1] if self._waiting else None) if other is not None]
        newest = max((other.segment for other in others), default=None)
        if newest is not None and attachment.segment <= newest:
            raise RunError(f"segment {newest} is attached to this writer", "only a newer segment may take its place")
        if self._waiting is not None:
            self._send(self._waiting[0], "refused", error=f"segment {attachment.segment} is newer")
        self._waiting = (channel, attachment)

    def _attach_who_waits(self) -> None:
        if self._waiting is None or self._in_use:
            return
        (channel, attachment), self._waiting = self._waiting, None
        ordered = in_file_order(list(attachment.parts))
        needed = len(file_header(ordered, attachment.segment, 0, self._rank)) + sum(part.nbytes for part in ordered)
        try:
            self._make_room(needed)
        except OSError as error:
            self._send(channel, "refused", error=str(from_os_error(error, "memory", f"no room for {needed:,} bytes")))
            return
        assert self._memory is not None
        self._trainer, self._attachment, self._ending = channel, attachment, False
        self._flusher.hurry(False)
        with contextlib.suppress(OSError):
            channel.send("ready", (self._memory.descriptor,), bytes=self._memory.nbytes)

    def _make_room(self, nbytes: int) -> None:
        """Memory that is large enough stays as it is: its pages are in place.

        Not where a trainer that is being replaced is still connected: it may go on copying into the memory that it has mapped.
        """
        if self._memory is not None and self._trainer is None and self._memory.nbytes >= nbytes:
            return
        old, self._held = self._memory, None
        if old is not None and self._trainer is None:  # never two at a time where it can be helped
            old.close()
            self._memory = None
        self._memory = Memory(nbytes)
        if old is not None and self._trainer is not None:
            old.close()

    def _lose(self, channel: Channel) -> None:
        """End of file. If it was the trainer: what is sealed is finished, at full speed."""
        if channel in self._visitors:
            self._visitors.remove(channel)
        if self._waiting is not None and self._waiting[0] is channel:
            self._waiting = None
        if channel is self._trainer:
            self._trainer, self._alone_since_ns = None, self._clock.stamp().boot_ns
            self._flusher.hurry(True)
        channel.close()

    def _tell(self, job: Job, kind: str, **fields: Any) -> None:
        """From the flusher's thread."""
        self._outbox.append((job, kind, fields))
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")

    def _pass_on(self) -> None:
        """Outcomes go on record first, then to the trainer whose save it was."""
        while self._outbox:
            job, kind, fields = self._outbox[0]
            if kind == "written" or kind in (FAILED, "crashed"):
                self._free(job)
            if kind in (COMMITTED, FAILED, "crashed"):
                self._note(FAILED if kind == "crashed" else kind, job, **fields)
            self._send_to_trainer(job, kind, fields)
            self._outbox.popleft()

    def _free(self, job: Job) -> None:
        """Once per job: a save that fails at the commit had its bytes written before."""
        if job is not self._last_freed:
            self._last_freed = job
            self._in_use -= 1

    def _send_to_trainer(self, job: Job, kind: str, fields: dict[str, Any]) -> None:
        if self._trainer is not None and self._attachment is job.attachment:
            self._send(self._trainer, kind, checkpoint=str(job.name), step=job.seal.step, **fields)

    def _send(self, channel: Channel, kind: str, **fields: Any) -> None:
        """A trainer that has died hears nothing any more, but what it sealed before may still wait to be read: go on reading."""
        try:
            channel.send(kind, **fields)
        except TimeoutError:  # it is there and does not read: what it would send is of no use either
            self._lose(channel)
        except OSError:
            pass

    def _note(self, kind: str, job: Job, **fields: Any) -> None:
        """On record, by the coordinator; storage that refuses the line has refused worse before."""
        if self._rank == 0:
            with contextlib.suppress(HeadwayError):
                self._log.append(kind, job.attachment.segment, str(job.name), step=job.seal.step, **fields)


def _lower_priority() -> None:
    """Of this thread alone, as Linux has it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def main(arguments: list[str]) -> int:
    """``python -m headway.store.writer RUN RANK DESCRIPTOR``: serve on the listening socket that was handed over."""
    root, rank, descriptor = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # it ends when its work does
        signal.signal(number, signal.SIG_IGN)
    run = RunDirectory.open(root)
    failpoints.arm(run.root, rank)
    listener = socket.socket(fileno=descriptor)
    listener.listen(8)  # again: now whoever connects sees this process as the one that listens
    Writer(run, rank, listener, SystemClock()).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
