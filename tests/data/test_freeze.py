"""Recipe and manifest to Spec: what must fit is checked before the run, with the tokens that would."""

from __future__ import annotations

import dataclasses
import re

import pytest
from data_helpers import small_recipe, small_spec, write_words

from headway.base.errors import ConfigError
from headway.data.build import build_data
from headway.data.freeze import check_caps, check_held_out, data_facts, freeze
from headway.data.reader import TokenReader
from headway.data.stream import Stream, source_coverage
from headway.recipe.preparation import Prepare
from headway.recipe.spec import BatchPhase


def stage(tokens: int, sequence: int = 16, **mixture: float) -> dict:
    return {"name": "main", "tokens": tokens, "sequence": sequence, "batch": 4 * sequence, "rate": {}, "mixture": mixture}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple:
    root = tmp_path_factory.mktemp("freeze")
    sources = [
        {"name": "a", "kind": "text-tree", "path": str(write_words(root / "a", 60, seed=1)), "licence": "MIT"},
        {"name": "b", "kind": "text-tree", "path": str(write_words(root / "b", 20, seed=2)), "cap_epochs": 2.0},
    ]
    return sources, root / "data", build_data(small_recipe(sources), root / "data")


def test_the_spec_carries_the_manifest(built):
    sources, directory, manifest = built
    spec = freeze(small_recipe(sources, stages=[stage(1_000, a=3, b=1)]), manifest)
    assert (spec.manifest_digest, spec.tokenizer.digest) == (manifest.digest(), manifest.tokenizer.digest)
    for source, entry in zip(spec.sources, manifest.sources):
        assert (source.tokens, source.chunk_tokens, source.digest) == (entry.tokens, entry.chunk_tokens, entry.digest)
    assert spec.sources[0].licence == "MIT"
    assert not spec.is_draft
    TokenReader.open(directory, spec).window_batch(Stream(spec).locate(0, Stream(spec).rank_sequences(0, 0, 4, 0, 1)), 16)
    assert data_facts(manifest).vocabulary == 300


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("digits", "single"),
        ("whitespace", "lines"),
        ("fim_tokens", ["<|a|>", "<|b|>", "<|c|>"]),
        ("reserved", ["<|later|>"]),
        ("reserved_count", 2),
        ("kind", "file"),
        ("lossy", True),
    ],
)
def test_a_tokenizer_that_was_changed_after_the_build_is_refused(built, key, value):
    sources, _, manifest = built
    recipe = small_recipe(sources, stages=[stage(1_000, a=3, b=1)])
    freeze(recipe, manifest)
    path = {"path": "t.json"} if key in ("kind", "lossy") else {}
    kind = {"kind": "file"} if key == "lossy" else {}
    changed = recipe.tokenizer.model_copy(update={key: tuple(value) if isinstance(value, list) else value, **path, **kind})
    with pytest.raises(ConfigError, match=f"the data was built with {key.removesuffix('_count')}"):
        freeze(recipe.model_copy(update={"tokenizer": changed}), manifest)


def test_what_an_older_manifest_does_not_say_of_its_tokenizer_is_not_compared(built):
    sources, _, manifest = built
    older = dataclasses.replace(manifest.tokenizer, digits="", whitespace="", fim=(256, 257, 258), fim_tokens=())
    assert older.content() == dataclasses.replace(manifest.tokenizer, fim=(256, 257, 258)).content()
    recipe = small_recipe(sources, stages=[stage(1_000, a=3, b=1)])
    names = {"digits": "single", "whitespace": "lines", "fim_tokens": ("<|a|>", "<|b|>", "<|c|>")}
    changed = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update=names)})
    freeze(changed, dataclasses.replace(manifest, tokenizer=older))


def test_D11_a_cap_that_does_not_suffice_names_the_tokens_that_fit(built):
    sources, _, manifest = built
    tokens = manifest.source("b").tokens
    with pytest.raises(ConfigError, match=r"source '?b'?") as caught:
        freeze(small_recipe(sources, stages=[stage(40 * tokens, a=1, b=1)]), manifest)
    assert "cap" in str(caught.value)


def with_sequences(spec, sequences: int):
    last = dataclasses.replace(spec.stages[-1], sequences=sequences)
    return dataclasses.replace(spec, stages=(*spec.stages[:-1], last))


