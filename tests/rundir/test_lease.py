"""Who owns a run: one owner, expiry by the watcher's own clock, no wall clocks."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.base.clocks import FakeClock, SystemClock
from headway.base.errors import EnvironmentFault
from headway.base.records import encode_record
from headway.rundir.layout import RunDirectory
from headway.rundir.lease import Lease, beat_seconds, newest_epoch, observe
from headway.rundir.processes import this_process
from headway.rundir.segments import Segment, write_segment

OWNER = {"host": "alpha", "pid": 4711, "author": "automatic"}


@dataclass
class LivelyClock(FakeClock):
    """Something else happens whenever somebody waits."""

    meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


def acquire(run: RunDirectory, clock: FakeClock, ttl_seconds: float = 10.0) -> Lease:
    return Lease.acquire(run, OWNER, ttl_seconds, clock)


def test_first_owner_waits_for_nobody(run):
    clock = FakeClock()
    assert acquire(run, clock).epoch == 1
    assert clock.slept == []


def test_C9_second_launch_is_refused_naming_the_first(run):
    holder_clock = FakeClock()
    holder = acquire(run, holder_clock)
    clock = LivelyClock(meanwhile=lambda: (holder_clock.advance(0.3), holder.renew()))
    with pytest.raises(EnvironmentFault, match=r"run directory in use.*4711 on alpha since 20\d\d-"):
        acquire(run, clock)
    assert sum(clock.slept) < 1.5, "refused as soon as the counter moves, not after a whole ttl"
    assert newest_epoch(run) == 1


def test_only_an_owner_that_is_silent_is_waited_for(run):
    """One that is known to live is never said to be waited for."""
    holder_clock = FakeClock()
    holder, told = acquire(run, holder_clock), []
    lively = LivelyClock(meanwhile=lambda: (holder_clock.advance(0.3), holder.renew()))
    with pytest.raises(EnvironmentFault) as refused:
        Lease.acquire(run, OWNER, 10.0, lively, told.append)
    assert told == []
    assert f"it is running; watch it with: headway status {run.root}; to stop it: headway stop {run.root}" in str(refused.value)
    Lease.acquire(run, OWNER, 10.0, FakeClock(), told.append)
    assert [view.owner for view in told] == [OWNER]


def test_silent_owner_expires_after_a_whole_ttl_of_the_watcher(run):
    acquire(run, FakeClock())
    clock = FakeClock()
    assert acquire(run, clock).epoch == 2
    assert 10.0 <= round(sum(clock.slept), 6) < 10.5


def test_owner_that_moves_once_within_the_ttl_is_alive(run):
    holder_clock = FakeClock()
    holder = acquire(run, holder_clock)
    moments = iter([False] * 60 + [True] + [False] * 1000)
    clock = LivelyClock(meanwhile=lambda: holder.renew() if next(moments) else None)
    with pytest.raises(EnvironmentFault, match="in use"):
        acquire(run, clock)


def test_released_lease_is_taken_over_at_once(run):
    acquire(run, FakeClock()).release()
    clock = FakeClock()
    assert acquire(run, clock).epoch == 2
    assert clock.slept == []


@pytest.mark.parametrize("skew_ns", [-(10**18), 10**18])
def test_F3_wall_clock_skew_changes_no_decision(run, skew_ns):
    holder_clock = FakeClock()
    holder = acquire(run, holder_clock)
    skewed = LivelyClock(real_ns=holder_clock.real_ns + skew_ns, boot_ns=5, boot_id="other")
    skewed.meanwhile = lambda: (holder_clock.advance(0.2), holder.renew())
    with pytest.raises(EnvironmentFault):
        acquire(run, skewed)
    skewed.meanwhile = lambda: None
    skewed.slept.clear()
    assert acquire(run, skewed).epoch == 2
    assert round(sum(skewed.slept), 6) >= 10.0


def test_holder_that_could_not_renew_stops_itself_for_good(run):
    clock = FakeClock()
    lease = acquire(run, clock)
    clock.advance(4.9)
    assert not lease.must_stop()
    clock.advance(0.2)
    assert lease.must_stop()
    assert not lease.renew(), "it must not come back: somebody may be counting it out"
    assert lease.must_stop()


def test_holder_that_slept_past_half_the_ttl_does_not_beat_again(run):
    clock = FakeClock()
    lease = acquire(run, clock)
    beat = (run.lease / "epoch-000001.beat").read_bytes()
    clock.advance(6.0)
    lease.renew()
    assert (run.lease / "epoch-000001.beat").read_bytes() == beat


def test_holder_is_lost_when_a_newer_epoch_stands(run):
    clock = FakeClock()
    old = acquire(run, clock)
    acquire(run, FakeClock())
    assert not old.renew()
    assert old.must_stop()


def test_lost_lease_does_not_release_its_successor(run):
    old = acquire(run, FakeClock())
    new_clock = FakeClock()
    new = acquire(run, new_clock)
    old.release()
    assert observe(run, 0.0, FakeClock()).state == "silent"
    assert new.renew()


def test_storage_that_refuses_a_beat_is_not_fatal_before_half_the_ttl(run, monkeypatch):
    clock = FakeClock()
    lease = acquire(run, clock)

    def refuse(state: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lease, "_write", refuse)
    clock.advance(2.0)
    assert not lease.renew()
    assert not lease.must_stop()
    monkeypatch.undo()
    assert lease.renew()
    clock.advance(4.0)
    assert not lease.must_stop(), "counted from the renewal that worked"


def test_owner_that_died_before_its_first_beat_expires(run):
    acquire(run, FakeClock())
    (run.lease / "epoch-000001.beat").unlink()
    clock = FakeClock()
    assert acquire(run, clock).epoch == 2
    assert round(sum(clock.slept), 6) >= 10.0


def test_background_renewal_keeps_it(run):
    lease = Lease.acquire(run, OWNER, 2.0, SystemClock())
    with lease.renewed_in_background():
        threading.Event().wait(1.3)  # beyond half the ttl
        assert not lease.must_stop()
        with pytest.raises(EnvironmentFault):
            Lease.acquire(run, OWNER, 2.0, SystemClock())


def race(root: Path, start, results) -> None:
    start.wait()
    try:
        lease = Lease.acquire(RunDirectory(root), this_process(), 1.0, SystemClock())
        results.put(("won", lease.epoch))
        with lease.renewed_in_background():
            threading.Event().wait(1.2)
    except EnvironmentFault as error:
        results.put(("refused", str(error)))


def test_race_of_many_acquirers_has_one_winner(run):
    """Everybody sees the same silent owner expire at the same moment."""
    acquire(run, FakeClock())
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=race, args=(run.root, start, results)) for _ in range(6)]
    for racer in racers:
        racer.start()
    start.set()
    outcomes = [results.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join(timeout=20)
    winners = [value for kind, value in outcomes if kind == "won"]
    assert winners == [2], outcomes
    assert all(f"on {os.uname().nodename}" in value for kind, value in outcomes if kind == "refused")


def test_a_stray_file_beside_the_epochs_is_none(run):
    acquire(run, FakeClock()).release()
    (run.lease / "epoch-copy.json").write_text("{}")
    assert acquire(run, FakeClock()).epoch == 2


@pytest.mark.parametrize("garbage", ["", "\x00garbage", "[]", '{"owner": 5, "since": null}'])
def test_an_epoch_file_that_cannot_be_read_is_an_unknown_owner_whose_counter_decides(run, garbage):
    holder = acquire(run, FakeClock())
    holder.release()
    (run.lease / "epoch-000001.json").write_text(garbage)
    assert beat_seconds(run) > 0
    clock = FakeClock()
    second = acquire(run, clock)
    assert (second.epoch, clock.slept) == (2, []), "released"
    (run.lease / "epoch-000002.json").write_text(garbage)
    beats = iter(range(100, 200))
    beat = run.lease / "epoch-000002.beat"
    moving = LivelyClock(meanwhile=lambda: beat.write_bytes(encode_record({"counter": next(beats), "state": "held"})))
    with pytest.raises(EnvironmentFault, match=r"unknown process.*epoch-000002\.json cannot be read(?s:.*)stop it"):
        acquire(run, moving)
    clock = FakeClock()
    assert acquire(run, clock).epoch == 3
    assert round(sum(clock.slept), 6) >= 10.0, "silent: counted out as usual"


@pytest.mark.parametrize("beat", [5, {"counter": 1}, {"state": ["released"]}])
def test_a_beat_that_says_nothing_is_not_released(run, beat):
    acquire(run, FakeClock())
    (run.lease / "epoch-000001.beat").write_bytes(encode_record(beat))
    assert observe(run, 0.0, FakeClock()).state == "silent"


def test_epochs_go_on_after_the_lease_directory_is_gone(run):
    acquire(run, FakeClock()).release()
    (run.events / "epoch-000003.jsonl").touch()
    shutil.rmtree(run.lease)
    assert acquire(run, FakeClock()).epoch == 4
    shutil.rmtree(run.lease)
    shutil.rmtree(run.events)
    write_segment(run, Segment(1, None, 0, None, "test", "automatic", 7, {}))
    assert acquire(run, FakeClock()).epoch == 8


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_holder_whose_epoch_file_is_no_longer_its_own_stops(run, what):
    lease = acquire(run, FakeClock())
    path = run.lease / "epoch-000001.json"
    path.unlink()
    if what == "replaced":
        Lease.acquire(run, OWNER, 10.0, FakeClock())  # the same owner, at the same moment, by the same clock
    assert path.exists() is (what == "replaced")
    beats = (run.lease / "epoch-000001.beat").read_bytes()
    assert not lease.renew()
    assert lease.must_stop()
    lease.release()
    assert (run.lease / "epoch-000001.beat").read_bytes() == beats
