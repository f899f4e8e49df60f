"""Which nodes a run has: agents are started, faults are counted, and what is left decides the layout of the next segment.

    hosts   n0 n1 n2 n3 | s0        the first ``nodes`` are wanted, the others are hot stand-by: started, checked, idle
            n0 n1 -- n3 | s0   ->   n0 n1 n3 s0           a spare takes the place of a lost or evicted node
            n0 n1 -- n3 | --   ->   n0 n1 n3              none is left: fewer data-parallel replicas, same batch, same stream
            n0 n1 n2 n3        <-   n2 answers again      taken back at a checkpoint

A node is lost when its agent is; it may come back. It is evicted when it failed ``evict_after`` times, or its check: for as long
as this owner has the run. Nothing here knows the mathematics: a layout is shrunk along its data-parallel axes, under which the
global batch and the stream are the same, and the segment records it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headway.base.errors import EnvironmentFault
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import layout_of, read_segments
from headway.supervise.corruption import accused
from headway.supervise.launcher import LocalRanks, engine_command, first_error_of
from headway.supervise.meeting import Meeting
from headway.supervise.nodes import Node, NodeOptions, NodeRank

Tell = Callable[..., None]
"""Records an event: kind, fields."""
Beat = Callable[[], None]
"""One beat of a waiting loop: the lease is renewed."""

Command = Callable[[RunDirectory, int], list[str]]
"""What trains a segment, the interpreter first."""

_LAUNCH_SECONDS = 60.0
_RETURN_SECONDS = 3.0
"""That a run which could go on with fewer nodes waits for one that was lost this moment."""


@dataclass(frozen=True)
class FleetOptions:
    """As the deployment's section ``fleet`` says it."""

    hosts: tuple[str, ...]
    wanted: int  # nodes
    per_node: int  # processes
    least: int | None  # nodes to go on with; None: waits until all that are wanted are there
    evict_after: int
    rejoin_seconds: float
    address: str
    node: NodeOptions

    @staticmethod
    def of(deployment: dict[str, Any]) -> FleetOptions | None:
        """None: one machine, whose processes the supervisor starts itself."""
        section = deployment.get("fleet") or {}
        if not section.get("hosts"):
            return None
        options = NodeOptions(
            start=tuple(section["start"]),
            silence_seconds=section["silence"],
            hello_seconds=section["patience"],
            check=section["check"],
        )
        return FleetOptions(
            hosts=tuple(section["hosts"]),
            wanted=deployment["nodes"],
            per_node=deployment["processes_per_node"],
            least=section["least"],
            evict_after=section["evict_after"],
            rejoin_seconds=section["rejoin"],
            address=section["address"],
            node=replace(options, python=section["python"]) if section["python"] else options,
        )


@dataclass
class _Host:
    """What is known of one. ``out``: why it is evicted; empty: it may be used."""

    name: str
    node: Node | None = None
    faults: list[str] = field(default_factory=list)
    out: str = ""
    tried: float = 0.0  # monotonic, of the newest start
    absent: str = ""  # told already


