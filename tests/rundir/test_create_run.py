"""A run directory comes into being whole, or not at all, and never upon something else."""

from __future__ import annotations

import os

import pytest
from tiny_run import tiny_run, tiny_spec

from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError, RunError
from headway.base.failpoints import arm, disarm, is_drill
from headway.base.files import read_json, write_json
from headway.recipe.digests import section_digests
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


def test_every_directory_of_a_new_run_outlives_a_power_cut(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("headway.base.files.fsync_directory", lambda path: synced.append(path.name))
    monkeypatch.setattr("headway.rundir.create.fsync_directory", lambda path: synced.append(path.name))
    create(tmp_path / "deep" / "run")
    assert synced[0] == tmp_path.name, "the name of deep/ itself"
    inside = [name for name in synced if name.endswith(".new")]
    assert len(inside) >= 4 + 3, "lease, events, segments, checkpoints; spec, recipe, plan"
    assert synced[-1] == "deep", "the name of the run, after the rename"


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


def test_section_digests_are_recorded_and_name_what_was_changed_afterwards(tmp_path):
    run = create(tmp_path / "run")
    assert run.info()["digests"] == section_digests(tiny_spec())
    spec = read_json(run.spec_file)
    spec["optimizer"]["peak_rate"], spec["stages"][0]["rate"]["end"] = 2e-3, 0.5
    write_json(run.spec_file, spec)
    with pytest.raises(RunError, match=r"changed: optimizer, stages\.main"):
        run.spec()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info: [], "no JSON object"),
        (lambda info: {**info, "kind": "plan"}, "kind is 'plan', not 'run'"),
        (lambda info: {**info, "schema_version": 2}, "schema_version is 2, not 1"),
        (lambda info: {key: info[key] for key in info if key not in ("deployment", "data")}, "without data, deployment"),
        (lambda info: {**info, "deployment": [], "drill": 1}, "drill is no bool; deployment is no dict"),
        (lambda info: {**info, "deployment": {"nodes": "2"}}, "deployment.nodes is '2'"),
        (lambda info: {**info, "deployment": {"processes_per_node": 0}}, "deployment.processes_per_node is 0"),
    ],
)
def test_a_damaged_run_description_is_one_clear_error(tmp_path, change, message):
    run = create(tmp_path / "run")
    write_json(run.run_file, change(run.info()))
    with pytest.raises(RunError, match=rf"run description is damaged: {message}(?s:.*)run\.json(?s:.*)restore"):
        run.info()
    with pytest.raises(RunError):
        run.spec()
    assert not is_drill(run.root)
