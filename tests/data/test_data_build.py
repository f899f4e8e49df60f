"""The build: a pure function of documents and settings that appears whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os

import numpy as np
import pytest
from data_helpers import small_recipe, write_words

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data import block_digests, spool
from headway.data.build import build_data, choose_dtype, default_chunk
from headway.data.manifest import DataManifest
from headway.data.reader import TokenReader
from headway.data.sources import places
from headway.data.spool import normalise
from headway.data.tokenizer import Tokenizer

TOKEN = "<|document|>"


@pytest.fixture
def texts(tmp_path):
    return {"a": write_words(tmp_path / "in-a", 40, seed=1), "b": write_words(tmp_path / "in-b", 30, seed=2)}


def tree_recipe(texts, **data):
    return small_recipe([{"name": name, "kind": "text-tree", "path": str(path)} for name, path in texts.items()], **data)


def decoded(directory, manifest: DataManifest, token_set) -> list[str]:
    """The documents of a token set, read back from the files alone."""
    tokenizer = Tokenizer.load(directory / manifest.tokenizer.file, TOKEN)
    flat = np.concatenate([np.fromfile(directory / s.file, "<u2") for s in token_set.shards])
    ends = np.fromfile(directory / token_set.ends.file, "<u8").tolist()
    parts = [flat[start:end] for start, end in zip([0, *ends], ends)]
    assert all(part[0] == tokenizer.document_token_id for part in parts)
    assert ends[-1] == flat.size == token_set.tokens
    return [tokenizer.decode(part[1:]) for part in parts]


def files_of(directory) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_every_document_is_trained_on_or_held_out_exactly_once(texts, tmp_path):
    manifest = build_data(tree_recipe(texts), tmp_path / "data", shard_bytes=1_000)
    for name, root in texts.items():
        source = manifest.source(name)
        training, held_out = (decoded(tmp_path / "data", manifest, s) for s in (source.training, source.held_out))
        wanted = [path.read_text() for path in sorted(root.iterdir())]
        assert sorted(training + held_out) == sorted(wanted)
        assert source.held_out.tokens >= 100
        assert source.bytes == sum(len(text.encode()) for text in training)
        assert training != sorted(training)  # shuffled
    assert len(manifest.source("a").shards) > 1
    TokenReader(tmp_path / "data", manifest).verify_all()


def test_D10_neighbouring_documents_land_far_apart(tmp_path):
    texts = {"a": write_words(tmp_path / "in", 300, words=8)}
    manifest = build_data(tree_recipe(texts, held_out=0), tmp_path / "data")
    numbers = [int(text.split(":")[0].split()[1]) for text in decoded(tmp_path / "data", manifest, manifest.source("a").training)]
    place = np.argsort(numbers)
    assert abs(np.abs(np.diff(place)).mean() / 300 - 1 / 3) < 0.05
    assert manifest.source("a").held_out is None


def test_building_twice_gives_the_same_bytes(texts, tmp_path):
    one, two = (build_data(tree_recipe(texts), tmp_path / name) for name in ("one", "two"))
    assert one.digest() == two.digest()
    first, second = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    del first["manifest.json"], second["manifest.json"]
    assert first == second


def test_digests_of_earlier_builds_stay(tmp_path):
    """Change knowingly: data that was built before is then no longer used again, and runs on it are other runs."""
    texts = write_words(tmp_path / "in-a", 40, seed=1)
    (texts / "blank.txt").write_text(" \n")
    (texts / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    lines = [f"line {n} of the second source, made up" for n in range(40)] + [(texts / "text-001.txt").read_text()]
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    sources = [
        {"name": "a", "kind": "text-tree", "path": str(texts)},
        {"name": "b", "kind": "jsonl", "path": str(tmp_path / "b.jsonl")},
    ]
    manifest = build_data(small_recipe(sources), tmp_path / "data", shard_bytes=1_000)
    assert manifest.digest() == "sha256:ff9a6fa9be8777020df09ef01d4f5fce2ef072252a7fa591e5f9621f28fed1c3"
    assert manifest.inputs_digest == "sha256:8f182fc6aafaed58447807f24001168d8803c9ed191faf64309b0170b935f14d"


def test_digest_depends_on_text_seed_and_settings(texts, tmp_path):
    base = build_data(tree_recipe(texts), tmp_path / "base").digest()
    assert build_data(tree_recipe(texts, seed=99), tmp_path / "seed").digest() != base
    assert build_data(tree_recipe(texts, chunk=64), tmp_path / "chunk").digest() != base
    (texts["a"] / "text-000.txt").write_text("changed")
    assert build_data(tree_recipe(texts), tmp_path / "text").digest() != base


def test_held_out_documents_do_not_shape_the_tokenizer(texts, tmp_path):
    """Whatever the held-out documents say, the vocabulary stays the same."""
    one = build_data(tree_recipe(texts), tmp_path / "one")
    held_out = decoded(tmp_path / "one", one, one.source("a").held_out)
    for path in texts["a"].iterdir():
        if path.read_text() in held_out:
            path.write_text("zq" * (len(path.read_text()) // 2))
    two = build_data(tree_recipe(texts), tmp_path / "two")
    assert two.digest() != one.digest()
    assert two.tokenizer.digest == one.tokenizer.digest


def test_held_out_documents_are_the_first_of_the_shuffled_order(texts, tmp_path):
    """Asking for more keeps the earlier ones: evaluations of two builds share them."""
    few, more = build_data(tree_recipe(texts), tmp_path / "few"), build_data(tree_recipe(texts, held_out=300), tmp_path / "more")
    first = decoded(tmp_path / "few", few, few.source("b").held_out)
    assert decoded(tmp_path / "more", more, more.source("b").held_out)[: len(first)] == first


def test_a_matching_build_is_verified_and_reused(texts, tmp_path):
    told: list[str] = []
    first = build_data(tree_recipe(texts), tmp_path / "data")
    before = files_of(tmp_path / "data")
    assert build_data(tree_recipe(texts), tmp_path / "data", lambda what, facts: told.append(what)) == first
    assert told[-1] == "reused"
    assert files_of(tmp_path / "data") == before
    shard = tmp_path / "data" / first.sources[0].shards[0].file
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    with pytest.raises(EnvironmentFault, match=first.sources[0].shards[0].file):
        build_data(tree_recipe(texts), tmp_path / "data")


def test_reuse_takes_over_new_labels_and_keeps_the_digest(texts, tmp_path):
    first = build_data(tree_recipe(texts), tmp_path / "data")
    recipe = small_recipe([{"name": n, "kind": "text-tree", "path": str(p), "licence": "MIT"} for n, p in texts.items()])
    second = build_data(recipe, tmp_path / "data")
    assert second.sources[0].licence == DataManifest.load(tmp_path / "data").sources[0].licence == "MIT"
    assert second.digest() == first.digest()


def test_another_build_or_foreign_files_are_never_overwritten(texts, tmp_path):
    build_data(tree_recipe(texts), tmp_path / "data")
    before = files_of(tmp_path / "data")
    with pytest.raises(ConfigError, match="a build of other documents or settings"):
        build_data(tree_recipe(texts, seed=99), tmp_path / "data")
    assert files_of(tmp_path / "data") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("important")
    with pytest.raises(ConfigError, match="exists and holds no data build"):
        build_data(tree_recipe(texts), tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    build_data(tree_recipe(texts), tmp_path / "empty")


def test_a_build_that_dies_leaves_nothing_and_the_next_one_works(texts, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(what, facts):
        if what == "tokens" and facts["source"] == "b":
            raise Killed

    with pytest.raises(Killed):
        build_data(tree_recipe(texts), tmp_path / "data", die)
    assert not (tmp_path / "data").exists()
    (tmp_path / ".data.building" / "rubbish").write_text("of another version")
    assert (
        build_data(tree_recipe(texts), tmp_path / "data").digest() == build_data(tree_recipe(texts), tmp_path / "again").digest()
    )
    assert not (tmp_path / ".data.building").exists()


def test_a_full_disk_names_path_and_cause(texts, tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(block_digests, "write_all", full)
    with pytest.raises(EnvironmentFault, match=r"No space left on device\n.*shard-00000.bin\n.*free space"):
        build_data(tree_recipe(texts), tmp_path / "data")
    assert not (tmp_path / "data").exists()
    monkeypatch.undo()
    told: list[dict] = []
    build_data(tree_recipe(texts), tmp_path / "data", lambda what, facts: told.append(facts) if what == "documents" else None)
    assert [facts["kept"] for facts in told] == [True, True]  # what was finished before the disk was full
    assert not (tmp_path / ".data.building").exists()


def test_two_builders_at_once(texts, tmp_path):
    descriptor = os.open(tmp_path / ".data.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(EnvironmentFault, match=r"another build .* is running"):
            build_data(tree_recipe(texts), tmp_path / "data")
    finally:
        os.close(descriptor)
    build_data(tree_recipe(texts), tmp_path / "data")


def test_what_is_left_out_is_counted_by_reason(texts, tmp_path):
    text = (texts["a"] / "text-001.txt").read_text()
    (texts["a"] / "copy.txt").write_bytes(text.replace("\n", "\r\n").encode())  # the same once line ends are normalised
    (texts["a"] / "blank.txt").write_text(" \n\t\n")
    (texts["a"] / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    (texts["b"] / "copy.txt").write_text(text)
    lines = [
        json.dumps({"text": "\ud800 lone"}),
        *(json.dumps({"text": f"line {n} of the third source, made up"}) for n in range(40)),
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    recipe = tree_recipe(texts)
    kinds = [{"name": n, "kind": "text-tree", "path": str(p)} for n, p in texts.items()]
    recipe = small_recipe([*kinds, {"name": "c", "kind": "jsonl", "path": str(tmp_path / "c.jsonl")}])
    told: list[dict] = []
    manifest = build_data(recipe, tmp_path / "data", lambda what, facts: told.append(facts) if what == "documents" else None)
    assert manifest.source("a").dropped == {"duplicate": 1, "empty": 1, "undecodable": 1}
    assert manifest.source("b").dropped == {"duplicate_elsewhere": 1}
    assert manifest.source("c").dropped == {"undecodable": 1}
    assert [facts["dropped"] for facts in told] == [source.dropped for source in manifest.sources]
    assert [facts["documents"] for facts in told] == [40, 30, 40]


def test_normalisation_touches_line_ends_and_the_mark_only():
    assert normalise("\ufeffa\r\nb\rc\n\n d\u00e9 e\u0301 \x00") == "a\nb\nc\n\n d\u00e9 e\u0301 \x00"


def test_text_that_spells_the_document_token_makes_no_document(tmp_path):
    texts = {"a": write_words(tmp_path / "in", 30)}
    (texts["a"] / "attack.txt").write_text(f"before {TOKEN} after {TOKEN}{TOKEN}")
    manifest = build_data(tree_recipe(texts, held_out=0), tmp_path / "data")
    source = manifest.source("a")
    flat = np.concatenate([np.fromfile(tmp_path / "data" / s.file, "<u2") for s in source.shards])
    assert (flat == manifest.tokenizer.document_token_id).sum() == source.documents == 31


def test_dtype():
    assert (choose_dtype("auto", 65_536), choose_dtype("auto", 65_537)) == ("uint16", "uint32")
    assert (choose_dtype("uint32", 300), choose_dtype("uint16", 65_536)) == ("uint32", "uint16")
    with pytest.raises(ConfigError, match="65537 entries does not fit uint16"):
        choose_dtype("uint16", 65_537)


def test_a_forced_dtype_is_written(texts, tmp_path):
    manifest = build_data(tree_recipe(texts, dtype="uint32"), tmp_path / "data")
    assert manifest.dtype == "uint32"
    shard = manifest.sources[0].shards[0]
    assert (tmp_path / "data" / shard.file).stat().st_size == 4 * shard.tokens


def test_vocabulary_that_cannot_be_filled_says_how_many_there_are(texts, tmp_path):
    with pytest.raises(ConfigError, match=r"a vocabulary of \d+ entries, 60000 were asked for"):
        build_data(
            small_recipe([{"name": "a", "kind": "text-tree", "path": str(texts["a"])}], vocabulary=60_000), tmp_path / "data"
        )
    assert not (tmp_path / "data").exists()


def test_empty_and_small_sources_are_refused_by_name(texts, tmp_path):
    empty = tmp_path / "in-empty"
    empty.mkdir()
    (empty / "blank.txt").write_text("\n")
    with pytest.raises(ConfigError, match=r"source c is empty\n.*'empty': 1"):
        build_data(tree_recipe({**texts, "c": empty}), tmp_path / "data")
    with pytest.raises(ConfigError, match="source a is too small"):
        build_data(tree_recipe(texts, held_out=1_000_000), tmp_path / "data")


def test_all_sources_can_be_read_before_the_first_is(texts, tmp_path, monkeypatch):
    """Hours may lie between two sources: what is wrong with any of them is said first, and at once."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"content": "of another field"}\n')
    (tmp_path / "locked").mkdir()

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    listed = places.os.scandir
    monkeypatch.setattr(places.os, "scandir", lambda at: refused(at) if str(at).rstrip("/").endswith("locked") else listed(at))
    sources = [
        {"name": "whole", "kind": "text-tree", "path": str(texts["a"])},
        {"name": "gone", "kind": "text-tree", "path": str(tmp_path / "nowhere")},
        {"name": "none", "kind": "text-tree", "path": str(texts["b"]), "include": ["*.rst"]},
        {"name": "locked", "kind": "text-tree", "path": str(tmp_path / "locked")},
        {"name": "columns", "kind": "parquet", "path": str(lines)},
        {"name": "lines", "kind": "jsonl", "path": str(lines)},
    ]
    told: list[str] = []
    with pytest.raises(ConfigError) as error:
        build_data(small_recipe(sources), tmp_path / "data", lambda what, facts: told.append(what))
    assert told == [], "nothing was read"
    seen = [problem.seen for problem in error.value.problems]
    assert [len(seen), seen[0]] == [5, f"source gone: its path does not exist: {tmp_path / 'nowhere'}"]
    assert seen[1].startswith("source none is empty: no file under")
    assert seen[2].startswith("cannot read source directory: Permission denied")
    assert seen[3].startswith("Parquet file is damaged")
    assert seen[4].startswith("no text in field 'text'")
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        build_data(small_recipe([sources[0], sources[3]]), tmp_path / "data", lambda what, facts: told.append(what))
    assert told == []


