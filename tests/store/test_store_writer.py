"""The writer process, driven as a trainer drives it: what it finishes, keeps, refuses and survives."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import struct
import time

import numpy as np
import pytest
from store_cases import add_segment, chain_of, load, make_run, same

from headway.base.clocks import FakeClock
from headway.base.errors import EnvironmentFault
from headway.rundir.processes import is_alive, start_ticks
from headway.store.admissible import choose
from headway.store.rectangle import Part, file_header, in_file_order, places
from headway.store.verify import verify
from headway.store.writer.client import WriterClient, end_writers
from headway.store.writer.flush import Pace
from headway.store.writer.outcomes import pending, read_outcomes
from headway.store.writer.protocol import Attachment, Seal
from headway.store.writer.serve import Writer
from headway.store.writer.wire import Channel, address, connect

SHAPE = (300, 7)
PARTS = tuple(
    in_file_order([Part(name=f"{p}/w", dtype="F32", global_shape=SHAPE, offset=(0, 0), shape=SHAPE) for p in ("param", "m", "v")])
)


def values(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {part.name: random.standard_normal(SHAPE).astype(np.float32) for part in PARTS}


class Trainer:
    """One that has nothing but a writer."""

    def __init__(self, run, segment=1, linger_seconds=5.0, **more):
        self.run, self.segment = run, segment
        self.client = WriterClient.find(run, 0) or WriterClient.start(run, 0)
        self.client.attach(
            Attachment(
                segment=segment, world=1, parts=PARTS, keep_last=9, linger_seconds=linger_seconds, commit_seconds=5, **more
            )
        )
        self.memory = self.client.ready()

    def fill(self, step):
        self.client.begin()
        for part, at in zip(PARTS, places(PARTS, len(file_header(PARTS, 0, 0, 0)))):
            self.memory[at : at + part.nbytes] = values(step)[part.name].tobytes()

    def save(self, step, attempt=0):
        self.fill(step)
        self.client.seal(Seal(step=step, attempt=attempt, state={"u": step}))

    def hear(self, *kinds, seconds=10.0):
        """The bodies of the next messages up to one of these kinds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.client.poll(0.1):
                if message.kind in kinds:
                    return message.body
            if self.client.gone:
                return None
        raise AssertionError(f"none of {kinds} came")

    def die(self):
        """As SIGKILL does it: the kernel closes everything."""
        self.client._channel.close()


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    yield run
    end_writers(run, 1)


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def gone(pid):
    return not is_alive(pid, None)


def test_a_save_is_committed_and_told(run):
    trainer = Trainer(run)
    trainer.save(4)
    body = trainer.hear("committed", "failed")
    assert body["kind"] == "committed"
    assert (body["checkpoint"], body["step"]) == ("g0001-s00000004", 4)
    manifest, arrays = load(run.checkpoints / body["checkpoint"])
    assert same(arrays, values(4))
    assert manifest.state == {"u": 4}
    assert body["digest"] == manifest.state_digest
    assert verify(run.checkpoints / body["checkpoint"]).ok
    assert [record["kind"] for record in read_outcomes(run, 1)] == ["sealed", "committed"]


def test_sealed_before_the_death_it_is_finished_after_it(run):
    trainer = Trainer(run)
    trainer.save(4)
    trainer.die()
    until(lambda: choose(run, chain_of(run)).step == 4)
    assert same(load(run.checkpoints / "g0001-s00000004")[1], values(4))


def test_what_a_dead_trainer_said_last_is_read_although_nobody_hears_the_writer(run):
    """The writer tells of an earlier save and finds nobody: the seal that waits behind must not be lost with the connection."""
    ours, theirs = socket.socketpair()
    writer = Writer(run, 0, socket.socket(socket.AF_UNIX), FakeClock())
    channel = Channel(ours)
    writer._visitors.append(channel)
    Channel(theirs).send("seal", step=8)
    theirs.close()
    writer._send(channel, "pruned")
    assert channel in writer._visitors
    assert channel.receive(1.0).kind == "seal"


