"""Shards that lie elsewhere: fetched on first touch, shared, bounded, evicted, proven, and what the faults on the way mean."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from data_helpers import small_spec, write_token_data

from headway.base.clocks import FakeClock
from headway.base.errors import ConfigError, DamagedData, EnvironmentFault
from headway.data.cache import ShardCache, Traffic
from headway.data.manifest import BLOCK_BYTES, MANIFEST_FILE, DataManifest
from headway.data.place import CacheOptions, DataPlace, chunk_bytes, manifest_at, open_place
from headway.data.reader import TokenReader
from headway.data.remote import PAUSES_SECONDS, Remote, _check
from headway.data.stream import Positions, Stream

SHARD_BYTES = 256


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, DataManifest]:
    """Two sources of about 30 and 12 shards, chunks of 64 tokens: half a shard each."""
    directory = tmp_path_factory.mktemp("elsewhere")
    random = np.random.default_rng(5)
    documents = [[random.integers(0, 250, 20).tolist() for _ in range(count)] for count in (190, 75)]
    return directory, write_token_data(directory, documents, shard_bytes=SHARD_BYTES)


@pytest.fixture
def big(tmp_path) -> tuple[Path, DataManifest]:
    """One shard of three blocks, the last a partial one."""
    tokens = np.random.default_rng(1).integers(0, 250, BLOCK_BYTES + 999).tolist()
    return tmp_path / "big", write_token_data(tmp_path / "big", [[tokens, [1, 2, 3]]], shard_bytes=4 * BLOCK_BYTES)


def url(directory: Path) -> str:
    return f"file://{directory}"


def spec_over(manifest: DataManifest, sequences: int = 600, T: int = 16):
    """Stages of two sequence lengths over both sources, so that every source turns over."""
    sources = [(s.name, s.tokens, s.chunk_tokens) for s in manifest.sources]
    spec = small_spec(sources, [(sequences, T, (40_000, 25_536)), (sequences // 4, 2 * T, (20_000, 45_536))])
    return dataclasses.replace(spec, manifest_digest=manifest.digest())


def at(source: list[int], token: list[int]) -> Positions:
    return Positions(np.array(source), np.zeros(len(source), np.int64), np.array(token))


def shards_in(cache: Path) -> list[Path]:
    return sorted((cache / "shards").glob("*.bin"))


def cached_bytes(cache: Path) -> int:
    """Of shards that are there and that come. Another thread may make room meanwhile: not while this one holds the lock."""
    with (cache / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = 0
        for path in (cache / "shards").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a fetch that found no room takes its .part away without the lock
                total += path.stat().st_size
        return total


def least(directory: Path, cache: Path) -> int:
    """The bound that a refusal says works."""
    with pytest.raises(ConfigError, match=r"too small.*\n.*bytes; with less.*\n.*cache\.size = (\d+) works") as refused:
        open_place(url(directory), CacheOptions(cache, 1))
    return int(str(refused.value).partition("cache.size = ")[2].partition(" ")[0])


# --- the same tokens ----------------------------------------------------------------------------------------------------


def walk(reader: TokenReader, spec, batch: int = 8):
    """Every position of the run, in the order of its batches, as the feed asks for them."""
    stream = Stream(spec)
    for stage, described in enumerate(spec.stages):
        for first in range(0, described.sequences, batch):
            u = np.arange(first, min(first + batch, described.sequences))
            reader.expect(stream.chunks_at(stage, int(u[-1]) + 1))
            yield reader.window_batch(stream.locate(stage, u), described.sequence_length)


def test_a_cold_cache_that_evicts_gives_every_window_of_the_whole_run(built, tmp_path):
    directory, manifest = built
    spec, cache = spec_over(manifest), tmp_path / "cache"
    bound = least(directory, cache)
    assert bound < sum(s.tokens * 2 for s in manifest.sources) / 3, "it has to evict"
    far = TokenReader.open(open_place(url(directory), CacheOptions(cache, bound)), spec)
    most = 0
    for here, there in zip(walk(TokenReader.open(directory, spec), spec), walk(far, spec), strict=True):
        for name in ("tokens_BT", "targets_BT", "document_BT", "position_BT", "source_B"):
            assert np.array_equal(getattr(here, name), getattr(there, name))
        most = max(most, cached_bytes(cache))
    far.close()
    traffic = far.traffic()
    assert most <= bound
    assert sum(t["over_bound"] for t in traffic.values()) == 0
    assert sum(t["evictions"] for t in traffic.values()) > 20
    assert all(traffic[s.name]["hits"] + traffic[s.name]["misses"] > len(s.shards) for s in manifest.sources)
    assert not list((cache / "shards").glob("*.part"))


def test_a_bound_that_holds_everything_fetches_every_shard_once(built, tmp_path):
    directory, manifest = built
    spec = spec_over(manifest, sequences=1_200)
    far = TokenReader.open(open_place(url(directory), CacheOptions(tmp_path, 2**30)), spec)
    for _ in walk(far, spec):
        pass
    far.close()
    for source in manifest.sources:
        assert far.traffic()[source.name]["fetched_bytes"] == source.tokens * 2
        assert far.traffic()[source.name]["evictions"] == 0


def test_only_the_shards_that_are_touched_are_fetched(built, tmp_path):
    directory, manifest = built
    reader = TokenReader(open_place(url(directory), CacheOptions(tmp_path)), manifest)
    assert shards_in(tmp_path) == []
    reader.window_batch(at([0, 1], [5, 130]), 16)
    assert len(shards_in(tmp_path)) == 2
    assert manifest_at(url(directory), CacheOptions(tmp_path)) == manifest


def test_what_comes_next_is_fetched_while_training_goes_on(built, tmp_path):
    directory, manifest = built
    spec, stream = spec_over(manifest), Stream(spec_over(manifest))
    place = open_place(url(directory), CacheOptions(tmp_path))
    reader = TokenReader.open(place, spec)
    chunks = stream.chunks_at(0, 40)
    for source in (0, 1):
        now, coming = (c for c in chunks if c.source == source)
        tokens = stream.locate(0, np.arange(spec.stages[0].sequences))
        mine = tokens.token[tokens.source == source] // 64
        seen = np.count_nonzero(tokens.source[:40] == source)
        change = seen + int(np.flatnonzero(mine[seen:] != mine[seen - 1])[0])
        assert (now.first_token // 64, coming.first_token // 64) == (mine[seen - 1], mine[change])
    wanted = {shard.xxh3_128 for c in chunks for shard in (manifest.sources[c.source].shards[n] for n in shards_of(reader, c))}
    reader.expect(chunks)
    deadline = time.monotonic() + 60
    while sum(t["ahead"] for t in reader.traffic().values()) < len(wanted):
        assert time.monotonic() < deadline
        reader._ahead._thread.join(0.01)
    reader.close()
    assert {path.name[:32] for path in shards_in(tmp_path)} == wanted
    assert sum(t["ahead"] for t in reader.traffic().values()) == len(wanted)


def shards_of(reader: TokenReader, chunk) -> range:
    return reader._training[chunk.source].numbers(chunk.first_token, chunk.end_token)


def test_memory_filesystem_and_directories_read_alike(built, tmp_path):
    directory, manifest = built
    memory = fsspec.filesystem("memory")
    for path in directory.rglob("*.*"):
        memory.pipe_file(f"/elsewhere/{path.relative_to(directory)}", path.read_bytes())
    try:
        far = TokenReader(open_place("memory://elsewhere", CacheOptions(tmp_path)), manifest)
        got, want = (r.window_batch(at([0, 1, 0], [120, 7, 900]), 30).tokens_BT for r in (far, TokenReader(directory, manifest)))
        assert np.array_equal(got, want)
        assert [b.tokens_BT.tolist() for b in far.held_out_batches("source1", 16, 4, 400)] == [
            b.tokens_BT.tolist() for b in TokenReader(directory, manifest).held_out_batches("source1", 16, 4, 400)
        ]
    finally:
        memory.rm("/elsewhere", recursive=True)


# --- the bound ------------------------------------------------------------------------------------------------------------


def test_the_bound_that_is_named_works_and_one_byte_less_does_not(built, tmp_path):
    directory, manifest = built
    bound = least(directory, tmp_path)
    held_out = sum(s.held_out.shards[0].tokens * 2 for s in manifest.sources)
    assert bound >= sum(chunk_bytes(manifest)) + max(chunk_bytes(manifest)) + held_out, "the old chunk, the coming one"
    open_place(url(directory), CacheOptions(tmp_path, bound))
    with pytest.raises(ConfigError, match="too small"):
        open_place(url(directory), CacheOptions(tmp_path, bound - 1))
    with pytest.raises(ConfigError, match="too small"):
        manifest_at(url(directory), CacheOptions(tmp_path, bound - 1))


def test_what_is_read_is_never_evicted_and_what_is_not_goes_by_use(built, tmp_path):
    directory, manifest = built
    remote, traffic = Remote.open(url(directory)), Traffic()
    shards = manifest.sources[0].shards
    cache = ShardCache(tmp_path, 3 * SHARD_BYTES)
    held = [cache.hold(remote, shard, SHARD_BYTES, traffic) for shard in shards[:3]]
    contents = [one.bytes.tobytes() for one in held]
    cache.hold(remote, shards[3], SHARD_BYTES, traffic)
    assert (traffic.evictions, traffic.over_bound) == (0, 1), "all three are being read"
    assert not cache.fetch_ahead(remote, shards[4], SHARD_BYTES, traffic), "what only may be useful does not go over the bound"
    del held[0]
    os.utime(tmp_path / "shards" / shards_in(tmp_path)[0].name)
    cache.hold(remote, shards[5], SHARD_BYTES, traffic)
    names = {path.name[:32] for path in shards_in(tmp_path)}
    assert names == {shards[n].xxh3_128 for n in (1, 2, 5)}
    assert [one.bytes.tobytes() for one in held] == contents[1:]


def test_who_waits_for_a_fetch_gets_through_while_the_fetcher_reads(built, tmp_path, monkeypatch):
    """A mapping lasts for a chunk, which may be hours."""
    directory, manifest = built
    flock, entered, done = fcntl.flock, threading.Semaphore(0), []

    def counted(descriptor, operation):
        if threading.current_thread() in waiters and operation == fcntl.LOCK_EX:
            entered.release()
        flock(descriptor, operation)

    def work(shard):
        done.append(cache.fetch_ahead(Remote.open(url(directory)), shard, SHARD_BYTES, Traffic()))

    class Slow(Remote):
        def pieces(self, name, total_bytes):
            for waiter in waiters:
                waiter.start()
                assert entered.acquire(timeout=60)
            yield from super().pieces(name, total_bytes)

    cache = ShardCache(tmp_path, 2**30)
    monkeypatch.setattr(fcntl, "flock", counted)
    remote = Remote.open(url(directory))
    slow, held = Slow(remote._fs, remote._root, remote.url), []
    for shard in manifest.sources[0].shards[:8]:
        waiters = [threading.Thread(target=work, args=(shard,), daemon=True) for _ in range(4)]
        held.append(cache.hold(slow, shard, SHARD_BYTES, Traffic()))
        for waiter in waiters:
            waiter.join(20)
            assert not waiter.is_alive()
    assert done == [True] * 32
    assert not list((tmp_path / "locks").iterdir())
    assert not list((tmp_path / "shards").glob("*.part"))


# --- faults ---------------------------------------------------------------------------------------------------------------


def test_D9_a_cached_file_that_is_damaged_is_fetched_again(big, tmp_path):
    directory, manifest = big
    place = open_place(url(directory), CacheOptions(tmp_path / "cache"))
    want = TokenReader(directory, manifest).window_batch(at([0, 0], [10, BLOCK_BYTES // 2 + 900]), 64)
    for harm in (flip_bit, cut, lambda path: path.write_bytes(b"")):
        TokenReader(place, manifest).window_batch(at([0], [10]), 64)
        (cached,) = shards_in(tmp_path / "cache")
        reader = TokenReader(place, manifest)
        reader.window_batch(at([0], [10]), 64)  # mapped, its first block is proven
        harm(cached)
        got = TokenReader(place, manifest).window_batch(at([0, 0], [10, BLOCK_BYTES // 2 + 900]), 64)
        assert np.array_equal(got.tokens_BT, want.tokens_BT)
        again = reader.window_batch(at([0], [BLOCK_BYTES // 2 + 900]), 64)
        assert np.array_equal(again.tokens_BT, want.tokens_BT[1:]), "who had the old file mapped finds the new one"
        assert reader.traffic()["source0"]["fetched_bytes"] == 0


@pytest.mark.parametrize("reads", [[[1], [0]], [[0, 1]]])
def test_D9_what_was_verified_in_one_copy_is_not_in_another(big, tmp_path, reads):
    """Block 0 is whole in the file that is mapped, and not in the one that another process puts in its place."""
    directory, manifest = big
    token, here = np.array([10, BLOCK_BYTES // 2 + 900]), TokenReader(directory, manifest)
    reader = TokenReader(open_place(url(directory), CacheOptions(tmp_path / "cache")), manifest)
    reader.window_batch(at([0], [10]), 64)
    (cached,) = shards_in(tmp_path / "cache")
    shutil.copy(cached, tmp_path / "other")
    flip_bit(tmp_path / "other", 24)
    os.replace(tmp_path / "other", cached)
    for blocks in reads:
        there = at([0] * len(blocks), token[blocks].tolist())
        assert np.array_equal(reader.window_batch(there, 64).tokens_BT, here.window_batch(there, 64).tokens_BT)
    assert reader.traffic()["source0"]["refetches"] == 1


def flip_bit(path: Path, at_byte: int = BLOCK_BYTES + 700) -> None:
    with path.open("r+b") as file:
        file.seek(at_byte)
        byte = file.read(1)[0]
        file.seek(at_byte)
        file.write(bytes([byte ^ 4]))


def cut(path: Path) -> None:
    os.truncate(path, BLOCK_BYTES + 5)


def test_D9_damage_at_the_source_is_named_by_url_shard_and_block_and_leaves_the_rest_readable(big, tmp_path):
    directory, manifest = big
    shard = directory / manifest.sources[0].shards[0].file
    flip_bit(shard)
    reader = TokenReader(open_place(url(directory), CacheOptions(tmp_path / "cache")), manifest)
    reader.window_batch(at([0], [10]), 64)
    with pytest.raises(DamagedData, match=rf"{url(directory)}/00/shard-00000\.bin .*block 1, bytes") as damaged:
        reader.window_batch(at([0], [BLOCK_BYTES // 2 + 10]), 64)
    assert damaged.value.damage["block"] == 1
    assert reader.traffic()["source0"]["refetches"] == 1
    reader.window_batch(at([0], [20]), 64)
    shutil.copytree(directory, tmp_path / "short")
    os.truncate(tmp_path / "short/00/shard-00000.bin", BLOCK_BYTES)
    reader = TokenReader(open_place(url(tmp_path / "short"), CacheOptions(tmp_path / "other")), manifest)
    with pytest.raises(EnvironmentFault, match=r"short/00/shard-00000\.bin is not what the run was frozen with"):
        reader.window_batch(at([0], [10]), 64)
    (tmp_path / "short/00/shard-00000.bin").unlink()
    with pytest.raises(EnvironmentFault, match=r"short/00/shard-00000\.bin is not there"):
        reader.window_batch(at([0], [10]), 64)
    assert not list((tmp_path / "other/shards").iterdir()), "nothing torn is left"


@pytest.mark.parametrize("name", ["tokenizer.json", "00/documents.ends", "01/held-out/documents.ends"])
def test_D9_small_files_are_proven_at_opening_and_fetched_again(built, tmp_path, name):
    directory, manifest = built
    place = open_place(url(directory), CacheOptions(tmp_path))
    (place.directory / name).write_bytes(b"x" + (directory / name).read_bytes()[1:])
    TokenReader(open_place(url(directory), CacheOptions(tmp_path)), manifest)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / name).write_bytes(b"x" + (directory / name).read_bytes()[1:])
    with pytest.raises(EnvironmentFault, match="is not what the run was frozen with"):
        TokenReader(open_place(url(copy), CacheOptions(tmp_path / "other")), manifest)


class Flaky:
    """A storage that fails now and then: ``faults`` are raised one by one, before it answers."""

    protocol = "flaky"

    def __init__(self, root: Path):
        self.root, self.faults, self.calls = root, [], 0

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self.calls += 1
        if self.faults:
            fault = self.faults.pop()
            if isinstance(fault, BaseException):
                raise fault
            return fault((self.root / path.lstrip("/")).read_bytes()[start:end])
        return (self.root / path.lstrip("/")).read_bytes()[start:end]


def flaky_place(directory: Path, cache: Path) -> tuple[Flaky, FakeClock, DataPlace]:
    storage, clock = Flaky(directory), FakeClock()
    return storage, clock, open_place("s3://far/away", CacheOptions(cache), Remote(storage, "", "s3://far/away", clock))


def test_faults_that_pass_are_waited_for(built, tmp_path):
    directory, manifest = built
    storage, clock, place = flaky_place(directory, tmp_path)
    before = clock.stamp().boot_ns
    storage.faults = [TimeoutError("slow down"), ConnectionResetError(104, "reset")]
    TokenReader(place, manifest).window_batch(at([0], [10]), 16)
    assert (clock.stamp().boot_ns - before) / 1e9 == sum(PAUSES_SECONDS[:2])


def test_bytes_that_were_changed_on_the_way_are_fetched_again(built, tmp_path):
    directory, manifest = built
    storage, _, place = flaky_place(directory, tmp_path)
    storage.faults = [lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]]
    reader = TokenReader(place, manifest)
    reader.window_batch(at([0], [10]), 16)
    assert reader.traffic()["source0"]["fetched_bytes"] == 2 * SHARD_BYTES
    assert reader.traffic()["source0"]["refetches"] == 0, "it never had its name"


def test_D12_a_storage_that_stays_away_ends_in_an_error_that_names_the_shard(built, tmp_path):
    directory, manifest = built
    storage, _, place = flaky_place(directory, tmp_path)
    reader, tries = TokenReader(place, manifest), len(PAUSES_SECONDS) + 1
    storage.faults = [ConnectionResetError(104, "Connection reset")] * tries
    with pytest.raises(EnvironmentFault, match=rf"s3://far/away/00/shard-00000\.bin: Connection reset\n.*tried {tries} times"):
        reader.window_batch(at([0], [10]), 16)
    storage.faults = [PermissionError(13, "Access Denied")]
    storage.calls = 0
    with pytest.raises(EnvironmentFault, match=r"shard-00000\.bin: Access Denied"):
        reader.window_batch(at([0], [10]), 16)
    assert storage.calls == 1, "what will not pass is said at once"
    reader.window_batch(at([0], [10]), 16)


def test_D12_the_shard_that_is_fetched_has_a_name_meanwhile(built, tmp_path):
    directory, manifest = built
    storage, _, place = flaky_place(directory, tmp_path)
    reader, seen = TokenReader(place, manifest), []
    storage.faults = [lambda data: seen.append(reader.reading) or data]
    reader.window_batch(at([1], [130]), 16)
    assert seen == [manifest.sources[1].shards[1].file]
    assert reader.reading == ""
    assert reader.traffic()["source1"]["wait_ns"] > 0


def test_a_full_disk_says_which_keys_help(built, tmp_path, monkeypatch):
    directory, manifest = built
    reader = TokenReader(open_place(url(directory), CacheOptions(tmp_path)), manifest)

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.data.cache.write_all", full)
    with pytest.raises(EnvironmentFault, match=r"No space left.*\n.*\n.*cache\.directory, cache\.size"):
        reader.window_batch(at([0], [10]), 16)
    assert not list((tmp_path / "shards").iterdir())


@pytest.mark.parametrize(
    "bad",
    [
        "simplecache::s3://b/x",
        "reference://x",
        "zip://a.zip/x",
        "dask://x",
        "github://o:r@/x",
        "ftp://x/y",
        "S3://b/x",
        "s3://user:secret@b/x",
        "s3://user:se/secret@b/x",
        "s3://b/x?versionId=secret",
        "https://secret@host/x",
        "https://host/x?sig=secret",
        "abfs://container:secret@account.dfs.core.windows.net/x",
        "ftp://user:secret@host/x",
        "zip://x.zip::https://user:secret@host/x",
        "https://user:secret\u2100@host/x",
        "http://[x",
    ],
)
def test_places_that_are_not_a_storage_are_refused_and_secrets_are_not_told(bad, tmp_path):
    with pytest.raises(ConfigError) as refused:
        open_place(bad, CacheOptions(tmp_path))
    assert "secret" not in str(refused.value).replace("not a secret", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("good", ["abfs://container@account.dfs.core.windows.net/x", "https://host:8080/a@b", "file:///a?b@c"])
def test_what_only_looks_like_a_secret_is_a_place(good):
    _check(good)


def test_a_manifest_names_no_file_outside_its_directory(built, tmp_path):
    directory, manifest = built
    for file in ("../stolen", "/etc/stolen", "00/../../stolen"):
        entry = dataclasses.replace(manifest.sources[0], ends=dataclasses.replace(manifest.sources[0].ends, file=file)).sealed()
        evil = tmp_path / "evil"
        evil.mkdir(exist_ok=True)
        shutil.copy(directory / "tokenizer.json", evil)
        dataclasses.replace(manifest, sources=(entry, manifest.sources[1])).save(evil)
        with pytest.raises(EnvironmentFault, match="lie under its own directory"):
            open_place(url(evil), CacheOptions(tmp_path / "cache"))
    shard = dataclasses.replace(manifest.sources[0].shards[0], xxh3_128="../../stolen")
    with pytest.raises(EnvironmentFault, match="32 hex digits"):
        ShardCache(tmp_path / "cache", 2**30).hold(Remote.open(url(directory)), shard, SHARD_BYTES, Traffic())


def test_no_data_at_a_url_is_a_mistake_of_the_caller(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"no data directory: there is no {MANIFEST_FILE}"):
        open_place(url(tmp_path / "empty"), CacheOptions(tmp_path / "cache"))


# --- processes ------------------------------------------------------------------------------------------------------------

CHILD = """
import hashlib, json, os, signal, sys
sys.path.insert(0, sys.argv[5])
from pathlib import Path
from test_data_cache import CacheOptions, DataManifest, TokenReader, open_place, spec_over, walk
from headway.data.remote import Remote
directory, cache, bound, die_after = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pieces, left = Remote.pieces, [die_after]
def dying(self, name, size):
    for piece in pieces(self, name, size):
        left[0] -= 1
        if left[0] == 0:
            yield piece[: len(piece) // 2]
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece
Remote.pieces = dying
manifest = DataManifest.load(directory)
spec, digest = spec_over(manifest), hashlib.sha256()
reader = TokenReader.open(open_place(f"file://{directory}", CacheOptions(cache, bound)), spec)
for batch in walk(reader, spec):
    digest.update(batch.tokens_BT.tobytes())
reader.close()
print(json.dumps([digest.hexdigest(), reader.traffic()]))
"""


def child(directory: Path, cache: Path, bound: int, die_after: int = -1) -> subprocess.Popen:
    arguments = [str(directory), str(cache), str(bound), str(die_after), str(Path(__file__).parent)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)


def test_processes_share_one_cache_and_a_killed_one_leaves_nothing_wrong(built, tmp_path):
    directory, manifest = built
    bound = least(directory, tmp_path)
    whole = child(directory, tmp_path / "own", 2**30)
    killed = [child(directory, tmp_path / "shared", bound, die_after) for die_after in (1, 9)]
    assert [one.wait() for one in killed] == [-signal.SIGKILL] * 2
    assert list((tmp_path / "shared/shards").glob("*.part")), "it died in the middle of a fetch"
    others = [child(directory, tmp_path / "shared", bound) for _ in range(3)]
    (want, _), *got = (json.loads(one.communicate()[0]) for one in (whole, *others))
    assert [digest for digest, _ in got] == [want] * 3
    assert not list((tmp_path / "shared/shards").glob("*.part"))
    cache = TokenReader(open_place(url(directory), CacheOptions(tmp_path / "shared", bound)), manifest)
    cache.verify_all()


def test_two_processes_that_want_the_same_shard_fetch_it_once(built, tmp_path):
    directory, manifest = built
    children = [child(directory, tmp_path, 2**30) for _ in range(2)]
    traffic = [json.loads(one.communicate()[0])[1] for one in children]
    for source in manifest.sources:
        assert sum(t[source.name]["fetched_bytes"] for t in traffic) == source.tokens * 2
