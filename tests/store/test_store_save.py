"""The files of a save: their layout, their order on the way to the disk, their strictness."""

from __future__ import annotations

import json
import math
import os
import struct

import numpy as np
import pytest
import safetensors.numpy
from store_cases import load, make_run, rectangle, same, save, values

from headway.base.digests import digest_json
from headway.base.errors import RunError
from headway.store.coverage import coverage_problem
from headway.store.manifest import BLOCK_BYTES, DTYPE_BYTES, Chunk, TensorEntry, load_manifest, load_receipt, state_digest
from headway.store.save import ManifestFields, begin_save, commit, saving, write_rank
from headway.store.verify import open_checkpoint, read_span, verify


def fields(segment: int = 1, step: int = 1, world: int = 1, **state) -> ManifestFields:
    return ManifestFields(segment=segment, step=step, world=world, state=state)


def test_safetensors_reads_our_files_and_values_equal(tmp_path):
    state = {
        "a/odd": rectangle("a/odd", np.arange(7), "U8"),
        "b/wide": rectangle("b/wide", np.arange(6).reshape(2, 3) * 0.5),
        "c/scalar": rectangle("c/scalar", np.array(42), "I64"),
        "d/empty": rectangle("d/empty", np.zeros((0, 3))),
    }
    directory = begin_save(tmp_path, 1, 1)
    write_rank(directory, list(state.values()), 1, 1, 0, 1)
    read = safetensors.numpy.load_file(directory / "rank00000.safetensors")
    assert set(read) == set(state)
    assert np.array_equal(read["b/wide"], np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5)
    assert read["c/scalar"] == 42
    assert read["c/scalar"].shape == ()
    assert read["d/empty"].shape == (0, 3)
    for entry in load_receipt(directory, 0).tensors.values():
        assert entry.chunks[0].at % DTYPE_BYTES[entry.dtype] == 0, "an odd tensor must not shift a wide one"
    assert np.array_equal(read["a/odd"], np.arange(7, dtype=np.uint8))


def test_data_are_aligned_and_the_receipt_tells_where(tmp_path):
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1)
    data = (directory / "rank00000.safetensors").read_bytes()
    receipt = load_receipt(directory, 0)
    (length,) = struct.unpack("<Q", data[:8])
    assert receipt.header_bytes == 8 + length
    assert receipt.header_bytes % 64 == 0
    assert receipt.file_bytes == len(data)
    for name, entry in receipt.tensors.items():
        (chunk,) = entry.chunks
        assert chunk.at % 4 == 0
        assert data[chunk.at : chunk.at + chunk.nbytes] == values(1)[name].tobytes()


def test_the_manifest_comes_after_everything_is_durable(tmp_path, monkeypatch):
    """Each file is flushed before its rename, its directory after it, and the manifest is the last of all."""
    events = []
    true_fsync, true_replace = os.fsync, os.replace

    def fsync(descriptor):
        events.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        true_fsync(descriptor)

    def replace(source, target):
        events.append(("rename", os.path.basename(target)))
        true_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    name = save(make_run(tmp_path / "run"), 1, 1)
    events = events[events.index(("fsync", "checkpoints")) :]
    flat = [what if ".tmp" not in file else "flush" for what, file in events]
    assert flat == ["fsync"] + ["flush", "rename", "fsync"] * 3
    assert [file for what, file in events if what == "rename"] == ["rank00000.safetensors", "receipt-00000.json", "MANIFEST.json"]
    assert [file for what, file in events if what == "fsync" and ".tmp" not in file] == ["checkpoints", name, name, name]


