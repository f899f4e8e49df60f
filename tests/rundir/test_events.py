"""The chain of events over epochs."""

from __future__ import annotations

import pytest

from headway.base.clocks import FakeClock
from headway.base.digests import digest_json
from headway.base.errors import EnvironmentFault
from headway.base.records import encode_record
from headway.rundir.events import EventLog, read_event_chain, read_events, unfinished_launch


def test_first_epoch_follows_nothing_and_later_ones_link(run):
    clock = FakeClock()
    log = EventLog(run, 1, clock)
    clock.advance(2.0)
    last = log.append("note", text="hello")
    clock.advance(3.0)
    opened = EventLog(run, 2, clock).opened
    assert read_events(run)[0]["previous"] is None
    assert opened["previous"] == {"digest": digest_json(last), "gap_ns": 3_000_000_000, "clock": "boottime"}
    assert opened["closes"] == "unknown"
    assert [event["kind"] for event in read_events(run)] == ["open", "note", "open"]


def test_gap_over_a_boot_is_a_realtime_difference_and_never_negative(run):
    EventLog(run, 1, FakeClock(real_ns=1000))
    later = EventLog(run, 2, FakeClock(boot_id="boot-b", boot_ns=5, real_ns=1700)).opened
    assert (later["previous"]["gap_ns"], later["previous"]["clock"]) == (700, "realtime")
    back = EventLog(run, 3, FakeClock(boot_id="boot-c", boot_ns=5, real_ns=10)).opened
    assert back["previous"]["gap_ns"] == 0


def test_closes_follows_from_kind_and_history(run):
    clock = FakeClock()
    log = EventLog(run, 1, clock)
    closes = [log.append(kind, segment=1, pid=1).get("closes") for kind in ("launch", "hang", "exit", "launch", "exit")]
    assert closes == ["provision", "hang", "detection_to_stop", "reconfigure", "detection_to_stop"]
    assert "closes" not in log.append("note", text="")
    log.append("finish", state="stopped", reason="")
    second = EventLog(run, 2, clock)
    assert second.opened["closes"] == "planned_pause"
    assert second.append("launch", segment=2, pid=1)["closes"] == "reconfigure", "only the first of the run is provision"
    second.append("finish", state="failed", reason="")
    assert EventLog(run, 3, clock).opened["closes"] == "unknown"


def test_torn_tail_loses_that_line_only(run):
    clock = FakeClock()
    log = EventLog(run, 1, clock)
    log.append("note", text="one")
    with open(run.events / "epoch-000001.jsonl", "ab") as file:
        file.write(b'0000001f 12345678 {"kind":"no')
    opened = EventLog(run, 2, clock).opened
    assert opened["previous"]["digest"] == digest_json(read_events(run)[1])
    assert [event["kind"] for event in read_events(run)] == ["open", "note", "open"]


def test_late_records_of_a_replaced_owner_are_apart(run):
    clock = FakeClock()
    old = EventLog(run, 1, clock)
    old.append("launch", segment=1, pid=1)
    EventLog(run, 2, clock)
    old.append("exit", segment=1)
    events = read_event_chain(run)
    assert [event["kind"] for event in events.chain] == ["open", "launch", "open"]
    assert [event["kind"] for event in events.late] == ["exit"]


def test_unfinished_launch(run):
    log = EventLog(run, 1, FakeClock())
    assert unfinished_launch(read_events(run)) is None
    log.append("launch", segment=1, pid=1)
    assert unfinished_launch(read_events(run))["segment"] == 1
    log.append("exit", segment=1)
    assert unfinished_launch(read_events(run)) is None


def test_records_are_numbered_over_all_epochs(run):
    clock = FakeClock()
    EventLog(run, 1, clock).append("launch", segment=1, pid=1)
    EventLog(run, 2, clock).append("note", text="")
    assert [event["n"] for event in read_events(run)] == [0, 1, 2, 3]


def test_the_file_of_an_epoch_is_never_shared(run):
    EventLog(run, 1, FakeClock())
    before = (run.events / "epoch-000001.jsonl").read_bytes()
    with pytest.raises(EnvironmentFault, match=r"exists.*\n.*epoch-000001"):
        EventLog(run, 1, FakeClock())
    assert (run.events / "epoch-000001.jsonl").read_bytes() == before


STAMP = FakeClock().stamp().to_json()
NO_EVENTS = [
    5,
    {"kind": "launch", "segment": 1, "pid": 1},
    {"kind": "launch", "stamp": STAMP},
    {"kind": "exit", "stamp": STAMP, "segment": "1"},
    {"kind": "exit", "stamp": STAMP, "segment": 1, "closes": "leisure"},
    {"kind": "open", "stamp": STAMP, "epoch": 1, "previous": 3},
    {"kind": "finish", "stamp": STAMP, "state": "complete", "reason": "", "n": "last"},
]


@pytest.mark.parametrize("value", NO_EVENTS)
def test_whole_lines_that_are_no_event_are_counted_as_damaged(run, value):
    EventLog(run, 1, FakeClock())
    with open(run.events / "epoch-000001.jsonl", "ab") as file:
        file.write(encode_record(value))
    history = read_event_chain(run)
    assert ([event["kind"] for event in history.chain], history.damaged_lines) == (["open"], 1)


def test_a_stray_file_beside_the_events_is_no_epoch(run):
    EventLog(run, 1, FakeClock())
    (run.events / "epoch-copy.jsonl").write_bytes((run.events / "epoch-000001.jsonl").read_bytes())
    assert len(read_events(run)) == 1


def test_late_records_stay_apart_although_the_linked_one_is_lost(run):
    clock = FakeClock()
    old = EventLog(run, 1, clock)
    old.append("launch", segment=1, pid=1)
    old.append("note", text="linked")
    EventLog(run, 2, clock)
    old.append("exit", segment=1)
    path = run.events / "epoch-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"linked", b"LINKED"))
    history = read_event_chain(run)
    assert [event["kind"] for event in history.chain] == ["open", "launch", "open"]
    assert ([event["kind"] for event in history.late], history.damaged_lines) == (["exit"], 1)