def test_one_document_cannot_be_held_out_and_trained_on(texts, tmp_path):
    (tmp_path / "in-one").mkdir()
    (tmp_path / "in-one" / "only.txt").write_text("a single document " * 200)
    told: list[str] = []
    for recipe in (tree_recipe({"one": tmp_path / "in-one"}), tree_recipe({**texts, "one": tmp_path / "in-one"})):
        with pytest.raises(ConfigError, match=r"too few documents for a held-out set, documents found: one 1\n"):
            build_data(recipe, tmp_path / "data", lambda what, facts: told.append(what))
    assert "tokenizer" not in told


def test_two_documents_that_are_both_set_apart_leave_nothing_to_train_the_tokenizer_on(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a short document " * 20)
    (tmp_path / "in" / "b.txt").write_text("a second, far longer document " * 2_000)
    monkeypatch.setattr(spool, "permute", lambda places, size, key: places)  # the short one first: under half of the bytes
    with pytest.raises(ConfigError, match=r"too few documents for a held-out set, documents found: one 2\n"):
        build_data(tree_recipe({"one": tmp_path / "in"}, held_out=10_000), tmp_path / "data")


@pytest.mark.parametrize(("tokens", "chunk"), [(2, 1), (63, 1), (64, 1), (128, 2), (8_191, 64), (8_192, 128), (10**13, 2**30)])
def test_default_chunk(tokens, chunk):
    assert default_chunk(tokens) == chunk
