"""The recovery trace: save at 3, fail after 5, restore 3, run 4-6, commit 6. Eight updates executed, six committed.

The last tests prove that the comparison can fail: resetting only the moments, or only the data position, gives another state.
"""

from __future__ import annotations

import shutil

import pytest
from conftest_e2e import trace

from headway.checkpoint.digest import state_digest
from headway.monitor.ledger import build_ledger
from headway.rundir.events import read_events
from headway.rundir.metrics import read_all_steps
from headway.rundir.segments import current_chain, read_segments
from headway.train.setup import set_up
from headway.train.step import train_step
from headway.train.stop import StopRequest

pytestmark = pytest.mark.e2e
SIX_STEPS = ("stages.0.tokens=1536", "stages.1.tokens=512")  # 4 batches of 256, one of 512; one of 512


@pytest.fixture(scope="module")
def recovered(bench, tmp_path_factory):
    faults = [{"point": "step.recorded", "action": "kill", "step": 5}]
    run = bench.run(tmp_path_factory.mktemp("trace") / "run", faults=faults, every_steps=3, overrides=SIX_STEPS)
    assert bench.go(run).state == "complete"
    return run


def test_R56_eight_updates_executed_six_committed_same_state(bench, recovered, tmp_path):
    straight = bench.run(tmp_path / "run", every_steps=3, overrides=SIX_STEPS)
    assert bench.go(straight).state == "complete"
    executed = [row["step"] for rows in read_all_steps(recovered).values() for row in rows if row["kind"] == "step"]
    assert executed == [1, 2, 3, 4, 5, 4, 5, 6]
    assert [s.restored_step for s in read_segments(recovered)] == [0, 3]
    ledger = build_ledger(read_events(recovered), read_all_steps(recovered), current_chain(read_segments(recovered)))
    assert (ledger.attempted.steps, ledger.committed.steps) == (8, 6)
    assert len(trace(recovered).losses) == 6
    assert trace(recovered) == trace(straight)


def continue_from_three(recovered, where, disturb):
    """Restore step 3 as segment 2 does, in a copy, ``disturb`` something, run 4-6, return the state's digest."""
    shutil.copytree(recovered.root, where)
    run = set_up(where, 2, StopRequest())
    try:
        assert run.step == 3
        offset = disturb(run)
        for step in range(3, 6):
            train_step(run.trainee, run.feed.fetch(step + offset), run.schedule.rate(step))
        return state_digest(run.trainee.state())
    finally:
        run.close()


def nothing(_run):
    return 0


def moments(run):
    for name, tensor in run.trainee.state().items():
        if not name.startswith("param/"):
            tensor.zero_()
    return 0


def update_count(run):
    run.trainee.optimizer.restore_step(0)
    return 0


def data_position(_run):
    return -3  # the data of steps 1-3 again


def weights(run):
    next(iter(run.trainee.parameters)).data.mul_(1.001)
    run.trainee.compute.refresh()
    return 0


def test_R56_restoring_everything_gives_the_same_state(recovered, tmp_path):
    assert continue_from_three(recovered, tmp_path / "run", nothing) == trace(recovered).final


@pytest.mark.parametrize("disturb", [moments, update_count, data_position, weights])
def test_R56_resetting_any_one_part_is_detected(recovered, tmp_path, disturb):
    assert continue_from_three(recovered, tmp_path / "run", disturb) != trace(recovered).final
