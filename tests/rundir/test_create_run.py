"""A run directory comes into being whole, or not at all, and never upon something else."""

from __future__ import annotations

import os

import pytest
from tiny_run import tiny_run, tiny_spec

from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError
from headway.base.failpoints import arm, disarm, is_drill
from headway.base.files import read_json
from headway.rundir.create import RunInfo, create_run
from headway.rundir.layout import RunDirectory

INFO = RunInfo(data="/data", deployment={"nodes": 1}, author="a person")


def create(root, **changes) -> RunDirectory:
    return create_run(root, **{"spec": tiny_spec(), "recipe_text": "x = 1\n", "info": INFO, "plan": {"steps": 20}, **changes})


def test_everything_is_there(tmp_path):
    run = create(tmp_path / "deep" / "run")
    assert run.spec() == tiny_spec()
    assert run.recipe_file.read_text() == "x = 1\n"
    assert read_json(run.plan_file) == {"steps": 20}
    info = run.info()
    assert (info["kind"], info["name"], info["drill"], info["data"]) == ("run", "tiny", False, "/data")
    assert info["spec_digest"] == tiny_spec().digest()
    assert not is_drill(run.root)
    assert os.listdir(tmp_path / "deep") == ["run"], "nothing is left beside it"


def test_existing_run_is_refused_with_the_way_out(tmp_path):
    run = create(tmp_path / "run")
    before = run.run_file.read_bytes()
    with pytest.raises(ConfigError, match=r"is a run already(?s:.*)headway resume"):
        create(tmp_path / "run")
    assert run.run_file.read_bytes() == before


@pytest.mark.parametrize(("make", "what"), [("mkdir", "an empty directory"), ("touch", "a file"), ("fill", "holds other files")])
def test_anything_else_is_refused_by_what_it_is(tmp_path, make, what):
    root = tmp_path / "run"
    root.touch() if make == "touch" else root.mkdir()
    if make == "fill":
        (root / "notes").touch()
    with pytest.raises(ConfigError, match=what):
        create(root)
    assert os.listdir(tmp_path) == ["run"]


def test_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(path, value, indent=True):
        raise EnvironmentFault("cannot write: No space left on device")

    monkeypatch.setattr("headway.rundir.create.write_json", full)
    with pytest.raises(EnvironmentFault, match="No space"):
        create(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_two_creators_cannot_both_win(tmp_path, monkeypatch):
    """The other one publishes between our look and our rename."""
    root = tmp_path / "run"
    rename = os.rename

    def late(source, target):
        if not root.exists():
            root.mkdir()
            (root / "run.json").write_text("{}")
        rename(source, target)

    monkeypatch.setattr("headway.rundir.create.os.rename", late)
    with pytest.raises(ConfigError, match="is a run already"):
        create(root)
    assert (root / "run.json").read_text() == "{}"
    assert os.listdir(tmp_path) == ["run"]


def test_draft_and_unknown_faults_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="draft"):
        create(tmp_path / "run", spec=tiny_spec(manifest_digest=None))
    with pytest.raises(HeadwayError, match="unknown failpoint"):
        create(tmp_path / "run", drill_faults=[{"point": "nowhere"}])
    assert os.listdir(tmp_path) == []


def test_drill_is_marked_and_its_faults_can_be_armed(tmp_path):
    run = tiny_run(tmp_path / "run", drill_faults=[{"point": "step.begin", "action": "raise", "step": 3}])
    try:
        assert [fault.step for fault in arm(run.root)] == [3]
    finally:
        disarm()
    assert is_drill(tiny_run(tmp_path / "calm", drill_faults=[]).root)
