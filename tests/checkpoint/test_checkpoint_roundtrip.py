"""Save and load of one rank: bit-exact, strict, zero-copy, and one digest in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct

import pytest
import safetensors.torch
import torch
import xxhash
from checkpoint_cases import blank, make_run, same, state
from sync_save import save_checkpoint

from headway.base.clocks import FakeClock
from headway.base.errors import RunError
from headway.checkpoint.digest import state_digest, tensor_digests
from headway.checkpoint.load import load_checkpoint
from headway.checkpoint.tensors import DTYPES, bytes_view
from headway.rundir.segments import current_chain, read_segments
from headway.store.admissible import choose
from headway.store.manifest import BLOCK_BYTES, load_manifest
from headway.store.retention import Retention, apply_retention


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_round_trip_with_state(run):
    values = state(3)
    result = save_checkpoint(run, 1, 3, values, {"u": 24, "stage": "stable", "rate": 0.1, "skips": []})
    into = blank(values)
    manifest = load_checkpoint(run.checkpoints / result.name, into)
    assert same(into, values)
    assert manifest.state == {"u": 24, "stage": "stable", "rate": 0.1, "skips": []}
    assert (result.name, manifest.segment, manifest.step) == ("g0001-s00000003", 1, 3)
    assert result.nbytes == sum(t.numel() * t.element_size() for t in values.values())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_bit_for_bit(run, dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(24 * size, dtype=torch.int64).mul(37).to(torch.uint8)
    values = {"x": raw.view(dtype).reshape(2, 3, 4) if dtype != torch.bool else raw.bool().reshape(2, 3, 4)}
    values["nothing"] = torch.empty((0, 2), dtype=dtype)
    name = save_checkpoint(run, 1, 1, values, {}).name
    into = {key: torch.zeros(t.shape, dtype=torch.uint8).to(dtype) for key, t in values.items()}
    load_checkpoint(run.checkpoints / name, into)
    assert same(into, values)


def test_special_values_survive(run):
    values = {"x": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])}
    into = blank(values)
    load_checkpoint(run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name, into)
    assert same(into, values)


def test_more_blocks_than_one_and_more_groups_than_one(run, monkeypatch):
    monkeypatch.setattr("headway.store.assemble.GROUP_BYTES", BLOCK_BYTES // 3)
    values = {"x": torch.randn(1003, 2047)}
    into = blank(values)
    load_checkpoint(run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name, into)
    assert same(into, values)


def test_parameters_and_views_load_in_place(run):
    values = {"p": torch.randn(6, 4), "t": torch.randn(4, 6)}
    name = save_checkpoint(run, 1, 1, values, {}).name
    memory = torch.zeros(6, 4)
    into = {"p": torch.nn.Parameter(torch.zeros(6, 4)), "t": memory.T}  # a leaf that requires grad; a transposed view
    load_checkpoint(run.checkpoints / name, into)
    assert torch.equal(into["p"], values["p"])
    assert torch.equal(memory, values["t"].T)


def test_contiguous_tensors_are_not_copied():
    tensor = torch.zeros(4)
    view = bytes_view(tensor)
    tensor[0] = 1.0
    assert view[3] == 0x3F


def test_safetensors_reads_it(run):
    values = state(1)
    directory = run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name
    assert same(safetensors.torch.load_file(directory / "rank00000.safetensors"), values)


def test_digest_in_memory_equals_the_one_on_disk(run):
    values = {**state(2), "large": torch.randn(BLOCK_BYTES // 4 + 9)}
    result = save_checkpoint(run, 1, 2, values, {"u": 1})
    again = save_checkpoint(run, 1, 5, values, {"u": 2})
    assert state_digest(values) == result.digest == again.digest
    assert load_manifest(run.checkpoints / result.name).state_digest == result.digest
    assert state_digest(dict(reversed(values.items()))) == result.digest


def test_digest_sees_every_kind_of_change():
    values = state(2)
    variants = [{**values, "param/norm": values["param/norm"].clone().view(torch.int16).bitwise_xor(1).view(torch.bfloat16)}]
    variants += [{**values, "param/norm": values["param/norm"].view(torch.float16)}]
    variants += [{**values, "param/norm": values["param/norm"].reshape(4, 4)}]
    variants += [{name.replace("norm", "gain"): tensor for name, tensor in values.items()}]
    variants += [{name: tensor for name, tensor in values.items() if name != "router/bias"}]
    variants += [{**values, "m/embedding": values["v/embedding"], "v/embedding": values["m/embedding"]}]
    assert len({state_digest(v) for v in [values, *variants]}) == 1 + len(variants)
    first, second = tensor_digests(values), tensor_digests(variants[0])
    assert [name for name in first if first[name] != second[name]] == ["param/norm"]


def test_differences_in_kind_are_all_told(run):
    values = state(1)
    directory = run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name
    wanted = blank(values)
    wanted["surplus"] = torch.zeros(1)
    del wanted["v/embedding"]
    wanted["m/embedding"] = torch.zeros(256, 16)
    wanted["param/norm"] = torch.zeros(16)
    with pytest.raises(RunError) as caught:
        load_checkpoint(directory, wanted)
    text = str(caught.value)
    assert "v/embedding is in the checkpoint, but" in text
    assert "surplus is missing in the checkpoint" in text
    assert "m/embedding: saved with shape (255, 16), wanted (256, 16)" in text
    assert "param/norm: saved as BF16, wanted F32" in text
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("at", [0, 100, -1])
def test_C2_a_flipped_bit_is_found_on_load(run, at):
    values = state(1)
    directory = run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name
    path = directory / "rank00000.safetensors"
    data = bytearray(path.read_bytes())
    data[at if at < 0 else len(data) // 2 + at] ^= 4
    path.write_bytes(data)
    with pytest.raises(RunError, match="digest differs"):
        load_checkpoint(directory, blank(values))


def test_C2_truncated_and_missing_data_are_found_on_load(run):
    values = state(1)
    directory = run.checkpoints / save_checkpoint(run, 1, 1, values, {}).name
    path = directory / "rank00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match="truncated"):
        load_checkpoint(directory, blank(values))
    path.unlink()
    with pytest.raises(RunError, match="is missing"):
        load_checkpoint(directory, blank(values))


def test_unknown_dtypes_are_refused(run):
    with pytest.raises(RunError, match="complex64 cannot be stored"):
        save_checkpoint(run, 1, 1, {"x": torch.zeros(1, dtype=torch.complex64)}, {})


def test_blocking_time_is_the_clock_s(run):
    class Ticking(FakeClock):
        def stamp(self):
            self.advance(1.5)
            return super().stamp()

    assert save_checkpoint(run, 1, 1, state(1), {}, clock=Ticking()).blocking_ns == 1_500_000_000


def test_C13_nothing_is_unpickled(run, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something is being unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (torch, "save")):
        monkeypatch.setattr(module, name, refuse)
    values = state(1)
    for step in (1, 2):
        save_checkpoint(run, 1, step, values, {})
    chain = current_chain(read_segments(run))
    choice = choose(run, chain)
    load_checkpoint(run.checkpoints / choice.checkpoint, blank(values))
    assert apply_retention(run, chain, Retention(keep_last=1)) == ["g0001-s00000001"]


def test_C13_all_files_are_json_or_safetensors(run):
    directory = run.checkpoints / save_checkpoint(run, 1, 1, state(1), {}).name
    for path in directory.iterdir():
        assert path.suffix in {".json", ".safetensors"}
        data = path.read_bytes()
        json.loads(data if path.suffix == ".json" else data[8 : 8 + int.from_bytes(data[:8], "little")])


FROZEN_HEADER = (
    b'{"__metadata__":{"format":"pt","segment":"000000000001","step":"000000000040","rank":"000000"},'
    b'"count":{"dtype":"I64","shape":[],"data_offsets":[0,8]},'
    b'"param/x":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}}'
)


def test_frozen_files_of_a_tiny_state(run):
    """The format, literally. Change knowingly: old checkpoints must stay readable (raise schema_version)."""
    values = {"param/x": torch.tensor([[1.0, 2.0]]), "count": torch.tensor(3)}
    directory = run.checkpoints / save_checkpoint(run, 1, 40, values, {"u": 5}).name
    count, x = struct.pack("<q", 3), struct.pack("<2f", 1, 2)
    header = struct.pack("<Q", 248) + FROZEN_HEADER.ljust(248)
    assert (directory / "rank00000.safetensors").read_bytes() == header + count + x

    def chunk(offset, shape, at, data):
        blocks = [xxhash.xxh3_128_hexdigest(data)]
        return {"offset": offset, "shape": shape, "file": "rank00000.safetensors", "at": at, "nbytes": 8, "blocks": blocks}

    data = (directory / "receipt-00000.json").read_bytes()
    assert json.loads(data) == {
        "kind": "receipt",
        "schema_version": 1,
        "segment": 1,
        "step": 40,
        "rank": 0,
        "world": 1,
        "file": "rank00000.safetensors",
        "file_bytes": 272,
        "header_bytes": 256,
        "header_digest": xxhash.xxh3_128_hexdigest(header),
        "tensors": {
            "count": {"dtype": "I64", "shape": [], "chunks": [chunk([], [], 256, count)]},
            "param/x": {"dtype": "F32", "shape": [1, 2], "chunks": [chunk([0, 0], [1, 2], 264, x)]},
        },
    }
    manifest = json.loads((directory / "MANIFEST.json").read_bytes())
    assert set(manifest.pop("created")) == {"boot_ns", "boot_id", "real_ns"}
    assert manifest.pop("digest").startswith("sha256:")
    assert manifest == {
        "kind": "checkpoint",
        "schema_version": 1,
        "segment": 1,
        "step": 40,
        "world": 1,
        "mesh": {},
        "placements": {},
        "receipts": [{"rank": 0, "file": "receipt-00000.json", "digest": "sha256:" + hashlib.sha256(data).hexdigest()}],
        "state": {"u": 5},
        "state_digest": "xxh3_128:db8d11be696cc0c8b7eb08a33787a4ea",
    }
