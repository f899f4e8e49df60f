"""C1 and C3 through the trainer's own door."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_cases import blank, make_run, same, state
from sync_save import save_checkpoint

from headway.base.errors import EnvironmentFault
from headway.base.failpoints import SAVE_POINTS, arm, disarm
from headway.checkpoint.digest import state_digest
from headway.checkpoint.load import load_checkpoint
from headway.rundir.segments import current_chain, read_segments
from headway.store.admissible import choose

CHILD = Path(__file__).with_name("checkpoint_kill_child.py")


def load_newest(run):
    choice = choose(run, current_chain(read_segments(run)))
    into = blank(state(0))
    load_checkpoint(run.checkpoints / choice.checkpoint, into)
    return choice.step, into


def test_C1_killed_at_every_save_point_by_the_trainer_s_door(tmp_path):
    runs = {point: make_run(tmp_path / point, [{"point": point, "action": "kill", "step": 2}]) for point in SAVE_POINTS}
    for run in runs.values():
        save_checkpoint(run, 1, 1, state(1), {"u": 1})
    command = [sys.executable, str(CHILD), *(str(run.root) for run in runs.values())]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(CHILD.parent)}, capture_output=True, text=True, timeout=120
    )
    assert result.stdout.split() == ["-9"] * len(SAVE_POINTS), result.stderr
    for point, run in runs.items():
        step, into = load_newest(run)
        assert step == (2 if point in ("save.manifest_renamed", "save.committed") else 1), point
        assert same(into, state(step)), point
        result = save_checkpoint(run, 1, 2, state(3), {"u": 3})
        assert result.name == "g0001-s00000002-a1"
        assert state_digest(load_newest(run)[1]) == result.digest


@pytest.mark.parametrize("action", ["disk_full", "io_error"])
def test_C3_a_failed_save_leaves_the_older_and_the_next_works(tmp_path, action):
    run = make_run(tmp_path / "run", [{"point": "save.data_partial", "action": action, "step": 2}])
    save_checkpoint(run, 1, 1, state(1), {})
    arm(run.root)
    try:
        with pytest.raises(EnvironmentFault, match=r"rank00000\.safetensors"):
            save_checkpoint(run, 1, 2, state(2), {})
        assert load_newest(run)[0] == 1
        save_checkpoint(run, 1, 3, state(3), {})
    finally:
        disarm()
    step, into = load_newest(run)
    assert step == 3
    assert same(into, state(3))