class Fleet:
    """All nodes of a run, for as long as one owner has it."""

    def __init__(
        self,
        run: RunDirectory,
        options: FleetOptions,
        tell: Tell,
        beat: Beat,
        events: list[dict[str, Any]],
        command: Command = engine_command,
    ):
        """``events``: of the run so far, which say what earlier agents may have left behind."""
        self._command = command
        self._run, self.options, self._tell, self._beat = run, options, tell, beat
        launch: dict[str, Any] = next((event for event in reversed(events) if event["kind"] == "launch"), {})
        self._left: list[dict[str, Any]] = [rank for rank in launch.get("ranks", ()) if "node" in rank]
        self._hosts = {name: _Host(name) for name in options.hosts}
        self._meeting = Meeting(options.address)
        self._placed: tuple[str, ...] = ()
        self._offered = 0  # nodes that the newest segment could have had

    # --- who is there -------------------------------------------------------------------------------------------------------

    def gather(self, given_up: Callable[[], object]) -> tuple[str, ...]:
        """The nodes of the next segment, in the order of ``hosts``. Waits for as many as are needed; none: it was ``given_up``.

        EnvironmentFault where too many are evicted, or do not answer at the start.
        """
        for host in self._hosts.values():
            self._start_if_absent(host)
        first = not self._placed  # later, a spare that is there is worth more than a node that may come
        began, told = time.monotonic(), False
        while not given_up():
            here = [name for name, host in self._hosts.items() if self._answers(host)]
            coming = [host for host in self._hosts.values() if not host.out and host.node is not None and host.node.look()]
            all_here = len(here) == len(coming)
            if (len(here) >= self.options.wanted and (all_here or not first)) or (all_here and self._is_enough(here)):
                return tuple(here[: self.options.wanted])
            if sum(not host.out for host in self._hosts.values()) < (self.options.least or self.options.wanted):
                break
            is_enough = len(here) >= self.options.wanted or self._is_enough(here)
            waited, patience = time.monotonic() - began, self.options.node.hello_seconds
            if is_enough and waited > (patience if first else min(patience, _RETURN_SECONDS)):
                return tuple(here[: self.options.wanted])
            if waited > patience and first:
                break
            if waited > patience and not told:  # they were there: a network may be away for an hour
                self._tell("note", text=f"waiting for nodes: {self._why()}")
                told = True
            self._beat()
            for host in self._hosts.values():
                self._start_if_absent(host)
        if given_up():
            return ()
        raise EnvironmentFault(
            f"{len(self.usable)} of {self.options.wanted} nodes can be used: {self._why()}",
            f"at least {self.options.least or self.options.wanted} are needed (fleet.least)",
            "mend or replace hosts in the deployment's fleet.hosts, then: headway resume",
        )

    @property
    def usable(self) -> tuple[str, ...]:
        """Hosts whose agents answer and that are not evicted."""
        return tuple(name for name, host in self._hosts.items() if self._answers(host))

    def is_short(self) -> bool:
        """Whether the segment in force has fewer nodes than are wanted."""
        return len(self._placed) < self.options.wanted

    def is_back(self) -> bool:
        """Whether more nodes answer than the segment in force has, where it lacks some: to be asked at a beat."""
        if not self.is_short():
            return False
        for host in self._hosts.values():
            self._start_if_absent(host)
        return len(self.usable) > self._offered

    def _is_enough(self, here: list[str]) -> bool:
        return self.options.least is not None and len(here) >= self.options.least

    def _answers(self, host: _Host) -> bool:
        if host.out or host.node is None:
            return False
        if not self._is_alive(host) or host.node.hello is None or host.node.unfit is None:
            return False
        if host.node.unfit:
            self.evict(host.name, f"it failed its check: {host.node.unfit}")
            return False
        if host.absent:
            host.absent = ""
            self._tell("node", host=host.name, state="back", reason="its agent answers")
        return True

    def _is_alive(self, host: _Host) -> bool:
        """Its loss is told once."""
        if host.node is None or host.node.look():
            return host.node is not None
        if host.absent != host.node.lost:
            host.absent = host.node.lost
            self._tell("node", host=host.name, state="lost", reason=host.node.lost)
        return False

    def _start_if_absent(self, host: _Host) -> None:
        """An agent that died is started again at once, then every ``rejoin_seconds``."""
        if host.out or self._is_alive(host):
            return
        now = time.monotonic()
        if host.tried and now - host.tried < self.options.rejoin_seconds:
            return
        host.tried = now if host.node is not None else 0.0
        try:
            host.node = Node(host.name, self.options.node, self._run.root)
        except EnvironmentFault as fault:
            host.tried = now
            if host.absent != str(fault):
                host.absent = str(fault)
                self._tell("node", host=host.name, state="lost", reason=host.absent)

    def _why(self) -> str:
        """Of every host that cannot be used."""
        words = []
        for host in self._hosts.values():
            if host.out:
                words.append(f"{host.name} is evicted: {host.out}")
            elif host.node is None or not host.node.look():
                words.append(f"{host.name}: {host.node.lost if host.node else host.absent or 'not started'}")
        return "; ".join(words) or "they have not answered"

    # --- a segment's ranks --------------------------------------------------------------------------------------------------

    def place(self, deployment: dict[str, Any], stage: str, hosts: tuple[str, ...]) -> dict[str, Any]:
        """The segment's layout on these nodes: {world, stage, axes, hosts, per_node}, and ``layouts`` of all stages where they
        had to be shrunk."""
        processes, self._offered = len(hosts) * self.options.per_node, len(hosts)
        layouts = deployment.get("layouts", {}) or {"default": {"dp_shard": self.options.wanted * self.options.per_node}}
        fitted = {name: _shrunk_if_it_fits(axes, processes) for name, axes in layouts.items()}
        axes = shrunk(layout_of({"layouts": fitted}, stage), processes)
        world = world_of_axes(axes)
        needed = -(-world // self.options.per_node)
        placed: dict[str, Any] = {
            "world": world,
            "stage": stage,
            "axes": axes,
            "hosts": list(hosts[:needed]),
            "per_node": self.options.per_node,
        }
        self._placed = tuple(placed["hosts"])
        return placed | ({"layouts": fitted} if fitted != deployment.get("layouts", {}) else {})

    @property
    def store(self) -> int | None:
        """The process that the ranks of the segment in force met in."""
        return self._meeting.pid

    def launch(self, run: RunDirectory, segment: int) -> LocalRanks:
        """Ranks of ``segment`` on the nodes of its layout. A node that is lost on the way is the end of its ranks."""
        layout = next(found for found in reversed(read_segments(run)) if found.id == segment).layout
        world, per_node = layout["world"], layout["per_node"]
        place = ["--world", str(world), "--meeting", self._meeting.place(segment)]
        arguments = [*self._command(run, segment)[1:], *place]
        asked: list[tuple[Node, range]] = []
        for number, name in enumerate(layout["hosts"]):
            node = self._hosts[name].node
            assert node is not None, name
            node.sweep(left_behind([rank for rank in self._left if rank["node"] == name], node.hello or {}))
            ranks = range(number * per_node, min((number + 1) * per_node, world))
            node.launch(run, segment, ranks, arguments)
            asked.append((node, ranks))
        found = [rank for node, ranks in asked for rank in self._ranks_of(node, ranks)]
        self._left = [described(rank) for rank in found]
        return LocalRanks(found, lambda: first_error_of(run, segment))

    def _ranks_of(self, node: Node, ranks: range) -> list[NodeRank]:
        deadline, found = time.monotonic() + _LAUNCH_SECONDS, None
        try:
            while (found := node.launched()) is None and node.look() and time.monotonic() < deadline:
                self._beat()
        except EnvironmentFault as fault:  # no room for a log, say: the others can do without it
            self.evict(node.host, f"its ranks cannot be started: {fault}")
        nobody = {"pid": 0, "start_ticks": None}
        return [NodeRank(node, rank, (found or {}).get(rank, nobody), leads=rank == ranks[0]) for rank in ranks]

    # --- faults -------------------------------------------------------------------------------------------------------------

    def host_of(self, rank: int | None) -> str | None:
        """Of the segment in force."""
        if rank is None or not self._placed:
            return None
        return self._placed[min(rank // self.options.per_node, len(self._placed) - 1)]

    def judge(self, rank: int | None, code: int | None, reason: str) -> bool:
        """A fault that began on ``rank``, the loss of its node included, counts against the node, and may evict it. An error that
        the trainer tells of (``code``) does not. Whether the node was to blame, and not the run: it is lost, or evicted now."""
        name = self.host_of(rank)
        if name is None:
            return False
        host = self._hosts[name]
        is_lost = not self._answers(host)
        if code is not None and not is_lost:
            return False
        host.faults.append(host.node.lost if is_lost and host.node is not None and host.node.lost else reason)
        if len(host.faults) >= self.options.evict_after and not host.out:
            self.evict(name, f"{len(host.faults)} faults began there: {_counted(host.faults)}")
        return is_lost or bool(host.out)

    def weigh_corruption(self, events: list[dict[str, Any]]) -> bool:
        """Nodes against which there is evidence of silent corruption are evicted. Whether one was."""
        bad = [name for name in accused(events) if name in self._hosts and not self._hosts[name].out]
        for name in bad:
            self.evict(name, "silent corruption was found on it more than once")
        return bool(bad)

    def evict(self, name: str, reason: str) -> None:
        """It is not used again by this owner."""
        host = self._hosts[name]
        host.out = reason
        if host.node is not None:
            host.node.close()
        self._tell("node", host=name, state="evicted", reason=reason)

    def close(self) -> None:
        """The agents end, with whatever they run."""
        nodes = [host.node for host in self._hosts.values() if host.node is not None]
        for node in nodes:
            node.close()
        for node in nodes:
            node.wait(self.options.node.orphan_seconds)
        self._meeting.close()


def _counted(faults: list[str]) -> str:
    """Each kind once, with how often it came where that was more than once."""
    return "; ".join(f"{fault} ({n} times)" if n > 1 else fault for fault, n in Counter(faults).items())


def left_behind(ranks: list[dict[str, Any]], hello: dict[str, Any]) -> list[dict[str, Any]]:
    """{pid, start_ticks} of what may still run of an earlier launch where the agent of ``hello`` is: ``ranks``, and the agent
    that started them, where it is another (one that stands still reads no end of file)."""
    here = [rank for rank in ranks if rank.get("boot_id") == hello.get("boot_id")]
    agents = {(rank.get("agent"), rank.get("agent_ticks")) for rank in here} - {(hello.get("pid"), hello.get("start_ticks"))}
    return here + [{"pid": pid, "start_ticks": ticks} for pid, ticks in agents if None not in (pid, ticks)]


def described(rank: Any) -> dict[str, Any]:
    """A rank for the record: {pid, start_ticks}; on a node also {node, host, boot_id, agent: its pid there, agent_ticks}."""
    found = {"pid": rank.pid, "start_ticks": rank.start_ticks}
    if not isinstance(rank, NodeRank):
        return found
    hello = rank.node.hello or {}
    found |= {"node": rank.node.host, "host": hello.get("host"), "boot_id": hello.get("boot_id")}
    return found | {"agent": hello.get("pid"), "agent_ticks": hello.get("start_ticks")}


def world_of_axes(axes: dict[str, Any]) -> int:
    world = 1
    for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        world *= int(axes.get(name) or 1)
    return world


def _shrunk_if_it_fits(axes: dict[str, Any], processes: int) -> dict[str, Any]:
    """A stage that comes later may find more nodes."""
    try:
        return shrunk(axes, processes)
    except EnvironmentFault:
        return axes


def shrunk(axes: dict[str, Any], processes: int) -> dict[str, Any]:
    """``axes`` for at most so many processes: fewer data-parallel replicas, all else as it was. EnvironmentFault: not one fits.

    Where as many shards as before fit, a rank holds no more than before; else all replicas share the states.
    """
    world = world_of_axes(axes)
    if world <= processes:
        return axes
    shard = int(axes.get("dp_shard") or 1)
    unit = world // (int(axes.get("dp_replicate") or 1) * shard)
    ways = processes // unit
    if ways == 0:
        raise EnvironmentFault(
            f"{processes} processes are left, and one replica of the layout takes {unit}",
            "fewer nodes means fewer data-parallel replicas; pipeline, context and tensor axes stay",
            "bring nodes back, or go on under another deployment: headway resume RUN --deployment FILE",
        )
    replicate = max(1, ways // shard)
    shard = ways // replicate
    groups, split = int(axes.get("ep") or 1), shard * int(axes.get("cp") or 1)
    experts = next(size for size in range(groups, 0, -1) if groups % size == 0 and split % size == 0)
    return axes | {"dp_shard": shard, "dp_replicate": replicate} | ({"ep": experts} if experts != groups else {})
