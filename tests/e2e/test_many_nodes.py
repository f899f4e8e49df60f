"""One run on several nodes, each an agent on this machine: nodes that die, come back, are replaced, and go on with fewer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest_e2e import events_of, trace

from headway.monitor.summary import summarise
from headway.rundir.metrics import read_chain_rows
from headway.rundir.processes import is_alive
from headway.rundir.segments import current_chain, read_segments

pytestmark = pytest.mark.e2e

FLOAT32 = ("precision.compute=float32",)
TWO = {"default": {"dp_shard": 2}}
LAST = 24
GATE = """#!/bin/sh
# Runs a command on a "machine": not while the file of its name says that it is down.
[ -e "$0.$1.down" ] && exit 7
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def undisturbed(bench, tmp_path_factory):
    """Two ranks of one machine."""
    run = bench.run(tmp_path_factory.mktemp("one") / "run", overrides=FLOAT32, layouts=TWO)
    assert bench.go(run).state == "complete"
    return run


@pytest.fixture
def gate(tmp_path) -> Path:
    path = tmp_path / "on-a-machine"
    path.write_text(GATE)
    path.chmod(0o755)
    return path


def fleet(*hosts: str, gate: Path | None = None, **options) -> dict:
    start = [str(gate), "{host}"] if gate else []
    return {"hosts": list(hosts), "start": start, "silence": "5s", "rejoin": "500ms", "patience": "20s", "check": False} | options


def take_down(gate: Path, host: str) -> None:
    Path(f"{gate}.{host}.down").touch()


def bring_up(gate: Path, host: str) -> None:
    Path(f"{gate}.{host}.down").unlink()


class Chaos:
    """Looks at records as they come, and does something once at a step."""

    def __init__(self, **at: object):
        self.at, self.launch, self.rows = dict(at), {}, []

    def __call__(self, record: dict) -> None:
        self.rows.append(record)
        if record["kind"] == "launch":
            self.launch = record
            if (action := self.at.pop(f"launch{record['segment']}", None)) is not None:
                action(self)
        if record["kind"] == "step" and (action := self.at.pop(f"step{record['step']}", None)) is not None:
            action(self)

    def kill_agent(self, host: str) -> None:
        (agent,) = {rank["agent"] for rank in self.launch["ranks"] if rank["node"] == host}
        os.kill(agent, signal.SIGKILL)

    def kill_rank(self, rank: int) -> None:
        os.kill(self.launch["ranks"][rank]["pid"], signal.SIGKILL)


def told(run, kind: str) -> list[dict]:
    return [event for event in events_of(run) if event["kind"] == kind]


def states(run) -> list[tuple[str, str]]:
    return [(event["host"], event["state"]) for event in told(run, "node")]


def layouts(run) -> list[tuple[int, list[str]]]:
    return [(segment.layout["world"], segment.layout["hosts"]) for segment in read_segments(run)]


def assert_nobody_is_left(run) -> None:
    deadline = time.monotonic() + 20
    processes = [rank for event in told(run, "launch") for rank in event["ranks"]]
    while any(is_alive(rank["pid"], rank["start_ticks"]) or is_alive(rank["agent"], None) for rank in processes):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.1)


