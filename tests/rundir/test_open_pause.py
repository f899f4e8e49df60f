"""A pause counts while it lasts, and as far as its owner is known to have lived."""

from __future__ import annotations

import pytest
from tiny_run import tiny_run

from headway.base.clocks import FakeClock
from headway.base.records import encode_record
from headway.monitor.account import read_account
from headway.monitor.ledger import build_ledger
from headway.monitor.summary import summarise
from headway.report.facts import gather
from headway.rundir.events import EventLog, read_events, with_open_pause
from headway.rundir.layout import RunDirectory
from headway.rundir.lease import Lease

S = 10**9
OWNER = {"host": "alpha", "pid": 4711, "author": "automatic"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def paused(tmp_path, clock: FakeClock) -> RunDirectory:
    """5 s of work, then a pause whose owner was last seen 600 s later."""
    run = tiny_run(tmp_path / "run")
    lease = Lease.acquire(run, OWNER, 15.0, clock)
    log = EventLog(run, lease.epoch, clock)
    clock.advance(5)
    log.append("pause", reason="headway pause by anna")
    assert lease.renew()
    for _ in range(100):
        clock.advance(6)
        assert lease.renew()
    log.close()
    return run


def test_a_pause_that_lasts_counts_up_to_the_last_sign_of_its_owner(paused: RunDirectory, clock: FakeClock):
    clock.advance(3)
    expected = {"planned_pause": 600 * S, "reconfigure": 5 * S}
    ledger = summarise(paused, clock).ledger
    assert (ledger.categories, ledger.flags, ledger.drift_ns) == (expected, (), 0)
    assert read_account(paused).ledger.categories == expected
    assert gather(paused).categories == expected


def test_an_owner_that_died_in_a_pause_lost_nothing(paused: RunDirectory, clock: FakeClock):
    clock.advance(100)
    seen = summarise(paused, clock)
    assert (seen.state, seen.reason.split(";")[0]) == ("crashed", "its owner ended while the run was paused, so nothing is lost")
    lease = Lease.acquire(paused, OWNER, 15.0, clock)
    EventLog(paused, lease.epoch, clock)
    ledger = build_ledger(with_open_pause(paused, read_events(paused)), {}, [])
    unknown_ns = ledger.total_ns - 605 * S
    assert ledger.categories == {"planned_pause": 600 * S, "unknown": unknown_ns, "reconfigure": 5 * S}
    assert unknown_ns >= 100 * S
    assert ledger.flags == (
        "epoch 2: the owner before it died while the run was paused; the time after its last sign of life is unknown",
    )


@pytest.mark.parametrize("beat", [b"", b"{", encode_record({"counter": 1, "state": "held"})])
def test_without_a_sign_of_life_nothing_is_claimed(paused: RunDirectory, clock: FakeClock, beat: bytes):
    (paused.lease / "epoch-000001.beat").write_bytes(beat)
    assert summarise(paused, clock).ledger.total_ns == 5 * S


def test_a_sign_of_another_boot_says_nothing_of_the_pause(paused: RunDirectory, clock: FakeClock):
    log = EventLog(paused, 2, clock)
    clock.boot_id = "boot-b"
    log.append("pause", reason="")
    clock.advance(60)
    assert summarise(paused, clock).ledger.total_ns == 605 * S
