"""C2 and C12: damage is found, an older checkpoint is used and the reason told; never a fresh start by accident."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import xxhash
from store_cases import chain_of, flip_bit, load, make_run, record_save, same, save, values

from headway.base.digests import digest_bytes, digest_json
from headway.base.errors import RunError
from headway.store.admissible import choose
from headway.store.manifest import load_manifest, load_receipt, receipt_bytes
from headway.store.verify import verify

DATA, RECEIPT, MANIFEST = "rank00000.safetensors", "receipt-00000.json", "MANIFEST.json"


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    for step in (10, 20, 30):
        record_save(run, 1, step, save(run, 1, step))
    return run


def newest(run):
    return run.checkpoints / "g0001-s00000030"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def middle_bit(path):
    flip_bit(path, path.stat().st_size // 2)


def last_bit(path):
    flip_bit(path, path.stat().st_size - 1, bit=7)


DAMAGES = [
    (DATA, last_bit, "digest differs"),
    (DATA, truncate, "bytes instead of"),
    (DATA, lengthen, "bytes instead of"),
    (DATA, empty, "0 bytes instead of"),
    (DATA, remove, f"{DATA} is missing"),
    (RECEIPT, middle_bit, "digest is not the one in the manifest"),
    (RECEIPT, truncate, "digest is not the one in the manifest"),
    (RECEIPT, empty, "digest is not the one in the manifest"),
    (RECEIPT, remove, f"{RECEIPT} is missing"),
    (MANIFEST, truncate, "no JSON"),
    (MANIFEST, empty, "no JSON"),
    (MANIFEST, middle_bit, "damaged"),
    (MANIFEST, remove, "missing: it was committed"),
]


@pytest.mark.parametrize(("file", "damage", "reason"), DAMAGES, ids=lambda v: getattr(v, "__name__", v))
def test_C2_damage_is_found_and_the_older_one_is_used(run, file, damage, reason):
    damage(newest(run) / file)
    choice = choose(run, chain_of(run))
    assert (choice.checkpoint, choice.segment, choice.step) == ("g0001-s00000020", 1, 20)
    assert [entry["checkpoint"] for entry in choice.rejected] == ["g0001-s00000030"]
    assert reason in choice.rejected[0]["reason"]
    assert same(load(run.checkpoints / choice.checkpoint)[1], values(20))
    with pytest.raises(RunError):
        choose(run, chain_of(run), explicit="g0001-s00000030")


def test_C2_a_lost_directory_is_told(run):
    shutil.rmtree(newest(run))
    choice = choose(run, chain_of(run))
    assert choice.step == 20
    assert "missing" in choice.rejected[0]["reason"]


def test_C2_falls_back_generation_by_generation(run):
    last_bit(newest(run) / DATA)
    remove(run.checkpoints / "g0001-s00000020" / DATA)
    choice = choose(run, chain_of(run))
    assert choice.step == 10
    assert [entry["checkpoint"] for entry in choice.rejected] == ["g0001-s00000030", "g0001-s00000020"]


def test_C2_a_bit_flipped_anywhere_is_found(tmp_path):
    """In any of the three files, header and padding included (the manifest proves itself by its own digest)."""
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1, {"x": np.arange(3, dtype=np.float32)})
    for name, stride in ((DATA, 1), (RECEIPT, 3), (MANIFEST, 3)):
        path = directory / name
        good = path.read_bytes()
        for at in range(0, len(good), stride):
            flip_bit(path, at, bit=at % 7)
            assert not verify(directory).ok, (name, at)
            path.write_bytes(good)
    assert verify(directory).ok


def test_C12_all_damaged_is_an_error_never_a_fresh_start(run):
    for step in (10, 20, 30):
        last_bit(run.checkpoints / f"g0001-s{step:08d}" / DATA)
    with pytest.raises(RunError) as caught:
        choose(run, chain_of(run))
    text = str(caught.value)
    assert all(f"s{step:08d}: {DATA}" in text for step in (10, 20, 30))
    assert "never started again from scratch" in text
    shutil.rmtree(run.checkpoints)
    with pytest.raises(RunError, match="missing"):
        choose(run, chain_of(run))


def test_none_ever_committed_is_no_error(tmp_path):
    run = make_run(tmp_path / "run")
    assert choose(run, chain_of(run)).checkpoint is None
    (run.checkpoints / "g0001-s00000010").mkdir(parents=True)  # begun, killed
    choice = choose(run, chain_of(run))
    assert (choice.checkpoint, choice.segment, choice.step, choice.rejected) == (None, None, 0, [])


def test_checkpoints_without_segments_are_an_error(run):
    with pytest.raises(RunError, match="no segments"):
        choose(run, [])


def test_C12_explicit_is_exact(run):
    assert choose(run, chain_of(run), explicit="g0001-s00000010").step == 10
    for name in ("g0001-s00000040", "latest", "../run", "", "g1-s10"):
        with pytest.raises(RunError, match="does not exist"):
            choose(run, chain_of(run), explicit=name)
    (run.checkpoints / "g0001-s00000040").mkdir()
    with pytest.raises(RunError, match="never committed"):
        choose(run, chain_of(run), explicit="g0001-s00000040")
    last_bit(run.checkpoints / "g0001-s00000010" / DATA)
    with pytest.raises(RunError, match="damaged"):
        choose(run, chain_of(run), explicit="g0001-s00000010")
    assert choose(run, chain_of(run)).step == 30


def test_files_of_another_save_are_refused(run):
    """Whole files in the wrong place: every digest inside them is right."""
    older = run.checkpoints / "g0001-s00000020"
    for name in (DATA, RECEIPT):
        shutil.copy(older / name, newest(run) / name)
    assert not verify(newest(run)).ok
    shutil.copy(older / MANIFEST, newest(run) / MANIFEST)
    assert "speaks of segment 1, step 20" in verify(newest(run)).reasons[0]


def rewrite_receipt(directory, change):
    """A receipt with other content, and a manifest that agrees with it: the forger repairs every digest above."""
    receipt = load_receipt(directory, 0)
    data = receipt_bytes(change(receipt))
    (directory / RECEIPT).write_bytes(data)
    plain = json.loads((directory / MANIFEST).read_bytes())
    plain.pop("digest")
    plain["receipts"][0]["digest"] = digest_bytes(data)
    (directory / MANIFEST).write_text(json.dumps({**plain, "digest": digest_json(plain)}))
    load_manifest(directory)


def test_header_and_receipt_must_agree(run):
    directory = newest(run)
    path = directory / DATA
    path.write_bytes(path.read_bytes().replace(b"param/w", b"param/v", 1))
    header = path.read_bytes()[: load_receipt(directory, 0).header_bytes]
    rewrite_receipt(directory, lambda r: dataclasses.replace(r, header_digest=xxhash.xxh3_128_hexdigest(header)))
    assert "header and receipt disagree" in verify(directory).reasons[0]


def test_receipts_that_leave_a_hole_are_refused(run):
    def half(receipt):
        entry = receipt.tensors["m/w"]
        chunk = dataclasses.replace(entry.chunks[0], shape=(4, 7), nbytes=4 * 7 * 4)
        return dataclasses.replace(receipt, tensors={**receipt.tensors, "m/w": dataclasses.replace(entry, chunks=(chunk,))})

    rewrite_receipt(newest(run), half)
    assert "hole" in verify(newest(run)).reasons[0]


def test_receipts_that_name_files_elsewhere_are_refused(run):
    def elsewhere(receipt):
        entry = receipt.tensors["m/w"]
        chunk = dataclasses.replace(entry.chunks[0], file="../g0001-s00000020/" + DATA)
        return dataclasses.replace(receipt, tensors={**receipt.tensors, "m/w": dataclasses.replace(entry, chunks=(chunk,))})

    rewrite_receipt(newest(run), elsewhere)
    assert "names files of others" in verify(newest(run)).reasons[0]


def moved(receipt, name, **change):
    """The receipt with one field of one chunk altered."""
    entry = receipt.tensors[name]
    chunks = (dataclasses.replace(entry.chunks[0], **change),)
    return dataclasses.replace(receipt, tensors={**receipt.tensors, name: dataclasses.replace(entry, chunks=chunks)})


def test_chunks_that_lie_elsewhere_are_refused(run):
    directory = newest(run)
    first = load_receipt(directory, 0).tensors["m/w"].chunks[0]
    rewrite_receipt(directory, lambda r: moved(r, "param/w", at=first.at))
    assert "lies at byte" in verify(directory).reasons[0]


def test_bytes_that_no_chunk_names_are_refused(run):
    """A longer file with a receipt that admits the length: nothing may hide behind the last chunk."""
    directory = newest(run)
    lengthen(directory / DATA)
    rewrite_receipt(directory, lambda r: dataclasses.replace(r, file_bytes=r.file_bytes + 1))
    assert "the chunks end at byte" in verify(directory).reasons[0]


@pytest.mark.parametrize("change", [{"segment": 2}, {"step": 31}, {"world": 2}], ids=str)
def test_a_receipt_of_another_save_is_refused(run, change):
    rewrite_receipt(newest(run), lambda r: dataclasses.replace(r, **change))
    assert "belongs to another save" in verify(newest(run)).reasons[0]


def test_state_digest_is_checked(run):
    rewrite_receipt(
        newest(run), lambda r: dataclasses.replace(r, tensors={"n/w" if n == "m/w" else n: e for n, e in r.tensors.items()})
    )
    assert "digest of the state" in verify(newest(run)).reasons[0]


def test_an_unreadable_file_is_a_reason_with_its_cause(run, monkeypatch):
    import os

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    verdict = verify(newest(run))
    assert not verdict.ok
    assert "Input/output error" in verdict.reasons[0]
