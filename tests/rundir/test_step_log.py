"""The trainer's rows: splits that sum exactly, floats that JSON cannot hold, tails that were rolled back."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.clocks import FakeClock, Stamp
from headway.base.files import make_directory
from headway.base.records import encode_record, read_records
from headway.rundir.categories import Category
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import (
    StepLog,
    decode_row,
    encode_row,
    is_kept,
    last_kept_steps,
    read_chain_rows,
    read_step_rows,
    read_steps,
)
from headway.rundir.segments import Segment, current_chain, is_admissible, read_segments, write_segment

WORK = {"tokens": 64, "targets": 64, "loss": 2.0, "grad_norm": 1.0}


def open_log(run, clock, segment: int = 1) -> StepLog:
    make_directory(run.segment(segment))
    return StepLog(run, segment, clock)


@dataclass
class JumpClock(FakeClock):
    """Every look at the clock finds it a little later."""

    jumps: list[int] = field(default_factory=list)

    def stamp(self) -> Stamp:
        self.boot_ns += self.jumps.pop() if self.jumps else 1
        return super().stamp()


def test_G1_split_of_a_row(run):
    clock = FakeClock()
    log = open_log(run, clock)
    log.mark("restore")  # before the first row: no interval to split yet
    log.write("start", pid=1)
    clock.advance(1.0)
    log.mark("data_stall")
    clock.advance(2.0)
    log.write("step", step=1, **WORK)
    clock.advance(4.0)
    log.write("save", step=1, rest="blocking_save")
    rows = read_steps(run, 1)
    assert "split" not in rows[0]
    assert rows[1]["split"] == {"data_stall": 10**9, "productive": 2 * 10**9}
    assert rows[2]["split"] == {"blocking_save": 4 * 10**9}


moves = st.lists(
    st.tuples(st.sampled_from(["mark", "write"]), st.sampled_from(list(Category)), st.integers(0, 10**12)),
    min_size=1,
    max_size=40,
)


@given(moves=moves)
def test_G1_splits_tile_the_time_between_rows(moves):
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place))
        clock = JumpClock(jumps=[ns for _, _, ns in reversed(moves)])
        log = open_log(run, clock)
        for what, category, _ in moves:
            if what == "mark":
                log.mark(category)
            else:
                log.write("step", step=1, rest=category, **WORK)
        rows = read_steps(run, 1)
    for before, row in pairwise(rows):
        assert sum(row["split"].values()) == row["stamp"]["boot_ns"] - before["stamp"]["boot_ns"]
        assert all(ns > 0 for ns in row["split"].values())


def test_non_finite_floats_travel_as_words(run):
    log = open_log(run, FakeClock())
    log.write("start", pid=1)
    log.write("step", step=1, tokens=64, targets=64, loss=math.nan, grad_norm=math.inf, rate=1e-3)
    log.write("evaluation", step=1, loss={"code": -math.inf, "nan": 2.0})
    log.write("sample", step=1, texts=[{"prompt": "nan", "text": "inf"}])
    _, step, evaluation, sample = read_steps(run, 1)
    assert math.isnan(step["loss"])
    assert step["grad_norm"] == math.inf
    assert evaluation["loss"] == {"code": -math.inf, "nan": 2.0}
    assert sample["texts"] == [{"prompt": "nan", "text": "inf"}]
    assert read_records(run.steps_file(1)).records[1]["loss"] == "nan"


@given(
    st.recursive(
        st.floats() | st.integers() | st.text("abc"), lambda inner: st.lists(inner) | st.dictionaries(st.text("xyz"), inner)
    )
)
def test_decode_row_inverts_encode_row(value):
    assert repr(decode_row(encode_row(value))) == repr(value)


def segment(number: int, parent: int | None, restored: int) -> Segment:
    return Segment(number, parent, restored, None, "test", "automatic", 1, {})


def write_rows(run, number: int, parent: int | None, restored: int, last: int) -> None:
    write_segment(run, segment(number, parent, restored))
    log = open_log(run, FakeClock(), number)
    log.write("start", pid=1)
    log.write("restored", step=restored)
    for step in range(restored + 1, last + 1):
        log.write("step", step=step, **WORK)


def test_E5_discarded_tail_is_visible_and_not_overplotted(run):
    write_rows(run, 1, None, 0, 6)
    write_rows(run, 2, 1, 4, 5)  # went on from 4, committed nothing
    write_rows(run, 3, 1, 4, 7)  # so its successor started from segment 1 again
    rows = read_chain_rows(run, current_chain(read_segments(run)))
    kept = [(row["segment"], row["step"]) for row in rows.kept if row["kind"] == "step"]
    assert kept == [(1, 1), (1, 2), (1, 3), (1, 4), (3, 5), (3, 6), (3, 7)]
    gone = [(row["segment"], row["step"]) for row in rows.discarded if row["kind"] == "step"]
    assert gone == [(1, 5), (1, 6), (2, 5)]


def test_last_kept_steps_of_a_chain():
    assert last_kept_steps([segment(1, None, 0), segment(3, 1, 40), segment(4, 3, 80)]) == {1: 40, 3: 80, 4: None}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=12))
def test_chains_as_the_supervisor_writes_them_have_growing_restored_steps(moves):
    """It restores an admissible checkpoint of the chain, or starts anew; then no later restore goes behind an earlier one."""
    segments, saved = [segment(1, None, 0)], dict[int, list[int]]()
    for back, ahead in moves:
        newest = segments[-1]
        saved[newest.id] = [newest.restored_step + ahead, newest.restored_step + 2 * ahead]
        chain = current_chain(segments)
        usable = [(s.id, step) for s in chain for step in saved.get(s.id, []) if is_admissible(chain, s.id, step)]
        parent, restored = usable[-1 - back] if back < len(usable) else (None, 0)
        segments.append(segment(newest.id + 1, parent, restored))
    chain, last = current_chain(segments), last_kept_steps(current_chain(segments))
    for position, member in enumerate(chain[:-1]):
        assert last[member.id] == min(later.restored_step for later in chain[position + 1 :])
    assert last[chain[-1].id] is None


def test_stall_belongs_to_the_step_that_it_waits_for(run):
    stall = {"kind": "stall", "step": 40}
    assert is_kept(stall, 41)
    assert not is_kept(stall, 40), "step 41 is undone, and so is the wait for its data"
    assert is_kept({"kind": "evaluation", "step": 40}, 40)


def test_rest_of_a_stall_and_of_a_failed_retention_have_their_categories(run):
    clock = FakeClock()
    write_segment(run, segment(1, None, 0))
    log = open_log(run, clock)
    log.write("start", pid=1)
    clock.advance(10.0)
    assert log.write("stall", step=0, waited_ns=10**10, shard="nan")["split"] == {"data_stall": 10**10}
    clock.advance(1.0)
    assert log.write("retention_failed", step=0, error="full")["split"] == {"blocking_save": 10**9}
    assert read_steps(run, 1)[1]["shard"] == "nan", "the name of a shard is a text"


STAMP = FakeClock().stamp().to_json()
STEP = {"kind": "step", "stamp": STAMP, "step": 1, **WORK}
NO_ROWS = [
    5,
    [],
    {},
    {"kind": "step"},
    {"kind": ["step"], "stamp": STAMP},
    {"kind": "leap", "stamp": STAMP},
    {key: value for key, value in STEP.items() if key != "stamp"},
    {key: value for key, value in STEP.items() if key != "loss"},
    {**STEP, "stamp": {**STAMP, "boot_ns": "soon"}},
    {**STEP, "step": "1"},
    {**STEP, "step": True},
    {**STEP, "step": -1},
    {**STEP, "loss": "low"},
    {**STEP, "split": {"leisure": 1}},
    {**STEP, "split": {"productive": -1}},
    {**STEP, "split": 3},
    {"kind": "evaluation", "stamp": STAMP, "step": 1, "loss": {"code": None}},
]


@pytest.mark.parametrize("value", NO_ROWS)
def test_whole_lines_that_are_no_row_are_counted_as_damaged(run, value):
    log = open_log(run, FakeClock())
    log.write("start", pid=1)
    with open(run.steps_file(1), "ab") as file:
        file.write(encode_record(value))
    log.write("step", step=1, **WORK)
    read = read_step_rows(run, 1)
    assert ([row["kind"] for row in read.rows], read.damaged_lines) == (["start", "step"], 1)