def test_large_tensors_have_one_digest_per_block_and_parts_verify_alone(tmp_path):
    array = np.arange((BLOCK_BYTES // 4) * 2 + 100, dtype=np.float32)
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1, {"x": array})
    (chunk,) = open_checkpoint(directory).tensors["x"].chunks
    assert len(chunk.blocks) == 3
    part = read_span(directory, chunk, BLOCK_BYTES - 8, BLOCK_BYTES + 8)
    assert part.tobytes() == array.tobytes()[BLOCK_BYTES - 8 : BLOCK_BYTES + 8]

    path = directory / chunk.file
    with open(path, "r+b") as file:
        file.seek(chunk.at + 2 * BLOCK_BYTES + 5)
        file.write(b"\xff")
    assert read_span(directory, chunk, 0, 100).nbytes == 100  # another block: still good
    with pytest.raises(RunError, match="block 2"):
        read_span(directory, chunk, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 4)
    assert verify(directory).reasons == ("rank00000.safetensors: x block 2: digest differs",)


def test_C1_same_step_saved_twice_never_mixes(tmp_path):
    run = make_run(tmp_path / "run")
    first, second = save(run, 1, 5), save(run, 1, 5, values(99))
    assert (first, second) == ("g0001-s00000005", "g0001-s00000005-a1")
    assert same(load(run.checkpoints / first)[1], values(5))
    assert same(load(run.checkpoints / second)[1], values(99))


def test_digest_of_the_state_ignores_time_and_segment(tmp_path):
    run = make_run(tmp_path / "run")
    names = [save(run, 1, 5), save(run, 2, 9, values(5)), save(run, 1, 6)]
    digests = [load_manifest(run.checkpoints / name).state_digest for name in names]
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] == state_digest([load_receipt(run.checkpoints / names[0], 0)])
    renamed = {name.replace("w", "u"): array for name, array in values(5).items()}
    reshaped = {name: array.reshape(7, 5) for name, array in values(5).items()}
    others = [load_manifest(run.checkpoints / save(run, 1, 5, state)).state_digest for state in (renamed, reshaped)]
    assert len({digests[0], *others}) == 3


def write_ranks(directory, pieces, world):
    for rank, rows in enumerate(pieces):
        write_rank(directory, rows, 1, 1, rank, world)


def rows(array, start, stop):
    return [rectangle("x", array[start:stop], offset=(start, 0), whole=array.shape)]


def test_many_ranks_commit_together(tmp_path):
    array = np.arange(255 * 3, dtype=np.float32).reshape(255, 3)
    directory = begin_save(tmp_path, 1, 1)
    write_ranks(directory, [rows(array, 0, 85), rows(array, 85, 170), rows(array, 170, 255)], 3)
    manifest = commit(directory, fields(world=3))
    assert [ref.rank for ref in manifest.receipts] == [0, 1, 2]
    assert verify(directory).ok
    assert set(safetensors.numpy.load_file(directory / "rank00001.safetensors")) == {"x@85,0"}


@pytest.mark.parametrize(
    ("cuts", "wrong"),
    [([(0, 85), (86, 255)], "hole"), ([(0, 86), (85, 255)], "overlap"), ([(0, 255), (0, 255)], "overlap")],
)
def test_a_hole_or_an_overlap_is_not_committed(tmp_path, cuts, wrong):
    array = np.zeros((255, 3), np.float32)
    directory = begin_save(tmp_path, 1, 1)
    write_ranks(directory, [rows(array, *cut) for cut in cuts], 2)
    with pytest.raises(RunError, match=wrong):
        commit(directory, fields(world=2))
    assert not (directory / "MANIFEST.json").exists()


def test_the_set_of_receipts_must_be_exact(tmp_path):
    array = np.zeros((4, 3), np.float32)
    directory = begin_save(tmp_path, 1, 1)
    write_ranks(directory, [rows(array, 0, 2), rows(array, 2, 4)], 2)
    for world in (1, 3):
        with pytest.raises(RunError, match=r"receipts \[.*for a world of"):
            commit(directory, fields(world=world))
    with pytest.raises(RunError, match="another save"):
        commit(directory, fields(step=2, world=2))
    data = directory / "rank00001.safetensors"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(RunError, match="rank00001"):
        commit(directory, fields(world=2))


def test_ranks_that_disagree_are_refused(tmp_path):
    directory = begin_save(tmp_path, 1, 1)
    write_rank(directory, rows(np.zeros((4, 3)), 0, 2), 1, 1, 0, 2)
    write_rank(directory, rows(np.zeros((5, 3)), 2, 5), 1, 1, 1, 2)
    with pytest.raises(RunError, match="disagree"):
        commit(directory, fields(world=2))


def test_a_committed_directory_is_not_committed_again(tmp_path):
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1)
    with pytest.raises(RunError, match="committed already"):
        commit(directory, fields())


def test_bad_rectangles_and_bad_state_are_refused_before_anything_is_left(tmp_path):
    good = rectangle("x", np.zeros(3))
    bad = [
        [good, good],
        [rectangle("a@b", np.zeros(3))],
        [rectangle("", np.zeros(3))],
        [rectangle("x", np.zeros(3), offset=(1,), whole=(3,))],
    ]

    def attempt(rectangles, **state):
        with saving(tmp_path, 1, 1) as directory:
            write_rank(directory, rectangles, 1, 1, 0, 1)
            commit(directory, fields(**state))

    for rectangles in bad:
        with pytest.raises(RunError):
            attempt(rectangles)
    with pytest.raises(RunError, match="plain JSON"):
        attempt([good], loss=float("nan"))
    assert list(tmp_path.iterdir()) == []


