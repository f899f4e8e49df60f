"""What opening data at a URL fetches, and what only comes when it is asked for: plans, tokenizers, facts of documents."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from data_helpers import RECIPE_TEXT, small_recipe, write_words

from headway.base.errors import EnvironmentFault
from headway.checkpoint.convert import source as convert_source
from headway.cli import data_mixture
from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.facts import Table
from headway.data.freeze import freeze
from headway.data.inspect.show import Show
from headway.data.kept_sets import USED_FILE
from headway.data.manifest import MANIFEST_FILE, DataManifest
from headway.data.place import CacheOptions, open_place, tokenizer_directory
from headway.data.reader import TokenReader, frozen_tokenizer
from headway.data.remote import Remote
from headway.data.stream import Share, Stream
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer
from headway.recipe.schedules import Schedule
from headway.rundir.layout import RunDirectory


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, DataManifest, object]:
    """One source with plans for sequences of 32 and of 64."""
    root = tmp_path_factory.mktemp("places")
    text = {"name": "text", "kind": "text-tree", "path": str(write_words(root / "text", 40, words=20))}
    stages = [
        {"name": f"packed{T}", "tokens": 10 * T, "sequence": T, "batch": 5 * T, "mixture": {"text": 1}, "packing": "best-fit"}
        for T in (32, 64)
    ]
    recipe = small_recipe([text], stages=stages, held_out=200, chunk=512)
    return root / "data", build_data(recipe, root / "data"), recipe


def url(directory: Path) -> str:
    return f"file://{directory}"


def fetched(cache: Path) -> set[str]:
    """Names of what is no shard."""
    return {path.name for path in (cache / "sets").rglob("*") if path.is_file() and path.name != USED_FILE}


def test_a_plan_is_fetched_when_a_window_of_its_length_is_first_read(built, tmp_path):
    directory, manifest, recipe = built
    stream, stages = Stream(freeze(recipe, manifest)), freeze(recipe, manifest).stages
    far, here = TokenReader(open_place(url(directory), CacheOptions(tmp_path)), manifest), TokenReader(directory, manifest)
    assert fetched(tmp_path) == {MANIFEST_FILE, TOKENIZER_FILE, "documents.ends"}
    want, got = (reader.stage_batch(stream.locate(1, np.arange(8)), stages[1]) for reader in (here, far))
    assert np.array_equal(want.tokens_BT, got.tokens_BT)
    assert {name for name in fetched(tmp_path) if "packing" in name} == {"packing-64.bins", "packing-64.pieces"}
    far.verify_all()
    assert "packing-32.bins" in fetched(tmp_path)


def test_a_plan_that_is_gone_or_other_is_told(built, tmp_path):
    directory, manifest, _ = built
    shutil.copytree(directory, tmp_path / "data")
    reader = TokenReader(open_place(url(tmp_path / "data"), CacheOptions(tmp_path / "cache")), manifest)
    path = next((tmp_path / "data").glob("*/packing-64.bins"))
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(EnvironmentFault, match=r"packing-64\.bins is not what the run was frozen with"):
        reader.pieces(0, 0, 64)
    path.unlink()
    reader = TokenReader(open_place(url(tmp_path / "data"), CacheOptions(tmp_path / "other")), manifest)
    with pytest.raises(EnvironmentFault, match=rf"{url(path)} is not there"):
        reader.pieces(0, 0, 64)


def test_what_is_no_shard_goes_when_nobody_used_it_for_long(built, tmp_path):
    directory, manifest, _ = built
    shutil.copytree(directory, tmp_path / "other")
    dataclasses.replace(manifest, name="other").save(tmp_path / "other")
    cache = CacheOptions(tmp_path / "cache")

    def reopened() -> bool:
        """After 31 days, others open other data: whether the directory is there still."""
        made = next(p for p in (tmp_path / "cache/sets").glob("[!.]*") if DataManifest.load(p).name == "small")
        then = time.time() - 31 * 24 * 3600
        os.utime(made / USED_FILE, (then, then))
        open_place(url(tmp_path / "other"), cache)
        return made.is_dir()

    reader = TokenReader(open_place(url(directory), cache), manifest)
    assert reopened(), "a run that reads it may last longer"
    want = TokenReader(directory, manifest).pieces(0, 0, 64)
    assert np.array_equal(reader.pieces(0, 0, 64), want)
    del reader
    gc.collect()
    open_place(url(directory), cache)
    (tmp_path / "cache/sets/.left.tmp/00").mkdir(parents=True)  # by a process that was killed in the middle
    assert not reopened()
    assert [DataManifest.load(p).name for p in (tmp_path / "cache/sets").iterdir()] == ["other"]
    assert np.array_equal(TokenReader(open_place(url(directory), cache), manifest).pieces(0, 0, 64), want)


def test_show_reads_facts_from_the_url_and_keeps_none(built, tmp_path):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    share, place = Share(np.arange(4), 0), Schedule(spec).place(0)
    far = open_place(url(directory), CacheOptions(tmp_path))
    want, got = (Show(Stream(spec), where, manifest).sequences(place, share) for where in (directory, far))
    assert want == got
    assert all(piece.origin for sequence in got for piece in sequence.pieces)
    assert not {"documents.facts", "documents.origins", "documents.index"} & fetched(tmp_path)


def test_faults_of_facts_name_the_url(built, tmp_path):
    directory, manifest, _ = built
    shutil.copytree(directory, tmp_path / "data")
    place = open_place(url(tmp_path / "data"), CacheOptions(tmp_path / "cache"))
    file = manifest.sources[0].document_facts.training.origins.file
    path = tmp_path / "data" / file
    path.write_bytes(path.read_bytes().replace(b"text-", b"tex--"))
    with pytest.raises(EnvironmentFault, match=rf"damaged: {url(tmp_path)}/data/{file} \(block 0\)"):
        Table.of(place, manifest.sources[0])[0]
    path.unlink()
    with pytest.raises(EnvironmentFault, match=rf"{url(tmp_path)}/data/{file} is not there"):
        Table.of(place, manifest.sources[0])[0]


def test_a_conversion_fetches_the_tokenizer_alone(built, tmp_path, monkeypatch):
    directory, manifest, recipe = built
    monkeypatch.setattr(convert_source, "deployment_of", lambda run: {"cache": {"directory": str(tmp_path)}})
    run = SimpleNamespace(info=lambda: {"data": url(directory)})
    found = convert_source.Source(path=tmp_path, format="headway", run=run).tokenizer(freeze(recipe, manifest))
    assert found.digest == manifest.tokenizer.digest
    assert fetched(tmp_path) == {MANIFEST_FILE, TOKENIZER_FILE}
    (tmp_path / "other").mkdir()
    manifest.save(tmp_path / "other")
    Tokenizer.load(directory / TOKENIZER_FILE, "<|document|>").save(tmp_path / "other" / TOKENIZER_FILE)
    other = dataclasses.replace(freeze(recipe, manifest).tokenizer, digest="sha256:0")
    with pytest.raises(EnvironmentFault, match="holds another tokenizer than the run was frozen with"):
        frozen_tokenizer(tmp_path / "other", dataclasses.replace(freeze(recipe, manifest), tokenizer=other))
    where = tokenizer_directory(directory)
    assert Tokenizer.load(where / TOKENIZER_FILE, "<|document|>").digest == found.digest
    assert Remote.open(url(directory)).size(TOKENIZER_FILE) == (where / TOKENIZER_FILE).stat().st_size


def test_verbs_keep_data_at_a_url_where_the_caller_or_the_deployment_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "default"))
    Path("r.toml").write_text(RECIPE_TEXT.format(path=write_words(tmp_path / "text", 20)))
    assert run_guarded(["data", "build", "r.toml", "--workers", "1"]) == 0
    data, deployed = url(tmp_path / "data/shown"), ["--set", "deployment.cache.directory=deployed"]
    for place, options in (("own", ["--cache", "own"]), ("deployed", deployed), ("own", [*deployed, "--cache", "own"])):
        for verb in (["mixture", "r.toml", "--data", data, "--documents"], ["show", data, "1", "--recipe", "r.toml"]):
            capsys.readouterr()
            assert run_guarded(["data", *verb, *options, "--json"]) == 0, capsys.readouterr().err
            json.loads(capsys.readouterr().out)
            assert {path.name for path in tmp_path.iterdir()} == {"text", "data", "r.toml", place}
            shutil.rmtree(place)


def test_the_mixture_of_a_run_is_read_through_the_cache_of_the_run(built, tmp_path, monkeypatch):
    directory, manifest, recipe = built
    info = {"data": url(directory), "deployment": {"cache": {"directory": "of-run", "size": None}}}
    run = SimpleNamespace(spec=lambda: freeze(recipe, manifest), info=lambda: info, segments=tmp_path / "none")
    monkeypatch.setattr(RunDirectory, "open", lambda root: run)
    monkeypatch.setattr(data_mixture, "steps_done", lambda run: 0)
    assert data_mixture.opened_run(tmp_path).cache == CacheOptions(Path("of-run"))
    assert data_mixture.opened_run(tmp_path, Path("own")).cache == CacheOptions(Path("own"))
