"""Asynchronous saves: training stands still for one copy of the state, and goes on while a writer makes it durable.

    state (params, moments, on any device) --copy--> memory file, laid out as the data file --writer--> checkpoint
                                                     one per rank, filled in advance                    committed, told later

The memory is free again when this rank's file is written. A save that comes due before is left out, or waits, as the policy
says. What became of each save is heard by ``poll``: nothing is called saved before it is committed.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from headway.base import failpoints
from headway.base.clocks import Clock, SystemClock
from headway.base.digests import canonical_json
from headway.base.errors import EnvironmentFault, HeadwayError, RunError
from headway.checkpoint.rectangles import LocalPart, local_parts
from headway.checkpoint.tensors import DTYPES
from headway.rundir.layout import RunDirectory
from headway.store.names import CheckpointName, data_file
from headway.store.rectangle import Part, file_header, in_file_order, places
from headway.store.save import enter_save
from headway.store.writer.client import WriterClient
from headway.store.writer.coordinate import leave_failure
from headway.store.writer.outcomes import COMMITTED, FAILED
from headway.store.writer.protocol import Attachment, Seal
from headway.store.writer.wire import Message

STUCK_SECONDS, SLOWEST_BYTES_PER_SECOND = 60.0, 10e6
"""A writer that says nothing about a sealed save for so long, and for what its bytes take at this speed (half of a
``flush_speed`` that is lower), and for ten times its longest save, is stuck: it is ended, and the save has failed."""
WAIT_SECONDS = 5.0
"""Between two calls of ``on_wait`` while training waits for a writer."""


@dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """The part of the deployment that concerns saves, besides their cadence."""

    keep_last: int
    permanent_every: int = 0
    keep_best: int = 0
    back_steps: int = 0
    budget: int | None = None
    when_busy: str = "skip"
    flush_speed: float | None = None
    linger_seconds: float = 300.0
    commit_seconds: float = 120.0
    mirror: str | None = None
    mirror_every: int = 1

    def attachment(self, segment: int, world: int, parts: tuple[Part, ...]) -> Attachment:
        return Attachment(
            segment=segment,
            world=world,
            parts=parts,
            keep_last=self.keep_last,
            permanent_every=self.permanent_every,
            keep_best=self.keep_best,
            back_steps=self.back_steps,
            budget=self.budget,
            flush_speed=self.flush_speed,
            linger_seconds=self.linger_seconds,
            commit_seconds=self.commit_seconds,
            mirror=self.mirror,
            mirror_every=self.mirror_every,
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which trainer of which run this is. ``holder`` of ``holders``: its place among the ranks that hold tensors of the same
    names, as those of a pipeline stage do (None: among all)."""

    run: RunDirectory
    segment: int
    rank: int = 0
    world: int = 1
    holder: int | None = None
    holders: int | None = None

    def parts(self, tensors: dict[str, torch.Tensor]) -> list[LocalPart]:
        """What this rank writes of a state."""
        at, of = (self.rank, self.world) if self.holder is None else (self.holder, self.holders or 1)
        return local_parts(tensors, at, of)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A sealed snapshot: not yet a checkpoint. ``blocking_ns``: that training stood still for it."""

    name: str
    step: int
    nbytes: int
    blocking_ns: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the writer told. ``kind``: committed, failed, pruned, retention_failed, over_budget, mirrored or mirror_failed."""

    kind: str
    step: int
    checkpoint: str
    fields: dict[str, Any] = field(default_factory=dict)


