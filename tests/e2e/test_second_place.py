"""A run whose own disk lost its checkpoints goes on from the mirror, to the bit; and the interval that the trainer chooses."""

from __future__ import annotations

import shutil
import time

import pytest
from conftest_e2e import events_of, trace

from headway.monitor.alarms import find_alarms
from headway.rundir.metrics import read_steps
from headway.rundir.segments import read_segments
from headway.store.mirror.mirror import Mirror

pytestmark = pytest.mark.e2e


def wait_for_copy(run, url, name, seconds=20):
    """The writer ends after its trainer: it copies the last checkpoint first."""
    mirror, deadline = Mirror.open(url, run.info()["run_id"]), time.monotonic() + seconds
    while not mirror.has(name):
        assert time.monotonic() < deadline, mirror.list()
        time.sleep(0.1)


def test_R52_what_the_disk_lost_comes_from_the_mirror(bench, uninterrupted, tmp_path):
    (tmp_path / "share").mkdir()
    url = f"file://{tmp_path}/share"
    faults = [{"point": "step.begin", "action": "terminate", "step": 13}]
    run = bench.run(tmp_path / "run", faults=faults, checkpoints={"mirror": url})
    assert bench.go(run).state == "stopped"
    wait_for_copy(run, url, "g0001-s00000013")
    for path in run.checkpoints.glob("g*"):
        shutil.rmtree(path)
    assert bench.go(run).state == "complete"
    assert read_segments(run)[1].checkpoint == "g0001-s00000013"
    notes = [event["text"] for event in events_of(run) if event["kind"] == "note"]
    assert any("was fetched from" in text for text in notes), notes
    assert trace(run) == uninterrupted


def test_a_mirror_out_of_reach_is_an_alarm_and_training_goes_on(bench, uninterrupted, tmp_path):
    (tmp_path / "share").mkdir()
    faults = [{"point": "step.begin", "action": "kill", "step": 9}]
    run = bench.run(tmp_path / "run", faults=faults, checkpoints={"mirror": f"file://{tmp_path}/share"})

    def unplug(record):
        if record["kind"] == "step" and record["step"] == 2:
            shutil.rmtree(tmp_path / "share")

    assert bench.go(run, on_record=unplug).state == "complete"
    rows = [row for segment in read_segments(run) for row in read_steps(run, segment.id)]
    assert any(row["kind"] == "mirror_failed" for row in rows)
    assert any(finding.rule == "mirror_failed" for finding in find_alarms(rows))
    assert trace(run) == uninterrupted


def test_the_trainer_chooses_the_interval(bench, uninterrupted, tmp_path):
    adaptive = {"least": "1ms", "most": "2s"}
    run = bench.run(tmp_path / "run", every_steps=5, checkpoints={"adaptive": adaptive})
    assert bench.go(run).state == "complete"
    rows = read_steps(run, 1)
    changes = [row for row in rows if row["kind"] == "interval"]
    assert changes, "the first is on record too"
    assert all(0.001 <= row["seconds"] <= 2.0 for row in changes)
    assert [row["step"] for row in rows if row["kind"] == "save"][-1] == 24
    assert trace(run) == uninterrupted, "when checkpoints are taken does not change the run"
