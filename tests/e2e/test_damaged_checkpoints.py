"""Damage in the newest checkpoint: refused, the older one used, said so; all damaged: an error, never a fresh start."""

from __future__ import annotations

import shutil

import pytest
from conftest_e2e import trace

from headway.rundir.layout import RunDirectory
from headway.rundir.segments import read_segments

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stopped(bench, tmp_path_factory):
    """A run stopped after step 13, with checkpoints at 8, 12 and 13 (three are kept)."""
    run = bench.run(
        tmp_path_factory.mktemp("stopped") / "run", faults=[{"point": "step.begin", "action": "terminate", "step": 13}]
    )
    assert bench.go(run).state == "stopped"
    assert sorted(path.name for path in run.checkpoints.glob("g*")) == ["g0001-s00000008", "g0001-s00000012", "g0001-s00000013"]
    return run


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


def copy_of(stopped, tmp_path) -> RunDirectory:
    shutil.copytree(stopped.root, tmp_path / "run")
    return RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize("kind", DAMAGE)
def test_C2_damage_in_the_newest_is_found_and_the_older_one_used(bench, stopped, uninterrupted, tmp_path, kind):
    run = copy_of(stopped, tmp_path)
    DAMAGE[kind](run.checkpoints / "g0001-s00000013" / "rank00000.safetensors")
    said = []
    assert bench.go(run, on_record=said.append).state == "complete"
    second = read_segments(run)[1]
    assert (second.restored_step, second.checkpoint) == (12, "g0001-s00000012")
    assert [r["checkpoint"] for r in second.rejected] == ["g0001-s00000013"]
    assert any(row["kind"] == "checkpoint_rejected" for row in said)
    assert trace(run) == uninterrupted


def test_C2_a_manifest_lost_after_its_commit_is_damage_not_absence(bench, stopped, tmp_path):
    run = copy_of(stopped, tmp_path)
    (run.checkpoints / "g0001-s00000013" / "MANIFEST.json").unlink()
    bench.go(run)
    second = read_segments(run)[1]
    assert second.restored_step == 12
    assert "g0001-s00000013" in [r["checkpoint"] for r in second.rejected]


@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_C2_all_damaged_is_an_error_and_never_a_fresh_start(bench, stopped, tmp_path, how):
    run = copy_of(stopped, tmp_path)
    for directory in run.checkpoints.glob("g*"):
        if how == "flipped":
            flip(directory / "rank00000.safetensors")
        else:
            shutil.rmtree(directory)
    before = len(read_segments(run))
    outcome = bench.go(run)
    assert (outcome.state, outcome.exit_code) == ("failed", 4)
    assert "g0001-s00000013" in outcome.reason
    assert "never started again from scratch" in outcome.reason
    assert len(read_segments(run)) == before