@pytest.mark.parametrize("cap", [0.5, 1.0, 1.5, 2.3])
@pytest.mark.parametrize("batch", [1, 4])
def test_D11_the_named_tokens_fit_and_one_batch_more_does_not(cap, batch):
    length = 16
    spec = small_spec([("a", 5_000, 64, cap), ("b", 9_000, 64)], [(40, 32, (32_768, 32_768)), (5_000, length, (50_000, 15_536))])
    staged = [dataclasses.replace(s, phases=(BatchPhase(0, batch),)) for s in spec.stages]
    spec = dataclasses.replace(spec, stages=tuple(staged))
    with pytest.raises(ConfigError, match="source a: the stages need") as caught:
        check_caps(spec)
    fits = int(re.search(r"at most ([\d,]+) tokens", str(caught.value))[1].replace(",", ""))
    assert fits % (batch * length) == 0
    check_caps(with_sequences(spec, fits // length))
    with pytest.raises(ConfigError):
        check_caps(with_sequences(spec, fits // length + batch))


def test_D11_the_named_cap_is_enough():
    spec = small_spec([("a", 5_000, 64, 1.0)], [(700, 16, (65_536,))])
    with pytest.raises(ConfigError) as caught:
        check_caps(spec)
    needed = float(re.search(r"cap_epochs = ([\d.]+)", str(caught.value))[1])
    assert 2 < needed < 2.5
    check_caps(small_spec([("a", 5_000, 64, needed)], [(700, 16, (65_536,))]))


def test_every_source_beyond_its_cap_is_reported_at_once():
    spec = small_spec([("a", 5_000, 64, 1.0), ("b", 5_000, 64, 1.0), ("c", 5_000, 64)], [(3_000, 16, (20_000, 20_000, 25_536))])
    with pytest.raises(ConfigError) as caught:
        check_caps(spec)
    assert [problem.seen.split(":")[0] for problem in caught.value.problems] == ["source a", "source b"]
    assert [c.within_cap for c in source_coverage(spec)] == [False, False, True]


def test_a_sequence_longer_than_a_chunk_is_refused(built):
    sources, _, manifest = built
    longer = 2 * max(source.chunk_tokens for source in manifest.sources)
    with pytest.raises(ConfigError, match="chunk"):
        freeze(small_recipe(sources, stages=[stage(10_000, longer, a=1, b=1)]), manifest)


def test_held_out_text_too_short_for_a_stage_is_refused_before_the_start_all_at_once(built):
    sources, _, manifest = built
    shortest = min(source.held_out.tokens for source in manifest.sources)
    spec = freeze(small_recipe(sources, stages=[stage(1_000, a=3, b=1)]), manifest)
    longest = dataclasses.replace(spec.stages[0], name="fits", sequence_length=shortest - 1)
    check_held_out(dataclasses.replace(spec, stages=(longest,)), manifest)
    beyond = [dataclasses.replace(longest, name=name, sequence_length=4_000) for name in ("long", "longer")]
    with pytest.raises(ConfigError) as caught:
        check_held_out(dataclasses.replace(spec, stages=(longest, *beyond)), manifest, "r.toml:7")
    seen = [problem.seen.partition(" has ")[0] for problem in caught.value.problems]
    assert seen == [f"stage {name}: source {source}" for name in ("long", "longer") for source in ("a", "b")]
    assert "data.held_out = 4001" in caught.value.problems[0].way_out
    assert caught.value.problems[0].where == "r.toml:7"


def test_freeze_checks_the_held_out_text(built):
    sources, _, manifest = built
    length = min(source.held_out.tokens for source in manifest.sources)
    entries = [dataclasses.replace(s, chunk_tokens=2 * length).sealed() for s in manifest.sources]
    manifest = dataclasses.replace(manifest, sources=tuple(entries))
    freeze(small_recipe(sources, stages=[stage(1_000, length - 1, a=1, b=1)]), manifest)
    with pytest.raises(ConfigError, match="held-out tokens"):
        freeze(small_recipe(sources, stages=[stage(1_000, length, a=1, b=1)]), manifest)


def test_data_that_was_built_under_other_settings_is_refused(tmp_path):
    """Else a run would be on record with steps and held-out rules that its data never saw."""
    sources = [{"name": "a", "kind": "text-tree", "path": str(write_words(tmp_path / "a", 30))}]
    recipe = small_recipe(sources, vocabulary=300)
    manifest = build_data(recipe, tmp_path / "data")
    freeze(recipe, manifest)
    other = recipe.data.model_copy(update={"held_out_by": "content", "prepare": Prepare.model_validate({"secrets": {}})})
    with pytest.raises(ConfigError, match=r"other settings than the recipe has now: data\.prepare, data\.held_out_by"):
        freeze(recipe.model_copy(update={"data": other}), manifest)
    without = recipe.data.sources[0].model_copy(update={"include": ("*.md",)})
    with pytest.raises(ConfigError, match="include of source a"):
        freeze(recipe.model_copy(update={"data": recipe.data.model_copy(update={"sources": (without,)})}), manifest)
    older = dataclasses.replace(manifest, settings={})
    freeze(recipe.model_copy(update={"data": other}), older)
    older.save(tmp_path / "data")
    assert build_data(recipe, tmp_path / "data").settings == manifest.settings, "a build that is used again is told"
