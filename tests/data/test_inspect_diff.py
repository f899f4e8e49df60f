"""Two builds side by side: what differs is named, and what is said to follow is what runs do."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, write_token_data, write_words

from headway.base.errors import EnvironmentFault
from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.inspect.diff import SharedShards, Verdict, compare, consequences, open_side
from headway.data.manifest import BLOCK_BYTES, DataManifest
from headway.data.reader import TokenReader
from headway.data.stream import Stream
from headway.recipe.spec import Spec


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    for seed, name in enumerate(("prose", "verse")):
        write_words(root / name, 60, seed=seed)
    shutil.copytree(root / "prose", root / "more")
    write_words(root / "more", 70, seed=9)
    return root


def recipe(texts: Path, names: tuple[str, ...] = ("prose", "verse"), licence: str = "MIT", where: str = "", **settings):
    """``where``: another directory for the first source."""
    paths = [texts / (where if where and i == 0 else name) for i, name in enumerate(names)]
    sources = [{"name": n, "kind": "text-tree", "path": str(p), "licence": licence} for n, p in zip(names, paths)]
    return small_recipe(sources, **settings)


@pytest.fixture
def build(texts, tmp_path):
    """Build with some settings changed, and open it."""

    def of(name: str, *, shard_bytes: int = 2**20, **changed):
        build_data(recipe(texts, **changed), tmp_path / name, shard_bytes=shard_bytes)
        return open_side(tmp_path / name)

    return of


def verdicts(found) -> dict[str, Verdict]:
    return {source.name: source.verdict for source in found.sources}


def changed(found) -> set[str]:
    return {c.what for c in found.content} | {c.what for source in found.sources for c in source.changes}


def test_the_same_documents_built_twice_are_equal(build):
    found = compare(build("a"), build("b"))
    assert found.equal
    assert verdicts(found) == {"prose": Verdict.SAME, "verse": Verdict.SAME}
    assert consequences(found) == ["the same stream: a run frozen on one build reads the other, to the bit"]


def test_another_licence_differs_and_is_the_same_stream(build, texts):
    a, b = build("a"), build("b", licence="CC0-1.0")
    found = compare(a, b)
    assert not found.equal
    assert found.same_content
    assert verdicts(found) == {"prose": Verdict.LABELS, "verse": Verdict.LABELS}
    assert changed(found) == {"licence"}
    TokenReader.open(b.path, freeze(recipe(texts), a.manifest))


@pytest.mark.parametrize(
    ("settings", "expected", "what"),
    [
        ({"where": "more"}, {"prose": Verdict.OTHER}, "tokens"),
        ({"chunk": 512}, {"prose": Verdict.SETTINGS, "verse": Verdict.SETTINGS}, "chunk_tokens"),
        ({"vocabulary": 290}, {"prose": Verdict.OTHER, "verse": Verdict.OTHER}, "tokenizer.digest"),
        ({"names": ("prose",)}, {"verse": Verdict.ONLY_A}, None),
        ({"dtype": "uint32"}, {}, "dtype"),
    ],
    ids=["documents", "chunk", "vocabulary", "source", "dtype"],
)
def test_other_content_is_named_and_refused_by_runs(build, texts, settings, expected, what):
    a, b = build("a"), build("b", **settings)
    found = compare(a, b)
    assert expected.items() <= verdicts(found).items()
    assert what is None or what in changed(found)
    assert not found.same_content
    assert "refuses the other" in consequences(found)[0]
    with pytest.raises(EnvironmentFault, match="other data"):
        TokenReader.open(b.path, freeze(recipe(texts), a.manifest))


def windows(spec: Spec, side) -> np.ndarray:
    stage = spec.stages[0]
    positions = Stream(spec).locate(0, np.arange(stage.sequences))
    return TokenReader(side.path, side.manifest).window_batch(positions, stage.sequence_length).tokens_BT


def test_the_same_tokens_cut_into_other_shards_are_the_same_order_for_a_new_run(tmp_path, texts):
    random = np.random.default_rng(0)
    documents = [[0, *random.integers(1, 60_000, 50_000).tolist()] for _ in range(60)]
    for name, blocks in (("a", 2), ("b", 1)):
        write_token_data(tmp_path / name, [documents], shard_bytes=blocks * BLOCK_BYTES)
    a, b = open_side(tmp_path / "a"), open_side(tmp_path / "b")
    found = compare(a, b)
    assert verdicts(found) == {"source0": Verdict.RECUT}
    assert found.sources[0].shards == SharedShards(both=0, only_a=3, only_b=6, shared_bytes=0)
    assert consequences(found)[1] == "a new run of one recipe would read the same tokens in the same order on either"
    spec = freeze(recipe(texts), build_data(recipe(texts), tmp_path / "c"))
    source = dataclasses.replace(spec.sources[0], name="source0", tokens=a.manifest.sources[0].tokens, chunk_tokens=64)
    stage = dataclasses.replace(spec.stages[0], quanta=(65_536,))
    one = dataclasses.replace(spec, sources=(source,), stages=(stage,))
    assert np.array_equal(windows(one, a), windows(one, b))


def test_a_held_out_set_of_another_size_is_told(build):
    """Documents move between held-out and training, so the training tokens differ too."""
    found = compare(build("a"), build("b", held_out=300))
    assert "held_out.tokens" in changed(found)
    assert not found.same_content


def test_a_held_out_set_alone(build):
    a = build("a")
    entry = a.manifest.sources[0]
    without = dataclasses.replace(entry, held_out=None).sealed()
    b = dataclasses.replace(a, manifest=dataclasses.replace(a.manifest, sources=(without, a.manifest.sources[1])))
    found = compare(a, b)
    assert verdicts(found) == {"prose": Verdict.HELD_OUT, "verse": Verdict.SAME}
    assert "held-out losses are not of the same text for prose" in consequences(found)


def test_sources_in_another_order_are_dealt_out_otherwise(build):
    a = build("a")
    turned = dataclasses.replace(a.manifest, sources=a.manifest.sources[::-1])
    found = compare(a, dataclasses.replace(a, manifest=turned))
    assert found.order_differs
    assert not found.equal
    assert not found.same_content
    assert set(verdicts(found).values()) == {Verdict.SAME}
    assert consequences(found)[1:] == [
        "windows in the same order, whenever their source's turn comes: prose, verse",
        "other sources, or another order of them: the mixture deals its turns out in another way",
    ]


def test_shards_are_counted_by_content(tmp_path):
    """The second build has a document more: its full shards begin alike, the last one differs."""
    documents = [[0, *range(i, i + 63)] for i in range(10)]
    write_token_data(tmp_path / "a", [documents[:9]], shard_bytes=256)
    write_token_data(tmp_path / "b", [documents], shard_bytes=256)
    (source,) = compare(open_side(tmp_path / "a"), open_side(tmp_path / "b")).sources
    assert source.verdict is Verdict.OTHER
    assert source.shards == SharedShards(both=4, only_a=1, only_b=1, shared_bytes=4 * 256)


# --- the verb


def test_the_verb_tells_and_exits_by_what_it_finds(build, tmp_path, capsys):
    build("a")
    build("b", licence="CC0-1.0")
    assert run_guarded(["data", "diff", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the same stream: a run frozen on one build reads the other, to the bit",
        "as the two manifests say: headway data verify reads the bytes themselves",
    ]
    assert run_guarded(["data", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    shown = capsys.readouterr().out
    assert "CC0-1.0" in shown
    assert "the same stream" in shown
    copy = tmp_path / "copy-of-b.json"
    shutil.copy(tmp_path / "b" / "manifest.json", copy)
    assert run_guarded(["data", "diff", str(tmp_path / "b"), str(copy), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["equal"], facts["same_stream"]) == (True, True)
    assert facts["a"]["digest"] == DataManifest.load(tmp_path / "b").digest()
    assert facts["sources"][0]["verdict"] == "same"


@pytest.mark.parametrize(("content", "code"), [(None, 2), ("{}", 3), ("{", 4), ('{"kind": "data-manifest"}', 3)])
def test_what_is_no_manifest_has_a_clear_message(build, tmp_path, capsys, content, code):
    build("a")
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content)
    assert run_guarded(["data", "diff", str(tmp_path / "a"), str(other)]) == code
    shown = capsys.readouterr().err
    assert str(other) in shown
    assert "internal error" not in shown
