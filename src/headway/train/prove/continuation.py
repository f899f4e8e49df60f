"""A training that is killed and goes on from its checkpoint: under the same layout to the bit, under another within tolerance.

    steps    0 ---------- save ------- kill            one layout, every process ended by SIGKILL
                            '----------------- end     the same layout, another, one process
    compared with 0 --------------------------- end    of the first layout, uninterrupted

Saved and loaded by the steps that a run's checkpoints take: rectangles of each rank, receipts, manifest, digests.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from headway.checkpoint.load import Sources, load_state
from headway.checkpoint.rectangles import local_rectangles
from headway.parallel.group import limit_waits
from headway.parallel.local_ranks import TIMEOUT_SECONDS
from headway.parallel.mesh import Axes, Mesh
from headway.store.names import CheckpointName
from headway.store.save import ManifestFields, commit, enter_save, write_rank
from headway.train.feed import Replica
from headway.train.prove.batches import RandomFeed
from headway.train.prove.rank import Work
from headway.train.step import accumulate, train_step
from headway.train.trainee import Trainee, build_trainee

SEGMENT = 1


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of a training, steps from 0 to the last of ``work``. None: nothing is loaded, saved on the way, nobody killed.

    ``root``: of checkpoints; ``end``: the attempt under whose name the last state is saved there, one for each leg.
    """

    work: Work
    root: str
    end: int
    load: int | None = None
    save: int | None = None
    kill: int | None = None


@dataclass(frozen=True)
class Ended:
    """Losses of the leg's steps, from ``first``; and what was saved behind the last one, as its manifest says."""

    first: int
    losses: list[float]
    state_digest: str


def train_alone(leg: Leg) -> Ended:
    return _train(leg, build_trainee(leg.work.spec), Replica())


def train_rank(leg: Leg, axes: Axes) -> Ended | None:
    """One rank of the default group; rank 0 has the answer."""
    mesh = Mesh(axes)
    limit_waits(TIMEOUT_SECONDS)
    ended = _train(leg, build_trainee(leg.work.spec, mesh), Replica(mesh.replica, axes.replicas))
    return ended if dist.get_rank() == 0 else None


def _train(leg: Leg, trainee: Trainee, replica: Replica) -> Ended:
    feed = RandomFeed(leg.work.spec, leg.work.micro_sequences, replica)
    first = 0 if leg.load is None else leg.load
    if leg.load is not None:
        _load(leg, trainee)
    losses = []
    for step in range(first, leg.work.steps):
        if step == leg.save:
            _save(leg, trainee, step)
        if step == leg.kill:
            accumulate(trainee, feed.fetch(step))
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(train_step(trainee, feed.fetch(step), feed.schedule.rate(step)).loss)
    return Ended(first, losses, _save(leg, trainee, leg.work.steps))


def _save(leg: Leg, trainee: Trainee, step: int) -> str:
    """The digest of the state, on rank 0."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if trainee.mesh is not None else (0, 1)
    attempt = leg.end if step == leg.work.steps else 0
    directory, digest = enter_save(Path(leg.root), CheckpointName(SEGMENT, step, attempt)), ""
    write_rank(directory, local_rectangles(trainee.saved_state(), rank, world), SEGMENT, step, rank=rank, world=world)
    _together(trainee)
    if rank == 0:
        fields = ManifestFields(segment=SEGMENT, step=step, world=world, state={"updates": trainee.updates})
        digest = commit(directory, fields).state_digest
    _together(trainee)
    return digest


def _load(leg: Leg, trainee: Trainee) -> None:
    assert leg.load is not None
    directory = Path(leg.root) / str(CheckpointName(SEGMENT, leg.load))
    manifest = load_state(directory, trainee.state(), Sources(together=trainee.mesh is not None)).manifest
    trainee.updates = manifest.state["updates"]
    trainee.optimizer.restore_step(trainee.updates)
    trainee.compute.refresh()


def _together(trainee: Trainee) -> None:
    if trainee.mesh is not None:
        dist.barrier()
