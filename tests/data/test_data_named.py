"""The verbs that look at data take it by its place, by a run that reads it, or by the recipe that it was built from."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from data_helpers import RECIPE_TEXT, write_words

from headway.cli.main import run_guarded
from headway.data.freeze import freeze
from headway.data.manifest import DataManifest
from headway.data.stream import Skip
from headway.recipe.load import load_recipe
from headway.rundir.create import RunInfo, create_run
from headway.rundir.segments import Segment, write_segment

SKIPPED = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A recipe, the data built from it in its own place, and a run on that data which skips sequences."""
    root = tmp_path_factory.mktemp("named")
    (root / "r.toml").write_text(RECIPE_TEXT.format(path=write_words(root / "text", 40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert run_guarded(["data", "build", "r.toml", "--workers", "1"]) == 0
    data = root / "data/shown"
    spec = freeze(load_recipe(root / "r.toml").recipe, DataManifest.load(data))
    run = create_run(root / "run", spec=spec, recipe_text="", info=RunInfo(data=str(data), deployment={}))
    skip = dataclasses.asdict(Skip(0, 3, SKIPPED))
    write_segment(run, Segment(1, None, 0, None, "start", "automatic", 1, {}, (skip,)))
    return root


@pytest.fixture(autouse=True)
def _there(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def asked(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert run_guarded(["data", *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", ["verify", "audit", "inventory"])
def test_data_is_found_by_its_place_its_run_and_its_recipe(made, capsys, verb):
    changing = {"directory", "seconds"}
    answers = []
    for what in ("data/shown", f"file://{made}/data/shown", "run", "r.toml"):
        found = asked(capsys, verb, what)
        assert found["directory"].endswith("data/shown")
        for source in found.get("sources", ()) if verb == "inventory" else ():
            source["passes"] = source["passes_over_unique"] = None
        answers.append({key: value for key, value in found.items() if key not in changing})
    assert all(answer == answers[0] for answer in answers)


def test_passes_are_of_what_was_named(capsys):
    (alone,) = asked(capsys, "inventory", "data/shown")["sources"]
    assert alone["passes"] is None
    (beside,) = asked(capsys, "inventory", "data/shown", "r.toml")["sources"]
    (planned,) = asked(capsys, "inventory", "r.toml")["sources"]
    (run,) = asked(capsys, "inventory", "run")["sources"]
    assert planned["passes"] == beside["passes"]
    assert run["passes"]["target_tokens"] == planned["passes"]["target_tokens"] + 32 * SKIPPED, "what is skipped is used up"


def test_a_recipe_shows_its_own_data(capsys):
    own, named = asked(capsys, "show", "r.toml", "2"), asked(capsys, "show", "data/shown", "2", "--recipe", "r.toml")
    assert own["sequences"]
    assert own == named
    longer = asked(capsys, "show", "r.toml", "2", "--set", "stages.0.sequence=16")
    assert longer["sequence_length"] == 16


REFUSED = {
    "verify nowhere": "nowhere does not exist, and no preset has that name",
    "audit text": "text is no data directory and no run: it has neither manifest.json nor run.json",
    "inventory run r.toml": "a run and a recipe",
    "inventory r.toml r.toml": "a recipe and a recipe",
    "inventory data/shown --set seed=1": "--set with data",
    "verify run --set seed=1": "--set with a run",
    "mixture data/shown": "data has no mixture",
    "mixture run --data data/shown": "--set or --data with a run",
    "show data/shown 1": "data/shown is data, not a run",
    "show run 1 --recipe r.toml": "--recipe with a run",
    "show r.toml 1 --segment 1": "--segment with a recipe",
    "verify r.toml --set name=other": "has not been built: data/other does not exist",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_has_no_meaning_is_refused_by_what_was_seen(capsys, command):
    assert run_guarded(["data", *command.split()]) == 2
    assert REFUSED[command] in capsys.readouterr().err


def test_a_run_stands_for_the_data_that_it_was_frozen_with(made, tmp_path, capsys):
    shutil.copytree(made / "data/shown", tmp_path / "data")
    manifest = DataManifest.load(tmp_path / "data")
    spec = freeze(load_recipe(made / "r.toml").recipe, manifest)
    create_run(tmp_path / "run", spec=spec, recipe_text="", info=RunInfo(data=str(tmp_path / "data"), deployment={}))
    shard = next((tmp_path / "data").rglob("*.bin"))
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert run_guarded(["data", "verify", str(tmp_path / "run")]) == 1
    assert "damaged: restore them" in capsys.readouterr().out
    source = manifest.sources[0]
    other = dataclasses.replace(source, tokens=source.tokens - 1, digest="").sealed()
    dataclasses.replace(manifest, sources=(other,)).save(tmp_path / "data")
    for verb in ("verify", "audit", "inventory"):
        assert run_guarded(["data", verb, str(tmp_path / "run")]) == 3
        assert "holds other data than the run was frozen with" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "data")
    assert run_guarded(["data", "audit", str(tmp_path / "run")]) == 3
    assert "the data of this run is not at" in capsys.readouterr().err
