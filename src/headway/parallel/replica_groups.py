"""Replica groups that may be lost one by one: who takes part in a step, sums over them, and whether the step counts.

    group 0, leads   ranks 0 .. m-1       a default group and a mesh of its own each, everything but dp_replicate inside
    group 1          ranks m .. 2m-1      rank i of a group adds with rank i of the others

    quorum ---------> gradients, losses, loads summed ---> word of the leading group ---> vote within each group ---> update
      |  lighthouse      over rank i of all groups            over rank i of all groups                        `-> or none
      `- who was lost is no part of it any more, who is behind is handed the state (train/groups.py)

torchft has the lighthouse, a server per group that votes, and a process group that is made anew when the quorum changes. Its
Manager is left out (docs/decisions/0012): it listens on all interfaces, takes time-outs from the environment, and lets each group
decide by itself, so that a sum which reached one and not another would be applied by one of them. Here a step counts when the
leading group says so; a group that did not hear it is behind, and is handed the state.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions

from headway.base.errors import ConfigError, EnvironmentFault
from headway.parallel.group import COLLECTIVE_SECONDS, MEETING_SECONDS, THIS_MACHINE, use_loopback

HEARTBEAT_SECONDS, SILENT_SECONDS = 0.1, 3.0
"""Of a group's server; without one for so long the lighthouse takes the group for lost. On a crowded machine one second was too
short: groups that lived were left out of a step, and handed the state."""
CONNECT_SECONDS = 60.0
"""To a server, and among the members of a new quorum."""
LINGER_SECONDS = 60.0
"""Of the lighthouse behind its supervisor: that the leading group takes to save."""
BUCKET_BYTES = 32 * 2**20
"""Of gradients that are added in one message."""
_POLL_SECONDS = 0.05
_ENDED = "ended"
_FAILURES = (RuntimeError, TimeoutError)
"""Of gloo, the store and torchft alike: the other side is gone, or this one gave up."""


@dataclass(frozen=True, kw_only=True)
class GroupPlace:
    """Rank ``rank`` of the ``world`` of group ``group`` of ``groups``, which was started ``start`` times before in this attempt.
    ``store``: address:port of the store that all groups reach."""

    group: int
    groups: int
    rank: int
    world: int
    start: int
    store: str

    @property
    def global_rank(self) -> int:
        """Among the processes of the segment."""
        return self.group * self.world + self.rank

    @property
    def host(self) -> str:
        return self.store.rpartition(":")[0]

    def all_names(self) -> tuple[str, ...]:
        """Of all groups, where none was started again."""
        return tuple(str(replace(self, group=group, start=0)) for group in range(self.groups))

    def __str__(self) -> str:
        """As the quorum names the group: the leading one sorts first, and a group that comes back is another."""
        return f"{self.group:05d}:{self.start}"


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """Groups that take part by name, this one at ``index``. ``heals_from``: the member whose state this group takes over, being
    behind; ``hands_to``: those that take over this group's."""

    names: tuple[str, ...]
    index: int
    heals_from: int | None = None
    hands_to: tuple[int, ...] = ()

    @property
    def groups(self) -> list[int]:
        return [group_of(name) for name in self.names]


