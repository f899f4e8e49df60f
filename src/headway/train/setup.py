"""Set-up in small functions that return one ``TrainRun``: everything the loop touches, built once, checked against the world.

Errors as a map: a Spec or data that do not belong together are configuration errors, a missing directory an environment
error, a damaged checkpoint a run error. The Spec is only checked here, never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.base import failpoints
from headway.base.clocks import Clock, SystemClock
from headway.base.digests import digest_json
from headway.base.errors import RunError
from headway.checkpoint.load import Sources, load_state
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.data.place import CacheOptions, open_place
from headway.data.prefetch import Prefetcher
from headway.data.reader import TokenReader, refuse_moved
from headway.data.stream import Stream, stream_digests
from headway.data.tokenizer import Tokenizer
from headway.parallel.group import Member
from headway.parallel.mesh import Axes
from headway.parallel.replica_groups import GroupPlace
from headway.parallel.waits import watch_waits
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.recipe.spike_rules import SpikeRules
from headway.rundir.heartbeats import RESTORE, Heart
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.processes import start_ticks
from headway.rundir.segments import Segment, current_chain, in_force, layout_of, read_segments, stream_record
from headway.store.manifest import Manifest
from headway.train.cadence import Cadence
from headway.train.crew import ALONE, Crew, Unwritten, join
from headway.train.environment import differences, full_environment
from headway.train.feed import Feed, Replica, StepBatch
from headway.train.groups import Groups, OneGroup, Unsaved, inner_axes
from headway.train.soundness.check import CheckPolicy, Soundness
from headway.train.spikes import SpikeWatch
from headway.train.stop import Stop, StopRequest
from headway.train.trainee import Trainee, build_trainee

PREFETCH_STEPS = 4
APPEARS_SECONDS = 30.0
"""How long a rank waits for a checkpoint that others see already."""


@dataclass(frozen=True)
class TrainPolicy:
    """The part of the resolved deployment that the trainer obeys. Steps are updates."""

    threads: int
    micro_batch_tokens: int
    saves: SavePolicy
    state_digest_every: int
    checks: CheckPolicy

    @staticmethod
    def of(deployment: dict[str, Any]) -> TrainPolicy:
        checkpoints = deployment["checkpoints"]
        return TrainPolicy(
            threads=deployment["threads"],
            micro_batch_tokens=deployment["micro_batch"],
            saves=save_policy(checkpoints),
            state_digest_every=deployment["state_digest_every"],
            checks=CheckPolicy.of(deployment),
        )


def save_policy(checkpoints: dict[str, Any]) -> SavePolicy:
    """From a resolved deployment; runs that were created before a key existed have its default."""
    names = ("keep_last", "permanent_every", "keep_best", "budget", "when_busy", "flush_speed", "mirror", "mirror_every")
    given = {name: checkpoints[name] for name in names if name in checkpoints}
    linger = {"linger_seconds": checkpoints["snapshot_linger"]} if "snapshot_linger" in checkpoints else {}
    return SavePolicy(**given, **linger)


@dataclass
class TrainRun:
    """Everything the loop touches. ``step`` counts the updates done."""

    directory: RunDirectory
    chain: list[Segment]  # as it stood when this segment started; the segment is its last
    clock: Clock
    spec: Spec
    policy: TrainPolicy
    schedule: Schedule
    trainee: Trainee
    tokenizer: Tokenizer
    reader: TokenReader
    feed: Feed
    log: StepLog
    saver: Saver
    cadence: Cadence
    sound: Soundness
    spikes: SpikeWatch
    stop: Stop
    environment: dict[str, Any]
    heart: Heart = field(default_factory=Heart)
    crew: Crew = ALONE
    groups: OneGroup = field(default_factory=OneGroup)  # of replicas
    place: Place | None = None  # of this rank among those that save
    until: int = 0  # the last step of this segment: of the run, or before another layout takes over
    phases_ns: dict[str, int] = field(default_factory=dict)  # of the start
    unwatch: Callable[[], None] = lambda: None  # ends the timing of waits
    step: int = 0
    first_step: int = 0  # that this process began with
    committed_step: int = 0  # of the newest checkpoint that is known to be committed
    ordinal: int = 0  # of the newest save along the chain, counted from 1; one that failed gives its number back
    save_error: str = ""  # of the newest save that failed
    skipped: int = 0  # updates left out in a row because the gradient was bad; 0 in every checkpoint
    owes: bool = False  # a stop came before an evaluation or a sample of this step was on record
    _prefetcher: Prefetcher[StepBatch] | None = field(default=None, repr=False)

    @property
    def segment(self) -> Segment:
        return self.chain[-1]

    @property
    def is_new_shape(self) -> bool:
        """The first step of a process and of a stage: whatever is compiled or tuned is made ready in it."""
        return self.step in (self.first_step, self.schedule.first_step(self.schedule.place(self.step).stage))

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """int64 by id: bytes of text that a token stands for."""
        return self.tokenizer.token_bytes()

    def batches(self) -> Prefetcher[StepBatch]:
        """The prefetcher, started at the current step on first use."""
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self.feed.fetch, self.step, PREFETCH_STEPS, end=self.until, on_stall=self._record_stall)
        return self._prefetcher

    def refetch(self, replica: Replica) -> None:
        """From the current step on, the share of ``replica``."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None
        self.feed.replica = replica

    def _record_stall(self, waited_ns: int) -> None:
        """A reader that stalls is named while it stalls, not after a time-out (D12)."""
        self.log.write("stall", step=self.step, waited_ns=waited_ns, shard=self.reader.reading, rest="data_stall")

    def close(self, *, comes_back: bool = False) -> None:
        """``comes_back``: another attempt is expected, and may find the newest snapshot in memory."""
        self.saver.close(stays=comes_back)
        if self._prefetcher is not None:
            self._prefetcher.close()
        self.reader.close()
        self.groups.close()
        self.unwatch()
        self.heart.close()


