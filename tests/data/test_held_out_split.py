"""Held-out documents chosen by content, repository or time: which side is a matter of the document, and none is on both."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe
from test_document_facts import build, documents_of, write_facts

from headway.base.digests import digest_json
from headway.base.errors import ConfigError
from headway.cli.data import held_out_line
from headway.data import split
from headway.data.build import build_data
from headway.data.inspect.diff import Verdict, compare, open_side
from headway.data.manifest import DataManifest, HeldOutRule
from headway.data.split import UNKNOWN, Arranged, content_key, lowest, reaching, repository_key, threshold_of, time_key, written
from headway.data.spool import Shuffled
from headway.data.tokenizer import Tokenizer
from headway.recipe.checks import check_recipe
from headway.recipe.digests import recipe_digest


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sides(directory: Path, manifest: DataManifest) -> tuple[list[tuple], list[tuple]]:
    """(text, facts) of training and of held-out documents."""
    found = documents_of(directory, manifest)
    return [(t, f) for _, held, t, _, f in found if not held], [(t, f) for _, held, t, _, f in found if held]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_facts(tmp_path_factory.mktemp("text") / "a.jsonl", 300)


@pytest.mark.parametrize("by", ["content", "repository", "time"])
def test_the_rule_of_the_manifest_tells_every_document(text, tmp_path, by):
    """And the threshold is the lowest that reaches the tokens asked for."""
    manifest = build([text], tmp_path / "data", held_out=1_000, held_out_by=by)
    (entry,) = manifest.sources
    training, apart = sides(tmp_path / "data", manifest)
    threshold, key = threshold_of(by, entry.held_out_rule.at), split.KEYS[by]
    assert entry.held_out_rule.by == by
    assert all(key(t, f) >= threshold for t, f in training)
    assert all(key(t, f) < threshold for t, f in apart)
    keys = sorted({key(t, f) for t, f in apart})
    assert entry.held_out_rule.groups == len(keys)
    assert entry.held_out_rule.unknown == sum(key(t, f) == UNKNOWN for t, f in training) == (0 if by == "content" else 43)

    tokenizer = Tokenizer.load(tmp_path / "data" / "tokenizer.json", "<|document|>")
    tokens = {k: sum(len(tokenizer.encode(t)) + 1 for t, f in apart if key(t, f) == k) for k in keys}
    assert sum(tokens.values()) == entry.held_out.tokens >= 1_000
    assert entry.held_out.tokens - tokens[keys[-1]] < 1_000, "without the last text, repository or time too few"
    assert f'held_out_at = "{entry.held_out_rule.at}"' in held_out_line(entry)


def test_whole_repositories_and_the_newest_are_held_out(text, tmp_path):
    by_repository = sides(tmp_path / "r", build([text], tmp_path / "r", held_out=1_000, held_out_by="repository"))
    training, apart = ({f.get("repository") for _, f in side} for side in by_repository)
    assert apart
    assert not training & apart
    training, apart = sides(tmp_path / "t", build([text], tmp_path / "t", held_out=1_000, held_out_by="time"))
    assert max(f["time"] for _, f in training if "time" in f) < min(f["time"] for _, f in apart)


@pytest.mark.parametrize("by", ["content", "repository", "time"])
def test_growing_with_the_recorded_threshold_moves_nothing(tmp_path, by):
    """Other seed, other order, more documents, another source before it."""
    path = write_facts(tmp_path / "a.jsonl", 200)
    first = build([path], tmp_path / "one", held_out=1_000, held_out_by=by)
    before = [{t for t, _ in side} for side in sides(tmp_path / "one", first)]
    old = path.read_text().splitlines()
    new = [line.replace("<", "<new ") for line in write_facts(tmp_path / "new.jsonl", 200, seed=9).read_text().splitlines()]
    grown = [*new[:50], *reversed(old), *new[50:]]
    path.write_text("\n".join(grown))
    source = {"name": "grown", "kind": "jsonl", "path": str(path), "held_out_at": first.sources[0].held_out_rule.at}
    recipe = small_recipe([source], held_out=1_000, held_out_by=by, seed=99)
    second = build_data(recipe, tmp_path / "two")
    after = [{t for t, _ in side} for side in sides(tmp_path / "two", second)]
    assert before[0] <= after[0]
    assert before[1] <= after[1]
    assert len(after[0]) + len(after[1]) == 400
    assert any("<new" in t for t in after[1])
    assert second.sources[0].held_out_rule.at == first.sources[0].held_out_rule.at


def test_texts_alike_but_for_case_and_white_space_are_on_one_side(tmp_path):
    generator = random.Random(3)
    texts = ["".join(generator.choices("abcdefgh", k=60)) + f" word {n}" for n in range(150)]
    forms = [t for text in texts for t in (text, text.upper(), text.replace(" ", "\n\t"))]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in forms))
    manifest = build([path], tmp_path / "data", held_out=2_000, held_out_by="content")
    training, apart = ({"".join(t.lower().split()) for t, _ in side} for side in sides(tmp_path / "data", manifest))
    assert len(training) + len(apart) == 150
    assert 5 < len(apart) < 100


def test_the_tokenizer_has_not_seen_what_may_be_held_out(tmp_path):
    """Candidates included: a word that only they have is no entry of the vocabulary."""
    path = tmp_path / "a.jsonl"
    lines = [{"text": f"{n} " + "plain words " * 30, "date": "2001-01-01"} for n in range(200)]
    lines += [{"text": f"{n} " + "zzyzx " * 60, "date": "2009-01-01"} for n in range(8)]
    path.write_text("\n".join(map(json.dumps, lines)))
    source = {"name": "a", "kind": "jsonl", "path": str(path)}
    build_data(small_recipe([source], held_out=200, held_out_by="time", vocabulary=280), tmp_path / "data")
    seen = (tmp_path / "data" / "tokenizer.json").read_text()
    assert "words" in seen
    assert "zz" not in seen


@pytest.mark.parametrize("by", ["repository", "time"])
def test_a_killed_build_goes_on_to_the_same_bytes(text, tmp_path, by, monkeypatch):
    class Killed(BaseException):
        pass

    whole = build([text], tmp_path / "whole", held_out=1_000, held_out_by=by)
    for what in ("documents", "tokenizer", "tokens"):

        def stop(told, facts, what=what):
            if told == what and facts.get("done", 100) >= 100:
                raise Killed

        recipe = small_recipe([{"name": "a", "kind": "jsonl", "path": str(text)}], held_out=1_000, held_out_by=by)
        with pytest.raises(Killed):
            build_data(recipe, tmp_path / "data", stop, shard_bytes=5_000, part_bytes=6_000)
    again = build([text], tmp_path / "data", held_out=1_000, held_out_by=by, workers=2)
    assert again.digest() == whole.digest()
    assert again.sources[0].document_facts == whole.sources[0].document_facts


def test_the_rule_is_part_of_a_builds_identity(text, tmp_path):
    digests = set()
    for by, at in [("order", None), ("content", None), ("content", "0x2000000000000000"), ("time", None), ("time", "2021-01-01")]:
        source = {"name": "a", "kind": "jsonl", "path": str(text), "held_out_at": at}
        manifest = build_data(small_recipe([source], held_out=1_000, held_out_by=by), tmp_path / f"{by}-{at}")
        digests.add((manifest.digest(), manifest.inputs_digest))
    assert len(digests) == 5
    assert len({digest for digest, _ in digests}) == 5


def test_digests_of_builds_by_order_stay(text, tmp_path):
    """As they were before there were rules and facts: neither is in the content of an entry that has none."""
    (entry,) = build([text], tmp_path / "data").sources
    assert entry.held_out_rule is None
    assert not {"held_out_rule", "document_facts"} & entry.content.keys()
    plain = DataManifest.load(tmp_path / "data").to_json()["sources"][0]
    named = "name kind tokens documents bytes target_share chunk_tokens shards ends held_out"
    assert digest_json({key: plain[key] for key in named.split()}) == entry.digest
    source = {"name": "a", "kind": "jsonl", "path": str(text)}
    plain_recipe, ruled = small_recipe([source]), small_recipe([{**source, "held_out_by": "time"}])
    assert recipe_digest(plain_recipe) != recipe_digest(ruled)
    assert recipe_digest(plain_recipe) == recipe_digest(small_recipe([source], held_out_by="order"))


def test_diff_tells_another_threshold(text, tmp_path):
    """With no document between the two."""
    for name, at in (("one", 0x1000_0000_0000_0000), ("two", 0x1000_0000_0000_0001)):
        source = {"name": "a", "kind": "jsonl", "path": str(text), "held_out_at": f"0x{at:016x}"}
        build_data(small_recipe([source], held_out=1_000, held_out_by="content"), tmp_path / name)
    found = compare(open_side(tmp_path / "one"), open_side(tmp_path / "two"))
    assert found.sources[0].verdict is Verdict.RULE
    assert [change.what for change in found.sources[0].changes] == ["held_out_rule.at"]
    assert not found.same_content


REFUSED = [
    ({"held_out_by": "time"}, {"held_out_at": "soon"}, "held_out_at = 'soon' with held_out_by = 'time'"),
    ({"held_out_by": "time"}, {"held_out_at": "2019"}, "held_out_at = '2019' with held_out_by = 'time'"),
    ({"held_out_by": "content"}, {"held_out_at": "12"}, "held_out_at = '12'"),
    ({"held_out_by": "content"}, {"held_out_at": "0xhello"}, "held_out_at = '0xhello'"),
    ({"held_out_by": "order"}, {"held_out_at": "0x12"}, "held_out_at without a rule"),
    ({"held_out_by": "content", "held_out": 0}, {"held_out_at": "0x12"}, "held_out_at without a rule"),
    ({"held_out_by": "content"}, {"held_out_at": "0x0"}, "on the training side"),
    ({"held_out_by": "content"}, {"held_out_at": "0x7fffffffffffffff"}, "on the held-out side"),
    ({"held_out_by": "time"}, {"held_out_at": "2030-01-01"}, "on the training side; 43 have no time"),
    ({"held_out_by": "time"}, {"held_out_at": "1990-01-01"}, "too small"),
]


@pytest.mark.parametrize(("data", "source", "seen"), REFUSED)
def test_what_cannot_be_split_is_refused(text, tmp_path, data, source, seen):
    recipe = small_recipe([{"name": "a", "kind": "jsonl", "path": str(text), **source}], **{"held_out": 1_000, **data})
    with pytest.raises(ConfigError) as refused:
        build_data(recipe, tmp_path / "data")
    assert seen in str(refused.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("data", "source", "seen"), REFUSED[:6])
def test_a_threshold_that_is_none_is_found_before_anything_is_read(tmp_path, data, source, seen):
    recipe = small_recipe([{"name": "a", "kind": "jsonl", "path": "nowhere", **source}], **{"held_out": 1_000, **data})
    with pytest.raises(ConfigError, match=seen.replace("=", ".")):
        build_data(recipe, tmp_path / "data")
    assert [(path, problem.seen) for path, problem in check_recipe(recipe) if seen in problem.seen]


def test_a_single_repository_and_text_without_the_fact_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"{n} " + "words " * 50, "repo": "one/alone"}) for n in range(40)))
    with pytest.raises(ConfigError, match="all 40 documents are on the held-out side"):
        build([path], tmp_path / "data", held_out_by="repository")
    with pytest.raises(ConfigError, match="on the training side; 40 have no time"):
        build([path], tmp_path / "data", held_out_by="time")


# --- parts ---------------------------------------------------------------------------------------------------------------------


def test_keys_are_frozen():
    """Documents would change sides: change knowingly."""
    assert content_key("Some Text\n", {}) == content_key("some  text", {}) == 8196270500557401769
    assert repository_key("", {"repository": "Owner/Name/"}) == repository_key("", {"repository": "owner/name"})
    assert repository_key("", {"repository": "owner/name"}) == 8536094087750226299
    assert repository_key("", {}) == repository_key("", {"repository": " / "}) == time_key("", {"time": "soon"}) == UNKNOWN
    assert time_key("", {"time": "2024-01-02"}) == time_key("", {"time": "2024-01-01"}) - 86_400


@pytest.mark.parametrize(("by", "at"), [("time", "2024-05-01T00:00:00+00:00"), ("content", "0x00000000000000ff")])
def test_thresholds_are_written_as_they_are_read(by, at):
    assert written(by, threshold_of(by, at)) == at
    if by == "time":
        assert time_key("", {"time": at}) == threshold_of(by, at) - 1


def test_lowest_keys_are_found_whatever_the_blocks(monkeypatch):
    random_ = np.random.default_rng(0)
    for trial in range(60):
        count, distinct = int(random_.integers(1, 400)), int(random_.integers(1, 300))
        keys = random_.integers(0, distinct, count).astype(np.uint64)
        keys[random_.random(count) < 0.1] = UNKNOWN
        bytes_, wanted = random_.integers(1, 50, count), int(random_.integers(1, 3_000))
        monkeypatch.setattr(split, "_BLOCK", int(random_.integers(1, 50)))
        found = lowest(keys, lambda documents, sizes=bytes_: sizes[documents], wanted)
        order = sorted((int(k), n) for n, k in enumerate(keys) if k != UNKNOWN)
        total, last = 0, -1
        for key, number in order:
            if total >= wanted and key != last:
                break
            total, last = total + int(bytes_[number]), key
        assert [(int(k), int(n)) for k, n in zip(found.keys, found.documents)] == [pair for pair in order if pair[0] <= last], (
            trial
        )
        assert found.limit == last + 1 or not order


def test_the_threshold_is_the_lowest_that_reaches():
    keys = np.array([3, 5, 5, 5, 9, 12], np.uint64)
    found = split.Lowest(np.arange(6), keys, 13)
    counts = np.array([10, 1, 1, 1, 10, 10])
    for wanted, cut in itertools.product((1, 10, 11, 13, 14, 23, 24, 33, 34, 99), (1, 2, 6)):
        some = (counts[at : at + cut] for at in range(0, 6, cut))
        threshold = reaching(found, some, wanted)
        fits = [t for t in (4, 6, 10, 13) if counts[keys < t].sum() >= wanted]
        assert threshold == (fits[0] if fits else 13)


def test_an_arranged_order_has_every_document_once_on_its_side(tmp_path):
    keys = np.random.default_rng(1).integers(0, 100, 1_000).astype(np.uint64)
    shuffled = Shuffled(1_000, 7, "a")
    below = Arranged.write(tmp_path / "order", lambda: shuffled.blocks(0, 1_000), keys, 10)
    found = np.concatenate(list(Arranged(tmp_path / "order").blocks(0, 1_000)))
    assert sorted(found.tolist()) == list(range(1_000))
    assert (keys[found] < 10).tolist() == [True] * below + [False] * (1_000 - below)
    order = shuffled.block(0, 1_000)
    assert [n for n in order.tolist() if keys[n] >= 10] == found[below:].tolist()


def test_the_rule_counts(monkeypatch):
    monkeypatch.setattr(split, "_BLOCK", 3)
    keys = np.array([1, 1, 2, UNKNOWN, 9, 3, UNKNOWN], np.uint64)
    assert split.rule("content", 4, keys) == HeldOutRule("content", "0x0000000000000004", 3, 2)
