"""The account of real runs that were killed, stopped and gone on with: exact sums, and sequences that are really left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.monitor.account import read_account
from headway.monitor.summary import summarise
from headway.rundir.metrics import read_steps
from headway.rundir.segments import read_segments, write_segment

pytestmark = pytest.mark.e2e

LAST = 24


def test_G1_the_account_of_a_run_that_was_killed(bench, tmp_path):
    run = bench.run(tmp_path / "run", faults=[{"point": "step.begin", "action": "kill", "step": 11}])
    assert bench.go(run).state == "complete"
    account = read_account(run)
    ledger = account.ledger
    assert sum(ledger.categories.values()) == ledger.total_ns
    assert account.capacity.total == ledger.total_ns, "one device"
    assert (ledger.committed.steps, ledger.attempted.steps > LAST) == (LAST, True)
    assert ledger.categories["rolled_back"] > 0
    assert {"init", "restore", "productive", "detection_to_stop"} <= ledger.categories.keys()
    assert account.waterfall[-1].left_ns == ledger.categories["productive"], "all that is kept is committed"
    assert account.interval is not None
    assert account.interval.interruptions == 1
    summary = summarise(run)
    assert summary.interval == account.interval


def test_skipped_work_of_a_real_run(bench, tmp_path):
    """Killed after 11 with 8 saved; the segment that follows leaves out what steps 9 and 10 had trained."""
    run = bench.run(tmp_path / "run", faults=[{"point": "step.begin", "action": "kill", "step": 11}])
    assert bench.go(run).state == "complete"
    second = read_segments(run)[1]
    rows = {row["step"]: row for row in read_steps(run, 1) if row["kind"] == "step"}
    first = rows[second.restored_step + 1]
    sequences = sum(rows[second.restored_step + n]["sequences"] for n in (1, 2))
    skip = {"stage": 0, "first": first["u"] - first["sequences"], "count": sequences}
    write_segment(run, replace(second, id=3, reason="a spike", skips=(skip,)))
    categories = read_account(run).ledger.categories
    work = [sum(rows[second.restored_step + n]["split"].get(part, 0) for part in ("productive", "data_stall")) for n in (1, 2)]
    assert categories["skipped"] >= sum(work), "and the same steps of segment 2, which is off the chain now"
    assert sum(categories.values()) == read_account(run).ledger.total_ns