def set_up(
    run_root: Path,
    segment_id: int,
    stop: StopRequest,
    clock: Clock | None = None,
    member: Member | None = None,
    group: GroupPlace | None = None,
) -> TrainRun:
    """Build the run of ``segment_id``: ranks, data, model, optimiser, and the state that the segment restores.

    ``member``: which of several processes this is (None: the only one); of its ``group``, where there are several.
    """
    directory, clock = RunDirectory.open(run_root), clock or SystemClock()
    rank, world = (group.global_rank, group.groups * group.world) if group else (member.rank, member.world) if member else (0, 1)
    failpoints.arm(directory.root, rank)
    info, spec = directory.info(), directory.spec()
    chain = chain_of(directory, segment_id)
    schedule = Schedule(spec, chain[-1].rates)
    deployment, phases = in_force(chain[-1], info["deployment"]), Phases(clock)
    axes, policy = axes_at(chain[-1].restored_step, schedule, deployment), TrainPolicy.of(deployment)
    torch.set_num_threads(policy.threads)
    environment = full_environment(f"{axes}, in groups" if group else str(axes))
    axes, groups = inner_axes(axes, group), Groups(group) if group else OneGroup()
    log = log_of(directory, segment_id, clock, rank)
    heart = Heart.start(directory, segment_id, rank, world)
    log.write("start", pid=os.getpid(), environment=environment, spec_digest=spec.digest())

    crew = join(member, axes, given_up=lambda: stop)
    phases.mark("group")
    heart.tick()
    unwatch = watch_waits(heart.blocked)
    reader, tokenizer = open_data(info["data"], spec, CacheOptions.of(deployment))
    stream = Stream.of_segment(spec, chain[-1])
    feed = Feed(stream, reader, schedule, policy.micro_batch_tokens, crew.replica)
    phases.mark("data")
    trainee = build_trainee(spec, crew.mesh, axes)
    phases.mark("model")
    heart.tick()
    place = crew.place(directory, segment_id)
    saves = replace(policy.saves, back_steps=SpikeRules.of(spec).keeps_back_steps)
    saver = Saver(place, saves, clock) if groups.leads else Unsaved()
    cadence = Cadence(directory, deployment, clock, log)
    sound, spikes = Soundness(policy.checks, trainee, crew, log), SpikeWatch(chain[-1], stream, schedule, crew)
    trainee.veto = spikes.veto
    watched = (saver, cadence, sound, spikes, Stop(stop, crew), environment)
    parts = (spec, policy, schedule, trainee, tokenizer, reader, feed, log, *watched)
    until = end_of_layout(chain[-1].restored_step, schedule, deployment)
    started: dict[str, Any] = {"heart": heart, "crew": crew, "groups": groups, "place": place, "unwatch": unwatch}
    run = TrainRun(directory, chain, clock, *parts, until=until, phases_ns=phases.ns, **started)
    saver.on_wait = lambda: say_waiting(run)
    log.mark("init")
    restore(run)
    return run


def log_of(directory: RunDirectory, segment: int, clock: Clock, rank: int) -> StepLog:
    """One rank writes the rows of all."""
    return Unwritten(directory, segment, rank, clock) if rank else StepLog(directory, segment, clock)


def axes_at(step: int, schedule: Schedule, deployment: dict[str, Any]) -> Axes:
    """The layout of the stage that trains after ``step``."""
    return Axes.of(layout_of(deployment, schedule.spec.stages[schedule.place(step).stage].name))


def end_of_layout(step: int, schedule: Schedule, deployment: dict[str, Any]) -> int:
    """The first step after ``step`` that another layout trains; the last of all if there is none."""
    stages, axes = range(schedule.place(step).stage + 1, len(schedule.spec.stages)), axes_at(step, schedule, deployment)
    starts = (schedule.first_step(stage) for stage in stages)
    return next((first for first in starts if axes_at(first, schedule, deployment) != axes), schedule.total_steps)


