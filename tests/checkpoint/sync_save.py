"""A whole save in one call and one process, by the store's own steps: for tests that need a checkpoint at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headway.base.clocks import Clock, SystemClock
from headway.checkpoint.rectangles import local_rectangles
from headway.rundir.layout import RunDirectory
from headway.store.save import ManifestFields, commit, saving, write_rank


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """A committed checkpoint. ``nbytes``: its data; ``digest``: of the state, as ``checkpoint.digest.state_digest``."""

    name: str
    nbytes: int
    blocking_ns: int
    digest: str


def save_checkpoint(
    run: RunDirectory,
    segment: int,
    step: int,
    tensors: dict[str, torch.Tensor],
    state: dict[str, Any],
    clock: Clock | None = None,
) -> SaveResult:
    """Write and commit ``tensors`` and the small JSON ``state``. Returns after the commit.

    EnvironmentFault names path and cause when the storage fails; older checkpoints are intact and the next save works.
    """
    clock = clock or SystemClock()
    began = clock.stamp().boot_ns
    rectangles = local_rectangles(tensors)
    with saving(run.checkpoints, segment, step) as directory:
        write_rank(directory, rectangles, segment, step, rank=0, world=1)
        manifest = commit(directory, ManifestFields(segment=segment, step=step, world=1, state=state))
    return SaveResult(
        name=directory.name,
        nbytes=sum(r.data.nbytes for r in rectangles),
        blocking_ns=clock.stamp().boot_ns - began,
        digest=manifest.state_digest,
    )