class Saver:
    """One rank's saves.

    Saver(...)    finds the writer of an earlier trainer      images(name)    what of a checkpoint lies in its memory
    attach(state) asks for memory, or starts a writer         prepare()       waits for it
    save(...)     at step boundaries                          poll, settle    what became of it         close
    """

    def __init__(self, place: Place, policy: SavePolicy, clock: Clock | None = None):
        self._place, self._policy, self._clock = place, policy, clock or SystemClock()
        self._writer = WriterClient.find(place.run, place.rank)
        self._buffer: Buffer | None = None
        self._attached = False
        self._open: dict[str, Snapshot] = {}  # sealed, outcome unknown
        self._unwritten: set[str] = set()  # of these, whose bytes are still needed
        self._attempts: dict[int, int] = {}  # saves begun, by step
        self._heard_ns = self._longest_ns = 0
        self._told: list[Outcome] = []
        self._stuck = False
        self.on_wait: Callable[[], None] = lambda: None
        """Called now and then while training waits, so that nobody takes the wait for a hang."""

    def images(self, checkpoint: str | None) -> dict[str, memoryview]:
        """This rank's data file of ``checkpoint`` in the memory that an earlier trainer left; empty where it is not there."""
        if self._writer is None or self._writer.held != checkpoint:
            return {}
        memory = self._writer.lend()
        return {data_file(self._place.rank): memory} if memory is not None else {}

    def attach(self, tensors: dict[str, torch.Tensor]) -> None:
        """Ask a writer for memory of this state's size. Returns at once: memory is filled while set-up goes on."""
        ordered = tuple(in_file_order([local.part for local in self._place.parts(tensors)]))
        self._ask_for(Buffer(ordered))

    def _ask_for(self, buffer: Buffer) -> None:
        """A writer that has ended since it was found is replaced."""
        attachment = self._policy.attachment(self._place.segment, self._place.world, buffer.parts)
        for _ in range(2):
            if self._writer is None or self._writer.gone:
                self._writer = WriterClient.start(self._place.run, self._place.rank)
            self._writer.attach(attachment)
            if not self._writer.gone:
                break
        self._buffer, self._attached = buffer, False

    @property
    def busy(self) -> bool:
        """The memory is not free: an earlier snapshot is still being written."""
        return bool(self._unwritten)

    @property
    def under_way(self) -> int:
        """Sealed snapshots whose outcome is not known yet."""
        return len(self._open)

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> Snapshot | None:
        """Copy the state and hand it over. None where an earlier one is still being written and the policy is to skip.

        EnvironmentFault when there is no memory to copy into.
        """
        began_ns = self._clock.stamp().boot_ns
        check_plain(state)
        self._listen(0.0)
        if self.busy and self._policy.when_busy == "skip" and self._place.world == 1:
            return None  # several ranks wait: each would leave out another step, and none would be whole
        self._wait(lambda: self.busy)
        parts = self._place.parts(tensors)
        attempt = self._attempts.get(step, 0)
        self._attempts[step] = attempt + 1  # also of one that fails here: all ranks count alike, and name a save alike
        buffer = self._ready_or_told(tensors, parts, CheckpointName(self._place.segment, step, attempt))
        assert self._writer is not None
        failpoints.hit("snapshot.begin", step)
        self._writer.begin()
        buffer.copy(parts)
        failpoints.hit("snapshot.copied", step)
        self._writer.seal(Seal(step=step, attempt=attempt, state=state))
        name = str(CheckpointName(self._place.segment, step, attempt))
        now_ns = self._clock.stamp().boot_ns
        snapshot = Snapshot(name=name, step=step, nbytes=buffer.nbytes, blocking_ns=now_ns - began_ns)
        self._open[name], self._heard_ns = snapshot, now_ns
        self._unwritten.add(name)
        failpoints.hit("snapshot.sealed", step)
        return snapshot

    def poll(self) -> list[Outcome]:
        """What was told since. A writer that died has failed what it had; the next save starts another."""
        self._listen(0.0)
        told, self._told = self._told, []
        return told

    def settle(self) -> list[Outcome]:
        """Wait, at full speed, until every sealed snapshot has its outcome."""
        if self._open and self._writer is not None:
            self._writer.hurry()
        self._wait(lambda: bool(self._open))
        if self._writer is not None and not self._writer.gone:
            self._writer.hurry(False)
        return self.poll()

    def hurry(self) -> None:
        """What is under way is written at full speed: nobody trains beside it."""
        if self._writer is not None:
            self._writer.hurry()

    def _wait(self, condition: Callable[[], bool]) -> None:
        said_ns = self._clock.stamp().boot_ns
        while condition():
            self._listen(0.5)
            if self._clock.stamp().boot_ns - said_ns > WAIT_SECONDS * 1e9:
                said_ns = self._clock.stamp().boot_ns
                self.on_wait()

    def close(self, *, stays: bool) -> None:
        """``stays``: the memory is kept for the next trainer for a while. Else the writer ends with its work."""
        if self._writer is not None and not self._writer.gone and not stays:
            self._writer.bye()

    def _ready_or_told(self, tensors: dict[str, torch.Tensor], parts: list[LocalPart], name: CheckpointName) -> Buffer:
        """As ``_ready``; of several ranks, one that has no memory tells the coordinator, who would wait for its receipt."""
        try:
            return self._ready(tensors, parts)
        except EnvironmentFault as error:
            if self._place.world > 1:
                with contextlib.suppress(HeadwayError):
                    leave_failure(enter_save(self._place.run.checkpoints, name), self._place.rank, error)
            raise

    def _ready(self, tensors: dict[str, torch.Tensor], parts: list[LocalPart]) -> Buffer:
        """The buffer for exactly these parts; a new writer where the old one has gone, or where the state changed its kind."""
        ordered = tuple(in_file_order([local.part for local in parts]))
        if self._writer is None or self._writer.gone:
            self._writer = None
            self.attach(tensors)
        elif self._buffer is None or self._buffer.parts != ordered:
            raise RunError(
                "the state has other tensors than at the start of this segment",
                "names, shapes and dtypes of a state are fixed while a segment runs",
                "this is a fault of Headway's: please report it",
            )
        assert self._writer is not None
        assert self._buffer is not None
        self.prepare()
        return self._buffer

    def prepare(self) -> None:
        """Wait for the memory, so that the first save is as short as the others. EnvironmentFault where there is none."""
        if self._writer is not None and self._buffer is not None and not self._attached:
            try:
                memory = self._writer.ready()
            except EnvironmentFault:
                had_ended = self._writer.gone
                self._writer.leave()  # the next save asks another
                if not had_ended:
                    raise
                self._ask_for(self._buffer)
                memory = self._writer.ready()
            self._buffer.into(memory)
            self._attached = True

    def _listen(self, timeout_seconds: float) -> None:
        if self._writer is None:
            return
        for message in self._writer.poll(timeout_seconds):
            self._hear(message)
        if self._open and self._clock.stamp().boot_ns - self._heard_ns > self._stuck_ns():
            self._writer.kill()
            self._stuck = True
        if self._writer.gone:
            what = "was ended, since it did not move any more" if self._stuck else "died"
            for name in list(self._open):
                self._finish(name, FAILED, {"error": f"the checkpoint writer {what}; the next save starts another"})
            self._stuck = False

    def _stuck_ns(self) -> float:
        nbytes = self._buffer.nbytes if self._buffer is not None else 0
        slowest = min(SLOWEST_BYTES_PER_SECOND, (self._policy.flush_speed or math.inf) / 2)
        return max((STUCK_SECONDS + nbytes / slowest) * 1e9, 10 * self._longest_ns)

    def _hear(self, message: Message) -> None:
        name, step = message.body.get("checkpoint"), message.body.get("step")
        if not isinstance(name, str) or not isinstance(step, int):
            return
        fields = {key: value for key, value in message.body.items() if key not in ("kind", "checkpoint", "step")}
        self._heard_ns = self._clock.stamp().boot_ns
        self._longest_ns = max(self._longest_ns, fields.get("flush_ns", 0))
        if message.kind == "written":
            self._unwritten.discard(name)
            if self._place.rank != 0:
                self._open.pop(name, None)
        elif message.kind in (COMMITTED, FAILED, "crashed"):
            self._finish(name, FAILED if message.kind == "crashed" else message.kind, fields)
        elif message.kind in ("pruned", "retention_failed", "over_budget", "mirrored", "mirror_failed"):
            self._told.append(Outcome(kind=message.kind, step=step, checkpoint=name, fields=fields))

    def _finish(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        snapshot = self._open.pop(name, None)
        self._unwritten.discard(name)
        if snapshot is not None:
            known = {"blocking_ns": snapshot.blocking_ns, "bytes": snapshot.nbytes}
            self._told.append(Outcome(kind=kind, step=snapshot.step, checkpoint=name, fields={**fields, **known}))


class Buffer:
    """The memory file as tensors: one view per part, where its bytes lie in the data file."""

    def __init__(self, ordered: tuple[Part, ...]):
        self.parts = ordered
        self.nbytes = sum(part.nbytes for part in ordered)
        self._views: dict[str, torch.Tensor] = {}
        self._memory: memoryview | None = None

    def into(self, memory: memoryview) -> None:
        """Lie over ``memory``; on a machine with CUDA it is pinned, so that copies from devices run at full speed."""
        at = places(self.parts, len(file_header(self.parts, 0, 0, 0)))
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        if torch.cuda.is_available():  # where it cannot be pinned, copies are slower, and right
            torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.numel(), 0)
            weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, whole.data_ptr())
        self._memory = memory  # the views do not hold it
        self._views = {part.key(): _view(whole, start, part) for part, start in zip(self.parts, at)}

    def copy(self, parts: list[LocalPart]) -> None:
        """All values, at once; returns when they are there."""
        sources = [local.values for local in parts if local.part.nbytes]
        targets = [self._views[local.part.key()] for local in parts if local.part.nbytes]
        on_device = any(source.device.type != "cpu" for source in sources)
        if sources:
            torch._foreach_copy_(targets, sources, non_blocking=on_device)
        if on_device:
            torch.cuda.synchronize()


def check_plain(state: dict[str, Any]) -> None:
    """RunError unless ``state`` is plain JSON: said before anything is copied."""
    try:
        canonical_json(state)
    except (TypeError, ValueError) as error:
        raise RunError(f"the state beside the tensors is no plain JSON: {error}", "numbers are finite, keys are text") from error


def _view(whole: torch.Tensor, start: int, part: Part) -> torch.Tensor:
    return whole[start : start + part.nbytes].view(DTYPES[part.dtype]).view(part.shape)
