"""Which nodes a run has, from its records."""

from __future__ import annotations

from headway.cli.status import node_lines
from headway.monitor.nodes import nodes_of
from headway.rundir.segments import Segment


def segment(*hosts: str) -> Segment:
    return Segment(1, None, 0, None, "start", "test", 1, {"world": len(hosts), **({"hosts": list(hosts)} if hosts else {})})


def node(host: str, state: str, reason: str = "") -> dict:
    return {"kind": "node", "host": host, "state": state, "reason": reason}


def test_a_run_of_one_machine_has_none():
    assert nodes_of([], [], {}) is None
    assert nodes_of([{"kind": "open"}], [segment()], {"nodes": 1}) is None


def test_the_newest_word_of_a_node_counts_and_a_new_owner_begins_with_all():
    told = [{"kind": "open"}, node("n1", "lost", "its agent ended"), node("n2", "evicted", "2 faults"), node("n1", "back")]
    found = nodes_of(told, [segment("n0", "n1")], {"nodes": 3})
    assert (found.training, found.away) == (("n0", "n1"), {"n2": "evicted: 2 faults"})
    assert list(node_lines(found)) == ["nodes       2 train: n0, n1, 3 are wanted", "            n2 is evicted: 2 faults"]
    assert nodes_of([*told, {"kind": "open"}], [segment("n0", "n1")], {"nodes": 2}).away == {}
