"""Four real ranks with heartbeats, under the real supervisor: slow ones are named, clean runs silent, clocks decide nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench import quick

from headway.base.files import write_json
from headway.base.records import read_records
from headway.monitor import blocks, stragglers
from headway.monitor.summary import summarise
from headway.rundir.events import read_events
from headway.supervise.launcher import ProcessLauncher
from headway.supervise.supervisor import supervise

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("file_checkpoints")]

WORLD = 4
BEATING = Path(__file__).with_name("beating.py")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Blocks of a quarter of a second, judged after a few: else a test needs half a minute."""
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 0.25)
    monkeypatch.setattr(stragglers, "LEARN_BLOCKS", 6)


def go(run, **plan):
    write_json(run.root / "beating.json", {"work_seconds": 0.03, **plan})
    launcher = ProcessLauncher(lambda run, segment: [sys.executable, str(BEATING), str(run.root), "--segment", str(segment)])
    shown: list[dict] = []
    deployment = {"processes_per_node": WORLD, "layouts": {"default": {"dp_replicate": WORLD}}}
    options = quick(hang_floor_seconds=10.0, beat_seconds=0.1)
    outcome = supervise(run, options=options, launcher=launcher, deployment=deployment, on_record=shown.append)
    assert outcome.state == "complete", (outcome, [path.read_text()[-800:] for path in run.segments.rglob("*.log")])
    return shown


def told(run) -> list[dict]:
    return [event for event in read_events(run) if event["kind"] in ("straggler", "memory_growth", "slow_data", "hang")]


def test_a_rank_twice_as_slow_is_named_with_its_host(run):
    shown = go(run, steps=110, factors={"2": 2.5}, slow_from=50)
    found = told(run)
    assert [(event["kind"], event["rank"], event["rule"]) for event in found] == [("straggler", 2, "ratio")], found
    assert found[0]["host"]
    assert found[0]["text"] in [finding.message for finding in summarise(run).findings]
    assert any(record["kind"] == "straggler" for record in shown)


def test_a_rank_six_percent_slow_is_named(run):
    go(run, steps=320, factors={"1": 1.06}, slow_from=120, work_seconds=0.04)
    found = told(run)
    assert [(event["kind"], event["rank"], event["rule"]) for event in found] == [("straggler", 1, "change")], _excess(run)
    assert 0.03 < found[0]["slow"] < 0.2


def _excess(run) -> list:
    return [record["excess"] for record in read_records(run.segment(1) / "ranks.jsonl").records]


@pytest.mark.parametrize("skews", [{}, {"1": 86_400.0, "3": -7_200.0}], ids=["clean", "clocks wrong"])
def test_F3_clean_runs_are_silent_and_a_wrong_clock_changes_nothing(run, skews):
    go(run, steps=120, skew=skews)
    assert told(run) == []
    kept = read_records(run.segment(1) / "ranks.jsonl").records
    assert len(kept) >= 5
    assert all(len(record["work_ns"]) == WORLD for record in kept)


@pytest.mark.slow
def test_twenty_clean_runs_are_silent(tmp_path):
    from tiny_run import tiny_run

    for number in range(20):
        run = tiny_run(tmp_path / str(number))
        go(run, steps=100)
        assert told(run) == [], number
