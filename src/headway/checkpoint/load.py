"""Load a state in place: any layout that was saved into any layout that is wanted, on one rank or on many.

Strict: key sets equal both ways, dtype, shape, full coverage; every byte that is used was verified. Nobody holds more than its
own share and one group of rows; a rank reads one stream, since two at once cost more than they brought (docs/decisions/0005).
All ranks end alike: with the state, or with the same error. After an error the destination
holds a mixture and must not be trained on: load another checkpoint over it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from headway.base.errors import CheckpointRefused, HeadwayError, Problem, RunError
from headway.checkpoint.replicas import LocalShare, agree, local_share, same_everywhere, wanted_anywhere
from headway.checkpoint.tensors import CARRIERS, DTYPES, dtype_name
from headway.store.assemble import fill, new_scratch
from headway.store.manifest import Manifest
from headway.store.names import MANIFEST
from headway.store.verify import OpenCheckpoint, open_checkpoint

_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where a load may read from besides the directory.

    ``images``: data files by name in the memory of a writer of this host, proven by the same digests. ``together``: all ranks of
    the process group call at once, and share what they read. ``holders``: those that hold the same names as this one, as the
    ranks of a pipeline stage do (None: all ranks). ``appears_seconds``: how long this rank waits for a directory that others see
    already (network filesystems list late).
    """

    images: dict[str, memoryview] = field(default_factory=dict)
    together: bool = False
    holders: dist.ProcessGroup | None = None
    appears_seconds: float = 0.0


@dataclass(frozen=True)
class Loaded:
    """``from_memory``: data files that were read from a writer's memory, on this rank."""

    manifest: Manifest
    from_memory: tuple[str, ...]


def load_checkpoint(directory: Path, tensors: dict[str, torch.Tensor]) -> Manifest:
    """Fill ``tensors`` in place with the checkpoint's values; RunError for damage or any difference in kind."""
    return load_state(directory, tensors, Sources()).manifest


def load_state(directory: Path, tensors: dict[str, torch.Tensor], sources: Sources) -> Loaded:
    """As ``load_checkpoint``, from where ``sources`` says. Together, each rank gives DTensors, or plain tensors that all have."""
    checkpoint = _open_everywhere(directory, sources)
    check_fits(checkpoint, tensors, together=sources.together)
    trouble, scratch = "", new_scratch()
    with checkpoint.ahead:
        for name in sorted(tensors):
            share = local_share(name, tensors[name], sources.holders, together=sources.together)
            if share.reads and not trouble:
                trouble = _read_share(checkpoint, name, share, scratch)
            share.pass_on()
    try:
        agree(trouble, together=sources.together)
    except RunError as error:  # of the data: another checkpoint may be whole
        raise CheckpointRefused(directory.name, error) from error
    return Loaded(checkpoint.manifest, tuple(sorted(checkpoint.images)))


def _read_share(checkpoint: OpenCheckpoint, name: str, share: LocalShare, scratch: np.ndarray) -> str:
    """Empty, or what went wrong: with several ranks it is told once all have sent what others wait for."""
    try:
        load_rectangle(checkpoint, name, share.values, share.offset, scratch)
    except HeadwayError as error:
        return error.problems[0].seen
    return ""


def _open_everywhere(directory: Path, sources: Sources) -> OpenCheckpoint:
    """Manifest and receipts proven by every rank, and the same ones."""
    trouble, checkpoint = "", None
    deadline = time.monotonic() + sources.appears_seconds
    while not (directory / MANIFEST).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    try:
        checkpoint = open_checkpoint(directory)
    except HeadwayError as error:
        trouble = error.problems[0].seen
    try:
        agree(trouble, together=sources.together)
    except RunError as error:
        raise CheckpointRefused(directory.name, error) from error
    assert checkpoint is not None
    same_everywhere(checkpoint.manifest.digest, "manifest", together=sources.together)
    return dataclasses.replace(checkpoint, images=dict(sources.images))


def check_fits(checkpoint: OpenCheckpoint, tensors: dict[str, torch.Tensor], *, together: bool = False) -> None:
    """Every difference between what is saved and what is wanted, all at once; together, by all ranks at once."""
    saved = checkpoint.tensors
    names = sorted(saved)
    wanted = wanted_anywhere([name in tensors for name in names], together=together)
    problems = [
        Problem(f"{name} is in the checkpoint, but the model has none") for name, is_wanted in zip(names, wanted) if not is_wanted
    ]
    problems += [Problem(f"{name} is missing in the checkpoint") for name in sorted(set(tensors) - set(saved))]
    for name in sorted(set(saved) & set(tensors)):
        have, want = saved[name], tensors[name]
        if have.shape != tuple(want.shape):
            problems.append(Problem(f"{name}: saved with shape {have.shape}, wanted {tuple(want.shape)}"))
        if DTYPES[have.dtype] != want.dtype:
            problems.append(Problem(f"{name}: saved as {have.dtype}, wanted {dtype_name(name, want.dtype)}"))
    agree("; ".join(problem.seen for problem in problems) if together else "", together=together)
    if problems:
        way_out = f"load it with the recipe and code that wrote it; path: {checkpoint.directory}"
        raise RunError([Problem(p.seen, "a state is loaded whole or not at all", way_out) for p in problems])


def load_rectangle(
    checkpoint: OpenCheckpoint, name: str, destination: torch.Tensor, offset: Sequence[int], scratch: np.ndarray | None = None
) -> None:
    """Fill ``destination``, the rectangle of tensor ``name`` that starts at ``offset``, reading only what it needs.

    ``scratch``: uint8 memory to read into, for callers that load many (``store.assemble.new_scratch``).
    """
    entry = checkpoint.tensors[name]
    if DTYPES[entry.dtype] != destination.dtype:
        raise RunError(f"{name}: saved as {entry.dtype}, wanted {destination.dtype}", "dtypes are never converted silently")
    target = destination.detach()
    on_host = target if target.device.type == "cpu" else torch.empty(target.shape, dtype=target.dtype)
    fill(checkpoint, name, on_host.view(CARRIERS[target.element_size()]).numpy(), offset, scratch)
    if on_host is not target:
        target.copy_(on_host)
