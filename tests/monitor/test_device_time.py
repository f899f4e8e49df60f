"""The second ledger: device time that was asked for and did nothing, or less than it could."""

from __future__ import annotations

import dataclasses

from any_history import Teller
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import tiny_spec

from headway.monitor.capacity import LEAST_STEPS, MISSING, SLOWER, Capacity, build_capacity, device_time, devices_by_segment
from headway.monitor.ledger import build_ledger
from headway.recipe.schedules import Schedule
from headway.rundir.segments import Segment

MS = 10**6
ASKED = {"nodes": 2, "processes_per_node": 4}


def segment(number: int, world: int, author: str = "automatic", deployment: dict | None = None, **fields) -> Segment:
    layout = {"world": world, "axes": {"dp_shard": world}}
    return Segment(number, fields.get("parent"), fields.get("restored", 0), None, "", author, 1, layout, deployment=deployment)


def fold(told: Teller, segments: list[Segment]) -> Capacity:
    told.segments[:] = segments
    ledger = build_ledger(told.events, told.rows, told.chain, Schedule(tiny_spec(steps=400)), segments=segments)
    capacity = build_capacity(ledger, told.rows, segments, ASKED)
    assert sum(capacity.categories.values()) == capacity.total
    return capacity


def shrunk_and_slow() -> tuple[Teller, list[Segment]]:
    """8 devices: 10 steps of 100 ms, 10 of 200 ms; then 4 devices: 10 steps of 180 ms. Provision 1 ms, restart 2 ms."""
    told = Teller()
    told.event("open", epoch=1, previous=None)
    told.launches(None, 0, (), 1 * MS)
    for number in range(1, 21):
        told.step(number, 0, (100 if number <= 10 else 200) * MS)
    told.row("save", {"blocking_save": 0}, step=20, checkpoint="c")
    told.closes("exit", "detection_to_stop", 5 * MS)
    told.launches(1, 20, (), 2 * MS)
    for number in range(21, 31):
        told.step(number, 0, 180 * MS)
    return told, [segment(1, 8), segment(2, 4, parent=1, restored=20)]


def test_device_time_by_hand():
    told, segments = shrunk_and_slow()
    capacity = fold(told, segments)
    assert capacity.categories == {
        "productive": (20 * 100 * 8 + 10 * 180 * 4) * MS,
        SLOWER: 10 * 100 * 8 * MS,
        MISSING: (10 * 180 + 2) * 4 * MS,
        "detection_to_stop": 5 * 8 * MS,
        "provision": 8 * MS,
        "reconfigure": 2 * 4 * MS,
    }
    assert capacity.total == (1 + 10 * 100 + 10 * 200 + 5 + 2 + 10 * 180) * 8 * MS
    assert capacity.shrunk_ns == (10 * 180 + 2) * MS


def test_fewer_devices_have_a_good_pace_of_their_own():
    told, segments = shrunk_and_slow()
    assert sorted(fold(told, segments).good_pace.values()) == [100 * MS, 180 * MS]


def test_phases_name_their_steps():
    told, segments = shrunk_and_slow()
    missing, slow = fold(told, segments).phases
    assert (missing.what, missing.segment, missing.devices, missing.asked, missing.times) == (MISSING, 2, 4, 8, 2.0)
    assert (slow.what, slow.segment, slow.last_step, slow.devices) == (SLOWER, 1, 20, 8)
    assert slow.first_step in (11, 12)
    assert 1.9 < slow.times <= 2.0


def test_a_straggler_of_six_per_cent_shows_and_noise_does_not():
    for excess, is_slow in ((6, True), (3, False)):
        told = Teller()
        told.event("open", epoch=1, previous=None)
        told.launches(None, 0, (), 1)
        for number in range(1, 41):
            told.step(number, 0, (100 + number % 3 + (excess if number > 20 else 0)) * MS)
        phases = fold(told, [segment(1, 8)]).phases
        assert bool(phases) is is_slow, phases