def test_not_sealed_it_is_nothing(run):
    trainer = Trainer(run, linger_seconds=0.2)
    trainer.fill(4)
    trainer.die()
    until(lambda: gone(trainer.client.pid))
    assert not run.checkpoints.exists()
    assert read_outcomes(run, 1) == []


def test_the_next_trainer_finds_the_memory(run):
    first = Trainer(run)
    first.save(4)
    first.die()
    until(lambda: choose(run, chain_of(run)).step == 4)
    second = WriterClient.find(run, 0)
    assert (second.pid, second.held) == (first.client.pid, "g0001-s00000004")
    image = second.lend()
    data = (run.checkpoints / "g0001-s00000004" / "rank00000.safetensors").read_bytes()
    assert bytes(image[: len(data)]) == data
    with pytest.raises(TypeError):
        image[0] = 1  # lent to read, not to write


def test_a_memory_that_is_being_overwritten_is_not_offered(run):
    first = Trainer(run)
    first.save(4)
    first.hear("committed")
    first.fill(8)
    first.die()
    assert WriterClient.find(run, 0).held is None


def test_the_memory_is_used_again_by_the_next_segment(run):
    first = Trainer(run)
    first.save(4)
    first.hear("committed")
    first.die()
    add_segment(run, 2, parent=1, restored=4, checkpoint="g0001-s00000004")
    second = Trainer(run, segment=2)
    assert second.client.pid == first.client.pid
    second.save(8)
    assert second.hear("committed", "failed")["checkpoint"] == "g0002-s00000008"
    assert choose(run, chain_of(run)).step == 8


def test_C9_an_older_or_equal_segment_is_refused_while_a_trainer_is_there(run):
    add_segment(run, 2, parent=1)
    second = Trainer(run, segment=2)
    for segment in (1, 2):
        with pytest.raises(EnvironmentFault, match="segment 2 is attached"):
            Trainer(run, segment=segment)
    second.save(4)
    assert second.hear("committed", "failed")["kind"] == "committed", "it was not disturbed"


def test_C5_a_newer_segment_takes_over_from_one_that_still_lives(run):
    first = Trainer(run)
    add_segment(run, 2, parent=1)
    second = Trainer(run, segment=2)
    first.save(4)  # it has not noticed
    second.save(8)
    assert second.hear("committed", "failed")["checkpoint"] == "g0002-s00000008"
    assert not (run.checkpoints / "g0001-s00000004").exists()


def test_it_lingers_and_ends(run):
    trainer = Trainer(run, linger_seconds=0.5)
    trainer.save(4)
    trainer.hear("committed")
    trainer.die()
    assert is_alive(trainer.client.pid, None)
    until(lambda: gone(trainer.client.pid), 10)


def test_bye_ends_it_when_its_work_is_done(run):
    trainer = Trainer(run, linger_seconds=60)
    trainer.save(4)
    trainer.client.bye()
    assert gone(trainer.client.pid)
    assert choose(run, chain_of(run)).step == 4


def test_end_of_the_run_ends_it(run):
    trainer = Trainer(run, linger_seconds=60)
    trainer.save(4)
    trainer.die()
    end_writers(run, 1)
    until(lambda: gone(trainer.client.pid))
    assert choose(run, chain_of(run)).step == 4


def test_a_dead_writer_is_noticed_and_replaced(run):
    trainer = Trainer(run)
    trainer.save(4)
    trainer.hear("committed")
    os.kill(trainer.client.pid, signal.SIGKILL)
    assert trainer.hear("committed") is None
    again = Trainer(run)
    assert again.client.pid != trainer.client.pid
    again.save(8)
    assert again.hear("committed", "failed")["kind"] == "committed"


