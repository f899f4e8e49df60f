"""PyTorch Distributed Checkpoint: torch reads what we write, we read what torch writes, and nothing that is read can run."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_cases import blank, same
from convert_cases import every_kind, flip, large, loaded, nothing_left, to, write_source
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from headway.base.errors import RunError
from headway.checkpoint.convert.dcp_metadata import read_metadata
from headway.checkpoint.convert.pickle_machine import Global, Inert, read_pickle
from headway.checkpoint.convert.torch_archive import open_tensor
from headway.store.manifest import load_manifest


@pytest.fixture(autouse=True)
def _no_process_group():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def torch_writes(directory: Path, state: dict) -> Path:
    dcp.save(state, checkpoint_id=directory, no_dist=True)
    return directory


# --- both ways


@pytest.mark.parametrize("splits", [(1, 1), (2, 2)], ids=str)
def test_torch_loads_what_we_write(tmp_path, splits):
    values = every_kind() | large()
    to(write_source(tmp_path / "checkpoints", values, splits), tmp_path / "out", "dcp", shard_bytes=3 << 20)
    into = blank(values)
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    assert same(into, values)


def test_items_have_half_of_a_shard_at_most(tmp_path):
    """The writer holds two at a time."""
    to(write_source(tmp_path / "checkpoints", large()), tmp_path / "out", "dcp", shard_bytes=8 << 20)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.distcp")]
    assert len(sizes) == 8
    assert max(sizes) < (4 << 20) + 4096


@pytest.mark.parametrize(
    "values", [torch.arange(40).reshape(8, 5)[2:6], torch.arange(40).reshape(8, 5).t()[1:4], torch.arange(9)[4]]
)
def test_views_are_read_from_where_they_begin(tmp_path, values):
    image = io.BytesIO()
    torch.save(values, image)
    (tmp_path / "x").write_bytes(b"before" + image.getvalue() + b"behind")
    found = open_tensor(tmp_path / "x", 6, len(image.getvalue()))
    for first, last in ((0, len(values) if values.ndim else 1), (1, 2) if values.ndim else (0, 1)):
        expected = values[first:last] if values.ndim else values
        assert found.rows(first, last).tobytes() == expected.contiguous().numpy().tobytes()


def test_torchs_own_converter_takes_it(tmp_path):
    """It reads every key that there is, so no key may be anything but a tensor."""
    values = {"param/w": torch.randn(4, 3), "count": torch.tensor(3)}
    to(write_source(tmp_path / "checkpoints", values), tmp_path / "out", "dcp")
    dcp_to_torch_save(tmp_path / "out", tmp_path / "out.pt")
    assert same(torch.load(tmp_path / "out.pt", weights_only=True), values)


def test_we_read_what_torch_writes(tmp_path):
    values = every_kind() | {"turned": torch.arange(15.0).reshape(3, 5).t(), "cut": torch.arange(40).reshape(8, 5)[2:5]}
    values |= {"wide": torch.ones(1, 4).expand(3, 4), "learned": torch.nn.Parameter(torch.randn(3))}
    nested = {"model": values, "optimizer": {"lr": 0.1, "steps": [torch.tensor(4)]}}
    facts = to(torch_writes(tmp_path / "theirs", nested), tmp_path / "ours", "headway")
    expected = {f"model.{name}": tensor.detach().contiguous() for name, tensor in values.items()}
    expected["optimizer.steps.0"] = torch.tensor(4)
    assert same(loaded(tmp_path / "ours", expected), expected)
    assert [item["what"] for item in facts["left_out"]] == ["optimizer.lr"]
    state = load_manifest(tmp_path / "ours").state
    assert state == {"converted": {"from": "dcp", "source": "theirs", "left_out": ["optimizer.lr"]}}


RANKS = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
rank, root = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = {"rows": torch.randn(5, 3), "columns": torch.randn(4, 7).bfloat16(), "same": torch.randn(6), "plain": torch.arange(9)}
if rank == 0:
    torch.save(whole, f"{root}/whole.pt")
placed = {"rows": Shard(0), "columns": Shard(1), "same": Replicate()}
state = {n: distribute_tensor(t, mesh, [placed[n]]) if n in placed else t for n, t in whole.items()}
dcp.save(state, checkpoint_id=f"{root}/theirs")
dist.destroy_process_group()
"""


