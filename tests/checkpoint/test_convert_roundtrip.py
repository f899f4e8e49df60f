"""To another format and back: every bit, every dtype, whatever layout of ranks wrote the source; or nothing at all."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_cases import same
from convert_cases import SEGMENT, STATE, STEP, every_kind, flip, large, loaded, nothing_left, to, write_source

from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.checkpoint.convert import FORMATS, contents, format_headway, staging
from headway.checkpoint.digest import state_digest
from headway.store.manifest import BLOCK_BYTES, hash_blocks, load_manifest

WAYS = [("safetensors", "out.safetensors"), ("safetensors", "out"), ("dcp", "out"), ("headway", "out")]
SPLITS = [(1, 1), (3, 1), (2, 2)]


@pytest.mark.parametrize("splits", SPLITS, ids=str)
@pytest.mark.parametrize(("form", "name"), WAYS)
def test_there_and_back_bit_for_bit(tmp_path, form, name, splits):
    values = every_kind()
    source = write_source(tmp_path / "checkpoints", values, splits)
    facts = to(source, tmp_path / name, form)
    assert (facts["from"], facts["tensors"], facts["segment"], facts["step"]) == ("headway", len(values), SEGMENT, STEP)
    assert facts["left_out"] == facts["notes"] == []
    to(tmp_path / name, tmp_path / "back", "headway")
    assert same(loaded(tmp_path / "back", values), values)
    manifest = load_manifest(tmp_path / "back")
    assert (manifest.segment, manifest.step, manifest.world, manifest.state) == (SEGMENT, STEP, 1, STATE)
    assert manifest.state_digest == state_digest(values), "equal to what the trainer would record of this state"


@pytest.mark.parametrize("splits", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize(("form", "name"), WAYS)
def test_there_and_back_over_many_pieces(tmp_path, form, name, splits):
    """Tensors larger than a piece, a block and a shard, with rows that divide none of them."""
    values = large()
    source = write_source(tmp_path / "checkpoints", values, splits)
    to(source, tmp_path / name, form, shard_bytes=3 << 20)
    to(tmp_path / name, tmp_path / "back", "headway", shard_bytes=3 << 20)
    assert same(loaded(tmp_path / "back", values), values)
    assert load_manifest(tmp_path / "back").state_digest == state_digest(values)


def test_there_and_back_in_pieces_of_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "PIECE_BYTES", 10)
    values = every_kind()
    source = write_source(tmp_path / "checkpoints", values, (2, 2))
    to(source, tmp_path / "dcp", "dcp")
    to(tmp_path / "dcp", tmp_path / "sets", "safetensors")
    to(tmp_path / "sets", tmp_path / "back", "headway")
    assert same(loaded(tmp_path / "back", values), values)


@pytest.mark.parametrize(("form", "name"), WAYS)
def test_no_more_is_read_at_once_than_a_piece(tmp_path, monkeypatch, form, name):
    """Memory is bounded by pieces, whatever the size of tensors and states."""
    source = write_source(tmp_path / "checkpoints", large(), (2, 2))
    rows, sizes = format_headway.CheckpointContents.rows, []

    def watched(self, *arguments):
        sizes.append(len(rows(self, *arguments)))
        return rows(self, *arguments)

    monkeypatch.setattr(format_headway.CheckpointContents, "rows", watched)
    to(source, tmp_path / name, form)
    assert len(sizes) > 2
    assert max(sizes) <= contents.PIECE_BYTES


def test_a_shard_holds_as_much_as_asked_for(tmp_path):
    values = {f"param/{n}": torch.full((1 << 18,), n) for n in range(5)}  # 2 MiB each
    values["param/big"] = torch.zeros(3 << 18, 2)  # 6 MiB
    source = write_source(tmp_path / "checkpoints", values)
    assert to(source, tmp_path / "out", "safetensors", shard_bytes=4 << 20)["files"] == 4
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").iterdir())]
    assert [size >> 20 for size in sizes] == [4, 4, 2, 6] or [size >> 20 for size in sizes] == [6, 4, 4, 2]
    assert sorted(p.name for p in (tmp_path / "out").iterdir())[0] == "state-00001-of-00004.safetensors"


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_the_safetensors_library_reads_what_we_write(tmp_path, name):
    from safetensors.torch import load_file

    values = every_kind()
    to(write_source(tmp_path / "checkpoints", values), tmp_path / name, "safetensors", shard_bytes=1 << 20)
    files = [tmp_path / name] if name.endswith("s") else sorted((tmp_path / name).iterdir())
    assert same({key: tensor for file in files for key, tensor in load_file(file).items()}, values)


def test_files_of_others_are_read(tmp_path):
    from safetensors.torch import save_file

    values = {"a.b": torch.randn(5, 3), "c": torch.tensor(4), "d": torch.zeros(0, dtype=torch.int32)}
    save_file(values, tmp_path / "theirs.safetensors")
    facts = to(tmp_path / "theirs.safetensors", tmp_path / "ours", "headway", step=40)
    assert same(loaded(tmp_path / "ours", values), values)
    assert (facts["step"], load_manifest(tmp_path / "ours").step) == (40, 40)
    state = load_manifest(tmp_path / "ours").state
    assert state == {"converted": {"from": "safetensors", "source": "theirs.safetensors", "left_out": []}}


# --- refusals


def test_nothing_is_replaced(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"x": torch.zeros(3)})
    for number, (form, make) in enumerate([("dcp", Path.mkdir), ("safetensors", Path.touch), ("headway", dangling)]):
        make(tmp_path / f"{number}.safetensors")
        with pytest.raises(ConfigError, match="exists"):
            to(source, tmp_path / f"{number}.safetensors", form)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("form", ["safetensors", "headway"])
def test_whoever_was_faster_keeps_the_name(tmp_path, monkeypatch, form):
    """The destination appears while the conversion is under way."""
    source, out = write_source(tmp_path / "checkpoints", {"x": torch.zeros(3)}), tmp_path / "out.safetensors"
    sync = staging._sync
    monkeypatch.setattr(staging, "_sync", lambda path: (sync(path), out.write_text("mine")))
    with pytest.raises(ConfigError, match="exists"):
        to(source, out, form)
    assert out.read_text() == "mine"
    assert nothing_left(tmp_path, "checkpoints", "out.safetensors")


@pytest.mark.parametrize(("form", "name"), WAYS)
def test_a_flipped_bit_in_a_checkpoint_is_refused(tmp_path, form, name):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.randn(40, 3), "param/u": torch.randn(7)}, (2, 1))
    flip(source / "rank00001.safetensors", -1)
    with pytest.raises(RunError, match="digest differs"):
        to(source, tmp_path / name, form)
    assert nothing_left(tmp_path, "checkpoints")


@pytest.mark.e2e
@pytest.mark.parametrize(("form", "name"), WAYS[:3])
def test_a_flip_anywhere_is_refused_or_changes_nothing(tmp_path, form, name):
    """In what we exported: no byte can be wrong in silence. (Padding and zip bookkeeping may be.)"""
    values = {"param/w": torch.randn(3, 5), "m/w": torch.randn(3, 5).bfloat16(), "count": torch.tensor(7)}
    to(write_source(tmp_path / "checkpoints", values), tmp_path / name, form)
    files = [p for p in [tmp_path / name, *(tmp_path / name).glob("*")] if p.is_file()]
    refused = 0
    for file in files:
        size = file.stat().st_size
        for at in np.linspace(0, size - 1, 60, dtype=int).tolist():
            flip(file, at)
            try:
                to(tmp_path / name, tmp_path / "back", "headway")
            except (RunError, ConfigError):
                refused += 1
            else:
                assert same(loaded(tmp_path / "back", values), values), (file.name, at)
                assert load_manifest(tmp_path / "back").state == STATE, (file.name, at)
                subprocess.run(["rm", "-r", tmp_path / "back"], check=True)
            flip(file, at)
    assert refused > 40 * len(files) * (0.3 if form == "dcp" else 1)


def test_part_of_a_set_is_refused(tmp_path):
    values = {f"param/{n}": torch.full((1 << 17,), n) for n in range(4)}
    to(write_source(tmp_path / "checkpoints", values), tmp_path / "out", "safetensors", shard_bytes=1 << 20)
    (tmp_path / "out" / "state-00002-of-00004.safetensors").unlink()
    with pytest.raises(RunError, match="1/4, 3/4, 4/4"):
        to(tmp_path / "out", tmp_path / "back", "headway")
    with pytest.raises(RunError, match="holds the files 3/4"):
        to(tmp_path / "out" / "state-00003-of-00004.safetensors", tmp_path / "back", "headway")


def test_one_rank_of_a_checkpoint_is_no_state(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.randn(40, 3)}, (2, 1))
    with pytest.raises(RunError, match="a part of a tensor"):
        to(source / "rank00000.safetensors", tmp_path / "out", "dcp")


def test_an_uncommitted_save_is_refused(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.randn(40, 3)})
    (source / "MANIFEST.json").unlink()
    with pytest.raises(RunError, match=r"MANIFEST\.json is missing"):
        to(source, tmp_path / "out", "safetensors")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "takes 8 bytes"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "0 was expected"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "end at byte 4"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "is none"),
        (b'{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}}', "unknown here"),
        (b'{"a":{"dtype":"F32","shape":[1]}}', "an entry has"),
        (b"[1, 2]", "no JSON object"),
        (b"{", "no safetensors file"),
        (b'{"a"', "no JSON"),
    ],
)
def test_safetensors_headers_that_do_not_fit(tmp_path, header, why):
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(RunError, match=why):
        to(tmp_path / "x.safetensors", tmp_path / "out", "headway")


def test_options_that_contradict_each_other(tmp_path):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.zeros(3)})
    for options, why in [
        ({"form": "onnx"}, "unknown format 'onnx'"),
        ({"form": "dcp", "source_format": "gguf"}, "unknown format 'gguf'"),
        ({"form": "dcp", "dtype": "bf16"}, "--dtype is for huggingface"),
        ({"form": "dcp", "step": 3}, "--step is for headway"),
        ({"form": "dcp", "shard_bytes": 5}, "1 MiB or more"),
        ({"form": "headway", "step": STEP + 1}, "the state after step 12"),
    ]:
        with pytest.raises(ConfigError, match=why):
            to(source, tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="is the name of segment 1, step 5"):
        to(source, tmp_path / "g0001-s00000005", "headway")
    with pytest.raises(ConfigError, match="lies in the source"):
        to(source, source / "out", "dcp")
    assert nothing_left(tmp_path, "checkpoints")


# --- whole or not at all


@pytest.mark.parametrize(("form", "name"), WAYS)
@pytest.mark.parametrize(
    "fault",
    [KeyboardInterrupt(), OSError(28, "No space left on device"), RunError("damage", "", "")],
    ids=lambda e: type(e).__name__,
)
def test_a_failed_conversion_leaves_nothing(tmp_path, monkeypatch, form, name, fault):
    """Of the fifth piece on, reading fails."""
    source = write_source(tmp_path / "checkpoints", {f"param/{n}": torch.randn(9, 3) for n in range(9)})
    rows, calls = format_headway.CheckpointContents.rows, []

    def failing(self, name, first, last):
        calls.append(name)
        if len(calls) == 5:
            raise fault
        return rows(self, name, first, last)

    monkeypatch.setattr(format_headway.CheckpointContents, "rows", failing)
    expected = EnvironmentFault if isinstance(fault, OSError) else type(fault)
    with pytest.raises(expected):
        to(source, tmp_path / name, form)
    assert nothing_left(tmp_path, "checkpoints")


KILLED = """
import os, sys
from pathlib import Path
from headway.checkpoint.convert.convert import Request, convert
from headway.checkpoint.convert import format_headway
source, destination, form, after = sys.argv[1:]
rows, calls = format_headway.CheckpointContents.rows, []
def killing(self, *arguments):
    calls.append(1)
    if len(calls) == int(after):
        os.kill(os.getpid(), 9)
    return rows(self, *arguments)