class ReplicaGroups:
    """One rank's. A message that fails is remembered until the next quorum: nothing is sent after it, and the vote is no."""

    def __init__(self, place: GroupPlace, given_up: Callable[[], object] = lambda: False):
        """Waits until all groups are there, or ``given_up``."""
        torchft = _torchft()
        self.place = place
        if place.host.strip("[]") in THIS_MACHINE:
            use_loopback()
        self._store = _store_client(place)
        self._server: Any = None
        if place.rank == 0:
            self._server = torchft.coordination.ManagerServer(
                replica_id=str(place),
                lighthouse_addr=self._store.get("lighthouse").decode(),
                hostname=place.host,
                bind=f"{place.host}:0",
                store_addr=place.store,
                world_size=place.world,
                heartbeat_interval=_seconds(HEARTBEAT_SECONDS),
                connect_timeout=_seconds(CONNECT_SECONDS),
                quorum_retries=0,
            )
            self._store.set(f"server-{place}", self._server.address())
            self._store.set(_here(place.group), "1")
        address = self._store.get(f"server-{place}").decode()
        self._client = torchft.coordination.ManagerClient(address, connect_timeout=_seconds(CONNECT_SECONDS))
        self._exchange = torchft.process_group.ProcessGroupGloo(timeout=_seconds(CONNECT_SECONDS))
        self._quorum_id, self._error, self._refused = -1, "", False
        self.members: list[int] = []  # groups of the newest quorum, in order
        self._await_others(given_up)

    def _await_others(self, given_up: Callable[[], object]) -> None:
        deadline = time.monotonic() + MEETING_SECONDS
        while missing := [group for group in range(self.place.groups) if not self._store.check([_here(group)])]:
            if given_up():
                return
            if time.monotonic() > deadline:
                late = ", ".join(map(str, missing))
                raise _no_quorum(f"after {MEETING_SECONDS:.0f} s group {late} of {self.place.groups} has not come")
            time.sleep(_POLL_SECONDS)

    @property
    def leads(self) -> bool:
        return self.place.group == 0

    @property
    def error(self) -> str:
        """Of the first message that failed since the quorum; empty: none did."""
        return self._error

    def quorum(self, step: int, seconds: float = COLLECTIVE_SECONDS) -> Quorum:
        """Waits for the groups that are alive; ``step``: updates that this one's state has. EnvironmentFault: there is none."""
        found = self._await_leader(step, time.monotonic() + seconds)
        if found.quorum_id != self._quorum_id:
            self._quorum_id, self._error = found.quorum_id, ""
            self._connect(found)
        self.members = [group_of(name) for name in found.replica_ids]
        return Quorum(
            names=tuple(found.replica_ids),
            index=found.replica_rank,
            heals_from=found.recover_src_replica_rank if found.heal else None,
            hands_to=tuple(found.recover_dst_replica_ranks),
        )

    def _await_leader(self, step: int, deadline: float) -> Any:
        """A quorum without the leading group, whose heartbeats were late, is none."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                found = self._client._quorum(
                    group_rank=self.place.rank,
                    step=step,
                    checkpoint_metadata="",
                    shrink_only=False,
                    timeout=_seconds(left),
                    commit_failures=int(self._refused or bool(self._error)),
                    init_sync=False,
                )
            except _FAILURES as error:
                raise _no_quorum(str(error)) from error
            if group_of(found.replica_ids[0]) == 0:
                self._refused = False
                return found
            time.sleep(_POLL_SECONDS)
        raise _no_quorum("the leading group took no part")

    def _connect(self, found: Any) -> None:
        at = f"{self.place.store}/quorum/{found.quorum_id}/{self.place.rank}"
        try:
            self._exchange.configure(at, str(self.place), found.replica_rank, found.replica_world_size)
            own = self._exchange.parent._get_backend(torch.device("cpu"))
            own._set_default_timeout(_seconds(COLLECTIVE_SECONDS))  # the supervisor judges who hangs, and sooner
        except _FAILURES as error:
            self._fail(error)

    # --- what travels -------------------------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """Over the groups of the quorum, in place: the same bits on all."""
        options = dist.AllreduceOptions()  # sums
        self._try(lambda: self._exchange.allreduce([tensor], options))
        return tensor

    def sum_all(self, tensors: Sequence[Tensor]) -> None:
        """The same of many, in few messages."""
        for bucket in _buckets([tensor for tensor in tensors if tensor.numel()]):
            whole = self.sum(torch.cat([tensor.reshape(-1) for tensor in bucket]))
            for tensor, part in zip(bucket, whole.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def told(self, number: int) -> int | None:
        """The leading group's number; None: it was not to be heard."""
        word = torch.tensor([number], dtype=torch.int64)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        heard = self._try(lambda: self._exchange.broadcast([word], options))
        return int(word) if heard else None

    def gathered(self, data: bytes) -> list[bytes]:
        """Of all groups, in order, of the same length; empty where a message failed."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if self._error:
            return []
        found = [torch.empty_like(mine) for _ in range(self._exchange.size())]
        heard = self._try(lambda: self._exchange.allgather([found], [mine], AllgatherOptions()))
        return [one.numpy().tobytes() for one in found] if heard else []

    def send(self, data: Tensor, to: int) -> None:
        """Bytes, to another member of the quorum."""
        self._try(lambda: self._exchange.send([data], to, 0))

    def receive(self, data: Tensor, source: int) -> None:
        """EnvironmentFault where they do not come."""
        if not self._try(lambda: self._exchange.recv([data], source, 0)):
            raise EnvironmentFault(f"the state of the other replica groups did not come: {self._error}")

    def commits(self, step: int) -> bool:
        """Whether the sums since the quorum count; the same on all ranks of the group. Once per step."""
        if self.leads:
            counts = self._vote(step, not self._error)
            self.told(int(counts))
        else:
            counts = self._vote(step, self.told(0) == 1)
        self._refused = not counts
        return counts

    def _vote(self, step: int, wish: bool) -> bool:
        return self._client.should_commit(self.place.rank, step, wish, timeout=_seconds(COLLECTIVE_SECONDS))

    def _try(self, start: Callable[[], Any]) -> bool:
        if self._error:
            return False
        try:
            start().wait()
        except _FAILURES as error:
            self._fail(error)
        return not self._error

    def _fail(self, error: Exception) -> None:
        """Whoever waits for this rank shall learn of it."""
        words = str(error).partition("\n")[0].rpartition("] ")[2] or str(error)
        self._error = (words.partition(". This is typically")[0] or type(error).__name__)[:200]
        self._exchange.abort()

    def close(self) -> None:
        self._exchange.shutdown()
        if self._server is not None:
            self._server.shutdown()
        if self.leads:
            with contextlib.suppress(*_FAILURES):
                self._store.set(_ENDED, "1")


def serve(address: str, port: int, descriptor: int) -> None:
    """The store on a listening socket that is there already, and the lighthouse; returns when told to, or a while after standard
    input has ended."""
    torchft = _torchft()
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    host = f"[{address}]" if ":" in address else address
    lighthouse = torchft.coordination.LighthouseServer(
        bind=f"{host}:0",
        min_replicas=1,
        join_timeout_ms=round(COLLECTIVE_SECONDS * 1000),  # whoever is alive is waited for
        quorum_tick_ms=100,
        heartbeat_timeout_ms=round(SILENT_SECONDS * 1000),
    )
    store.set("lighthouse", f"http://{host}:{lighthouse.address().rpartition(':')[2]}")  # it names itself by the machine's name
    if not os.read(0, 4096):  # the supervisor has died: the groups still agree to end
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline and not store.check([_ENDED]):
            time.sleep(_POLL_SECONDS)
    lighthouse.shutdown()
    del store


def _torchft() -> Any:
    os.environ.setdefault("RUST_LOG", "warn")  # it tells of every message
    try:
        import torchft.coordination
        import torchft.process_group
    except ImportError as error:
        raise ConfigError(
            f"torchft cannot be imported: {error}",
            'per_step = "torchft" needs it',
            'pip install "headway[ft]", or per_step = "off"',
        ) from error
    return torchft


def _store_client(place: GroupPlace) -> dist.Store:
    host, _, port = place.store.rpartition(":")
    try:
        waits = _seconds(MEETING_SECONDS)
        return dist.TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=waits)
    except (dist.DistError, RuntimeError) as error:
        raise EnvironmentFault(f"group {place.group} does not reach the store at {place.store}: {error}") from error


def _no_quorum(why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"no quorum of replica groups: {why}",
        "they agree through a lighthouse beside the supervisor",
        "see the supervisor's events",
    )


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind, up to BUCKET_BYTES together."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def group_of(name: str) -> int:
    """As ``GroupPlace`` names it."""
    return int(name.partition(":")[0])


def _here(group: int) -> str:
    return f"here-{group}"


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
