"""The inventory: every document is accounted for, and what is different is counted apart from what is there."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, write_token_data, write_words

from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.inspect import inventory as module
from headway.data.inspect.inventory import GRAM_TOKENS, inventory
from headway.data.manifest import DataManifest

RECIPE = """
kind = "recipe"
name = "passes"
tokenizer = { vocabulary = 300 }
model = { layers = 1, width = 8, heads = 1 }
optimizer = { peak_rate = 1e-3 }
evaluation = { every = 100 }
[data]
held_out = 100
sources = [{ name = "words", kind = "text-tree", path = "in" }]
prepare = { quality = {}, near_duplicates = {} }
[[stages]]
name = "main"
tokens = 40_000
sequence = 16
batch = 32
mixture = { words = 1.0 }
"""


@pytest.fixture
def built(tmp_path: Path, monkeypatch) -> Path:
    root = write_words(tmp_path / "in", 40)
    for number in range(5):
        (root / f"z-{number}.txt").write_text((root / f"text-00{number}.txt").read_text() + "\n")
    (root / "short.txt").write_text("too short")
    (root / "empty.txt").write_text(" \n")
    (root / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    sources = [{"name": "words", "kind": "text-tree", "path": "in"}]
    build_data(small_recipe(sources, prepare={"quality": {}, "near_duplicates": {}}), tmp_path / "data")
    return tmp_path


def test_what_was_read_is_what_is_kept_and_what_was_left_out_by_reason(built):
    (source,) = inventory(built / "data")
    files = list((built / "in").iterdir())
    assert source.raw_documents == len(files) == 48
    assert source.raw_bytes == sum(f.stat().st_size for f in files if f.name != "bytes.txt")
    assert source.entry.dropped == {"empty": 1, "near_duplicate": 5, "short": 1, "undecodable": 1}
    assert (source.kept_documents, source.unaccounted) == (40, 0)


def test_a_document_without_a_reason_is_a_finding(built, capsys):
    assert run_guarded(["data", "inventory", str(built / "data")]) == 0
    capsys.readouterr()
    manifest = DataManifest.load(built / "data")
    lost = dataclasses.replace(manifest.sources[0].registered, found=49)
    dataclasses.replace(manifest, sources=(dataclasses.replace(manifest.sources[0], registered=lost),)).save(built / "data")
    assert run_guarded(["data", "inventory", str(built / "data")]) == 1
    assert "words: 1 documents are missing without a reason" in capsys.readouterr().out


def test_it_is_one_table_from_raw_to_passes(built, capsys):
    assert run_guarded(["data", "inventory", str(built / "data"), "recipe.toml"]) == 0
    said = capsys.readouterr().out
    way = [re.split(r"  +", line.removeprefix("words").strip()) for line in said.splitlines()[2:8]]
    assert [[row[0], row[1], *row[3:]] for row in way] == [
        ["read", "48"],
        ["to prepare", "46", "1 empty, 1 undecodable"],
        ["text", "46"],
        ["quality", "45", "1 short"],
        ["near duplicates", "40", "5 near duplicate"],
        ["kept", "40"],
    ]
    assert run_guarded(["data", "inventory", str(built / "data"), "recipe.toml", "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["passes"]["target_tokens"] == 40_000
    assert source["passes"]["epochs"] == pytest.approx(40_000 / source["training_tokens"], rel=0.02)
    passes, over, begun = (float(word) for word in said.splitlines()[11].split()[-3:])
    assert passes == pytest.approx(40_000 / source["training_tokens"], rel=0.01)
    assert over == pytest.approx(source["passes_over_unique"], rel=0.01)
    assert begun == pytest.approx(source["passes"]["epochs"], rel=0.01)
    assert source["passes_over_unique"] >= source["passes"]["epochs"] * 0.98


def test_a_reason_that_a_step_and_its_source_share_is_told_at_both(built, capsys):
    manifest = DataManifest.load(built / "data")
    source = manifest.sources[0]
    dropped = source.dropped | {"short": 3, "duplicate": 2}
    found = dataclasses.replace(source.registered, found=52)
    source = dataclasses.replace(source, dropped=dropped, registered=found)
    dataclasses.replace(manifest, sources=(source.sealed(),)).save(built / "data")
    run_guarded(["data", "inventory", str(built / "data")])
    said = capsys.readouterr().out.splitlines()
    told = [re.split(r"  +", line.strip())[3:] for line in said[3:8]]
    assert told == [["1 empty, 2 short, 1 undecodable"], [], ["1 short"], ["5 near duplicate"], ["2 duplicate"]]


@pytest.mark.parametrize(("words", "beyond"), [("rebalance", False), ("refuse", True)])
def test_passes_are_those_of_the_run(built, capsys, words, beyond):
    sources = [{"name": name, "kind": "text-tree", "path": "in"} for name in ("one", "two")]
    write_words(built / "other", 40, seed=1)
    sources[1]["path"] = "other"
    build_data(small_recipe(sources), built / "two")
    named = '[{ name = "one", kind = "text-tree", path = "in", cap_epochs = 1 }, '
    named += '{ name = "two", kind = "text-tree", path = "other" }]'
    text = RECIPE.replace('[{ name = "words", kind = "text-tree", path = "in" }]', named)
    text = text.replace("prepare = { quality = {}, near_duplicates = {} }\n", f'beyond_cap = "{words}"\n')
    (built / "capped.toml").write_text(text.replace("mixture = { words = 1.0 }", "mixture = { one = 0.9, two = 0.1 }"))
    assert run_guarded(["data", "inventory", str(built / "two"), "capped.toml", "--json"]) == 0
    one, _ = json.loads(capsys.readouterr().out)["sources"]
    assert one["passes"]["within_cap"] is not beyond
    assert (one["passes"]["epochs"] > 1) is beyond
    assert run_guarded(["data", "inventory", str(built / "two"), "capped.toml"]) == 0
    assert ("beyond its cap of 1, such a run is refused" in capsys.readouterr().out) is beyond


def test_unique_tokens_are_those_of_different_documents_and_runs(tmp_path):
    random = np.random.default_rng(0)

    def document(size: int) -> list[int]:
        return [0, *random.integers(1, 257, size).tolist()]

    one, two, three = (document(size) for size in (4_000, 6_000, 5_000))
    write_token_data(tmp_path, [[one, two, one], [two, three]])
    first, second = inventory(tmp_path)
    assert first.unique.document_tokens == len(one) + len(two)
    assert second.unique.document_tokens == len(three)
    repeated = len(one) / (2 * len(one) + len(two))
    assert first.unique.gram_share == pytest.approx(1 - repeated, abs=0.005)
    assert second.unique.gram_share == 1.0
    assert (first.unique.documents_sampled, first.unique.grams_sampled) == (1.0, 1.0)


def test_a_sample_stands_for_the_whole(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    parts = [[0, *random.integers(1, 257, 300).tolist()] for _ in range(200)]
    write_token_data(tmp_path, [parts + parts[:100]])
    whole = inventory(tmp_path)[0].unique
    monkeypatch.setattr(module, "MOST_GRAMS", 8_000)
    monkeypatch.setattr(module, "MOST_DOCUMENTS", 100)
    sample = inventory(tmp_path)[0].unique
    assert sample.grams_sampled < 0.2
    assert sample.documents_sampled < 0.5
    assert sample.gram_share == pytest.approx(whole.gram_share, abs=0.03)
    assert sample.document_tokens == pytest.approx(whole.document_tokens, rel=0.15)
    assert whole.document_tokens == sum(map(len, parts))
    assert GRAM_TOKENS == 13


def test_copies_in_a_source_of_another_size_are_no_new_documents(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    parts = [[0, *random.integers(1, 257, 20).tolist()] for _ in range(800)]
    write_token_data(tmp_path, [parts, parts[:40]])
    monkeypatch.setattr(module, "MOST_DOCUMENTS", 100)
    large, copies = (source.unique for source in inventory(tmp_path))
    assert large.documents_sampled == copies.documents_sampled < 0.2
    assert copies.document_tokens == 0


def test_what_is_no_data_directory_is_refused(tmp_path, capsys):
    assert run_guarded(["data", "inventory", str(tmp_path)]) == 2
    assert "is no data directory" in capsys.readouterr().err
