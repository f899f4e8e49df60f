"""Synthetic sources name their generator, and everything that shows a source says so."""

from __future__ import annotations

import dataclasses

from data_helpers import small_recipe, write_words

from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.manifest import DataManifest, Synthetic
from headway.recipe.checks import check_recipe

GENERATOR = {"program": "templates", "version": "2.1", "recipe": "sha256:00"}
VERIFIER = {"program": "python 3.11", "what": "that it runs", "how": "all of it"}


def source(path="in", **keys) -> dict:
    return {"name": "made", "kind": "text-tree", "path": str(path)} | keys


def test_a_synthetic_source_without_a_generator_is_refused_and_so_is_a_generator_of_what_people_wrote():
    assert check_recipe(small_recipe([source(synthetic=True, generator=GENERATOR, verifier=VERIFIER)])) == []
    for keys, at in (
        ({"synthetic": True}, "synthetic"),
        ({"generator": GENERATOR}, "generator"),
        ({"verifier": VERIFIER}, "verifier"),
    ):
        findings = check_recipe(small_recipe([source(**keys)]))
        assert [path for path, _ in findings] == [("data", "sources", 0, at)]
    assert "generator" in findings[0][1].seen


def test_generator_and_verifier_are_recorded_and_shown_and_are_no_content(tmp_path, capsys):
    root = write_words(tmp_path / "in", 40)
    plain = build_data(small_recipe([source(root)]), tmp_path / "data")
    assert plain.sources[0].synthetic is None
    made = build_data(small_recipe([source(root, synthetic=True, generator=GENERATOR, verifier=VERIFIER)]), tmp_path / "data")
    assert made.digest() == plain.digest()  # the same build, with another label
    told = DataManifest.load(tmp_path / "data").sources[0].synthetic
    assert told == Synthetic(GENERATOR, VERIFIER | {"version": ""})
    assert run_guarded(["data", "inventory", str(tmp_path / "data")]) == 0
    said = capsys.readouterr().out
    assert (
        "made is synthetic: generator program templates, version 2.1, recipe sha256:00; verified by program python 3.11" in said
    )
    unverified = dataclasses.replace(told, verifier={})
    dataclasses.replace(made, sources=(dataclasses.replace(made.sources[0], synthetic=unverified),)).save(tmp_path / "data")
    assert run_guarded(["data", "inventory", str(tmp_path / "data")]) == 0
    assert "verified by nobody" in capsys.readouterr().out