@pytest.mark.e2e
def test_we_read_what_two_ranks_write(tmp_path):
    """A real save of two processes: rows, columns, replicas and plain tensors, strided shards among them."""
    ranks = [subprocess.Popen([sys.executable, "-c", RANKS, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    expected = torch.load(tmp_path / "whole.pt", weights_only=True)
    to(tmp_path / "theirs", tmp_path / "ours", "headway")
    assert same(loaded(tmp_path / "ours", expected), expected)
    assert (
        len({stored.chunk.file for parts in read_metadata(tmp_path / "theirs/.metadata").chunks.values() for stored in parts}) > 1
    )


# --- nothing runs


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_trap_in_the_metadata_does_not_run(tmp_path):
    theirs, marker = torch_writes(tmp_path / "theirs", {"w": torch.randn(3)}), tmp_path / "it-ran"
    path = theirs / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = Trap(marker)
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(RunError, match=r"asks for 'posix\.system', which is refused") as refusal:
        to(theirs, tmp_path / "ours", "headway")
    assert "nothing that is read is unpickled" in refusal.value.problems[0].rule
    assert not marker.exists()
    assert nothing_left(tmp_path, "theirs")
    pickle.loads(path.read_bytes())
    assert marker.exists(), "the trap works"


def test_a_trap_in_an_item_does_not_run(tmp_path):
    theirs, marker = torch_writes(tmp_path / "theirs", {"w": torch.randn(3)}), tmp_path / "it-ran"
    image = io.BytesIO()
    torch.save({"w": Trap(marker)}, image)
    replace_item(theirs, image.getvalue())
    with pytest.raises(RunError, match=r"asks for 'posix\.system', which is refused"):
        to(theirs, tmp_path / "ours", "headway")
    assert not marker.exists()
    assert nothing_left(tmp_path, "theirs")
    torch.load(image.seek(0) or image, weights_only=False)
    assert marker.exists(), "the trap works"


def replace_item(directory: Path, image: bytes) -> None:
    """The first tensor's archive becomes ``image``."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    info = next(iter(metadata.storage_data.values()))
    info.relative_path, info.offset, info.length = "__9_9.distcp", 0, len(image)
    (directory / "__9_9.distcp").write_bytes(image)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (b"cos\nsystem\n(S'touch x'\ntR.", "asks for 'os.system'"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", "asks for 'builtins.eval'"),
        (b"\x80\x04\x8c\x05torch\x8c\x07float32.\x93.", "no whole pickle"),
        (b"\x80\x04\x8c\x05torch\x8c\x04load\x93\x8c\x011\x85R.", "asks for 'torch.load'"),
        (b"\x80\x04\x8c\x10torch.nn.modules\x8c\x06Linear\x93)\x81.", "asks for 'torch.nn.modules.Linear'"),
        (b"(ios\nsystem\n.", "instruction INST"),
        (b"(cos\nsystem\no.", "asks for 'os.system'"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02)R.", "no whole pickle"),
        (b"\x80\x02))R.", "calls something that is no name"),
        (b"\x80\x02}}b.", "sets the state of something that is no object"),
        (b"\x80\x02](a.", "no whole pickle"),
        (b"\x80\x02}))s.", "no whole pickle"),
        (b"\x80\x02h\x07.", "no whole pickle"),
        (b"\x80\x02t.", "no whole pickle"),
        (b"\x80\x02NN.", "no whole pickle"),
        (b"\x80\x02N", "no whole pickle"),
        (b"\xff", "no whole pickle"),
        (b"", "no whole pickle"),
    ],
)
def test_programs_that_are_refused(program, why):
    with pytest.raises(RunError, match=why):
        read_pickle(program, {"torch.float32"}, "a file")


def test_what_a_pickle_asks_for_is_only_recorded():
    """Even a name that is accepted leads nowhere: no module is imported for it."""
    value = read_pickle(
        b"\x80\x04\x8c\x0bno_such_one\x8c\x04call\x93K\x01\x85R}\x8c\x01ak\x02sb.".replace(b"k\x02", b"K\x02"),
        {"no_such_one.call"},
        "x",
    )
    assert isinstance(value, Inert)
    assert (value.name, value.arguments, value.state) == ("no_such_one.call", (1,), {"a": 2})
    assert "no_such_one" not in sys.modules
    assert read_pickle(b"\x80\x02ctorch\nfloat32\n.", {"torch.float32"}, "x") == Global("torch.float32")


def test_plain_values_are_read_as_pickle_reads_them():
    plain = {
        "a": [1, -5, 2**40, 2**70, 1.5, None, True, False],
        "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        7: b"bytes" * 99,
    }
    plain["again"] = plain["a"]
    for protocol in (2, 3, 4, 5):
        if protocol > 2:  # 2 writes bytes as a call of codecs.encode
            assert read_pickle(pickle.dumps(plain, protocol), (), "x") == plain
    del plain[7]
    assert read_pickle(pickle.dumps(plain, 2), (), "x") == plain


def test_the_instructions_known_here_are_pickles_own():
    from headway.checkpoint.convert import pickle_machine as machine

    known = machine.LITERALS | machine.CONSTANTS.keys() | machine.INSTRUCTIONS.keys() | machine.SILENT
    assert known <= {opcode.name for opcode in pickletools.opcodes}
    assert not known & {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "PERSID", "NEWOBJ_EX"}


# --- damage


def test_a_flipped_value_is_refused(tmp_path):
    """An archive's checksum is proven, wherever in its record the bit is."""
    values = {"w": torch.randn(300, 7)}
    theirs = torch_writes(tmp_path / "theirs", values)
    stored = read_metadata(theirs / ".metadata").chunks["w"][0]
    tensor = open_tensor(theirs / stored.chunk.file, stored.chunk.at, stored.archive_bytes)
    for at in (tensor.at, tensor.at + 4000, tensor.at + tensor.span_bytes - 1):
        flip(theirs / "__0_0.distcp", at)
        with pytest.raises(RunError, match="checksum"):
            to(theirs, tmp_path / "ours", "headway")
        flip(theirs / "__0_0.distcp", at)
    to(theirs, tmp_path / "ours", "headway")
    assert same(loaded(tmp_path / "ours", values), values)


def change(directory: Path, edit) -> None:
    """Another metadata file, as somebody else might have written it."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    edit(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def set_all(name: str, value: object):
    return lambda metadata: [setattr(info, name, value) for info in metadata.storage_data.values()]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (set_all("relative_path", "../secret"), "in no file beside it"),
        (set_all("relative_path", "/etc/passwd"), "in no file beside it"),
        (set_all("relative_path", "nothing.distcp"), "cannot read"),
        (set_all("offset", -1), "in no file beside it"),
        (set_all("offset", 10**9), "behind the end"),
        (set_all("length", 70), "no archive of torch.save"),
        (set_all("transform_descriptors", ["zstd"]), "through an extension"),
        (lambda m: m.storage_data.clear(), "stored nowhere"),
        (lambda m: m.state_dict_metadata["w"].chunks.clear(), "leave a hole"),
        (lambda m: setattr(m.state_dict_metadata["w"].chunks[0], "sizes", torch.Size((3, 2))), "leave a hole"),
        (lambda m: setattr(m.state_dict_metadata["w"], "size", torch.Size((4, 4))), "leave a hole"),
        (lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", torch.int32), "lies where the metadata have I32"),
        (lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", torch.complex64), "asks for 'torch.complex64'"),
        (lambda m: setattr(m, "state_dict_metadata", None), "describes no state"),
        (lambda m: setattr(m, "storage_data", None), "of nothing where it lies"),
    ],
)
def test_metadata_that_do_not_fit(tmp_path, edit, why):
    theirs = torch_writes(tmp_path / "theirs", {"w": torch.randn(4, 3)})
    change(theirs, edit)
    with pytest.raises(Exception, match=why) as refusal:
        to(theirs, tmp_path / "ours", "headway")
    assert type(refusal.value).__module__ == "headway.base.errors"
    assert nothing_left(tmp_path, "theirs")


def test_an_item_of_another_shape_is_refused(tmp_path):
    theirs, image = torch_writes(tmp_path / "theirs", {"w": torch.randn(4, 3)}), io.BytesIO()
    torch.save(torch.randn(3, 4), image)
    replace_item(theirs, image.getvalue())
    with pytest.raises(RunError, match=r"F32 \(3, 4\) lies where"):
        to(theirs, tmp_path / "ours", "headway")


@pytest.mark.parametrize("value", [{"w": torch.zeros(2)}, torch.zeros(2).to_sparse(), [1, 2]], ids=["dict", "sparse", "list"])
def test_items_that_are_no_plain_tensor_are_refused(tmp_path, value):
    image = io.BytesIO()
    torch.save(value, image)
    (tmp_path / "x").write_bytes(image.getvalue())
    with pytest.raises(RunError, match=r"no plain tensor|is refused"):
        open_tensor(tmp_path / "x", 0, len(image.getvalue()))


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_any_damage_ends_in_a_clear_error(tmp_path):
    """Random bytes changed, cut and doubled: never an exception that is not on the map."""
    theirs = torch_writes(tmp_path / "theirs", {"w": torch.randn(4, 3), "n": {"u": torch.zeros(2).bfloat16(), "lr": 0.1}})
    generator, path, bad = random.Random(0), theirs / ".metadata", tmp_path / ".metadata"
    item = (theirs / "__0_0.distcp").read_bytes()
    stored, refused = read_metadata(path).chunks["w"][0], 0
    for _ in range(600):
        for whole, read in (
            (path.read_bytes(), lambda: read_metadata(bad)),
            (item[stored.chunk.at :][: stored.archive_bytes], lambda: open_tensor(bad, 0, bad.stat().st_size).prove()),
        ):
            bad.write_bytes(mangled(whole, generator))
            try:
                read()
            except RunError:
                refused += 1
    assert refused > 600, "most damage is met; some bytes, such as padding, mean nothing"


def mangled(data: bytes, generator: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(out) or 1)
        how = generator.randrange(4)
        if how == 0:
            out[at : at + 1] = bytes([generator.randrange(256)])
        elif how == 1:
            del out[at : at + generator.randint(1, 9)]
        elif how == 2:
            out[at:at] = out[at : at + generator.randint(1, 40)]
        else:
            out[at : at + 1] = generator.choice(
                [b".", b"(", b"t", b"R", b"b", b"u", b"s", b"a", b"e", b"N", b"\x93", b"\x94", b"h"]
            )
    return bytes(out)
