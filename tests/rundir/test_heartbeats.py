"""What a rank says of itself, and what a reader makes of it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from tiny_run import tiny_run

from headway.rundir.heartbeats import STEPS, BeatReader, Heart, beat_file


@pytest.fixture
def run(tmp_path: Path):
    run = tiny_run(tmp_path / "run")
    run.segment(1).mkdir(parents=True)
    return run


@pytest.fixture
def heart(run):
    heart = Heart.start(run, 1, 0, 2, every_seconds=0.01)
    yield heart
    heart.close()


def reader_of(run) -> BeatReader:
    return BeatReader(beat_file(run, 1, 0), 0)


def stepped(heart: Heart, step: int) -> None:
    heart.enter("data", step - 1)
    heart.enter("step", step - 1)
    heart.stepped(step, data_ns=7)


def test_phases_steps_and_who_it_is(run, heart):
    reader = reader_of(run)
    assert reader.poll() == []
    who = reader.beat.who
    assert (who["rank"], who["world"], who["pid"]) == (0, 2, os.getpid())
    assert (reader.beat.phase, reader.beat.step) == ("init", 0)
    moves = reader.beat.state["moves"]
    heart.blocked.total_ns = 50
    stepped(heart, 1)
    row = reader.poll()[0]
    assert (row["step"], row["data_ns"], row["wait_ns"], row["first"]) == (1, 7, 0, False)
    assert row["rss"] > 10**6
    assert (reader.beat.phase, reader.beat.step, reader.beat.state["moves"]) == ("record", 1, moves + 3)
    assert reader.poll() == []


def test_waits_are_no_work(run, heart):
    heart.enter("compile", 0)
    time.sleep(0.02)
    heart.blocked.total_ns += 15_000_000
    heart.stepped(1, data_ns=0)
    reader = reader_of(run)
    row = reader.poll()[0]
    assert (row["wait_ns"], row["first"]) == (15_000_000, True)
    assert row["work_ns"] >= 5_000_000


def test_a_slow_reader_loses_old_steps_and_reads_no_wrong_ones(run, heart):
    reader = reader_of(run)
    reader.poll()
    for step in range(1, 3 * STEPS):
        stepped(heart, step)
    assert [row["step"] for row in reader.poll()] == list(range(2 * STEPS, 3 * STEPS))


def test_the_pulse_tells_what_the_training_thread_is_in(run):
    """Although that thread itself says nothing."""
    started, done, found = threading.Event(), threading.Event(), dict[str, Heart]()

    def train_for_ever() -> None:
        found["heart"] = Heart.start(run, 1, 0, 1, every_seconds=0.01)
        found["heart"].blocked.since_ns = 5
        started.set()
        done.wait(20.0)

    thread = threading.Thread(target=train_for_ever)
    thread.start()
    started.wait(20.0)
    reader, deadline = reader_of(run), time.monotonic() + 20.0
    while not any("train_for_ever" in frame for frame in reader.beat.pulse.get("frames", [])):
        assert time.monotonic() < deadline, reader.beat
        reader.poll()
    assert reader.beat.pulse["wait_since_ns"] in (0, 5)
    done.set()
    thread.join()
    found["heart"].close()


def test_torn_and_altered_slots_are_not_believed(run, heart):
    stepped(heart, 1)
    path = beat_file(run, 1, 0)
    data = bytearray(path.read_bytes())
    heart.close()
    time.sleep(0.05)
    for at in (30, 1024 + 30, 3 * 1024 + 256 + 30):
        data[at] ^= 1
    path.write_bytes(data)
    reader = reader_of(run)
    assert reader.poll() == []
    assert (reader.beat.who, reader.beat.state) == ({}, {})


def test_a_heart_that_cannot_write_is_silent(run):
    (run.segment(1) / "ranks").write_text("in the way")
    heart = Heart.start(run, 1, 0, 1)
    stepped(heart, 1)
    heart.close()
    assert reader_of(run).poll() == []
