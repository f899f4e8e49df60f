"""C1 and C3 on the second place: what lies there as a checkpoint is whole, and whatever breaks, nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mirror_cases import DATA, FILES, Faults, FaultyFileSystem, content, save_two
from store_cases import RUN_ID, chain_of, flip_bit, make_run

from headway.base.clocks import FakeClock
from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.store.admissible import choose
from headway.store.mirror import blocks as mirror_blocks
from headway.store.mirror.blocks import side_by_side
from headway.store.mirror.mirror import Mirror, MirrorFault, Proof
from headway.store.mirror.objects import PAUSES_SECONDS, Objects


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def faults(monkeypatch):
    fresh = Faults()
    monkeypatch.setattr(FaultyFileSystem, "faults", fresh)
    return fresh


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def mirror(tmp_path, faults, clock):
    """On the filesystem that fails as it is told."""
    return Mirror.open(f"faulty://{tmp_path}/mirror", RUN_ID, clock)


@pytest.fixture(params=["file", "path", "memory", "faulty"])
def any_mirror(request, tmp_path, faults, clock):
    (tmp_path / "mirror").mkdir()
    urls = {"file": f"file://{tmp_path}/mirror", "path": str(tmp_path / "mirror"), "memory": f"memory:/{tmp_path}"}
    return Mirror.open(urls.get(request.param, f"faulty://{tmp_path}/mirror"), RUN_ID, clock)


def there(tmp_path: Path, name: str) -> Path:
    return tmp_path / "mirror" / RUN_ID / name


# --- there and back


def test_a_checkpoint_comes_back_as_it_went(any_mirror, run, tmp_path):
    name = save_two(run, 1, 2)
    assert (any_mirror.list(), any_mirror.has(name)) == ([], False)
    copied = any_mirror.put(run.checkpoints / name)
    all_bytes = sum((run.checkpoints / name / file).stat().st_size for file in DATA)
    assert (copied.name, copied.sent_bytes, copied.kept_bytes) == (name, all_bytes, 0)
    assert (any_mirror.list(), any_mirror.has(name)) == ([name], True)
    verdict = any_mirror.verify(name)
    assert (verdict.ok, verdict.reasons, verdict.bytes_read) == (True, (), all_bytes)

    other = make_run(tmp_path / "other")
    fetched = any_mirror.fetch(name, other.checkpoints)
    assert content(fetched) == content(run.checkpoints / name)
    assert [path.name for path in other.checkpoints.iterdir()] == [name]
    assert choose(other, chain_of(other)).checkpoint == name

    again = any_mirror.put(run.checkpoints / name)
    assert (again.sent_bytes, again.kept_bytes) == (0, all_bytes)


def test_the_files_there_are_those_of_a_checkpoint(run, tmp_path):
    (tmp_path / "mirror").mkdir()
    name = save_two(run, 1, 2)
    Mirror.open(f"file://{tmp_path}/mirror", RUN_ID).put(run.checkpoints / name)
    assert content(there(tmp_path, name)) == content(run.checkpoints / name)
    assert set(content(there(tmp_path, name))) == FILES


def test_the_manifest_is_the_last_and_receipts_follow_their_data(mirror, run, faults, monkeypatch):
    monkeypatch.setattr(mirror_blocks, "FILES_AT_ONCE", 1)
    mirror.put(run.checkpoints / save_two(run, 1, 2))
    appeared = [call for call in faults.calls if call.startswith(("commit", "put"))]
    files = [call.partition(" ")[2] for call in appeared if call.startswith("commit")]
    assert files == [
        "rank00000.safetensors",
        "receipt-00000.json",
        "rank00001.safetensors",
        "receipt-00001.json",
        "MANIFEST.json",
    ]


def test_large_files_pass_in_pieces(mirror, run, faults, monkeypatch):
    """Nothing holds a whole file: reads, writes and requests are as large as a group of blocks at most."""
    monkeypatch.setattr(mirror_blocks, "GROUP_BYTES", 5 << 20)
    asked = []
    whole = FaultyFileSystem.cat_file
    monkeypatch.setattr(FaultyFileSystem, "cat_file", lambda *a, **k: asked.append(len(d := whole(*a, **k))) or d)
    name = save_two(run, 1, 2, rows=80_000)  # 31 MB in each of two files
    mirror.put(run.checkpoints / name)
    assert sum(call == "write rank00000.safetensors" for call in faults.calls) > 6
    assert mirror.verify(name).ok
    assert 4 << 20 <= max(asked) <= 5 << 20


# --- what breaks on the way there


def test_local_damage_is_never_copied(mirror, run, tmp_path):
    name = save_two(run, 1, 2)
    flip_bit(run.checkpoints / name / DATA[1], -5)
    with pytest.raises(RunError, match=r"rank00001.safetensors: block at byte [\d,]+: digest differs") as caught:
        mirror.put(run.checkpoints / name)
    assert f"path: {run.checkpoints / name / DATA[1]}" in str(caught.value)
    assert not mirror.has(name)
    assert not (there(tmp_path, name) / DATA[1]).exists(), "not even a part of it appeared"


def test_what_was_never_committed_is_not_copied(mirror, run):
    name = save_two(run, 1, 2)
    (run.checkpoints / name / "MANIFEST.json").unlink()
    with pytest.raises(RunError, match=r"MANIFEST.json is missing"):
        mirror.put(run.checkpoints / name)


def test_a_broken_connection_is_tried_again_from_the_start_of_the_file(mirror, run, faults, clock):
    faults.cut_after = 1000
    name = save_two(run, 1, 2)
    mirror.put(run.checkpoints / name)
    assert clock.slept == [PAUSES_SECONDS[0]]
    assert mirror.verify(name).ok


def test_a_put_that_failed_goes_on_where_it_was(mirror, run, faults, clock, monkeypatch):
    monkeypatch.setattr(mirror_blocks, "FILES_AT_ONCE", 1)
    name = save_two(run, 1, 2)
    faults.error, faults.error_at = OSError(5, "internal error"), "open rank00001"
    with pytest.raises(MirrorFault, match="internal error"):
        mirror.put(run.checkpoints / name)
    assert not mirror.has(name)
    assert clock.slept == list(PAUSES_SECONDS)
    faults.error = None
    copied = mirror.put(run.checkpoints / name)
    sizes = [(run.checkpoints / name / file).stat().st_size for file in DATA]
    assert (copied.kept_bytes, copied.sent_bytes) == (sizes[0], sizes[1])
    assert mirror.verify(name).ok


def test_a_copy_that_was_cut_short_silently_is_no_checkpoint(mirror, run, faults):
    name = save_two(run, 1, 2)
    faults.truncate_to = 500
    with pytest.raises(MirrorFault, match=r"did not keep a copy: rank0000\d.safetensors has 500 bytes instead of [\d,]+"):
        mirror.put(run.checkpoints / name)
    assert not mirror.has(name)
    faults.truncate_to = None
    assert mirror.put(run.checkpoints / name).kept_bytes == 0
    assert mirror.verify(name).ok


@pytest.mark.parametrize("file", ["receipt-00001.json", "MANIFEST.json"])
def test_small_files_are_read_back(mirror, run, faults, file):
    name = save_two(run, 1, 2)
    faults.flip = file
    with pytest.raises(MirrorFault, match=f"did not keep a copy: {file} is not what was sent"):
        mirror.put(run.checkpoints / name)
    assert not mirror.verify(name).ok
    faults.flip = ""
    mirror.put(run.checkpoints / name)
    assert mirror.verify(name).ok


def test_a_flipped_bit_there_is_found_and_mended(mirror, run, faults, tmp_path):
    """Receipts trust the storage; reading back does not."""
    name = save_two(run, 1, 2)
    faults.flip = DATA[0]
    mirror.put(run.checkpoints / name)
    faults.flip = ""
    verdict = mirror.verify(name)
    assert not verdict.ok
    assert verdict.reasons == (f"{DATA[0]}: block at byte 2,368: digest differs",)
    with pytest.raises(RunError, match="digest differs"):
        mirror.fetch(name, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / name).exists()
    assert mirror.put(run.checkpoints / name).sent_bytes == 0, "by its receipt it is whole"
    mended = mirror.put(run.checkpoints / name, Proof.READ_BACK)
    assert mended.sent_bytes == (run.checkpoints / name / DATA[0]).stat().st_size
    assert mirror.verify(name).ok


def test_reading_back_finds_a_flipped_bit_at_once(mirror, run, faults):
    name = save_two(run, 1, 2)
    faults.flip = DATA[1]
    with pytest.raises(MirrorFault, match=r"did not keep a copy: rank00001.safetensors: block at byte 2,368: digest differs"):
        mirror.put(run.checkpoints / name, Proof.READ_BACK)
    assert not mirror.has(name)


def test_while_a_file_is_sent_anew_no_receipt_speaks_for_it(mirror, run, faults, tmp_path):
    """Else a kill in between would leave a receipt beside the old, damaged object of the right size."""
    name = save_two(run, 1, 2)
    mirror.put(run.checkpoints / name)
    flip_bit(there(tmp_path, name) / DATA[0], 100)
    faults.error, faults.error_at = PermissionError("Access Denied"), f"commit {DATA[0]}"
    with pytest.raises(MirrorFault):
        mirror.put(run.checkpoints / name, Proof.READ_BACK)
    faults.error = None
    assert mirror.put(run.checkpoints / name).sent_bytes, "by receipts alone it is not whole now"
    assert mirror.verify(name).ok


def test_what_a_killed_process_left_goes(run, tmp_path):
    (tmp_path / "mirror").mkdir()
    name = save_two(run, 1, 2)
    there(tmp_path, name).mkdir(parents=True)
    (there(tmp_path, name) / ".rank00000.safetensors.123.tmp").write_bytes(b"half")
    (there(tmp_path, name) / "MANIFEST.json").write_bytes(b'{"torn')  # a filesystem without atomic writes
    mirror = Mirror.open(str(tmp_path / "mirror"), RUN_ID)
    mirror.put(run.checkpoints / name)
    assert set(content(there(tmp_path, name))) == FILES
    assert mirror.verify(name).ok


def test_another_checkpoint_of_that_name_is_not_overwritten(mirror, run, tmp_path):
    name = save_two(run, 1, 2)
    mirror.put(run.checkpoints / name)
    before = content(there(tmp_path, name))
    twin = make_run(tmp_path / "twin")
    save_two(twin, 1, 2, says={"note": "other"})
    with pytest.raises(RunError, match="another checkpoint lies on the mirror as g0001-s00000002"):
        mirror.put(twin.checkpoints / name)
    foreign = make_run(tmp_path / "foreign")
    save_two(foreign, 1, 3, says={"run_id": "77ff"})
    with pytest.raises(RunError, match="belongs to run 77ff"):
        mirror.put(foreign.checkpoints / "g0001-s00000003")
    assert content(there(tmp_path, name)) == before


# --- faults that pass, and faults that do not


def test_throttling_is_waited_out(mirror, run, faults, clock):
    name = save_two(run, 1, 2)
    faults.busy = 3
    mirror.put(run.checkpoints / name)
    assert clock.slept == [1.0, 2.0, 4.0]
    assert mirror.verify(name).ok


def test_throttling_that_does_not_end_is_said(mirror, run, faults, clock):
    name = save_two(run, 1, 2)
    faults.busy = 10**9
    with pytest.raises(MirrorFault) as caught:
        mirror.put(run.checkpoints / name)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0]
    assert "Please reduce your request rate" in str(caught.value)
    assert f"mirror: {mirror.url}; tried 5 times" in str(caught.value)


def test_a_time_out_without_words_has_a_name(mirror, run, faults):
    faults.error = TimeoutError()
    with pytest.raises(MirrorFault, match="cannot list 00aa: TimeoutError"):
        mirror.list()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError("Access Denied"), "give these credentials those rights"),
        (OSError(28, "No space left on device"), "free space there"),
        (OSError(30, "Read-only file system"), "check the network and the storage"),
    ],
    ids=["denied", "full", "read-only"],
)
def test_what_will_not_pass_is_said_at_once(mirror, run, faults, clock, error, words):
    name = save_two(run, 1, 2)
    faults.error, faults.error_at = error, "open rank"
    with pytest.raises(MirrorFault) as caught:
        mirror.put(run.checkpoints / name)
    assert clock.slept == []
    assert str(error.strerror or error) in str(caught.value)
    assert f"mirror: {mirror.url}" in str(caught.value)
    assert words in str(caught.value)


def test_our_own_mistakes_stay_what_they_are(mirror, faults, clock):
    faults.error = KeyError("a bug")
    with pytest.raises(KeyError):
        mirror.list()
    assert clock.slept == []


def test_the_first_failure_stops_the_other_files():
    started, stopped = threading.Event(), []

    def fails(stop):
        started.wait(10)
        raise ValueError("first")

    def goes_on(stop):
        started.set()
        stopped.append(stop.wait(5))

    with pytest.raises(ValueError, match="first"):
        side_by_side([goes_on, fails])
    assert stopped == [True]


# --- the way back


def test_nothing_that_is_here_is_replaced(mirror, run):
    name = save_two(run, 1, 2)
    mirror.put(run.checkpoints / name)
    before = content(run.checkpoints / name)
    with pytest.raises(RunError, match="is committed here already"):
        mirror.fetch(name, run.checkpoints)
    (run.checkpoints / name / "MANIFEST.json").unlink()
    with pytest.raises(RunError, match="is here already, without a manifest"):
        mirror.fetch(name, run.checkpoints)
    assert {**content(run.checkpoints / name), "MANIFEST.json": before["MANIFEST.json"]} == before


@pytest.mark.parametrize("file", sorted(FILES))
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_copy_never_gets_a_name_here(mirror, run, tmp_path, file, damage):
    name = save_two(run, 1, 2)
    mirror.put(run.checkpoints / name)
    path = there(tmp_path, name) / file
    if damage == "flip":
        flip_bit(path, path.stat().st_size // 2)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()
    assert not mirror.verify(name).ok
    with pytest.raises(RunError) as caught:
        mirror.fetch(name, tmp_path / "elsewhere")
    assert f"mirror: {mirror.url}/{RUN_ID}/{name}" in str(caught.value) or file in str(caught.value)
    assert not (tmp_path / "elsewhere" / name).exists()


def test_a_fetch_that_failed_goes_on_where_it_was(mirror, run, faults, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_blocks, "FILES_AT_ONCE", 1)
    name, root = save_two(run, 1, 2), tmp_path / "elsewhere"
    mirror.put(run.checkpoints / name)
    faults.error, faults.error_at = OSError(5, "internal error"), f"read {DATA[1]}"
    with pytest.raises(MirrorFault, match=f"cannot read {RUN_ID}/{name}/{DATA[1]}: internal error"):
        mirror.fetch(name, root)
    assert not (root / name).exists()
    assert not list(root.rglob("MANIFEST.json")), "the manifest is the last, in the hidden directory too"
    faults.error, faults.calls = None, []
    mirror.fetch(name, root)
    assert f"read {DATA[0]}" not in faults.calls
    assert content(root / name) == content(run.checkpoints / name)
    assert [path.name for path in root.iterdir()] == [name]


def test_a_half_fetched_file_that_was_damaged_here_is_fetched_anew(mirror, run, faults, tmp_path):
    name, root = save_two(run, 1, 2), tmp_path / "elsewhere"
    mirror.put(run.checkpoints / name)
    hidden = mirror.download(name, root)
    flip_bit(hidden / DATA[0], 200)
    (hidden / "MANIFEST.json").unlink()
    faults.calls = []
    mirror.fetch(name, root)
    assert f"read {DATA[0]}" in faults.calls
    assert f"read {DATA[1]}" not in faults.calls
    assert content(root / name) == content(run.checkpoints / name)


def test_a_fetched_checkpoint_is_durable_before_and_after_it_has_its_name(mirror, run, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_blocks, "FILES_AT_ONCE", 1)
    name, root = save_two(run, 1, 2), tmp_path / "elsewhere"
    mirror.put(run.checkpoints / name)
    calls = []
    for call in ("fsync", "replace", "rename"):
        original = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, original=original, call=call: calls.append(call) or original(*a))
    mirror.fetch(name, root)
    assert calls[-2:] == ["rename", "fsync"]
    assert calls[-2 - 3 * len(FILES) : -2] == ["fsync", "replace", "fsync"] * len(FILES), "each file and its directory"


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 256 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {result.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("look_first", [True, False], ids=["preflight", "while writing"])
def test_a_full_disk_here_is_named_and_left_empty(mirror, run, small_disk, monkeypatch, look_first):
    if not look_first:
        monkeypatch.setattr("headway.store.mirror.fetch._require_room", lambda hidden, needed_bytes: None)
    name = save_two(run, 1, 2, rows=800)
    mirror.put(run.checkpoints / name)
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        mirror.fetch(name, small_disk)
    assert not isinstance(caught.value, MirrorFault), "it is this machine's fault"
    assert f"path: {small_disk}" in str(caught.value)
    assert list(small_disk.iterdir()) == []


def test_a_full_disk_there_is_named(run, small_disk):
    name = save_two(run, 1, 2, rows=800)
    mirror = Mirror.open(f"file://{small_disk}", RUN_ID, FakeClock())
    with pytest.raises(MirrorFault, match="No space left on device"):
        mirror.put(run.checkpoints / name)
    assert not mirror.has(name)


# --- what may go there


def three(mirror, run) -> list[str]:
    names = [save_two(run, 1, step) for step in (10, 20, 30)]
    for name in names:
        mirror.put(run.checkpoints / name)
    return names


def test_prune_deletes_the_old_ones_manifest_first(any_mirror, run):
    names = three(any_mirror, run)
    assert any_mirror.prune({names[0]}) == [names[1]]
    assert [any_mirror.has(name) for name in names] == [True, False, True]
    assert any_mirror.list() == [names[0], names[2]]
    assert any_mirror.prune(set()) == [names[0]]
    assert any_mirror.prune(set()) == [], "the newest verified one stays, whatever the caller keeps"
    assert any_mirror.verify(names[2]).ok


def test_prune_deletes_every_manifest_before_any_data(mirror, run, faults):
    three(mirror, run)
    faults.calls = []
    mirror.prune(set())
    deletions = [call for call in faults.calls if call.startswith("delete")]
    assert deletions[:2] == ["delete MANIFEST.json"] * 2
    assert len(deletions) == 2 * len(FILES)


def test_a_prune_that_was_cut_short_leaves_no_half_checkpoint(mirror, run, faults):
    names = three(mirror, run)
    faults.error, faults.error_at = PermissionError("Access Denied"), "delete rank"
    with pytest.raises(MirrorFault):
        mirror.prune({names[1]})
    assert [mirror.has(name) for name in names] == [False, True, True]
    faults.error = None
    assert mirror.prune({names[1]}) == [names[0]]
    assert mirror.list() == names[1:]


def test_nothing_goes_for_the_sake_of_a_damaged_newer_one(mirror, run, tmp_path):
    names = three(mirror, run)
    flip_bit(there(tmp_path, names[2]) / DATA[0], 300)
    assert mirror.prune(set()) == [names[0]], "the newest whole one stays, and what is newer is evidence"
    flip_bit(there(tmp_path, names[1]) / DATA[0], 300)
    assert Mirror.open(mirror.url, RUN_ID).prune(set()) == []


def test_prune_reads_back_what_it_relies_on_once(mirror, run, faults):
    names = three(mirror, run)
    mirror.prune(set(names[1:]))
    assert f"read {DATA[0]}" in faults.calls
    faults.calls = []
    mirror.prune({names[2]})
    assert f"read {DATA[0]}" not in faults.calls


def test_a_ghost_in_a_listing_harms_nothing(mirror, run, faults):
    names = three(mirror, run)
    faults.ghosts = {"g0001-s00000005", "g0001-s00000099"}
    assert "g0001-s00000099" in mirror.list()
    assert not mirror.has("g0001-s00000099")
    assert names[2] not in mirror.prune(set())
    assert mirror.verify(names[2]).ok


# --- places that cannot be used


def test_a_share_that_is_not_mounted_is_no_place(run, tmp_path):
    mirror = Mirror.open(f"file://{tmp_path}/share", RUN_ID, FakeClock())
    name = save_two(run, 1, 2)
    for action in (lambda: mirror.put(run.checkpoints / name), mirror.list, lambda: mirror.has(name)):
        with pytest.raises(MirrorFault, match=r"the directory .*/share does not exist"):
            action()
    assert not (tmp_path / "share").exists()


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="holds a user name or a password") as caught:
        Mirror.open("sftp://me:hunter2@host/x", RUN_ID)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://x/y", "nosuch:// is not known"),
        ("s3://", "names no bucket"),
        ("s3://[x", "cannot be read"),
        ("simplecache::s3://bucket/x", "is a chain"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url, words):
    with pytest.raises(ConfigError, match=words):
        Mirror.open(url, RUN_ID)


@pytest.mark.parametrize("package", ["fsspec", "s3fs"])
def test_a_missing_package_names_the_extra(package, tmp_path):
    code = f"import sys; sys.modules[{package!r}] = None\nfrom headway.store.mirror.mirror import ConfigError, Mirror\n"
    code += "try: Mirror.open('s3://bucket/x', 'id')\nexcept ConfigError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "pip install '.[storage]'" in done.stdout, done.stdout + done.stderr
    assert "s3://bucket/x" in done.stdout
    assert package in done.stdout


def test_secrets_of_the_environment_appear_in_no_message(mirror, faults, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    faults.error = PermissionError("signature of wJalrXUtnFEMI does not match")
    with pytest.raises(MirrorFault, match=r"signature of \*\*\* does not match"):
        mirror.list()


def test_an_object_that_is_no_file_has_no_size(tmp_path):
    (tmp_path / "x" / "directory").mkdir(parents=True)
    objects = Objects.open(str(tmp_path / "x"), FakeClock())
    assert objects.size("directory") is None
    assert objects.size("nothing") is None
