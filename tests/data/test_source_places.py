"""Files here and elsewhere: the same documents from a directory and from URLs, packed or not, and one clear error otherwise."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources import Document, documents, jsonl, open_source, places
from headway.recipe.schema import Source

zstandard = pytest.importorskip("zstandard")


def source(kind: str, **fields) -> Source:
    return Source.model_validate({"name": "s", "kind": kind, **fields})


def packed(lines: list[dict], frames: int = 1) -> bytes:
    """JSON lines as zstd, in so many frames."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    step = -(-len(data) // frames)
    writer = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(writer.compress(data[at : at + step]) for at in range(0, len(data), step))


LINES = [{"text": f"line {n} " + "x" * (n % 50), "lang": "en", "url": f"https://a/{n}", "id": n} for n in range(3_000)]


@pytest.fixture(params=["memory", "file"])
def place(request, tmp_path):
    """The URL of an empty directory."""
    if request.param == "file":
        return f"file://{tmp_path}"
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/text"


def put(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(data)


class FromStorage(AbstractBufferedFile):
    """A file as clients of object storage give it: fetched by ranges, and its readline takes no size."""

    def __init__(self, data: bytes):
        self.data = data
        super().__init__(fsspec.filesystem("memory"), "/file", mode="rb", size=len(data))

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.data[start:end]


def test_lines_are_read_from_files_of_object_storage():
    lines = [json.dumps(line).encode() + b"\n" for line in LINES]
    for name, data in {
        "a.jsonl": b"".join(lines),
        "a.jsonl.gz": gzip.compress(b"".join(lines)),
        "a.jsonl.zst": packed(LINES),
    }.items():
        file = places.SourceFile(name, name, (), "", len(data), lambda data=data: FromStorage(data))
        assert [json.loads(line) for line in jsonl.lines_of(file)] == LINES


def test_a_url_gives_what_a_directory_gives(place, tmp_path):
    files = {
        "a.jsonl": b'{"text": "a"}\n', "b/c.jsonl.gz": gzip.compress(b'{"text": "c"}\n'),
        "b/d.jsonl.zst": packed(LINES[:3]), "e.txt": b"e",
    }  # fmt: skip
    here = tmp_path / "here"
    for name, data in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(data)
        with (
            fsspec.open(f"{place}/there/{name}", "wb", auto_mkdir=True)
            if place.startswith("file")
            else fsspec.open(f"{place}/there/{name}", "wb") as file
        ):
            file.write(data)
    for kind in ("jsonl", "text-tree"):
        for more in ({}, {"include": ["*.gz", "*.txt", "*.jsonl"], "exclude": ["a*"]}):
            if kind == "jsonl" and more:
                more = {"include": ["b/*.gz", "a.jsonl"], "exclude": ["a*"]}
            local, remote = (list(documents(source(kind, path=str(at), **more))) for at in (here, f"{place}/there"))
            assert local == remote
            assert [d.facts for d in local] == [d.facts for d in remote]
            assert len(local) >= 2
    assert list(documents(source("jsonl", path=f"{place}/there/b/c.jsonl.gz"))) == [Document("c", "c.jsonl.gz:1")]


def test_a_stamp_changes_with_its_files_and_not_by_reading(tmp_path):
    fsspec.filesystem("memory").store.clear()
    for at, write in (
        (tmp_path, lambda n, d: (tmp_path / n).write_bytes(d)),
        ("memory://x", lambda n, d: put(f"memory://x/{n}", d)),
    ):
        write("a.jsonl", b'{"text": "a"}\n')
        opened = open_source(source("jsonl", path=str(at)))
        first = opened.stamp()
        assert list(opened.documents())
        assert opened.stamp() == first
        write("a.jsonl", b'{"text": "b"}\n')  # as long as before
        second = opened.stamp()
        write("b.jsonl", b'{"text": "b"}\n')
        assert len({first, second, opened.stamp()}) == 3


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_zstd_in_any_number_of_frames(tmp_path, frames):
    (tmp_path / "a.jsonl.zst").write_bytes(packed(LINES, frames))
    found = list(documents(source("jsonl", path=str(tmp_path))))
    assert [d.text for d in found] == [line["text"] for line in LINES]
    assert found[7].facts == {"language": "en", "url": "https://a/7"}


def test_every_cut_and_every_changed_byte_of_an_archive_is_one_clear_error(tmp_path):
    whole = packed(LINES[:400])
    path = tmp_path / "a.jsonl.zst"
    for place in range(1, len(whole), 41):
        path.write_bytes(whole[:place])
        with pytest.raises(EnvironmentFault, match=r"compressed file is damaged(.*\n)+.*a\.jsonl\.zst"):
            list(documents(source("jsonl", path=str(tmp_path))))
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises((EnvironmentFault, ConfigError)):
            list(documents(source("jsonl", path=str(tmp_path))))


def test_a_line_longer_than_any_document_is_left_out_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_LONGEST_LINE", 2_000)
    lines = [b'{"text": "before"}', b'{"text": "' + b"x" * 5_000_000 + b'"}', b'{"text": "after"}', b"y" * 5_000_000]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    tracemalloc.start()
    found = list(documents(source("jsonl", path=str(tmp_path))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(d.text, d.dropped) for d in found] == [("before", ""), (None, "too_large"), ("after", ""), (None, "too_large")]
    assert peak < 4_000_000


def test_text_larger_than_any_document_is_left_out(tmp_path, monkeypatch):
    from headway.data.sources import text_tree

    monkeypatch.setattr(text_tree, "LARGEST_DOCUMENT_BYTES", 10)
    (tmp_path / "long.txt").write_text("x" * 11)
    (tmp_path / "short.txt").write_text("x" * 10)
    found = {d.origin: d.dropped for d in documents(source("text-tree", path=str(tmp_path)))}
    assert found == {"long.txt": "too_large", "short.txt": ""}


def test_the_walk_is_in_the_order_of_whole_paths(tmp_path):
    names = ["a.b", "a-b/x", "a/b", "a/b.c", "a/b-/y", "a0", "Z", "é/f", "a b/c"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert list(places.walk(tmp_path)) == sorted(names)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere-known://x", "Protocol not known"),
        ("simplecache::memory://x", "chains filesystems"),
        ("memory://bucket/absent", "there is no file at memory://bucket/absent"),
        ("memory://bucket/text", r"no file under memory://bucket/text matches \*\.jsonl"),
    ],
)
def test_a_url_that_cannot_be_read_is_one_clear_error(path, message):
    fsspec.filesystem("memory").store.clear()
    put("memory://bucket/text/a.txt", b"x")
    with pytest.raises(ConfigError, match=message):
        list(documents(source("jsonl", path=path)))


def test_a_filesystem_that_fails_is_one_clear_error(monkeypatch):
    fsspec.filesystem("memory").store.clear()
    put("memory://bucket/a.jsonl", b'{"text": "a"}\n')

    class Refused(Exception):
        """As clients of object storage raise: of no common class."""

    def refuse(*arguments, **options):
        raise Refused("403 Forbidden\nwith a page of HTML")

    for method in ("open", "find"):
        with monkeypatch.context() as patched:
            patched.setattr(type(fsspec.filesystem("memory")), method, refuse)
            with pytest.raises(EnvironmentFault, match=r"cannot read memory://.*: Refused: 403 Forbidden\n") as caught:
                list(documents(source("jsonl", path="memory://bucket")))
            assert "HTML" not in str(caught.value)


@pytest.mark.parametrize(
    ("library", "fields"),
    [
        ("zstandard", {"kind": "jsonl", "path": "a.jsonl.zst"}),
        ("pyarrow.parquet", {"kind": "parquet", "path": "a.parquet"}),
        ("fsspec", {"kind": "jsonl", "path": "memory://x"}),
        ("huggingface_hub", {"kind": "huggingface", "path": "a/b"}),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_the_way_out(tmp_path, monkeypatch, library, fields):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl.zst", "a.parquet"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, library, None)
    name = library.partition(".")[0]
    with pytest.raises(EnvironmentFault, match=rf"needs {name}, which is not installed\n.*\n.*pip install 'headway\[data\]'"):
        list(documents(source(**fields)))
