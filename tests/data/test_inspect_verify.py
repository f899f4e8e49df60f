"""Built data read again: every damage is found and named, whatever it is, and nothing crashes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, write_token_data, write_words

from headway.base.errors import ConfigError
from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.inspect.verify import verify
from headway.data.manifest import BLOCK_BYTES, DataManifest

DAMAGES = 1_000


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Two sources in several shards each, with held-out sets."""
    root = tmp_path_factory.mktemp("built")
    sources = [
        {"name": name, "kind": "text-tree", "path": str(write_words(root / name, 60, seed=seed)), "licence": "CC0-1.0"}
        for seed, name in enumerate(("prose", "verse"))
    ]
    build_data(small_recipe(sources), root / "data", shard_bytes=4_096)
    return root / "data"


@pytest.fixture
def data(built, tmp_path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "data"))


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_whole_data_is_whole(built):
    found = verify(built)
    assert found.damages == ()
    assert found.unlisted == ()
    assert found.digest == DataManifest.load(built).digest()
    assert {file.file for file in found.files} == {path.relative_to(built).as_posix() for path in files_of(built)}
    assert found.bytes_read == sum(path.stat().st_size for path in files_of(built))
    assert len([file for file in found.files if file.what == "shard"]) > 4


class Damaging:
    """Draws one damage after another; each is undone before the next."""

    def __init__(self, directory: Path, seed: int):
        self.files, self.random = files_of(directory), np.random.default_rng(seed)
        self.whole = {path: path.read_bytes() for path in self.files}

    def draw(self) -> set[Path]:
        """Damage the directory and say which files are to be named."""
        kind = self.random.choice(["flip", "truncate", "grow", "swap", "remove"], p=[0.5, 0.2, 0.05, 0.15, 0.1])
        path = self.files[self.random.integers(len(self.files))]
        data = self.whole[path]
        if kind == "flip":
            bit = int(self.random.integers(8 * len(data)))
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
        elif kind == "truncate":
            short = int(self.random.integers(1, 5)) if self.random.random() < 0.5 else int(self.random.integers(1, len(data) + 1))
            path.write_bytes(data[:-short])
        elif kind == "grow":
            path.write_bytes(data + b"\0" * int(self.random.integers(1, 9)))
        elif kind == "remove":
            path.unlink()
        else:
            others = [other for other in self.files if self.whole[other] != data]
            other = others[self.random.integers(len(others))]
            path.write_bytes(self.whole[other])
            other.write_bytes(data)
            return {path, other}
        return {path}

    def restore(self, paths: set[Path]) -> None:
        for path in paths:
            path.write_bytes(self.whole[path])


def test_every_random_damage_is_found_in_the_file_that_has_it(data):
    damaging = Damaging(data, seed=20)
    for number in range(DAMAGES):
        paths = damaging.draw()
        damaged = {path.relative_to(data).as_posix() for path in paths}
        named = {damage.file for damage in verify(data).damages}
        alone = {"manifest.json"} & damaged  # without it nothing else can be judged
        assert named in (damaged, alone or damaged), (number, damaged, named)
        damaging.restore(paths)
    assert verify(data).damages == ()


def test_the_command_line_shows_no_traceback_for_any_of_them(data, capsys):
    damaging = Damaging(data, seed=21)
    for number in range(40):
        paths = damaging.draw()
        assert run_guarded(["data", "verify", str(data), *(["--json"] if number % 2 else [])]) == 1
        shown = capsys.readouterr()
        assert "internal error" not in shown.err
        assert any(path.relative_to(data).as_posix() in shown.out for path in paths)
        damaging.restore(paths)


@pytest.mark.parametrize(("pattern", "goes_on"), [("*/shard-00000.bin", True), ("*/held-out/*.bin", False)])
def test_what_a_run_can_do_without_is_told(data, capsys, pattern, goes_on):
    shard = sorted(data.glob(pattern))[0]
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    assert run_guarded(["data", "verify", str(data)]) == 1
    shown = capsys.readouterr().out
    assert f"1 of {len(files_of(data))} files damaged" in shown
    assert ('interventions.damaged_data = "quarantine"' in shown) is goes_on


def test_all_damages_are_told_with_their_blocks(tmp_path):
    random = np.random.default_rng(0)
    documents = [[0, *random.integers(1, 60_000, 50_000).tolist()] for _ in range(48)]
    write_token_data(tmp_path, [documents], shard_bytes=8 * BLOCK_BYTES)
    shard = tmp_path / "00/shard-00000.bin"
    content = bytearray(shard.read_bytes())
    for block in (1, 3):
        content[block * BLOCK_BYTES + 77] ^= 4
    shard.write_bytes(content)
    (tmp_path / "00/held-out/documents.ends").unlink()
    found = verify(tmp_path).damages
    assert [(damage.file, damage.block) for damage in found] == [
        ("00/shard-00000.bin", 1),
        ("00/shard-00000.bin", 3),
        ("00/held-out/documents.ends", None),
    ]
    assert found[0].blocks == -(-len(content) // BLOCK_BYTES)


@pytest.mark.parametrize("cut", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 5])
def test_a_cut_shard_names_the_block_where_it_ends(tmp_path, cut):
    documents = [[0, *range(1, 50_000)] for _ in range(24)]
    write_token_data(tmp_path, [documents], shard_bytes=8 * BLOCK_BYTES)
    os.truncate(tmp_path / "00/shard-00000.bin", cut)
    (damage,) = verify(tmp_path).damages
    assert damage.block == cut // BLOCK_BYTES
    assert f"{cut:,} bytes instead of 2,400,000" in damage.seen


def test_a_changed_licence_is_damage_and_the_rest_is_still_judged(data):
    path = data / "manifest.json"
    path.write_text(path.read_text().replace("CC0-1.0", "CC1-1.0", 1))
    (data / "tokenizer.json").unlink()
    first, second = verify(data).damages
    assert "licences" in first.seen
    assert second.file == "tokenizer.json"


def test_a_manifest_of_an_older_version_has_no_seal(data):
    import json

    path = data / "manifest.json"
    value = json.loads(path.read_text())
    del value["seal"]
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    assert verify(data).damages == ()


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(data):
    for name in ("tokenizer.json", "manifest.json"):
        (data / name).unlink()
        os.mkfifo(data / name)
        assert "is no regular file" in verify(data).damages[0].seen


def test_what_the_manifest_does_not_name_is_told(data):
    (data / "notes.txt").write_text("x")
    found = verify(data)
    assert found.unlisted == ("notes.txt",)
    assert found.damages == ()


@pytest.mark.parametrize(("make", "words"), [(None, "does not exist"), ("file", "is a file"), ("empty", "is no data directory")])
def test_what_never_was_data_is_a_mistake_of_the_caller(tmp_path, make, words):
    place = tmp_path / "place"
    if make == "file":
        place.write_text("x")
    elif make == "empty":
        place.mkdir()
    with pytest.raises(ConfigError, match=words):
        verify(place)
