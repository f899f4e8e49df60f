"""Token sets with too many blocks to list: digests in files of their own, ends verified where they are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, write_token_data, write_words
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import DamagedData, EnvironmentFault
from headway.data import block_digests, ends, shards
from headway.data.block_digests import DIGEST_BYTES
from headway.data.build import build_data
from headway.data.ends import Ends
from headway.data.facts import Table
from headway.data.inspect.diff import compare, open_side
from headway.data.inspect.verify import verify, verify_remote
from headway.data.manifest import BLOCK_BYTES, DataManifest
from headway.data.place import CacheOptions, open_place
from headway.data.reader import TokenReader
from headway.data.remote import Remote
from headway.data.shards import SHARD_BYTES, shard_bytes_for
from headway.data.stream import Positions

SHARD = 2 * BLOCK_BYTES
DOCUMENTS = 300_000  # ends of three blocks
T = 64


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> tuple[Path, DataManifest, list[list[int]]]:
    """Short documents, and the limits so low that everything is large."""
    random = np.random.default_rng(7)
    lengths = random.integers(1, 12, DOCUMENTS)
    flat = random.integers(1, 60_000, int(lengths.sum()))
    documents = [[0, *part.tolist()] for part in np.split(flat, np.cumsum(lengths)[:-1])]
    root = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        lower(patch)
        large = write_token_data(root / "large", [documents], shard_bytes=SHARD)
    return root / "large", large, documents


def lower(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block_digests, "LISTED_BLOCKS", 1)
    patch.setattr(ends, "WHOLE_BYTES", 0)


def at(*tokens: int) -> Positions:
    return Positions(np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64), np.array(tokens))


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 16
    path.write_bytes(content)


def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copy"))


def test_the_manifest_lists_no_block(many):
    directory, manifest, _ = many
    source = manifest.sources[0]
    assert len(source.shards) == 3
    assert not any(shard.blocks for shard in source.shards)
    assert [shard.first_block for shard in source.shards] == [0, 2, 4]
    assert source.ends.block_digests is not None
    assert source.ends.block_digests.bytes == 3 * DIGEST_BYTES
    assert DataManifest.load(directory) == manifest


def test_windows_are_those_of_the_documents_over_every_border(many):
    directory, manifest, documents = many
    flat = np.concatenate([np.array(document) for document in documents])
    random = np.random.default_rng(0)
    reader = TokenReader(directory, manifest)
    starts = [*random.integers(0, flat.size - T - 1, 60).tolist(), SHARD // 2 - 5, SHARD - 5, flat.size - T - 1, 0]
    batch = reader.window_batch(at(*starts), T)
    heads = np.cumsum([0, *map(len, documents)])
    for row, start in enumerate(starts):
        assert batch.tokens_BT[row].tolist() == flat[start : start + T].tolist()
        number = heads.searchsorted(np.arange(start, start + T), "right")
        assert (batch.document_BT[row] == number - number[0]).all()


@given(st.lists(st.integers(-3, 7 * DOCUMENTS), min_size=1, max_size=8), st.sampled_from(["left", "right"]))
@settings(max_examples=100, deadline=None)
def test_searches_of_ends_are_numpys(many, tokens, side):
    directory, manifest, _ = many
    entry = manifest.sources[0].ends
    plain = np.fromfile(directory / entry.file, "<i8")
    found = Ends(directory, entry, DOCUMENTS, verify=True)
    assert found.searchsorted(np.array(tokens), side).tolist() == plain.searchsorted(tokens, side).tolist()


def test_indices_and_slices_of_ends_are_numpys(many):
    directory, manifest, _ = many
    entry = manifest.sources[0].ends
    plain, found = np.fromfile(directory / entry.file, "<i8"), Ends(directory, entry, DOCUMENTS, verify=True)
    assert found[-1] == plain[-1]
    assert found[np.array([0, -1, 131_072])].tolist() == plain[[0, -1, 131_072]].tolist()
    for part in (slice(3, 9), slice(131_000, 262_200), slice(-4, None), slice(9, 3)):
        assert found[part].tolist() == plain[part].tolist()
    assert list(found.each()) == plain.tolist()


@pytest.mark.parametrize("byte", [3, 8 * 131_072 + 6, 8 * 200_000 + 1, 8 * DOCUMENTS - 3])
def test_a_damaged_end_never_gives_an_answer(many, tmp_path, byte):
    """Wherever it lies: under the answer it is refused, on the way to another it is noticed or does no harm."""
    directory, manifest, _ = many
    copied, entry = copy(directory, tmp_path), manifest.sources[0].ends
    plain = np.fromfile(directory / entry.file, "<i8")
    flip(copied / entry.file, byte)
    refused, tokens = 0, np.random.default_rng(byte).integers(0, int(plain[-1]), 300)
    for token in [int(plain[byte // 8]), *tokens.tolist()]:
        try:
            found = Ends(copied, entry, DOCUMENTS, verify=True).searchsorted(np.array([token]), "right")
        except EnvironmentFault as fault:
            refused += f"block {byte // BLOCK_BYTES}," in str(fault)
            continue
        assert found[0] == plain.searchsorted(token, "right"), token
    assert refused


def test_an_answer_is_proven_before_it_is_given(many):
    """Not by what a block holds that was hashed before."""
    directory, manifest, _ = many
    found = Ends(directory, manifest.sources[0].ends, DOCUMENTS, verify=True)
    assert found._table is not None
    found.searchsorted(np.array([5]), "right")
    assert found._table._unverified.tolist() == [False, True, True]
    assert found[DOCUMENTS - 1] > 0
    assert found._table._unverified.tolist() == [False, True, False]


def test_a_damaged_block_is_named_as_ever(many, tmp_path):
    directory, manifest, _ = many
    copied = copy(directory, tmp_path)
    flip(copied / "00/shard-00001.bin", BLOCK_BYTES + 9)
    reader = TokenReader(copied, manifest)
    reader.window_batch(at(SHARD // 2), T)  # the block before is whole
    with pytest.raises(DamagedData, match=r"shard-00001.bin .* \(block 1, bytes 1048576 to 2097152\)"):
        reader.window_batch(at(SHARD // 2 + BLOCK_BYTES // 2), T)
    (damage,) = verify(copied).damages
    assert (damage.file, damage.block, damage.blocks) == ("00/shard-00001.bin", 1, 2)


def test_a_damaged_file_of_digests_is_itself_what_is_named(many, tmp_path):
    directory, manifest, _ = many
    copied = copy(directory, tmp_path)
    flip(copied / "00/shards.blocks", 11)
    with pytest.raises(EnvironmentFault, match=r"shards\.blocks"):
        TokenReader(copied, manifest)
    assert [damage.file for damage in verify(copied).damages] == ["00/shards.blocks"]
    (copied / "00/shards.blocks").unlink()
    assert [damage.file for damage in verify(copied).damages] == ["00/shards.blocks"]


def test_everything_that_is_written_is_named_and_whole(many):
    directory, _, _ = many
    found = verify(directory)
    assert not found.damages
    assert found.unlisted == ()
    assert {file.file for file in found.files if file.what == "digests of blocks"} >= {
        "00/shards.blocks",
        "00/documents.ends.blocks",
    }


def test_at_a_url_the_digests_come_with_the_ends(many, tmp_path):
    directory, manifest, _ = many
    remote = f"file://{directory}"
    place = open_place(remote, CacheOptions(tmp_path / "cache"))
    here = TokenReader(directory, manifest).window_batch(at(9, SHARD), T)
    there = TokenReader(place, manifest).window_batch(at(9, SHARD), T)
    assert (here.tokens_BT == there.tokens_BT).all()
    assert not verify_remote(Remote.open(remote), manifest).damages


def test_the_same_documents_in_other_shards_are_recognised(many, tmp_path, monkeypatch):
    directory, manifest, documents = many
    lower(monkeypatch)
    other = write_token_data(tmp_path, [documents], shard_bytes=3 * BLOCK_BYTES)
    assert other.digest() != manifest.digest()
    assert str(compare(open_side(directory), open_side(tmp_path)).sources[0].verdict.name) == "RECUT"


def test_a_build_with_facts_and_plans_is_read_as_the_small_one(tmp_path, monkeypatch):
    text = {"name": "text", "kind": "text-tree", "path": str(write_words(tmp_path / "text", 40, words=20))}
    stage = {"name": "packed", "tokens": 320, "sequence": 32, "batch": 160, "mixture": {"text": 1}, "packing": "best-fit"}
    recipe = small_recipe([text], stages=[stage], held_out=200, chunk=512)
    small = build_data(recipe, tmp_path / "small")
    monkeypatch.setattr(block_digests, "LISTED_BLOCKS", 0)
    monkeypatch.setattr(ends, "WHOLE_BYTES", 0)
    large = build_data(recipe, tmp_path / "large")
    assert large.digest() != small.digest()
    assert not verify(tmp_path / "large").damages
    assert verify(tmp_path / "large").unlisted == ()
    bins = np.arange(3)
    for directory, manifest in ((tmp_path / "small", small), (tmp_path / "large", large)):
        reader = TokenReader(directory, manifest)
        reader.verify_all()
        plan = reader._plan(0, 32)
        table = Table.of(directory, manifest.sources[0])
        assert table is not None
        read = [plan.pieces(bins).start.tolist(), table[3].origin, [d.tolist() for d in reader.held_out_documents("text")]]
        if manifest is small:
            wanted = read
    assert read == wanted


@pytest.mark.parametrize(("text_bytes", "size"), [(0, 1), (2**37, 1), (2**37 + 1, 2), (4_000 * 10**9, 32)])
def test_shards_grow_so_that_they_stay_about_a_thousand(text_bytes, size):
    assert shard_bytes_for(text_bytes) == size * SHARD_BYTES
    assert shards.SHARD_BYTES == 64 * 2**20
