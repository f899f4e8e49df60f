r"""The writer: a process without torch that turns sealed snapshots into checkpoints, also after its trainer's death.

    trainer                                writer (one per rank, in a session of its own)
    attach: names and shapes          ->   memory file, filled in advance        -> ready + descriptor
    begin; copies its state; seal     ->   hash and write, receipt               -> written: the memory is free again
                                           rank 0: all receipts? manifest        -> committed
                                           reads it back, deletes what may go    -> pruned
    dies  (end of file)                    before the seal: nothing. After it: finishes at full speed, then keeps the
                                           memory for the next trainer for a while (hello, lend, attach)

One thread speaks with trainers, another writes. While training goes on the second one runs at the lowest priority, and no faster
than it is told to. Nothing it is sent is executed; its socket belongs to one user (``wire``).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from typing import Any

from headway.base.clocks import Clock
from headway.base.errors import HeadwayError, RunError, from_os_error
from headway.base.plain import from_plain
from headway.rundir.layout import RunDirectory
from headway.store.names import MANIFEST, parse_name
from headway.store.rectangle import file_header, in_file_order
from headway.store.writer.coordinate import leave_failure
from headway.store.writer.flush import Flusher, Job
from headway.store.writer.memory import Memory
from headway.store.writer.outcomes import COMMITTED, FAILED, SEALED, OutcomeLog
from headway.store.writer.protocol import Attachment, Seal
from headway.store.writer.wire import Channel, Message, readable

FINISH_SECONDS = 600.0
"""A sealed save of a dead trainer is given up after this long: the storage has gone, and the next attempt needs the memory."""


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
        self._sealed: set[str] = set()  # saves that this rank has handed over, or said that it will not
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
            self._say_what_will_not_come()
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
            self._sealed.add(str(job.name))
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

    def _say_what_will_not_come(self) -> None:
        """Once the trainer is gone: another rank may have sealed a save that this one has not, and nobody else can tell."""
        attachment = self._attachment
        if self._trainer is not None or attachment is None or self._rank == 0:
            return
        with contextlib.suppress(OSError):
            for entry in self._run.checkpoints.iterdir():
                name = parse_name(entry.name)
                if name is not None and name.segment == attachment.segment and entry.name not in self._sealed:
                    self._sealed.add(entry.name)  # said once
                    if not (entry / MANIFEST).exists():
                        leave_failure(entry, self._rank, RunError("its trainer ended before it had handed over this save"))

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
