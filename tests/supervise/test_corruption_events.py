"""What a finding of silent corruption becomes: an event with rank and host, and evidence once a machine was named twice."""

from __future__ import annotations

import pytest

from headway.base.clocks import FakeClock
from headway.base.files import write_json
from headway.rundir.events import EventLog, is_event, read_events
from headway.rundir.segments import Segment, write_segment
from headway.supervise.corruption import accused, of_exit, record_finding, record_location


@pytest.fixture
def events(run):
    return EventLog(run, 1, FakeClock())


def found(run, segment, rank, host):
    write_segment(run, Segment(segment, None, 0, None, "test", "test", 1, {"world": 2}))
    facts = {"by": "replicas", "step": 12, "agreed": 8, "rank": rank, "ranks": [0, 1] if rank is None else [rank], "host": host}
    facts |= {"hosts": ["a", "b"] if host is None else [host], "parameter": "w", "tensors": ["param/w"], "words": "after step 12"}
    write_json(run.segment(segment) / "error.json", {"label": "run failed", "problems": [], "corruption": facts})


def told(run):
    return [
        (e["segment"], e["rank"], e["host"], e["findings"], e["evidence"]) for e in read_events(run) if e["kind"] == "corruption"
    ]


def test_a_second_finding_on_one_machine_is_evidence_against_it(run, events):
    for segment, rank, host in ((1, 1, "b"), (2, 0, "a"), (3, 3, "b")):
        found(run, segment, rank, host)
        record_finding(run, segment, events.append)
    assert told(run) == [(1, 1, "b", 1, False), (2, 0, "a", 1, False), (3, 3, "b", 2, True)]
    assert "finding 2 on b in this run: evidence against that machine" in read_events(run)[-1]["reason"]
    assert of_exit(run, 3)["corruption"].items() >= {"kind": "corruption", "rank": 3, "host": "b"}.items()


def test_a_node_is_known_by_its_name_also_where_only_its_ranks_are(run, events):
    layout = {"world": 4, "hosts": ["n0", "n1"], "per_node": 2}
    for segment, ranks, rank in ((1, [3], 3), (2, [2, 3], None), (3, [1, 2], None)):
        write_segment(run, Segment(segment, None, 0, None, "test", "test", 1, layout))
        facts = {"by": "replicas", "step": 12, "agreed": 8, "rank": rank, "ranks": ranks, "host": "vm", "hosts": ["vm"]}
        facts |= {"parameter": "w", "tensors": ["param/w"], "words": "after step 12"}
        write_json(run.segment(segment) / "error.json", {"label": "run failed", "problems": [], "corruption": facts})
        record_finding(run, segment, events.append)
    assert [(host, findings, evidence) for _, _, host, findings, evidence in told(run)] == [
        ("n1", 1, False),
        ("n1", 2, True),
        (None, 0, False),
    ]
    assert accused(read_events(run)) == {"n1"}


def test_a_finding_that_names_nobody_is_no_evidence(run, events):
    for segment in (1, 2):
        found(run, segment, None, None)
        record_finding(run, segment, events.append)
    assert told(run) == [(1, None, None, 0, False), (2, None, None, 0, False)]


def test_where_it_began_is_told_later_and_counts_once(run, events):
    found(run, 1, None, None)
    record_finding(run, 1, events.append)
    row = {"kind": "located", "step": 12, "of_segment": 1, "parameter": "w", "rank": 1, "host": "b", "first_step": 10}
    record_location(run, row, events.append)
    assert told(run)[-1] == (1, 1, "b", 1, False)
    assert "copies of w were not equal since step 10; rank 1 (b) was wrong" in read_events(run)[-1]["reason"]
    found(run, 2, 1, "b")
    record_finding(run, 2, events.append)
    assert told(run)[-1] == (2, 1, "b", 2, True)
    assert all(map(is_event, read_events(run)))


def test_other_ends_are_no_findings(run, events):
    write_segment(run, Segment(1, None, 0, None, "test", "test", 1, {"world": 1}))
    write_json(run.segment(1) / "error.json", {"label": "run failed", "problems": []})
    record_finding(run, 1, events.append)
    assert (told(run), of_exit(run, 1)) == ([], {})
