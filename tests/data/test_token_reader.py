"""Windows from shards: against a naive reading, and every way in which a file can be other than frozen."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from data_helpers import small_spec, write_token_data
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.manifest import BLOCK_BYTES, DataManifest
from headway.data.reader import TokenReader
from headway.data.stream import Positions

DOCUMENT = 0


def made_up_documents(seed: int, count: int = 40, mean: int = 20) -> list[list[int]]:
    """Each begins with the document token; ordinary tokens contain its id too, which must not matter."""
    random = np.random.default_rng(seed)
    return [[DOCUMENT, *random.integers(0, 9, random.integers(0, 2 * mean)).tolist()] for _ in range(count)]


def naive_window(documents: list[list[int]], start: int, T: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """tokens, targets, document numbers and positions, one token at a time."""
    flat = [token for document in documents for token in document]
    heads = set(np.cumsum([0, *map(len, documents)]).tolist())
    number, position, numbers, positions = 0, -1, [], []
    for at in range(start, start + T):
        opens = at in heads and at > start
        number, position = (number + 1, 0) if opens else (number, position + 1)
        numbers.append(number)
        positions.append(position)
    return flat[start : start + T], flat[start + 1 : start + T + 1], numbers, positions


def positions_at(source: list[int], token: list[int]) -> Positions:
    return Positions(np.array(source), np.zeros(len(source), np.int64), np.array(token))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple:
    directory = tmp_path_factory.mktemp("tokens")
    documents = [made_up_documents(1), made_up_documents(2, count=160, mean=3)]
    return directory, write_token_data(directory, documents), documents


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_windows_equal_a_naive_reading_over_shard_borders(corpus, data):
    directory, manifest, documents = corpus
    T = data.draw(st.integers(1, 130))
    count = data.draw(st.integers(1, 6))
    source = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    token = [data.draw(st.integers(0, manifest.sources[k].tokens - T - 1)) for k in source]
    batch = TokenReader(directory, manifest).window_batch(positions_at(source, token), T)
    for row, (k, start) in enumerate(zip(source, token)):
        wanted = naive_window(documents[k], start, T)
        found = (batch.tokens_BT[row], batch.targets_BT[row], batch.document_BT[row], batch.position_BT[row])
        assert [array.tolist() for array in found] == list(wanted)
    assert (batch.tokens_BT.dtype, batch.targets_BT.dtype, batch.position_BT.dtype) == (np.int64,) * 3
    assert batch.document_BT.dtype == np.int32
    assert batch.source_B.tolist() == source


def test_the_shards_are_many(corpus):
    assert all(len(source.shards) > 2 for source in corpus[1].sources)


def test_uint32_tokens(tmp_path):
    documents = [[0, 70_000, 5], [0, 2**32 - 1, 6, 7]]
    manifest = write_token_data(tmp_path, [documents], dtype="uint32")
    batch = TokenReader(tmp_path, manifest).window_batch(positions_at([0], [0]), 6)
    assert batch.tokens_BT.tolist() == [[0, 70_000, 5, 0, 2**32 - 1, 6]]


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 3 * 16 + 1, 10**9])
def test_held_out_tokens_are_targets_once_whatever_the_window_and_the_batch(corpus, tokens):
    directory, manifest, documents = corpus
    reader = TokenReader(directory, manifest)
    held = [t for d in documents[1][: len(documents[1]) * 3 // 4] for t in d]
    places = [at for d in documents[1][: len(documents[1]) * 3 // 4] for at in range(len(d))]
    for T, size in ((16, 1), (16, 4), (7, 3), (50, 100)):
        batches = list(reader.held_out_batches("source1", T, size, tokens))
        targets = np.concatenate([b.targets_BT.ravel() for b in batches])
        within = np.concatenate([b.in_document_BT.ravel() for b in batches])
        counts = np.concatenate([b.scored_BT.ravel() for b in batches])
        scored = reader.held_out_targets("source1", T, tokens)
        assert scored == min(tokens, len(held) - 1)
        assert targets[counts].tolist() == held[1 : scored + 1]
        assert within[counts].tolist() == places[1 : scored + 1], "0 is the document token"
        flat = np.concatenate([b.tokens_BT.ravel() for b in batches])
        assert flat[counts].tolist() == held[:scored]
        assert all(b.tokens_BT.shape[1] == T and (b.source_B == 1).all() for b in batches)
        assert all(len(b.tokens_BT) == size for b in batches[:-1])
        for b in batches:
            counted = b.scored_BT[:, 1:]
            opens, begins = np.diff(b.document_BT, axis=1) == 1, b.in_document_BT[:, :-1] == 0
            assert np.array_equal(opens[counted], begins[counted])


def test_too_little_held_out_text_is_named(corpus):
    with pytest.raises(ConfigError, match="source source1 has no held-out window of 5000"):
        next(TokenReader(corpus[0], corpus[1]).held_out_batches("source1", 5_000, 1, 10))


# --- D9 -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path) -> tuple:
    """A directory whose first source has one shard of a bit more than two blocks."""
    random = np.random.default_rng(0)
    documents = [[0, *random.integers(1, 60_000, 50_000).tolist()] for _ in range(24)]
    return tmp_path, write_token_data(tmp_path, [documents], shard_bytes=8 * BLOCK_BYTES)


def flip(path, offset: int) -> None:
    """One bit, with size and times as they were."""
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_D9_a_changed_bit_is_refused_at_first_touch_of_its_block_only(fresh):
    directory, manifest = fresh
    flip(directory / "00/shard-00000.bin", BLOCK_BYTES + 100)
    reader = TokenReader(directory, manifest)
    reader.window_batch(positions_at([0], [0]), 64)
    with pytest.raises(EnvironmentFault, match=r"00/shard-00000\.bin is not what the run was frozen with"):
        reader.window_batch(positions_at([0], [BLOCK_BYTES // 2 + 1_000]), 64)
    with pytest.raises(EnvironmentFault, match=r"00/shard-00000\.bin"):  # and again: never verified by having failed
        reader.window_batch(positions_at([0], [BLOCK_BYTES // 2 - 3]), 64)
    with pytest.raises(EnvironmentFault, match=r"00/shard-00000\.bin"):
        reader.verify_all()
    TokenReader(directory, manifest, verify=False).window_batch(positions_at([0], [BLOCK_BYTES // 2 + 1_000]), 64)


def test_D9_the_last_partial_block_is_verified_too(fresh):
    directory, manifest = fresh
    flip(directory / "00/shard-00000.bin", manifest.sources[0].tokens * 2 - 1)
    with pytest.raises(EnvironmentFault, match="shard-00000"):
        TokenReader(directory, manifest).window_batch(positions_at([0], [manifest.sources[0].tokens - 65]), 64)


def test_a_block_is_verified_once(fresh, monkeypatch):
    directory, manifest = fresh
    reader = TokenReader(directory, manifest)
    reader.window_batch(positions_at([0], [0]), 64)
    monkeypatch.setattr("headway.data.token_sets.xxhash", None)
    reader.window_batch(positions_at([0], [10]), 64)
    with pytest.raises(AttributeError):
        reader.window_batch(positions_at([0], [BLOCK_BYTES]), 64)


def test_D9_truncated_missing_and_longer_shards_are_refused_at_opening(fresh):
    directory, manifest = fresh
    shard = directory / "00/shard-00000.bin"
    content = shard.read_bytes()
    for other in (content[:-2], b"", content + b"\0\0"):
        shard.write_bytes(other)
        with pytest.raises(EnvironmentFault, match=rf"shard-00000\.bin.*{len(other)} bytes instead of {len(content)}"):
            TokenReader(directory, manifest)
    shard.unlink()
    with pytest.raises(EnvironmentFault, match=r"No such file.*\n.*shard-00000\.bin"):
        TokenReader(directory, manifest)


def test_D9_a_shard_cut_after_opening_is_an_error_not_a_dead_process(fresh):
    directory, manifest = fresh
    unmapped, mapped = TokenReader(directory, manifest), TokenReader(directory, manifest)
    mapped.window_batch(positions_at([0], [0]), 64)
    os.truncate(directory / "00/shard-00000.bin", BLOCK_BYTES + 10)
    for reader, seen in ((mapped, "bytes early"), (unmapped, f"{BLOCK_BYTES + 10} bytes instead of")):
        with pytest.raises(EnvironmentFault, match=rf"shard-00000\.bin .*{seen}"):
            reader.window_batch(positions_at([0], [BLOCK_BYTES // 2 + 1_000]), 64)


def test_D12_the_shard_that_is_being_read_has_a_name(fresh, monkeypatch):
    reader, seen = TokenReader(*fresh), []
    monkeypatch.setattr("headway.data.token_sets.read_plainly", lambda path, at, end: seen.append(reader.reading))
    assert reader.reading == ""
    reader.window_batch(positions_at([0], [0]), 64)
    assert seen == ["00/shard-00000.bin"]
    assert reader.reading == ""


@pytest.mark.parametrize("file", ["00/documents.ends", "00/held-out/documents.ends", "tokenizer.json"])
def test_D9_changed_document_ends_and_tokenizer_are_refused_at_opening(fresh, file):
    directory, manifest = fresh
    flip(directory / file, 20)
    with pytest.raises(EnvironmentFault, match=file):
        TokenReader(directory, manifest)


def test_D9_a_run_never_reads_other_data_than_it_was_frozen_with(fresh):
    directory, manifest = fresh
    names = [(source.name, 10, 2) for source in manifest.sources]
    quanta = (65_536, *[0] * (len(names) - 1))
    spec = dataclasses.replace(small_spec(names, [(1, 2, quanta)]), manifest_digest=manifest.digest())
    assert TokenReader.open(directory, spec).manifest == manifest
    with pytest.raises(EnvironmentFault, match="other data than the run was frozen with"):
        TokenReader.open(directory, dataclasses.replace(spec, manifest_digest="sha256:other"))
    entry, tokenizer = manifest.sources[0], dataclasses.replace(spec.tokenizer, digest=manifest.tokenizer.digest)
    other = dataclasses.replace(spec.sources[0], name=entry.name, digest="sha256:x")
    with pytest.raises(EnvironmentFault, match=rf"differs: source {entry.name}\n"):
        TokenReader.open(
            directory, dataclasses.replace(spec, manifest_digest="sha256:other", sources=(other,), tokenizer=tokenizer)
        )


def test_manifest_round_trip_and_damage(fresh):
    directory, manifest = fresh
    assert DataManifest.load(directory) == manifest
    path = directory / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"first_token": 0', '"first_token": 1', 1))
    with pytest.raises(EnvironmentFault, match="do not match their digests"):
        DataManifest.load(directory)
    path.write_text(text.replace("data-manifest", "other"))
    with pytest.raises(EnvironmentFault, match="is not a data manifest"):
        DataManifest.load(directory)


def test_manifest_digest_is_of_content_only(fresh):
    _, manifest = fresh
    source = dataclasses.replace(manifest.sources[0], licence="other", provenance="elsewhere", dropped={"empty": 3})
    same = dataclasses.replace(manifest, created="later", versions={"python": "4"}, name="x", inputs_digest="", sources=(source,))
    assert same.digest() == manifest.digest()
    longer = dataclasses.replace(manifest.sources[0], chunk_tokens=128)
    assert dataclasses.replace(manifest, sources=(longer,)).digest() != manifest.digest()


def test_D13_the_index_of_a_corpus_is_mapped_and_never_copied(tmp_path):
    """300,000 documents: 2.4 MB of ends. Opening and reading take a small part of it, for each reader anew."""
    manifest = write_token_data(tmp_path, [[[1]] * 300_000], shard_bytes=2**20)
    reader = TokenReader(tmp_path, manifest)
    reader.window_batch(positions_at([0], [5]), 16)
    tracemalloc.start()
    more = [TokenReader(tmp_path, manifest) for _ in range(3)]
    for one in more:
        one.window_batch(positions_at([0, 0], [5, 250_000]), 16)
        one.documents(0, 1_000, 1_100)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 3 * 40_000


def test_open_shards_are_those_of_the_chunk_that_is_read(corpus):
    """However many shards there are: an open one takes a descriptor."""
    directory, manifest, _ = corpus
    reader, tokens = TokenReader(directory, manifest), manifest.sources[0].tokens
    assert len(manifest.sources[0].shards) > 5
    for chunk in range((tokens - 1) // 64 - 1):
        reader.window_batch(positions_at([0, 0], [chunk * 64, chunk * 64 + 40]), 16)
        assert sum(shard.is_open for shard in reader._training[0]._open.values()) <= 2


def test_D13_memory_does_not_grow_with_batches(corpus):
    reader = TokenReader(corpus[0], corpus[1])
    positions = positions_at([0, 1, 0], [3, 5, 100])
    for _ in range(100):
        reader.window_batch(positions, 32)
    tracemalloc.start()
    for _ in range(3_000):
        reader.window_batch(positions, 32)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000


def test_who_reads_tokens_loads_no_library_for_text():
    """It would hold twice the memory that the stream does."""
    code = "import sys, headway.data.reader, headway.data.stream; print({'numpy', 'tokenizers', 'tiktoken'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "{'numpy'}\n"
