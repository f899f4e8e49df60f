"""The processes that train a run together, as the loop sees them: what one knows and all must do alike.

    alone       every question is answered at once, nothing is sent
    together    rank 0 writes the records; decisions that depend on a clock, a signal or a file are made by one and told to all

A rank that branches on its own would leave the others waiting in a collective for ever: what decides about an evaluation, a
save or the end of the loop is agreed here, or is a pure function of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from headway.base.clocks import Clock
from headway.base.errors import ConfigError
from headway.base.records import append_stamped
from headway.checkpoint.digest import digest_of_all, state_digest
from headway.checkpoint.replicas import everybodys_bytes, everybodys_words
from headway.checkpoint.saver import Place
from headway.parallel import group
from headway.parallel.group import Member
from headway.parallel.mesh import Axes, Mesh
from headway.parallel.sums import over_batch
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.train.feed import Replica


class Crew:
    """Alone."""

    rank, world = 0, 1
    mesh: Mesh | None = None

    @property
    def leads(self) -> bool:
        """Whether this rank writes the records and decides."""
        return self.rank == 0

    @property
    def together(self) -> bool:
        return self.mesh is not None

    @property
    def replica(self) -> Replica:
        """Whose sequences of a batch this rank takes."""
        return Replica()

    def __str__(self) -> str:
        return "1 process"

    def place(self, directory: RunDirectory, segment: int) -> Place:
        return Place(run=directory, segment=segment)

    def anybody(self, wish: bool) -> bool:
        """Whether any rank says yes."""
        return wish

    def told(self, number: int) -> int:
        """The leader's number."""
        return number

    def words(self, words: str) -> list[str]:
        """Of every rank that has something to say."""
        return [words] if words else []

    def told_by_all(self, data: bytes) -> list[bytes]:
        """Of every rank, in order; no byte of ``data`` is zero at its end."""
        return [data]

    def over_tokens(self, sums: torch.Tensor) -> torch.Tensor:
        """The sum of what each rank has of its own tokens."""
        return sums

    def digest(self, state: dict[str, torch.Tensor], place: Place) -> str:
        """Of the whole state, as in the manifest of a checkpoint that these processes would write."""
        return state_digest(state)

    def leave(self) -> None:
        """At the end of a run that ended well."""


class Together(Crew):
    """One of several; the default process group is theirs alone."""

    def __init__(self, mesh: Mesh):
        self.mesh: Mesh = mesh
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @staticmethod
    def of(axes: Axes, device: str = "cpu") -> Together:
        """From the default group, whose size is that of the layout."""
        crew = Together(Mesh(axes, device))
        group.limit_waits()
        return crew

    @property
    def replica(self) -> Replica:
        return Replica(self.mesh.replica, self.mesh.axes.replicas)

    def __str__(self) -> str:
        return f"{self.world} processes: {self.mesh.axes}"

    def place(self, directory: RunDirectory, segment: int) -> Place:
        return Place(run=directory, segment=segment, rank=self.rank, world=self.world)

    def anybody(self, wish: bool) -> bool:
        marks = torch.tensor(int(wish), device=self.mesh.device)
        dist.all_reduce(marks, dist.ReduceOp.MAX)
        return bool(marks)

    def told(self, number: int) -> int:
        told = torch.tensor([number], dtype=torch.int64, device=self.mesh.device)
        dist.broadcast(told, 0)
        return int(told)

    def words(self, words: str) -> list[str]:
        return [f"rank {rank}: {said}" for rank, said in enumerate(everybodys_words(words)) if said]

    def told_by_all(self, data: bytes) -> list[bytes]:
        return everybodys_bytes(data)

    def over_tokens(self, sums: torch.Tensor) -> torch.Tensor:
        return over_batch(sums.to(self.mesh.device, copy=True), self.mesh)

    def digest(self, state: dict[str, torch.Tensor], place: Place) -> str:
        return digest_of_all(place.parts(state))

    def leave(self) -> None:
        group.leave()


ALONE = Crew()


class Unwritten(StepLog):
    """Of a rank that does not lead: nothing that it would write is new, but that it waits for data (D12)."""

    def __init__(self, directory: RunDirectory, segment: int, rank: int, clock: Clock):
        self._clock, self._rank, self._path = clock, rank, directory.stalls_file(segment, rank)

    def mark(self, category: Any) -> None:
        pass

    def write(self, kind: str, *, rest: Any = None, **fields: Any) -> dict:
        if kind == "stall":
            append_stamped(self._path, {"kind": kind, "rank": self._rank, **fields})
        return {}

    def close(self) -> None:
        pass


def join(member: Member | None, axes: Axes, given_up: Callable[[], object] = lambda: False) -> Crew:
    """The crew of this process. ConfigError where the layout is for another number of processes than were started (P6)."""
    world = member.world if member is not None else 1
    if axes.world != world:
        raise ConfigError(
            f"the layout {axes} is for {axes.world} processes, and {world} were started",
            "the product of a layout's axes is the number of processes",
            "start training with headway run or headway resume",
        )
    if member is None:
        return ALONE
    group.join(member, given_up=given_up)
    return Together.of(axes)
