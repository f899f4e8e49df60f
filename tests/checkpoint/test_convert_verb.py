"""The verb: which checkpoint is meant, what is told, and the way through the engine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_cases import same
from convert_cases import flip, loaded, make_run, make_spec, nothing_left, to, trained_state, write_source
from safetensors.torch import save_file

from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError, RunError
from headway.cli.checkpoint_convert import convert

pytestmark = pytest.mark.e2e


@pytest.fixture
def run(tmp_path):
    spec = make_spec()
    _, state = trained_state(spec)
    return make_run(tmp_path / "run", spec, state, steps=(8, 12))


def test_a_run_means_its_newest_checkpoint_that_verifies(tmp_path, run):
    facts = to(run.root, tmp_path / "newest", "safetensors")
    assert (facts["step"], facts["rejected"]) == (12, [])
    flip(run.checkpoints / "g0001-s00000012" / "rank00000.safetensors", -1)
    facts = to(run.root, tmp_path / "older", "safetensors")
    assert facts["step"] == 8
    assert [entry["checkpoint"] for entry in facts["rejected"]] == ["g0001-s00000012"]
    assert facts["source"].endswith("g0001-s00000008")


def test_a_checkpoint_by_name(tmp_path, run):
    assert to(f"{run.root}:g0001-s00000008", tmp_path / "out", "dcp")["step"] == 8
    with pytest.raises(ConfigError, match="does not exist") as refusal:
        to(f"{run.root}:g0001-s00000009", tmp_path / "none", "dcp")
    assert refusal.value.problems[0].way_out == "committed: g0001-s00000008, g0001-s00000012"
    for name in ("", "../checkpoints/g0001-s00000008"):
        with pytest.raises(ConfigError, match="does not exist"):
            to(f"{run.root}:{name}", tmp_path / "none", "dcp")


def test_a_path_that_has_a_colon_is_a_path(tmp_path, run):
    """Even where the part before the colon is a run that has a checkpoint of that name."""
    (run.checkpoints / "g0001-s00000008").rename(tmp_path / "run:g0001-s00000012")
    assert to(tmp_path / "run:g0001-s00000012", tmp_path / "out", "dcp")["step"] == 8


def test_a_checkpoint_by_path_knows_its_run(tmp_path, run):
    assert to(run.checkpoints / "g0001-s00000012", tmp_path / "out", "huggingface")["config"] is True


def test_a_run_without_checkpoints(tmp_path):
    empty = make_run(tmp_path / "run", make_spec(), {}, steps=())
    with pytest.raises(RunError, match="no committed checkpoint yet"):
        to(empty.root, tmp_path / "out", "dcp")


def test_sources_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    for name in ("empty", "file.txt"):
        with pytest.raises(ConfigError, match="in no format that is known here"):
            to(tmp_path / name, tmp_path / "out", "dcp")
    for text in (tmp_path / "nothing", f"{tmp_path}/nothing:name"):
        with pytest.raises(ConfigError, match="does not exist"):
            to(text, tmp_path / "out", "dcp")


@pytest.mark.parametrize("form", ["headway", "dcp", "huggingface", "safetensors"])
def test_a_format_that_the_source_is_not_ends_in_a_clear_error(tmp_path, form):
    (tmp_path / "theirs").mkdir()
    with pytest.raises(HeadwayError):
        to(tmp_path / "theirs", tmp_path / "out", "dcp", source_format=form)


def test_from_overrides_what_the_files_look_like(tmp_path):
    """The same directory as weights under our names, and as tensors under theirs."""
    (tmp_path / "theirs").mkdir()
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "theirs" / "model.safetensors")
    to(tmp_path / "theirs", tmp_path / "ours", "headway")
    loaded(tmp_path / "ours", {"param/norm.weight": torch.ones(4)})
    to(tmp_path / "theirs", tmp_path / "plain", "headway", source_format="safetensors")
    loaded(tmp_path / "plain", {"model.norm.weight": torch.ones(4)})


def test_a_run_goes_on_from_what_came_back(tmp_path, run):
    """There and back under its own name: the run chooses it as its newest, since nothing of it changed."""
    from headway.rundir.segments import current_chain, read_segments
    from headway.store.admissible import choose

    to(run.root, tmp_path / "copy", "dcp")
    (run.checkpoints / "g0001-s00000012").rename(tmp_path / "gone")
    to(tmp_path / "copy", run.checkpoints / "g0001-s00000012", "headway")
    choice = choose(run, current_chain(read_segments(run)))
    assert (choice.checkpoint, choice.rejected) == ("g0001-s00000012", [])


# --- through the engine


def test_the_command_line_tells_what_was_done_and_what_was_left_out(tmp_path, run, capsys):
    convert(str(run.root), tmp_path / "out", to="huggingface", shard_bytes="512MiB", dtype="bf16")
    told = capsys.readouterr().out
    for words in (
        "g0001-s00000012 (headway, step 12, segment 1)",
        "out (huggingface)",
        "left out     m/ (25 tensors): only weights",
    ):
        assert words in told
    assert "left out     bits (25 tensors): rounded to BF16" in told
    convert(str(tmp_path / "out"), tmp_path / "back", to="headway", step=12, json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["from"], facts["to"], facts["step"], facts["tensors"]) == (
        "conversion",
        "huggingface",
        "headway",
        12,
        25,
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_long_lists_are_cut_for_people_only(tmp_path, capsys):
    dcp.save({f"lr{n:02d}": 0.1 for n in range(20)} | {"w": torch.ones(2)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    convert(str(tmp_path / "theirs"), tmp_path / "a", to="safetensors")
    told = capsys.readouterr().out
    assert "left out     lr11: a pickled object" in told
    assert "lr12" not in told
    assert "left out     8 more, which --json lists" in told
    convert(str(tmp_path / "theirs"), tmp_path / "b", to="safetensors", json=True)
    assert len(json.loads(capsys.readouterr().out)["left_out"]) == 20


def test_errors_keep_their_kind_through_the_engine(tmp_path, run):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        convert(str(run.root), tmp_path / "there", to="dcp")
    with pytest.raises(ConfigError, match="not a size in bytes"):
        convert(str(run.root), tmp_path / "out", to="dcp", shard_bytes="many")
    flip(run.checkpoints / "g0001-s00000012" / "rank00000.safetensors", -1)
    with pytest.raises(RunError, match="digest differs"):
        convert(f"{run.root}:g0001-s00000012", tmp_path / "out", to="dcp")


def test_names_that_begin_with_a_hyphen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"param/w": torch.randn(3)}
    write_source(tmp_path / "checkpoints", values).rename(tmp_path / "-source")
    from pathlib import Path

    convert("-source", Path("-out"), to="headway")
    assert same(loaded(tmp_path / "-out", values), values)


def test_a_directory_that_may_not_be_written(tmp_path, monkeypatch):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.zeros(3)})
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault):
        to(source, tmp_path / "file" / "out", "dcp")
    to(source, tmp_path / "new" / "folder" / "out", "dcp")


def test_the_engine_verb_prints_one_line_of_json(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.zeros(3)})
    command = [sys.executable, "-m", "headway.engine", "convert", source, tmp_path / "out", "--to=dcp", "--shard-bytes=1048576"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["files"] == 1
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert nothing_left(tmp_path, "checkpoints", "out")