def resealed(plain: dict) -> str:
    """A manifest whose own digest is right, so that only the schema can refuse it."""
    plain = {key: value for key, value in plain.items() if key != "digest"}
    return json.dumps({**plain, "digest": digest_json(plain)})


BAD_MANIFESTS = [
    ({"kind": "receipt"}, "kind is 'receipt'"),
    ({"schema_version": 2}, "schema version 2"),
    ({"surplus": 1}, "unknown or missing keys"),
    ({"step": 1.0}, "another type"),
    ({"step": True}, "another type"),
    ({"state": []}, "another type"),
    ({"receipts": {}}, "another type"),
    ({"world": 2}, "one receipt for each of 2 ranks"),
    ({"receipts": []}, "one receipt for each of 1 ranks"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_MANIFESTS, ids=str)
def test_loading_is_strict_about_kind_schema_keys_and_types(tmp_path, change, reason):
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1)
    path = directory / "MANIFEST.json"
    path.write_text(resealed(json.loads(path.read_bytes())))
    assert load_manifest(directory).step == 1
    path.write_text(resealed({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(RunError, match=reason):
        load_manifest(directory)


def test_every_key_is_needed_and_altered_content_or_no_json_is_refused(tmp_path):
    run = make_run(tmp_path / "run")
    directory = run.checkpoints / save(run, 1, 1)
    path = directory / "MANIFEST.json"
    plain = json.loads(path.read_bytes())
    for missing in set(plain) - {"digest"}:
        path.write_text(resealed({key: value for key, value in plain.items() if key != missing}))
        with pytest.raises(RunError):
            load_manifest(directory)
    altered = json.dumps({**plain, "state": {"u": 2}})
    for text in (
        altered,
        "",
        "[]",
        "null",
        "{",
        altered[:50],
        "[" * 100_000,
        json.dumps({**plain, "state": {"u": float("nan")}}),
    ):
        path.write_text(text)
        with pytest.raises(RunError, match="damaged"):
            load_manifest(directory)


def test_a_receipt_must_speak_of_its_own_rank(tmp_path):
    array = np.zeros((4, 3), np.float32)
    directory = begin_save(tmp_path, 1, 1)
    write_ranks(directory, [rows(array, 0, 2), rows(array, 2, 4)], 2)
    (directory / "receipt-00001.json").write_bytes((directory / "receipt-00000.json").read_bytes())
    with pytest.raises(RunError, match="speaks of rank 0"):
        commit(directory, fields(world=2))


def entry(shape, cuts, dtype="U8"):
    """A tensor whose chunks are given as one (offset, length) per axis."""
    chunks = []
    for part in cuts:
        nbytes = math.prod(length for _, length in part)
        offset, lengths = tuple(o for o, _ in part), tuple(n for _, n in part)
        chunks.append(Chunk(offset=offset, shape=lengths, file="f", at=0, nbytes=nbytes, blocks=("d",) * bool(nbytes)))
    return TensorEntry(dtype=dtype, shape=shape, chunks=tuple(chunks))


def test_coverage_of_grids():
    grid = [((r, 2), (c, 3)) for r in (0, 2) for c in (0, 3)]
    assert coverage_problem(entry((4, 6), grid)) == ""
    assert "hole" in coverage_problem(entry((4, 6), grid[:3]))
    assert "overlap" in coverage_problem(entry((4, 6), [*grid, ((1, 1), (1, 1))]))
    pinwheel = [((0, 1), (0, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 2), (0, 1)), ((1, 1), (1, 1))]
    assert coverage_problem(entry((3, 3), pinwheel)) == ""
    assert "hole" in coverage_problem(entry((3, 3), pinwheel[:-1]))
    assert "outside" in coverage_problem(entry((4,), [((0, 5),)]))
    assert "dimensions" in coverage_problem(entry((4, 1), [((0, 4),)]))
    assert coverage_problem(entry((), [()])) == ""
    assert coverage_problem(entry((0, 3), [((0, 0), (0, 3))])) == ""
    assert "unknown dtype" in coverage_problem(entry((4,), [((0, 4),)], "F128"))