def test_a_stuck_writer_is_ended_by_the_next_trainer(run, monkeypatch):
    trainer = Trainer(run)
    monkeypatch.setattr("headway.store.writer.client.ANSWER_SECONDS", 0.5)  # not before: a new one may take its time
    os.kill(trainer.client.pid, signal.SIGSTOP)
    assert WriterClient.find(run, 0) is None
    until(lambda: gone(trainer.client.pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_for_the_trainer_do_not_stop_it(run, number):
    trainer = Trainer(run)
    os.kill(trainer.client.pid, number)
    trainer.save(4)
    assert trainer.hear("committed", "failed")["kind"] == "committed"
    assert os.getsid(trainer.client.pid) != os.getsid(0), "a kill of the trainer's session does not reach it"


def test_pending_until_its_outcome_and_only_while_its_writer_lives(run):
    trainer = Trainer(run, flush_speed=1000.0)  # bytes per second: it takes its time
    trainer.save(4)
    until(lambda: read_outcomes(run, 1))
    sealed = read_outcomes(run, 1)[0]
    host, boot = sealed["writer"]["host"], sealed["stamp"]["boot_id"]
    assert pending(run, 1, host, boot) == ["g0001-s00000004"]
    assert pending(run, 1, "elsewhere", boot) == ["g0001-s00000004"], "nobody here can know"
    os.kill(trainer.client.pid, signal.SIGKILL)
    until(lambda: gone(trainer.client.pid))
    assert trainer.hear("committed") is None
    assert pending(run, 1, host, boot) == []


def test_slow_flushes_hurry_when_nobody_trains(run):
    trainer = Trainer(run, flush_speed=1000.0)
    trainer.save(4)
    until(lambda: read_outcomes(run, 1))
    assert choose(run, chain_of(run)).checkpoint is None
    trainer.client.hurry()
    assert trainer.hear("committed", "failed")["kind"] == "committed"


def test_pace_holds_pieces_back():
    class Event:
        waited = 0.0

        def wait(self, seconds):
            self.waited += seconds
            clock.advance(seconds)

    clock, event = FakeClock(), Event()
    pace = Pace(1000.0, clock, event)  # type: ignore[arg-type]
    for _ in range(10):
        pace(500)
    assert event.waited == pytest.approx(5.0)
    free = Pace(None, clock, event)  # type: ignore[arg-type]
    free(10**9)
    assert event.waited == pytest.approx(5.0)


NOISE = [
    b"",
    b"\0" * 7,
    struct.pack("<Q", 2**60),
    struct.pack("<Q", 5) + b"[1,2]",
    struct.pack("<Q", 3) + b"{{{",
    struct.pack("<Q", 16) + b'{"kind":"attach"',
]


@pytest.mark.parametrize("noise", NOISE, ids=range(len(NOISE)))
def test_noise_on_its_socket_disturbs_nobody(run, noise):
    trainer = Trainer(run)
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(address(run.info()["run_id"], run.root, 0))
    stranger.sendall(noise)
    stranger.close()
    trainer.save(4)
    assert trainer.hear("committed", "failed")["kind"] == "committed"


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "attach", "segment": 9},
        {"kind": "attach", "segment": "9", "world": 1, "parts": [], "keep_last": 1},
        {"kind": "seal", "step": 1, "attempt": 0, "state": {}},
        {"kind": "begin"},
        {"kind": "dance"},
    ],
    ids=lambda message: str(message["kind"]),
)
def test_messages_of_strangers_change_nothing(run, message):
    trainer = Trainer(run)
    trainer.save(4)
    trainer.hear("committed")
    stranger = connect(address(run.info()["run_id"], run.root, 0))
    assert isinstance(stranger, Channel)
    kind = message.pop("kind")
    stranger.send(kind, **message)
    stranger.close()
    assert WriterClient.find(run, 0).held == "g0001-s00000004"
    trainer.save(8)
    assert trainer.hear("committed", "failed")["kind"] == "committed"


def test_no_room_is_refused_in_words(run):
    client = WriterClient.start(run, 0)
    huge = Part(name="x", dtype="F32", global_shape=(2**40,), offset=(0,), shape=(2**40,))
    client.attach(Attachment(segment=1, world=1, parts=(huge,), keep_last=1))
    with pytest.raises(EnvironmentFault, match=r"cannot hold a snapshot.*no room for 4,398,") as caught:
        client.ready()
    assert "free memory on this host" in str(caught.value)


