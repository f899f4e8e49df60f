"""Asynchronous saves of one rank with a real writer: what the snapshot holds, back-pressure, memory, and its faults."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from checkpoint_cases import blank, make_run, same, state

from headway.base.errors import CheckpointRefused, RunError
from headway.checkpoint.load import Sources, load_checkpoint, load_state
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.store.admissible import choose
from headway.store.manifest import BLOCK_BYTES
from headway.store.writer.client import end_writers


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    yield run
    end_writers(run, 1)


def saver_of(run, values, segment=1, **policy):
    saver = Saver(Place(run=run, segment=segment), SavePolicy(**{"keep_last": 9, "linger_seconds": 20, **policy}))
    saver.attach(values)
    saver.prepare()
    return saver


def kinds(outcomes):
    return [(outcome.kind, outcome.step) for outcome in outcomes if outcome.kind in ("committed", "failed")]


def test_C6_a_save_holds_the_values_of_its_own_step(run):
    values = {**state(1), "param/large": torch.randn(3 * BLOCK_BYTES // 4)}
    saver = saver_of(run, values, flush_speed=20e6)  # it takes its time while training goes on
    before = {name: tensor.clone() for name, tensor in values.items()}
    snapshot = saver.save(1, values, {"u": 1})
    for tensor in values.values():
        tensor.zero_()
    assert not kinds(saver.poll()), "it is still being written"
    assert kinds(saver.settle()) == [("committed", 1)]
    into = blank(values)
    load_checkpoint(run.checkpoints / snapshot.name, into)
    assert same(into, before)


def test_busy_skip_leaves_a_save_out(run):
    values = {"x": torch.randn(BLOCK_BYTES // 4)}
    saver = saver_of(run, values, flush_speed=2e6)
    assert saver.save(1, values, {}) is not None
    assert saver.busy
    assert saver.save(2, values, {}) is None
    assert kinds(saver.settle()) == [("committed", 1)]
    assert saver.save(3, values, {}) is not None


def test_busy_wait_waits_for_the_memory(run):
    values = {"x": torch.randn(BLOCK_BYTES // 4)}
    saver = saver_of(run, values, flush_speed=20e6, when_busy="wait")
    first, second = saver.save(1, values, {}), saver.save(2, values, {})
    assert second.blocking_ns > 0.1e9 > first.blocking_ns, "0.2 s at this speed"
    assert kinds(saver.settle()) == [("committed", 1), ("committed", 2)]


def test_views_and_transposes_are_saved_as_they_read(run):
    whole = torch.arange(30.0).reshape(5, 6)
    values = {"t": whole.T, "strided": whole[:, ::2], "scalar": torch.tensor(4), "nothing": torch.zeros(0, 3)}
    saver = saver_of(run, values)
    name = saver.save(1, values, {}).name
    assert kinds(saver.settle()) == [("committed", 1)]
    into = {key: torch.full(tuple(tensor.shape), 7, dtype=tensor.dtype) for key, tensor in values.items()}
    load_checkpoint(run.checkpoints / name, into)
    assert same(into, values)


def test_C11_a_state_that_changes_its_kind_is_an_error_not_a_half_save(run):
    values = state(1)
    saver = saver_of(run, values)
    with pytest.raises(RunError, match="other tensors than at the start"):
        saver.save(1, {**values, "lazy/moment": torch.zeros(3)}, {})
    assert kinds(saver.settle()) == []
    assert saver.save(1, values, {}) is not None
    assert kinds(saver.settle()) == [("committed", 1)]


def test_C3_a_writer_that_dies_fails_its_save_and_the_next_works(run):
    values = {"x": torch.randn(BLOCK_BYTES // 4)}
    saver = saver_of(run, values, flush_speed=1e6)
    saver.save(1, values, {})
    os.kill(saver._writer.pid, signal.SIGKILL)
    (failed,) = [outcome for outcome in saver.settle() if outcome.kind == "failed"]
    assert "the checkpoint writer died" in failed.fields["error"]
    assert saver.save(2, values, {}) is not None
    assert kinds(saver.settle()) == [("committed", 2)]
    assert choose(run, current_chain(read_segments(run))).step == 2


def test_C3_a_writer_that_is_stuck_is_ended(run, monkeypatch):
    monkeypatch.setattr("headway.checkpoint.saver.STUCK_SECONDS", 0.3)
    values = state(1)
    saver = saver_of(run, values)
    os.kill(saver._writer.pid, signal.SIGSTOP)
    saver.save(1, values, {})
    assert kinds(saver.settle()) == [("failed", 1)]
    assert saver.save(2, values, {}) is not None
    assert kinds(saver.settle()) == [("committed", 2)]


def restarted(run, values, step=4):
    """A snapshot of ``step`` committed, its trainer dead, and the saver of the next segment."""
    saver = saver_of(run, values)
    name = saver.save(step, values, {}).name
    saver.settle()
    saver._writer._channel.close()
    write_segment(run, Segment(2, 1, step, name, "test", "automatic", 2, {}))
    return name, Saver(Place(run=run, segment=2), SavePolicy(keep_last=9))


def test_memory_serves_a_restart(run):
    values = state(4)
    name, saver = restarted(run, values)
    images, into = saver.images(name), blank(values)
    loaded = load_state(run.checkpoints / name, into, Sources(images=images))
    assert loaded.from_memory == ("rank00000.safetensors",)
    assert same(into, values)
    saver.attach(values)
    saver.prepare()
    saver.save(8, values, {})
    assert kinds(saver.settle()) == [("committed", 8)], "the memory that was read is the memory that is written"


def test_memory_of_another_checkpoint_is_not_used(run):
    name, saver = restarted(run, state(4))
    assert saver.images("g0001-s00000003") == {}
    assert saver.images(None) == {}
    assert list(saver.images(name)) == ["rank00000.safetensors"]


@pytest.mark.parametrize("where", ["memory", "storage", "both"])
def test_C2_corrupt_memory_is_noticed_and_the_storage_takes_its_place(run, where):
    values = state(4)
    name, saver = restarted(run, values)
    path, into = run.checkpoints / name / "rank00000.safetensors", blank(values)
    image = bytearray(saver.images(name)["rank00000.safetensors"])
    data = bytearray(path.read_bytes())
    at = len(data) - 5
    if where != "storage":
        image[at] ^= 1
    if where != "memory":
        data[at] ^= 1
        path.write_bytes(data)
    sources = Sources(images={path.name: memoryview(image)})
    if where == "both":
        with pytest.raises(CheckpointRefused, match="digest differs") as caught:
            load_state(path.parent, into, sources)
        assert caught.value.checkpoint == name
        return
    loaded = load_state(path.parent, into, sources)
    assert loaded.from_memory == (() if where == "memory" else (path.name,))
    assert same(into, values)


def test_C8_a_directory_that_is_listed_late_is_waited_for(run, tmp_path):
    values = state(4)
    saver = saver_of(run, values)
    name = saver.save(4, values, {}).name
    saver.settle()
    hidden, into = tmp_path / "not-yet-seen", blank(values)
    (run.checkpoints / name).rename(hidden)
    threading.Timer(0.4, lambda: hidden.rename(run.checkpoints / name)).start()
    load_state(run.checkpoints / name, into, Sources(appears_seconds=5))
    assert same(into, values)
    with pytest.raises(CheckpointRefused, match="missing"):
        load_state(run.checkpoints / "g0001-s00000099", into, Sources(appears_seconds=0.1))


def test_F3_clocks_and_times_of_files_decide_nothing(run, monkeypatch):
    values = state(1)
    saver = saver_of(run, values)
    for step in (1, 2, 3):
        saver.save(step, values, {})
        saver.settle()
    for step, hours in ((1, 1), (2, 0), (3, -1)):  # the newest looks the oldest
        for path in (run.checkpoints / f"g0001-s{step:08d}").iterdir():
            os.utime(path, (time.time() + 3600 * hours,) * 2)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    assert choose(run, current_chain(read_segments(run))).step == 3
    saver.save(4, values, {})
    assert kinds(saver.settle()) == [("committed", 4)]
    assert choose(run, current_chain(read_segments(run))).step == 4


def test_a_writer_that_ended_after_it_was_found_is_replaced(run):
    """Its linger was over, or somebody ended it, between the greeting and the use."""
    values = state(4)
    name, saver = restarted(run, values)
    os.kill(saver._writer.pid, signal.SIGKILL)
    assert saver.images(name) == {}, "the files serve"
    saver.attach(values)
    saver.prepare()
    assert saver.save(8, values, {}) is not None
    assert kinds(saver.settle()) == [("committed", 8)]


def test_a_slow_flush_that_obeys_its_speed_is_not_taken_for_stuck(run, monkeypatch):
    monkeypatch.setattr("headway.checkpoint.saver.STUCK_SECONDS", 0.1)
    values = {"x": torch.randn(BLOCK_BYTES // 4)}
    saver = saver_of(run, values, flush_speed=4e6)
    saver.save(1, values, {})
    waited = []
    monkeypatch.setattr("headway.checkpoint.saver.WAIT_SECONDS", 0.2)
    saver.on_wait = lambda: waited.append(1)
    saver._wait(lambda: saver.busy)
    assert waited, "it says that it waits"
    assert kinds(saver.settle()) == [("committed", 1)]


@pytest.mark.parametrize("bad", [{"x": float("nan")}, {"x": {1, 2}}, {"x": object()}], ids=["nan", "set", "object"])
def test_a_state_that_is_no_json_is_refused_before_anything_is_copied(run, bad):
    values = state(1)
    saver = saver_of(run, values)
    saver.save(1, values, {})
    saver.settle()
    with pytest.raises(RunError, match="no plain JSON"):
        saver.save(2, values, bad)
    assert not saver.busy
    assert saver.save(3, values, {}) is not None
    assert kinds(saver.settle()) == [("committed", 3)]


def test_several_ranks_never_skip(run):
    """Each would leave out another step, and none would be whole."""
    values = {"x": torch.randn(BLOCK_BYTES // 4)}
    saver = Saver(Place(run=run, segment=1, rank=1, world=2), SavePolicy(keep_last=9, when_busy="skip", flush_speed=20e6))
    saver.attach(values)
    saver.prepare()
    assert saver.save(1, values, {}) is not None
    assert saver.save(2, values, {}) is not None
    saver.settle()
    saver.close(stays=False)