class Phases:
    """How long each part of a start took, in ns; the first is all that came before: the interpreter and its imports."""

    def __init__(self, clock: Clock):
        self._clock, self._at = clock, clock.stamp().boot_ns
        began = start_ticks(os.getpid())
        self.ns = {} if began is None else {"import": self._at - round(began * 1e9 / os.sysconf("SC_CLK_TCK"))}

    def mark(self, name: str) -> None:
        now = self._clock.stamp().boot_ns
        self.ns[name], self._at = now - self._at, now


def say_waiting(run: TrainRun) -> None:
    """A row while training waits for a writer: a long flush is no hang. When the run is to stop, the flush need not hold back."""
    if run.stop or run.stop.own:
        run.saver.hurry()
    run.heart.tick()
    run.log.write("waiting", step=run.step, reason="an earlier snapshot is being written")


def chain_of(directory: RunDirectory, segment_id: int) -> list[Segment]:
    """The current chain, if this segment is its newest: a trainer that was replaced before it began goes no further."""
    chain = current_chain(read_segments(directory))
    if not chain or chain[-1].id != segment_id:
        raise RunError(
            f"segment {segment_id} is not the newest segment recorded in {directory.root}",
            "the supervisor records a segment before it starts, and only the newest may train",
            "start training with headway run or headway resume",
        )
    return chain


def open_data(where: str | Path, spec: Spec, cache: CacheOptions | None = None) -> tuple[TokenReader, Tokenizer]:
    """The built data, only if it is the data that the Spec was frozen with (D9)."""
    refuse_moved(where)
    place = open_place(where, cache)
    reader = TokenReader.open(place, spec)
    entry = reader.manifest.tokenizer
    return reader, Tokenizer.load(place.directory / entry.file, entry.document_token)


def restore(run: TrainRun) -> None:
    """Load exactly the checkpoint that the segment names; nothing else is ever tried here. A replica group that was started again
    is handed the state by the others."""
    name, changed, from_memory, checked = run.segment.checkpoint if not run.groups.is_behind else None, [], False, {}
    images = run.saver.images(name)
    if not images:
        run.saver.attach(run.trainee.saved_state())  # memory is filled while this one reads
    run.heart.enter(RESTORE, run.step)
    began_ns = run.clock.stamp().boot_ns
    if name is not None:
        sources = Sources(
            images=images, together=run.crew.together, appears_seconds=APPEARS_SECONDS if run.crew.together else 0.0
        )
        loaded = load_state(run.directory.checkpoints / name, run.trainee.state(), sources)
        manifest, from_memory = loaded.manifest, bool(loaded.from_memory)
        check_cursor(run, manifest)
        run.step = run.first_step = manifest.step
        run.trainee.updates = manifest.state["updates"]
        run.committed_step, run.ordinal = manifest.step, manifest.state.get("ordinal", 0)
        run.trainee.optimizer.restore_step(run.trainee.updates)
        run.spikes.restore(manifest.state.get("spikes"))
        run.trainee.compute.refresh()
        changed, checked = differences(manifest.state["environment"], run.environment), manifest.state.get("checked", {})
    if images:
        run.saver.attach(run.trainee.saved_state())  # the memory just read is the one that the next snapshot goes into
    run.saver.prepare()
    run.phases_ns["restore"] = run.clock.stamp().boot_ns - began_ns
    run.log.mark("restore")
    run.log.write(
        "restored",
        step=run.step,
        checkpoint=name,
        determinism="within tolerance" if changed else "bitwise",
        differences=changed,
        from_memory=from_memory,
        phases_ns=run.phases_ns,
    )
    run.cadence.begin(run.step)
    run.sound.begin(run.directory, run.segment, run.step, checked)


def check_cursor(run: TrainRun, manifest: Manifest) -> None:
    """The checkpoint must be this run's, at the position that this Spec and this stream give to the same step."""
    writer = next((segment for segment in run.chain if segment.id == run.segment.parent), run.segment)
    here = cursor(run, manifest.step, writer) | {"run_id": run.directory.info()["run_id"], "spec_digest": run.spec.digest()}
    saved = manifest.state["cursor"] | {key: manifest.state.get(key) for key in ("run_id", "spec_digest")}
    wrong = [key for key in here if saved.get(key) != here[key]]
    if manifest.step != run.segment.restored_step or wrong:
        raise RunError(
            f"the checkpoint's {', '.join(wrong) or 'step'} is not this run's",
            f"saved: {saved}; expected: {here}",
            "a run goes on from its own checkpoints only: restore the right one, or start a new run",
        )


def cursor(run: TrainRun, step: int, segment: Segment | None = None) -> dict[str, Any]:
    """The whole position of the stream after ``step`` updates (CONTRACTS section 2), as ``segment`` (this one) reads it."""
    place = run.schedule.place(step)
    return {
        "stage": place.stage,
        "u": place.first_sequence,
        "streams": stream_digests(run.spec)[: place.stage + 1],
        "record": digest_json(stream_record(segment or run.segment)),
    }