def assert_each_sequence_was_trained_once(run, other) -> None:
    """The final lineage has the steps and the stream of a run that nothing disturbed."""
    position = ("step", "stage", "u", "sequences", "tokens", "targets", "rate")
    rows = [
        [
            tuple(row[key] for key in position)
            for row in read_chain_rows(r, current_chain(read_segments(r))).kept
            if row["kind"] == "step"
        ]
        for r in (run, other)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == LAST


def test_two_nodes_train_what_two_ranks_of_one_machine_do(bench, undisturbed, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", check=True, patience="120s"))
    outcome = bench.go(run)
    assert outcome.state == "complete", outcome
    assert layouts(run) == [(2, ["n0", "n1"])]
    assert trace(run) == trace(undisturbed)
    assert_nobody_is_left(run)


@pytest.mark.slow
def test_F7_a_node_that_dies_and_can_be_reached_again_is_taken_at_once(bench, undisturbed, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1"))
    outcome = bench.go(run, on_record=Chaos(step9=lambda chaos: chaos.kill_agent("n1")))
    assert (outcome.state, outcome.attempts) == ("complete", 2), outcome
    assert states(run) == [("n1", "lost"), ("n1", "back")]
    assert "SIGKILL" in told(run, "node")[0]["reason"]
    assert trace(run) == trace(undisturbed)
    assert_nobody_is_left(run)


def test_F7_a_node_lost_for_good_leaves_fewer_and_is_taken_back_at_a_checkpoint(bench, undisturbed, tmp_path, gate):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", gate=gate, least=1))

    def lose(chaos: Chaos) -> None:
        take_down(gate, "n1")
        chaos.kill_agent("n1")

    chaos = Chaos(step6=lose, launch2=lambda chaos: bring_up(gate, "n1"))  # it answers while the one that is left imports torch
    outcome = bench.go(run, on_record=chaos)
    assert outcome.state == "complete", outcome
    assert layouts(run) == [(2, ["n0", "n1"]), (1, ["n0"]), (2, ["n0", "n1"])], states(run)
    assert "nodes are there again" in read_segments(run)[2].reason
    seen = summarise(run).nodes
    assert (seen.training, seen.wanted, seen.away) == (("n0", "n1"), 2, {})
    assert_each_sequence_was_trained_once(run, undisturbed)
    mine, theirs = trace(run).losses, trace(undisturbed).losses
    assert mine == pytest.approx(theirs, rel=1e-5)
    assert_nobody_is_left(run)


def test_a_spare_takes_the_place_of_a_lost_node(bench, undisturbed, tmp_path, gate):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", "s0", gate=gate))

    def lose(chaos: Chaos) -> None:
        take_down(gate, "n0")
        chaos.kill_agent("n0")

    outcome = bench.go(run, on_record=Chaos(step6=lose))
    assert (outcome.state, outcome.attempts) == ("complete", 2), outcome
    assert layouts(run) == [(2, ["n0", "n1"]), (2, ["n1", "s0"])]
    assert trace(run) == trace(undisturbed)


def test_a_node_where_faults_begin_again_and_again_is_evicted(bench, undisturbed, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", "s0", evict_after=2))
    outcome = bench.go(run, on_record=Chaos(step6=lambda chaos: chaos.kill_rank(1), step10=lambda chaos: chaos.kill_rank(1)))
    assert (outcome.state, outcome.attempts) == ("complete", 3), outcome
    assert layouts(run) == [(2, ["n0", "n1"]), (2, ["n0", "n1"]), (2, ["n0", "s0"])]
    (event,) = told(run, "node")
    assert (event["host"], event["state"]) == ("n1", "evicted")
    assert "2 faults began there" in event["reason"]
    assert trace(run) == trace(undisturbed)


@pytest.mark.slow
def test_two_nodes_lost_within_a_moment(bench, undisturbed, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", "s0"))

    def lose_both(chaos: Chaos) -> None:
        chaos.kill_agent("n0")
        chaos.kill_agent("n1")

    outcome = bench.go(run, on_record=Chaos(step9=lose_both))
    assert outcome.state == "complete", outcome
    assert {host for host, state in states(run) if state == "lost"} == {"n0", "n1"}
    assert trace(run) == trace(undisturbed)


def test_too_few_nodes_is_said_with_the_reason_of_each(bench, tmp_path, gate):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", gate=gate, least=2, patience="2s"))
    take_down(gate, "n1")
    outcome = bench.go(run)
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert "1 of 2 nodes can be used: n1: its agent ended (exit code 7)" in outcome.reason


SUPERVISOR = """
import sys
from pathlib import Path
from headway.rundir.layout import RunDirectory
from headway.supervise.supervisor import SuperviseOptions, supervise
supervise(RunDirectory.open(Path(sys.argv[1])), options=SuperviseOptions(ttl_seconds=2.0))
"""


def test_F6_a_supervisor_that_is_killed_leaves_no_node_behind(bench, undisturbed, tmp_path):
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1"))
    owner = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(run.root)])
    deadline = time.monotonic() + 120
    while not (steps := run.steps_file(1)).exists() or steps.read_text().count('"step"') < 8:
        assert time.monotonic() < deadline
        assert owner.poll() is None
        time.sleep(0.05)
    owner.kill()
    owner.wait()
    outcome = bench.go(run, ttl_seconds=2.0)
    assert outcome.state == "complete", outcome
    assert trace(run) == trace(undisturbed)
    assert_nobody_is_left(run)


@pytest.mark.slow
def test_a_node_lost_during_a_save_and_again_while_its_successor_restores(bench, undisturbed, tmp_path):
    """What was committed stands, and two losses within a moment cost no more than one."""
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1", "s0"))
    losses = iter(["snapshot", "start"])
    wanted = [next(losses)]

    class Struck(Chaos):
        def __call__(self, record: dict) -> None:
            super().__call__(record)
            if wanted and record["kind"] == wanted[0] and record.get("step", 8) >= 8:
                wanted[:] = [kind for kind in [next(losses, None)] if kind]
                self.kill_agent(self.launch["ranks"][1]["node"])

    outcome = bench.go(run, on_record=Struck())
    assert (outcome.state, outcome.attempts) == ("complete", 3), outcome
    assert not wanted
    restored = [segment.restored_step for segment in read_segments(run)]
    assert restored == sorted(restored), "committed state never shrinks"
    assert trace(run) == trace(undisturbed)
    assert_nobody_is_left(run)


@pytest.mark.slow
def test_the_store_may_die_at_any_moment(bench, undisturbed, tmp_path):
    """Training needs it no more once ranks have met; the next meeting has a new one."""
    run = bench.run(tmp_path / "run", overrides=FLOAT32, layouts=TWO, fleet=fleet("n0", "n1"))
    outcome = bench.go(
        run,
        on_record=Chaos(
            step6=lambda chaos: os.kill(chaos.launch["store"], signal.SIGKILL), step10=lambda chaos: chaos.kill_rank(1)
        ),
    )
    assert (outcome.state, outcome.attempts) == ("complete", 2), outcome
    first, second = told(run, "launch")
    assert first["store"] != second["store"]
    assert trace(run) == trace(undisturbed)
    assert not is_alive(second["store"], None), "it ends with its owner"
