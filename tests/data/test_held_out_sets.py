"""Held-out sets in the evaluation registry: named, versioned, and kept out of what other builds learn from."""

from __future__ import annotations

import json
import random
import shutil
import threading
from pathlib import Path

import pytest
from data_helpers import small_recipe
from test_document_facts import build, documents_of, write_facts

from headway.base.digests import digest_file
from headway.base.errors import ConfigError
from headway.cli.main import run_guarded
from headway.data import registry as registry_module
from headway.data.build import build_data
from headway.data.held_out_sets import register
from headway.data.manifest import DataManifest
from headway.data.registry import Example, add_set, load_registry, read_examples


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    paths = [write_facts(root / "b.jsonl", 120, 1), write_facts(root / "a.jsonl", 80, 2)]
    build(paths, root / "data", held_out=800, held_out_by="content")
    return root / "data"


def test_every_held_out_document_is_an_example(data, tmp_path, capsys):
    registry = tmp_path / "place" / "registry.json"
    assert run_guarded(["data", "register", str(data), str(registry), "--version", "2026-01", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = load_registry(registry)
    assert [s.name for s in found.sets] == ["small.b", "small.a"]
    assert told["digest"] == found.digest()
    manifest = DataManifest.load(data)
    documents = documents_of(data, manifest)
    for one, entry in zip(found.sets, manifest.sources, strict=True):
        assert one.digest == digest_file(registry.parent / one.file)
        assert one.provenance.startswith(f"held out of data {manifest.digest()}")
        examples = list(read_examples(registry, one))
        held_out = [(text, origin) for source, held, text, origin, _ in documents if held and source == entry.name]
        assert [(e.text, e.id.partition(": ")[2]) for e in examples] == held_out


def test_a_copy_without_facts_of_documents_is_registered_by_number(data, tmp_path):
    shutil.copytree(
        data, tmp_path / "copy", ignore=shutil.ignore_patterns("documents.facts", "documents.origins", "documents.index")
    )
    one, _ = register(tmp_path / "copy", tmp_path / "registry.json", version="1")
    assert [example.id for example in read_examples(tmp_path / "registry.json", one)] == [str(n) for n in range(one.examples)]


def test_another_build_leaves_out_what_repeats_them(data, tmp_path):
    registry = tmp_path / "registry.json"
    (one, _) = register(data, registry, version="1")
    examples = [example.text for example in read_examples(registry, one)]
    generator = random.Random(0)
    copies = [f"{text.upper()} and more" for text in examples]
    copies += [" ".join(text.split()[3:]) for text in examples]
    others = [" ".join(generator.choices(["kato", "miren", "sol", "vei", "nu"], k=40)) for _ in range(60)]
    path = tmp_path / "other.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*others, *copies]))
    contamination = {"registry": str(registry), "words": 5, "overlap": 0.8}
    recipe = small_recipe(
        [{"name": "other", "kind": "jsonl", "path": str(path)}],
        prepare={"contamination": contamination},
        held_out=50,
        vocabulary=270,
    )
    (entry,) = build_data(recipe, tmp_path / "other").sources
    assert entry.dropped == {"contamination": len(copies)}
    assert len(examples) > 5


def test_a_version_never_changes_and_a_new_one_takes_its_place(tmp_path):
    path = tmp_path / "registry.json"
    one = add_set(path, "a set", "1", [Example("1", "text")])
    assert add_set(path, "a set", "1", [Example("1", "text")]) == one
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="never changed under the same version"):
        add_set(path, "a set", "1", [Example("1", "other")])
    assert path.read_bytes() == before
    two = add_set(path, "a set", "2", [Example("1", "other")])
    three = add_set(path, "a/set", "2", [Example("1", "third")])
    assert two.file != three.file
    assert load_registry(path).sets == (two, three)
    assert [e.text for s in (two, three) for e in read_examples(path, s)] == ["other", "third"]


def test_sets_that_are_registered_at_once_are_all_there(tmp_path, monkeypatch):
    """The second one begins when the first has read the registry and not yet written it."""
    path, load, began = tmp_path / "registry.json", registry_module.load_registry, []
    add_set(path, "zero", "1", [Example("1", "text")])
    second = threading.Thread(target=lambda: add_set(path, "two", "1", [Example("1", "text")]))

    def slow(where):
        found = load(where)
        if not began:
            began.append(second.start())
            second.join(0.2)  # it waits for the first; without a lock it would be done
        return found

    monkeypatch.setattr(registry_module, "load_registry", slow)
    add_set(path, "one", "1", [Example("1", "text")])
    second.join()
    assert [s.name for s in load(path).sets] == ["zero", "one", "two"]


def test_data_without_held_out_text_is_refused(tmp_path):
    build([write_facts(tmp_path / "a.jsonl", 30)], tmp_path / "data", held_out=0)
    with pytest.raises(ConfigError, match="holds nothing out"):
        register(tmp_path / "data", tmp_path / "registry.json", version="1")