def test_nothing_grows_over_many_saves(run):
    trainer = Trainer(run)

    def look():
        gc.collect()  # files that earlier tests of this process left to the collector
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{trainer.client.pid}/fd"))

    looks = []
    for step in range(1, 41):
        trainer.save(step)
        trainer.hear("committed")
        looks.append(look())
    least = [tuple(min(counts) for counts in zip(*part)) for part in (looks[4:15], looks[-11:])]
    # The least of eleven looks, since files are open for a moment while old checkpoints are deleted.
    assert all(later <= earlier for earlier, later in zip(*least)), f"open files, trainer and writer: {least}"


def test_the_same_step_twice_is_two_checkpoints(run):
    trainer = Trainer(run)
    for attempt in (0, 1):
        trainer.save(4, attempt)
        trainer.hear("committed")
    assert choose(run, chain_of(run)).checkpoint == "g0001-s00000004-a1"
    trainer.save(4, 1)  # a second launch of the segment would name it so
    body = trainer.hear("committed", "failed")
    assert body["kind"] == "failed"
    assert "is there already" in body["error"]
    assert verify(run.checkpoints / "g0001-s00000004-a1").ok


def test_ticks_tell_writers_apart(run):
    trainer = Trainer(run)
    trainer.save(4)
    trainer.hear("committed")
    assert read_outcomes(run, 1)[0]["writer"]["start_ticks"] == start_ticks(trainer.client.pid)


def test_large_files_go_past_the_page_cache_to_their_last_page(tmp_path, monkeypatch):
    """One piece that does not end at a page would send the rest of the file through the cache, at four times the cost."""
    from headway.store import durable
    from headway.store.save import DATA_POINTS

    given_up = []
    true = durable.DirectFile._go_plain
    monkeypatch.setattr(durable.DirectFile, "_go_plain", lambda self: given_up.append(self._at) or true(self))
    data = np.random.default_rng(0).integers(0, 256, 9_000_001, dtype=np.uint8)
    pieces = [memoryview(data)[at : at + durable.BUFFER_BYTES] for at in range(0, len(data), durable.BUFFER_BYTES)]
    durable.DurableWriter(DATA_POINTS, 1).write(tmp_path / "file", pieces, len(data))
    assert (tmp_path / "file").read_bytes() == data.tobytes()
    assert all(at == len(data) for at in given_up), "only the end, which is no whole page, is written plainly"


