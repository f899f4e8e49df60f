"""Rows of Parquet files as documents, in bounded memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources import documents
from headway.recipe.schema import Source

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def read(path, **fields):
    return list(documents(Source.model_validate({"name": "s", "kind": "parquet", "path": str(path), **fields})))


def write(path, columns: dict, **options) -> None:
    parquet.write_table(pyarrow.table(columns), path, **options)


def test_rows_of_all_groups_in_order_with_their_facts(tmp_path):
    texts = [f"text {n}" for n in range(1_000)]
    urls = pyarrow.array([f"https://a/{n}" for n in range(1_000)], pyarrow.large_string())
    write(tmp_path / "a.parquet", {"text": texts, "url": urls, "n": range(1_000)}, row_group_size=300)
    write(tmp_path / "b.parquet", {"text": pyarrow.array(["last", None], pyarrow.string()), "license": ["MIT", "MIT"]})
    found = read(tmp_path)
    assert [d.text for d in found] == [*texts, "last", None]
    assert [d.origin for d in found][999:] == ["a.parquet:1000", "b.parquet:1", "b.parquet:2"]
    assert found[5].facts == {"url": "https://a/5"}
    assert found[1_000].facts == {"licence": "MIT"}
    assert found[-1].dropped == "no_text"


def test_bytes_that_are_no_text_are_left_out_alone(tmp_path):
    raw = pyarrow.array([b"good", b"\xff\xfe", b"fine"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    write(tmp_path / "a.parquet", {"body": text})
    assert [(d.text, d.dropped) for d in read(tmp_path, field="body")] == [("good", ""), (None, "undecodable"), ("fine", "")]


@pytest.mark.parametrize("columns", [{"body": ["x"]}, {"text": [1]}, {"text": [["x"]]}])
def test_a_column_without_text_is_named(tmp_path, columns):
    write(tmp_path / "a.parquet", columns)
    with pytest.raises(ConfigError, match=rf"no text in column 'text'.*\n.*the file holds: {next(iter(columns))}"):
        read(tmp_path)


def test_a_damaged_file_is_one_clear_error_wherever_it_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, {"text": [f"text {n}" for n in range(3_000)]}, write_page_checksum=True)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place])
        with pytest.raises(EnvironmentFault, match=r"Parquet file is damaged: .*\n.*a\.parquet"):
            read(tmp_path)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read(tmp_path)
        except (EnvironmentFault, ConfigError):
            refused += 1
    assert refused > 30


MEASURE = """
import resource, sys
from headway.data.sources import documents
from headway.recipe.schema import Source
import pyarrow.parquet
read = lambda path: sum(len(d.text) for d in documents(Source(name="s", kind="parquet", path=path)))
read(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(read(sys.argv[2]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_follow_the_size_of_a_row_group(tmp_path):
    """One row group of 200 MB is read in 40 MB more than one of 2 MB."""
    import random

    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefgh", k=8)) for _ in range(1_000)]

    def texts(count: int) -> list[str]:
        return [" ".join(generator.choices(words, k=1_000)) for _ in range(count)]

    write(tmp_path / "small.parquet", {"text": texts(220)})
    writer_options = {"use_dictionary": False, "compression": "zstd", "row_group_size": 1_000_000}
    write(tmp_path / "large.parquet", {"text": texts(22_000)}, **writer_options)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "small.parquet"), str(tmp_path / "large.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    characters, kilobytes = map(int, done.stdout.split())
    assert characters > 190_000_000
    assert kilobytes < 40_000, kilobytes
