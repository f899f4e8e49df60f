"""A run whose data lies at a URL is the same run: killed and resumed, its shards evicted and fetched again."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from conftest_e2e import Bench, trace

from headway.base.files import read_json, write_json
from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.kept_sets import USED_FILE
from headway.data.manifest import MANIFEST_FILE
from headway.data.tokenizer import TOKENIZER_FILE
from headway.recipe.load import load_recipe
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def many_shards(bench, tmp_path_factory) -> Bench:
    """The same tokens in shards of 256 bytes."""
    root = tmp_path_factory.mktemp("elsewhere")
    (root / "small.toml").write_text(bench.recipe_text)
    build_data(load_recipe(root / "small.toml", []).recipe, root / "data", shard_bytes=256)
    return dataclasses.replace(bench, root=root, data=root / "data")


def test_a_run_over_a_small_cache_is_killed_and_resumed_to_the_same_state(many_shards, tmp_path, capsys):
    here = many_shards.run(tmp_path / "here")
    assert many_shards.go(here).state == "complete"
    run = many_shards.run(tmp_path / "far", faults=[{"point": "step.gradients", "action": "kill", "step": 14}])
    file = run.root / "run.json"
    described = read_json(file) | {"data": f"file://{many_shards.data}"}
    described["deployment"]["cache"] = {"directory": str(tmp_path / "cache"), "size": 12_000}
    write_json(file, described)
    assert many_shards.go(run).state == "complete"
    assert len(read_segments(run)) == 2
    assert trace(run) == trace(here)
    rows = [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == "delivery"]
    assert rows[-1]["sources"]["words"]["evictions"] + rows[-1]["sources"]["numbers"]["evictions"] > 0
    capsys.readouterr()
    assert run_guarded(["status", str(run.root)]) == 0
    told = capsys.readouterr().out
    assert "batches ready" in told
    assert "evicted" in told
    assert run_guarded(["data", "show", str(run.root), "3", "--json"]) == 0
    far_shown = json.loads(capsys.readouterr().out)
    assert run_guarded(["data", "show", str(here.root), "3", "--json"]) == 0
    assert far_shown["sequences"] == json.loads(capsys.readouterr().out)["sequences"]
    shutil.rmtree(tmp_path / "cache")
    assert run_guarded(["sample", str(run.root), "--tokens", "2"]) == 0
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != USED_FILE}
    assert fetched == {MANIFEST_FILE, TOKENIZER_FILE}, "all that text and ids need"


def test_verify_audit_and_a_bound_at_the_command_line(many_shards, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    url = f"file://{many_shards.data}"
    assert run_guarded(["data", "verify", url]) == 0
    assert "it is whole" in capsys.readouterr().out
    assert not list((tmp_path / "home").rglob("*.bin")), "verify asks the storage"
    assert run_guarded(["data", "audit", url, "--json"]) == 0
    far = json.loads(capsys.readouterr().out)
    assert list((tmp_path / "home").rglob("*.bin"))
    assert run_guarded(["data", "audit", str(many_shards.data), "--json"]) == 0
    assert far | {"directory": ""} == json.loads(capsys.readouterr().out) | {"directory": ""}
    recipe = str(many_shards.root / "small.toml")
    assert run_guarded(["run", recipe, "--data", url, "--set", "deployment.cache.size=1000", "--run", str(tmp_path / "r")]) == 2
    assert "cache.size = " in capsys.readouterr().err
    assert run_guarded(["data", "build", recipe, "--out", url]) == 2
    assert "directory of this machine" in capsys.readouterr().err


def test_bench_says_which_limits(many_shards, tmp_path, capsys):
    recipe = str(many_shards.root / "small.toml")
    assert run_guarded(["data", "bench", recipe, "--data", str(many_shards.data), "--seconds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["limit"] in ("step", "cores", "loader", "storage")
    assert all(found[name]["tokens_per_second"] > 0 for name in ("resident", "real"))
    assert found["loader"]["again"]["steps"] == found["loader"]["first_touch"]["steps"] > 0