@pytest.mark.parametrize("sizes", [[1], [4096] * 300, [5, 4096 * 1024, 3], [2**20 + 1] * 5, [4 << 20] * 3, [7] * 200_000])
def test_direct_files_hold_what_was_written(tmp_path, sizes):
    from headway.store import durable

    data = np.random.default_rng(1).integers(0, 256, sum(sizes), dtype=np.uint8).tobytes()
    view, at = memoryview(data), 0
    with durable.DirectFile(os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)) as file:
        for size in sizes:
            file.write(view[at : at + size])
            at += size
        file.settle()
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("longest", [1, 4096, 10_000])
def test_C7_short_writes_and_devices_that_refuse_whole_pages(tmp_path, monkeypatch, longest):
    import errno

    from headway.store import durable

    true, refused = os.pwrite, []

    def pwrite(descriptor, view, at):
        if not refused:
            refused.append(at)
            raise OSError(errno.EINVAL, "whole pages, please")
        return true(descriptor, view[: max(longest, len(view) // 7)], at)

    monkeypatch.setattr(durable.os, "pwrite", pwrite)
    data = np.random.default_rng(2).integers(0, 256, 9 * 2**20 + 5, dtype=np.uint8)
    durable.DurableWriter({}, 1).write(tmp_path / "file", [memoryview(data)], len(data))
    assert (tmp_path / "file").read_bytes() == data.tobytes()
    assert refused


def stranger(run):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address(run.info()["run_id"], run.root, 0))
    return connection


def test_half_a_message_holds_up_nobody(run):
    """One that stops in the middle, and stays: the trainer is heard at once, and what it seals is committed."""
    trainer, silent = Trainer(run), stranger(run)
    silent.sendall(struct.pack("<Q", 100) + b'{"kind": "he')
    began = time.monotonic()
    trainer.save(4)
    assert trainer.hear("committed", "failed")["kind"] == "committed"
    assert time.monotonic() - began < 5
    silent.close()


def test_a_trainer_that_stops_in_the_middle_of_a_message_loses_nothing_it_sealed(run):
    trainer = Trainer(run, flush_speed=20_000.0)
    trainer.save(4)
    trainer.client._channel._socket.setblocking(True)
    trainer.client._channel._socket.sendall(struct.pack("<Q", 100) + b'{"kind": "be')
    until(lambda: choose(run, chain_of(run)).step == 4)
    trainer.die()


def test_a_visitor_that_never_reads_is_dropped(run, monkeypatch):
    trainer, deaf = Trainer(run), stranger(run)
    hello = b'{"kind": "hello"}'
    deaf.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            deaf.send(struct.pack("<Q", len(hello)) + hello)
    trainer.save(4)
    assert trainer.hear("committed", "failed", seconds=30)["kind"] == "committed"
    deaf.close()


def test_any_number_of_open_files(run):
    """Descriptors above 1,023: a trainer with as many shards open."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 3000:
        pytest.skip("this system does not allow so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, limits[1]))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        trainer = Trainer(run)
        trainer.save(4)
        assert trainer.hear("committed", "failed")["kind"] == "committed"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_C5_a_replaced_trainer_that_still_copies_changes_nothing_of_the_new_ones(run):
    """It has not noticed, and its mapping is its own now: else wrong values would be hashed, and every digest would hold."""
    first = Trainer(run)
    add_segment(run, 2, parent=1)
    second = Trainer(run, segment=2, flush_speed=20_000.0)
    second.save(8)
    first.memory[4096 : 4096 + 8000] = b"\xff" * 8000
    second.client.hurry()
    body = second.hear("committed", "failed")
    assert same(load(run.checkpoints / body["checkpoint"])[1], values(8))


def test_the_newest_of_those_that_wait_for_memory_gets_it(run):
    first = Trainer(run, flush_speed=2000.0)
    first.save(4)
    waiting = {}
    for segment in (3, 2):
        add_segment(run, segment, parent=1)
        waiting[segment] = WriterClient(run, connect(address(run.info()["run_id"], run.root, 0)), None)
        waiting[segment].attach(Attachment(segment=segment, world=1, parts=PARTS, keep_last=9))
    with pytest.raises(EnvironmentFault, match="segment 3 is attached"):
        waiting[2].ready()
    first.client.hurry()
    assert len(waiting[3].ready())


def test_what_it_cannot_hold_is_refused_and_the_trainer_that_is_there_goes_on(run):
    trainer = Trainer(run)
    for segment, part in enumerate(
        (
            Part(name="a@b", dtype="F32", global_shape=(2,), offset=(0,), shape=(2,)),
            Part(name="a", dtype="X", global_shape=(2,), offset=(0,), shape=(2,)),
            Part(name="a", dtype="F32", global_shape=(2**40,), offset=(0,), shape=(2**40,)),
        ),
        start=2,
    ):
        other = WriterClient(run, connect(address(run.info()["run_id"], run.root, 0)), None)
        other.attach(Attachment(segment=segment, world=1, parts=(part,), keep_last=9))
        with pytest.raises(EnvironmentFault):
            other.ready()
        other.leave()
    trainer.save(4)
    assert trainer.hear("committed", "failed")["kind"] == "committed"


def test_a_run_directory_that_has_gone_is_not_made_anew(run):
    trainer = Trainer(run)
    run.root.rename(run.root.with_name("moved"))
    trainer.save(4)
    body = trainer.hear("committed", "failed")
    assert body["kind"] == "failed"
    assert "not there any more" in body["error"]
    assert not run.root.exists()
    run.root.with_name("moved").rename(run.root)
    trainer.save(8)
    assert trainer.hear("committed", "failed")["kind"] == "committed"


def test_whoever_reads_the_memory_keeps_the_writer(run):
    first = Trainer(run, linger_seconds=0.3)
    first.save(4)
    first.hear("committed")
    first.die()
    reader = WriterClient.find(run, 0)
    time.sleep(1.5)
    assert reader.lend() is not None
    reader.attach(Attachment(segment=2, world=1, parts=PARTS, keep_last=9))
    assert len(reader.ready())