def test_too_few_steps_have_no_good_pace():
    told = Teller()
    told.event("open", epoch=1, previous=None)
    told.launches(None, 0, (), 1)
    for number in range(1, LEAST_STEPS):
        told.step(number, 0, number * 100 * MS)
    capacity = fold(told, [segment(1, 8)])
    assert not capacity.good_pace
    assert SLOWER not in capacity.categories


def test_work_that_was_lost_is_not_slow_as_well():
    told, _ = shrunk_and_slow()
    capacity = fold(told, [segment(1, 8), segment(2, 4, restored=0)])
    assert capacity.categories["rolled_back"] == 20 * 150 * 8 * MS
    assert SLOWER not in capacity.categories


def test_what_is_asked_for_changes_only_by_a_person():
    small = {"nodes": 1, "processes_per_node": 4}
    automatic = [segment(1, 8, "a person"), segment(2, 4, deployment=small), segment(3, 8)]
    assert [(one.there, one.asked) for one in devices_by_segment(automatic, ASKED).values()] == [(8, 8), (4, 8), (8, 8)]
    person = [segment(1, 8), segment(2, 4, "a person", small), segment(3, 4, deployment=small)]
    assert [(one.there, one.asked) for one in devices_by_segment(person, ASKED).values()] == [(8, 8), (4, 4), (4, 4)]
    back = [segment(1, 4, "a person", small), segment(2, 8, "a person")]
    assert [(one.there, one.asked) for one in devices_by_segment(back, ASKED).values()] == [(4, 4), (8, 8)]


def test_nobody_holds_devices_in_a_pause():
    told, segments = shrunk_and_slow()
    told.closes("exit", "detection_to_stop", 0)
    told.event("finish", state="stopped", reason="", closes="reconfigure")
    told.opens("planned_pause", 50 * MS, boot=told.boot, skew_ns=0, queued_ns=20 * MS)
    categories = fold(told, segments).categories
    assert (categories["planned_pause"], categories["queue"]) == (30 * 8 * MS, 20 * 8 * MS)


worlds = st.lists(st.tuples(st.integers(1, 12), st.lists(st.integers(0, 10**10), max_size=12)), min_size=1, max_size=4)


@given(worlds=worlds)
def test_device_time_sums_exactly(worlds):
    """Whole numbers: what every interval is long, times what was asked for in it."""
    told = Teller()
    told.event("open", epoch=1, previous=None)
    segments = []
    step = 0
    for number, (world, times) in enumerate(worlds, 1):
        told.launches(number - 1 or None, step, (), 7)
        segments.append(segment(number, world, parent=number - 1 or None, restored=step))
        for ns in times:
            step += 1
            told.step(step, ns // 10, ns)
        told.closes("exit", "detection_to_stop", 3)
    capacity = fold(told, segments)
    ledger = build_ledger(told.events, told.rows, told.chain, segments=segments)
    asked = devices_by_segment(segments, ASKED)
    assert capacity.total == sum(one.ns * asked[one.segment].asked for one in ledger.intervals)


def test_device_time_in_words():
    assert device_time(5 * 10**9) == "5 s"
    assert device_time(16_384 * 3600 * 10**9) == "16,384 device hours"


def test_a_replica_group_that_is_away_is_missing():
    told = Teller()
    told.event("open", epoch=1, previous=None)
    told.launches(None, 0, (), 1 * MS)
    for number in range(1, 31):
        told.step(number, 0, 100 * MS)
        if number in (10, 20):
            groups = [0] if number == 10 else [0, 1]
            told.row("groups", {}, step=number, groups=groups, lost=[], back=[])
    whole = segment(1, 8)
    capacity = fold(told, [dataclasses.replace(whole, layout=whole.layout | {"groups": 2})])
    assert capacity.categories[MISSING] == 10 * 100 * 4 * MS
    assert capacity.shrunk_ns == 10 * 100 * MS
