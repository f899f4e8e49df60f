"""Nodes: agents and their pipes with real processes that train nothing; layouts for fewer of them; who is blamed for what."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import EnvironmentFault
from headway.recipe.engine_layouts import Sizes
from headway.rundir.processes import is_alive
from headway.rundir.segments import Segment, write_segment
from headway.supervise.fleet import Fleet, FleetOptions, described, left_behind, shrunk, world_of_axes
from headway.supervise.launcher import log_of
from headway.supervise.nodes import LOST, Node, NodeOptions, NodeRank

CHILD = "import sys; print(*sys.argv[1:], flush=True); sys.stdin.read()"
STUBBORN = "import sys, time; print(*sys.argv[1:], flush=True); time.sleep(600)"


def wait_for(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


# --- layouts for fewer processes ------------------------------------------------------------------------------------------

LAYOUTS = st.fixed_dictionaries(
    {name: st.sampled_from([1, 2, 3, 4, 8]) for name in ("dp_replicate", "dp_shard")}
    | {name: st.sampled_from([1, 2]) for name in ("pp", "cp", "tp")}
)


@given(LAYOUTS, st.integers(1, 300))
def test_fewer_processes_shrink_the_replicas_and_nothing_else(axes, processes):
    unit = axes["pp"] * axes["cp"] * axes["tp"]
    if processes < unit:
        with pytest.raises(EnvironmentFault, match=f"one replica of the layout takes {unit}"):
            shrunk(axes, processes)
        return
    found = shrunk(axes, processes)
    assert {name: found[name] for name in ("pp", "cp", "tp")} == {name: axes[name] for name in ("pp", "cp", "tp")}
    assert world_of_axes(found) <= processes
    ways = found["dp_replicate"] * found["dp_shard"]
    assert ways <= axes["dp_replicate"] * axes["dp_shard"]
    most = min(processes // unit, axes["dp_replicate"] * axes["dp_shard"])
    if most >= axes["dp_shard"]:
        assert found["dp_shard"] >= axes["dp_shard"], "no rank holds more than before"
    else:
        assert (found["dp_shard"], found["dp_replicate"]) == (most, 1), "all there are share the states"
    assert world_of_axes(found) == Sizes(**found).world


def test_a_layout_that_fits_is_left_alone():
    axes = {"dp_replicate": 2, "dp_shard": 4, "tp": 2, "zero": 2}
    assert shrunk(axes, 16) is axes
    assert shrunk(axes, 15) == axes | {"dp_replicate": 1, "dp_shard": 7}
    assert shrunk(axes, 6) == axes | {"dp_replicate": 1, "dp_shard": 3}


def test_groups_of_experts_still_lie_within_the_shards():
    assert shrunk({"dp_shard": 8, "ep": 4}, 6) == {"dp_shard": 6, "dp_replicate": 1, "ep": 2}
    assert shrunk({"dp_shard": 8, "ep": 4}, 5) == {"dp_shard": 5, "dp_replicate": 1, "ep": 1}


# --- agents ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path):
    """Starts nodes, and ends what is left of them."""
    started: list[Node] = []

    def start(host: str, **options) -> Node:
        started.append(Node(host, NodeOptions(**{"orphan_seconds": 2.0, "check": False} | options), tmp_path))
        return started[-1]

    yield start
    for node in started:
        node.close()
        node.wait(10.0)


def launched(run, node: Node, child: str, ranks=(0, 1)) -> dict[int, dict]:
    run.segment(1).mkdir(parents=True, exist_ok=True)
    wait_for(lambda: node.hello)
    node.launch(run, 1, ranks, ["-c", child, "--world", "2"])
    return wait_for(node.launched)


@pytest.mark.e2e
def test_an_agent_starts_ranks_and_tells_how_they_end(run, nodes):
    node = nodes("n0")
    ranks = launched(run, node, CHILD)
    assert [node.status(rank) for rank in (0, 1)] == [None, None]
    wait_for(lambda: log_of(run, 1, 1).read_text())
    assert log_of(run, 1, 1).read_text().split() == ["--world", "2", "--rank", "1"]
    assert {os.getsid(process["pid"]) for process in ranks.values()} == {process["pid"] for process in ranks.values()}
    os.kill(ranks[1]["pid"], signal.SIGKILL)
    assert wait_for(lambda: node.status(1)) == -signal.SIGKILL
    assert node.status(0) is None
    node.order(do="terminate")
    assert wait_for(lambda: node.status(0)) == -signal.SIGTERM
    assert node.look(), "the agent outlives its ranks"
    assert launched(run, node, CHILD) != ranks


@pytest.mark.e2e
def test_an_agent_whose_owner_is_gone_gives_its_ranks_their_time_and_ends_them(run, nodes):
    node = nodes("n0")
    polite = launched(run, node, CHILD)
    agent = node.hello["pid"]
    node.close()
    wait_for(lambda: not any(is_alive(p["pid"], p["start_ticks"]) for p in polite.values()))
    wait_for(lambda: not is_alive(agent, None))
    other = nodes("n1")
    stubborn = launched(run, other, STUBBORN)
    other.close()
    wait_for(lambda: not any(is_alive(p["pid"], p["start_ticks"]) for p in stubborn.values()))


@pytest.mark.e2e
def test_an_agent_that_dies_is_a_lost_node_and_its_successor_ends_what_it_left(run, nodes):
    node = nodes("n0")
    ranks = launched(run, node, STUBBORN)
    os.kill(node.hello["pid"], signal.SIGKILL)
    assert wait_for(lambda: node.status(0)) == LOST
    assert node.lost == "its agent was ended by SIGKILL"
    assert all(is_alive(p["pid"], p["start_ticks"]) for p in ranks.values()), "it sleeps, and does not read its end of file"
    again = nodes("n0")
    wait_for(lambda: again.hello)
    again.sweep(list(ranks.values()))
    wait_for(lambda: not any(is_alive(p["pid"], p["start_ticks"]) for p in ranks.values()))
    assert again.look()


@pytest.mark.e2e
def test_an_agent_that_stands_still_while_its_owner_dies_is_ended_by_its_successor(run, nodes):
    """Stopped, it reads no end of file; neither do its ranks, whose pipes it holds."""
    node = nodes("n0")
    ranks = launched(run, node, STUBBORN)
    first = dict(node.hello)
    rows = [described(NodeRank(node, rank, process)) for rank, process in ranks.items()]
    assert left_behind(rows, first) == rows, "not the one that is asked"
    os.kill(first["pid"], signal.SIGSTOP)
    again = nodes("n0")
    wait_for(lambda: again.hello)
    again.sweep(left_behind(rows, again.hello))
    wait_for(lambda: not is_alive(first["pid"], first["start_ticks"]))
    wait_for(lambda: not any(is_alive(p["pid"], p["start_ticks"]) for p in ranks.values()))
    assert left_behind(rows, again.hello | {"boot_id": "another"}) == []


@pytest.mark.e2e
def test_a_pid_that_another_process_has_now_is_left_alone(run, nodes):
    node = nodes("n0")
    ranks = launched(run, node, STUBBORN)
    again = nodes("n1")
    wait_for(lambda: again.hello)
    again.sweep([{"pid": process["pid"], "start_ticks": process["start_ticks"] - 1} for process in ranks.values()])
    wait_for(lambda: again._heard.swept)
    assert all(is_alive(p["pid"], p["start_ticks"]) for p in ranks.values())


@pytest.mark.e2e
def test_F8_an_agent_that_stands_still_is_a_lost_node(run, nodes):
    node = nodes("n0", silence_seconds=2.0)
    launched(run, node, CHILD)
    agent = node.hello["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_for(lambda: node.status(0) == LOST)
        assert node.lost == "nothing was heard of its agent for 2 s in mid-run"
    finally:
        os.kill(agent, signal.SIGCONT)


@pytest.mark.e2e
def test_a_host_that_does_not_answer_is_said_so(tmp_path, nodes):
    node = nodes("n0", start=("sh", "-c", "echo no route to {host} >&2; exit 5", "--"))
    wait_for(lambda: not node.look())
    assert node.lost == "its agent ended (exit code 5)"
    assert (tmp_path / "fleet/n0.log").read_text() == "no route to n0\n"
    with pytest.raises(EnvironmentFault, match="cannot start node n1"):
        nodes("n1", start=("/no/such/command",))


@pytest.mark.e2e
def test_what_a_login_prints_is_no_message(nodes):
    node = nodes("n0", start=("sh", "-c", 'echo "Welcome"; echo "{}"; exec "$@"', "--"), python=sys.executable)
    assert wait_for(lambda: node.hello)["pid"]


@pytest.mark.e2e
def test_an_agent_checks_its_node_and_tells_what_it_found(nodes):
    node = nodes("n0", check=True)
    assert node.unfit is None
    assert wait_for(lambda: node.unfit is not None, 60.0)
    assert node.unfit == ""
    assert {check["name"] for check in node._heard.checked["report"]["checks"]} >= {"arithmetic", "memory", "disk", "network"}


# --- who is used, who is blamed -------------------------------------------------------------------------------------------


class StandIn:
    """A node without a process."""

    def __init__(self, host: str, *_):
        self.host, self.lost, self.hello, self.calls = host, "", {"boot_id": "b", "pid": 1, "host": "h"}, []
        self.unfit = ""

    def look(self) -> bool:
        return not self.lost

    def close(self) -> None:
        self.calls.append("close")
        self.lost = self.lost or "closed"

    def wait(self, seconds: float) -> None:
        pass


@pytest.fixture
def fleet(run, monkeypatch):
    monkeypatch.setattr("headway.supervise.fleet.Node", StandIn)
    told: list[tuple] = []

    def make(hosts=("n0", "n1", "s0"), **options) -> Fleet:
        values = {"wanted": 2, "per_node": 2, "least": 1, "evict_after": 2, "rejoin_seconds": 3600.0, "address": "127.0.0.1"}
        options = FleetOptions(hosts=tuple(hosts), node=NodeOptions(hello_seconds=0.2), **(values | options))

        def tell(kind: str, **fields) -> None:
            told.append((kind, fields["text"]) if kind == "note" else (fields["host"], fields["state"]))

        fleet = Fleet(run, options, tell, lambda: None, [])
        fleet.told = told
        return fleet

    return make


def never() -> bool:
    return False


DEPLOYMENT = {"nodes": 2, "processes_per_node": 2, "layouts": {"default": {"dp_shard": 4}}}


def test_spares_fill_in_from_the_front_and_fewer_go_on(fleet):
    found = fleet()
    assert found.gather(never) == ("n0", "n1")
    found._hosts["n0"].node.lost = "its agent ended"
    found._hosts["n0"].tried = time.monotonic()
    assert found.gather(never) == ("n1", "s0")
    found._hosts["s0"].node.lost = "its agent ended"
    found._hosts["s0"].tried = time.monotonic()
    assert found.gather(never) == ("n1",)
    layout = found.place(DEPLOYMENT, "main", ("n1",))
    assert (layout["world"], layout["hosts"], layout["axes"]["dp_shard"]) == (2, ["n1"], 2)
    assert layout["layouts"] == {"default": {"dp_shard": 2, "dp_replicate": 1}}
    assert found.is_short()
    assert not found.is_back()
    found._hosts["n0"].node = StandIn("n0")
    assert found.is_back()
    assert found.told == [("n0", "lost"), ("s0", "lost"), ("n0", "back")]


def test_a_whole_layout_is_recorded_as_the_deployment_has_it(fleet):
    found = fleet()
    layout = found.place(DEPLOYMENT, "main", found.gather(never))
    assert layout == {"world": 4, "stage": "main", "axes": {"dp_shard": 4}, "hosts": ["n0", "n1"], "per_node": 2}
    assert not found.is_back()


def test_nodes_that_the_layout_cannot_use_are_no_reason_to_begin_anew(fleet):
    """Three of four nodes, of which tensor parallelism over two nodes takes two: that they are more than two is old news."""
    found = fleet(hosts=("n0", "n1", "n2", "n3"), wanted=4)
    found._hosts["n3"].out = "broken"
    deployment = {"nodes": 4, "processes_per_node": 2, "layouts": {"default": {"dp_shard": 2, "tp": 4}}}
    layout = found.place(deployment, "main", found.gather(never))
    assert layout["hosts"] == ["n0", "n1"]
    assert found.is_short()
    assert not found.is_back()


def test_only_a_death_without_a_word_is_blamed_on_the_node(fleet):
    found = fleet()
    found.place(DEPLOYMENT, "main", found.gather(never))
    assert not found.judge(3, 4, "a RuntimeError")
    assert not found.judge(3, 4, "a RuntimeError")
    assert not found.judge(None, None, "a hang")
    assert not found.judge(3, None, "ended by SIGKILL"), "once may happen"
    assert found.judge(2, None, "ended by SIGSEGV")
    assert found._hosts["n1"].out == "2 faults began there: ended by SIGKILL; ended by SIGSEGV"
    assert found.told == [("n1", "evicted")]
    assert found.gather(never) == ("n0", "s0")
    assert found._hosts["n1"].node.calls == ["close"]


def test_a_node_that_fails_its_check_never_joins(fleet):
    found = fleet()
    for host in found._hosts.values():
        host.node = StandIn(host.name)
    found._hosts["n1"].node.unfit = "memory: 3 wrong words"
    assert found.gather(never) == ("n0", "s0")
    assert found._hosts["n1"].out == "it failed its check: memory: 3 wrong words"
    found._hosts["s0"].node.unfit = None
    assert found.usable == ("n0",), "its check is under way"


def test_a_node_with_evidence_of_silent_corruption_is_evicted(fleet):
    found = fleet()
    event = {"kind": "corruption", "host": "n1", "segment": 1, "evidence": False}
    assert not found.weigh_corruption([event, event | {"host": "elsewhere", "evidence": True}])
    assert found.weigh_corruption([event, event | {"evidence": True}])
    assert found.told == [("n1", "evicted")]
    assert not found.weigh_corruption([event | {"evidence": True}]), "once"


def test_a_lost_node_excuses_the_attempt_and_one_that_is_lost_again_is_evicted(fleet):
    """Else a node that dies at every start would keep a run from ever ending."""
    found = fleet()
    found.place(DEPLOYMENT, "main", found.gather(never))
    found._hosts["n1"].node.lost = "its agent ended"
    assert found.judge(2, None, "ended by SIGKILL")
    assert not found._hosts["n1"].out
    assert found.judge(2, None, "ended by SIGKILL")
    assert found._hosts["n1"].out == "2 faults began there: its agent ended (2 times)"


def test_a_stage_that_comes_later_may_find_more_nodes(fleet):
    found = fleet(hosts=("n0",))
    deployment = DEPLOYMENT | {"layouts": {"main": {"dp_shard": 4}, "late": {"tp": 4}}}
    layout = found.place(deployment, "main", ("n0",))
    assert (layout["world"], layout["layouts"]["late"]) == (2, {"tp": 4})
    with pytest.raises(EnvironmentFault, match="one replica of the layout takes 4"):
        found.place(deployment, "late", ("n0",))


def test_a_command_that_cannot_be_run_is_tried_now_and_then_and_told_once(run, monkeypatch, fleet):
    def fails(host, *_):
        raise EnvironmentFault(f"cannot start node {host}")

    found = fleet(hosts=("n0", "n1"))
    monkeypatch.setattr("headway.supervise.fleet.Node", fails)
    with pytest.raises(EnvironmentFault, match=r"cannot start node n0"):
        found.gather(never)
    assert found.told == [("n0", "lost"), ("n1", "lost")]


def test_too_few_for_good_says_why_of_each(fleet):
    found = fleet(hosts=("n0", "n1"), least=2)
    found.place(DEPLOYMENT, "main", found.gather(never))
    found.evict("n1", "its memory failed the check")
    with pytest.raises(EnvironmentFault, match=r"1 of 2 nodes can be used: n1 is evicted: its memory failed the check"):
        found.gather(never)


def test_hosts_that_do_not_answer_at_the_start_are_a_mistake_later_they_are_waited_for(fleet):
    found = fleet(hosts=("n0", "n1"), least=None)
    for host in found._hosts.values():
        host.node, host.tried = StandIn(host.name), time.monotonic()
    found._hosts["n1"].node.lost = "exit code 255"
    with pytest.raises(EnvironmentFault, match=r"1 of 2 nodes can be used: n1: exit code 255"):
        found.gather(never)
    found._hosts["n1"].node.lost = ""
    found.place(DEPLOYMENT, "main", found.gather(never))
    found._hosts["n1"].node.lost = "the network is away"
    began = time.monotonic()
    assert found.gather(lambda: time.monotonic() > began + 0.5) == ()
    assert found.told[-1] == ("note", "waiting for nodes: n1: the network is away")


def test_waiting_ends_when_somebody_asks_to_stop(fleet):
    found = fleet(hosts=("n0", "n1"), least=None)
    found.gather(never)
    found._hosts["n1"].node.lost = "gone"
    found._hosts["n1"].tried = time.monotonic()
    looks = iter([False] * 5 + [True] * 5)
    assert found.gather(lambda: next(looks)) == ()


def test_without_hosts_there_is_no_fleet():
    assert FleetOptions.of({"nodes": 1, "processes_per_node": 4}) is None
    assert FleetOptions.of({"nodes": 1, "processes_per_node": 4, "fleet": {"hosts": []}}) is None


def test_segments_say_where_they_ran(run):
    layout = {"world": 2, "stage": "main", "axes": {"dp_shard": 2}, "hosts": ["n0"], "per_node": 2}
    write_segment(run, Segment(1, None, 0, None, "start", "test", 1, layout))
    assert Path(run.segment(1) / "segment.json").is_file()
