"""The process group of a run: every rank of a segment meets the others in one place, and every wait has an end.

    launcher --(rank, world, file in a private directory)--> rank: "here" in the file, waits for the others --> gloo or nccl

On one machine a file, and not a port: only who may read the directory can join, no other program can take the port between its
choice and its use, and the file system cleans up after everybody; messages go over the loopback interface. Ranks of several nodes
meet in a store beside the supervisor (``supervise/meeting.py``), on none of the nodes.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import torch.distributed as dist

from headway.base.errors import EnvironmentFault

MEETING_SECONDS = 300.0
"""From the first rank that is there to the last: importing torch on a busy machine takes long."""
COLLECTIVE_SECONDS = 1800.0
"""Of a collective, in every group. Longer than the supervisor waits for progress: it judges first, and ends all ranks at once."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Member:
    """One of ``world`` processes; ``meeting``: the file through which they find each other, or tcp://address:port/name."""

    rank: int
    world: int
    meeting: str


def join(member: Member, device: str = "cpu", given_up: Callable[[], object] = lambda: False) -> None:
    """Become a rank of the default group. EnvironmentFault names the ranks that did not come; ``given_up``: stop waiting."""
    store = _store_of(member)
    store.set_timeout(datetime.timedelta(seconds=MEETING_SECONDS))
    store.set(_here(member.rank), "1")
    _await_others(store, member.world, given_up)
    dist.init_process_group(
        BACKENDS[device],
        store=store,
        rank=member.rank,
        world_size=member.world,
        timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
    )


def _store_of(member: Member) -> dist.Store:
    place = urlsplit(member.meeting)
    if place.scheme != "tcp":
        use_loopback()
        return dist.FileStore(member.meeting, member.world)
    assert place.hostname is not None, member.meeting
    assert place.port is not None, member.meeting
    if place.hostname in THIS_MACHINE:
        use_loopback()
    try:
        waits = datetime.timedelta(seconds=MEETING_SECONDS)
        store = dist.TCPStore(place.hostname, place.port, is_master=False, wait_for_workers=False, timeout=waits)
    except (dist.DistError, RuntimeError) as error:
        raise EnvironmentFault(
            f"rank {member.rank} does not reach the store at {place.netloc}: {error}",
            "the ranks of several nodes meet in a store beside the supervisor",
            "fleet.address is an address of the machine that runs headway, one that all nodes reach",
        ) from error
    return dist.PrefixStore(place.path.strip("/"), store)


def serve_store(address: str, port: int, descriptor: int) -> None:
    """On a listening socket that is there already; returns when standard input ends."""
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    while os.read(0, 4096):
        pass
    del store


def use_loopback() -> None:
    """Ranks of one machine meet on its loopback interface alone, unless the environment names another."""
    for name, value in LOOPBACK.items():
        os.environ.setdefault(name, value)


def limit_waits(seconds: float = COLLECTIVE_SECONDS) -> None:
    """Give every group there is the same time-out: those of a mesh have torch's own, whatever the default one was given."""
    timeout = datetime.timedelta(seconds=seconds)
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timeout, group)


def leave() -> None:
    """Once all ranks are done: nobody takes its connections down while others still talk."""
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def pretend(rank: int, world: int) -> Iterator[None]:
    """This process as a rank of a group whose other ranks do not exist: exchanges with them change nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """DTensor remembers results by meshes, and a mesh equals one of the same shape whose groups are gone."""
    from torch.distributed.tensor import DTensor, _redistribute, debug

    debug._clear_sharding_prop_cache()
    DTensor._op_dispatcher.sharding_propagator._propagate_tensor_meta_cached.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    _redistribute._gen_transform_infos.cache_clear()


def _here(rank: int) -> str:
    return f"here-{rank}"


def _await_others(store: dist.Store, world: int, given_up: Callable[[], object]) -> None:
    deadline = time.monotonic() + MEETING_SECONDS
    while missing := [rank for rank in range(world) if not store.check([_here(rank)])]:
        if given_up() or time.monotonic() > deadline:
            why = "the wait was given up" if given_up() else f"after {MEETING_SECONDS:.0f} s"
            raise EnvironmentFault(
                f"rank {', '.join(map(str, missing))} of {world} has not come: {why}",
                "all processes of a segment start together",
                "see the logs of the ranks beside this segment's trainer.log",
            )
        time.sleep(_POLL_SECONDS)
