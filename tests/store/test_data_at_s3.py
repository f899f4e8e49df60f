"""Built data on a real S3 server: windows, facts and plans as from the disk, a small cache, the storage gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mirror_cases import BUCKET, READER

from headway.base.errors import EnvironmentFault
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.inspect.show import Show
from headway.data.manifest import DataManifest
from headway.data.place import CacheOptions, open_place
from headway.data.reader import TokenReader
from headway.data.stream import Stream
from headway.recipe.schema import Recipe

pytestmark = pytest.mark.e2e
URL = f"s3://{BUCKET}/mine"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Recipe]:
    """Two stages, one of them packed; shards of 4 KiB."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(1)
    (root / "text").mkdir()
    for number in range(60):
        words = " ".join("".join(random.choice(list("abcdefgh"), 4)) for _ in range(int(random.integers(5, 200))))
        (root / "text" / f"{number:02d}.txt").write_text(f"{number} {words}\n")
    stage = {"tokens": "4k", "sequence": 64, "batch": 512, "mixture": {"text": 1.0}}
    recipe = Recipe.model_validate(
        {
            "name": "elsewhere",
            "kind": "recipe",
            "tokenizer": {"vocabulary": 300},
            "model": {"layers": 1, "width": 8, "heads": 1},
            "data": {
                "held_out": 200,
                "chunk": 2_048,
                "sources": [{"name": "text", "kind": "text-tree", "path": str(root / "text")}],
            },
            "stages": [stage | {"name": "cut"}, stage | {"name": "packed", "packing": "best-fit"}],
            "optimizer": {"peak_rate": 1e-3},
            "evaluation": {"every": "4k"},
        }
    )
    build_data(recipe, root / "data", shard_bytes=4_096)
    return root / "data", recipe


@pytest.fixture
def uploaded(server, built, monkeypatch) -> tuple[Path, Recipe]:
    import s3fs

    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = s3fs.S3FileSystem(skip_instance_cache=True)
    if not storage.exists(BUCKET):
        storage.mkdir(BUCKET)
    storage.put(f"{built[0]}/", f"{BUCKET}/mine/", recursive=True)
    for name, value in server.environment(READER).items():  # data is read by who may do nothing else
        monkeypatch.setenv(name, value)
    return built


def test_windows_facts_and_plans_are_those_of_the_disk(uploaded, tmp_path):
    directory, recipe = uploaded
    place = open_place(URL, CacheOptions(tmp_path / "cache", 5 * 4_096))  # the least that is taken for this data
    spec = freeze(recipe, DataManifest.load(place.directory))
    assert spec == freeze(recipe, DataManifest.load(directory))
    here, there, stream = TokenReader.open(directory, spec), TokenReader.open(place, spec), Stream(spec)
    for number, stage in enumerate(spec.stages):
        for first in range(0, stage.sequences, 8):
            positions = stream.locate(number, np.arange(first, min(first + 8, stage.sequences)))
            ours, theirs = there.stage_batch(positions, stage), here.stage_batch(positions, stage)
            assert np.array_equal(ours.tokens_BT, theirs.tokens_BT)
            assert np.array_equal(ours.targets_BT, theirs.targets_BT)
    there.close()
    traffic = there.traffic()["text"]
    assert traffic["misses"] + traffic["ahead"] > 0
    kept = sum(path.stat().st_size for path in (tmp_path / "cache" / "shards").glob("*.bin"))
    assert kept <= 5 * 4_096 or traffic["over_bound"]
    show = [Show(stream, where, DataManifest.load(directory)) for where in (directory, place)]
    step = show[0].step(1)
    assert show[1].sequences(step, show[1].batch(step)) == show[0].sequences(step, show[0].batch(step))


@pytest.mark.usefixtures("uploaded")
def test_a_file_that_the_bucket_lost_is_named(server, tmp_path, monkeypatch):
    import s3fs

    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem(skip_instance_cache=True).rm(f"{BUCKET}/mine/00-text/documents.ends")
    with pytest.raises(EnvironmentFault, match=rf"{URL}/00-text/documents\.ends is not there"):
        open_place(URL, CacheOptions(tmp_path / "cache"))