format_headway.CheckpointContents.rows = killing
convert(Request(source=source, destination=Path(destination), to=form))
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("form", "name"), [("headway", "out"), ("dcp", "out"), ("safetensors", "out.safetensors")])
def test_a_killed_conversion_leaves_nothing_under_the_name(tmp_path, form, name):
    source = write_source(tmp_path / "checkpoints", {f"param/{n}": torch.randn(9, 3) for n in range(4)})
    done = subprocess.run([sys.executable, "-c", KILLED, source, tmp_path / name, form, "3"], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not os.path.lexists(tmp_path / name)
    to(source, tmp_path / name, form)  # what was left is in nobody's way
    assert (tmp_path / name).exists()


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path, monkeypatch):
    source = write_source(tmp_path / "checkpoints", {"param/w": torch.zeros(3)})
    monkeypatch.setattr("headway.checkpoint.convert.convert.total_bytes", lambda tensors: 1 << 62)
    with pytest.raises(EnvironmentFault, match="bytes needed"):
        to(source, tmp_path / "out", "dcp")
    assert nothing_left(tmp_path, "checkpoints")


# --- parts


def test_blocks_are_cut_where_digests_want_them():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 2 * BLOCK_BYTES + 1234, dtype=np.uint8)
    for sizes in ([len(data)], [1000] * 20, [BLOCK_BYTES, 3], [BLOCK_BYTES - 1, 1, BLOCK_BYTES + 5], []):
        edges = np.cumsum([0, *sizes, max(0, len(data) - sum(sizes))])
        parts = [data[a:b] for a, b in itertools.pairwise(edges)]
        blocks = list(contents.in_blocks(parts))
        assert tuple(h for b in blocks for h in hash_blocks(b)) == hash_blocks(data)
        assert [len(block) for block in blocks] == [BLOCK_BYTES, BLOCK_BYTES, 1234]


def test_the_table_is_what_the_command_line_offers():
    from typing import get_args

    from headway.cli.checkpoint_convert import FormatName

    assert set(get_args(FormatName)) == set(FORMATS)
