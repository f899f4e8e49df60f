"""Documents from every kind of source, and one clear error for what cannot be read."""

from __future__ import annotations

import gzip
import json
import os
import socket
from types import SimpleNamespace

import pytest

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data import sources
from headway.data.sources import Document, documents, places, python_library
from headway.recipe.schema import Source


def source(kind: str, **fields) -> Source:
    return Source.model_validate({"name": "s", "kind": kind, **fields})


def test_the_table_has_the_kinds_of_the_schema():
    assert set(sources.KINDS) == set(Source.model_fields["kind"].annotation.__args__)


def test_python_stdlib():
    found = list(documents(source("python-stdlib")))
    origins = [d.origin for d in found]
    assert origins == sorted(origins)
    assert len(found) > 300
    assert "stdlib/json/__init__.py" in origins
    assert not [
        o for o in origins if "/test/" in o or "/tests/" in o or "site-packages" in o or "idle_test" in o or "pydoc_data" in o
    ]
    assert not [o for o in origins if "_sysconfigdata" in o]  # holds paths of this machine
    assert found == list(documents(source("python-stdlib")))


def test_python_source_in_its_declared_encoding(tmp_path, monkeypatch):
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    (tmp_path / "utf.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    (tmp_path / "wrong.py").write_bytes(b"x = '\xff\xfe'\n")
    (tmp_path / "unknown.py").write_bytes(b"# coding: no-such\n")
    monkeypatch.setattr(python_library.sysconfig, "get_path", lambda name: str(tmp_path))
    assert list(documents(source("python-stdlib"))) == [
        Document("# -*- coding: latin-1 -*-\nx = 'é'\n", "stdlib/latin.py"),
        Document(None, "stdlib/unknown.py", "undecodable"),
        Document("x = 1\n", "stdlib/utf.py"),
        Document(None, "stdlib/wrong.py", "undecodable"),
    ]


def test_pydoc_topics():
    found = list(documents(source("pydoc-topics")))
    assert len(found) > 50
    assert all(isinstance(d.text, str) and d.text for d in found)
    assert [d.origin for d in found] == sorted(d.origin for d in found)


def test_pydoc_topics_in_another_module_or_nowhere(monkeypatch):
    modules = {
        "pydoc_data": SimpleNamespace(__path__=[]),
        "pydoc_data.elsewhere": SimpleNamespace(topics={"if": "The if statement"}),
    }
    monkeypatch.setattr(python_library.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(python_library.pkgutil, "iter_modules", lambda path: [SimpleNamespace(name="elsewhere")])
    assert list(documents(source("pydoc-topics"))) == [Document("The if statement", "pydoc/if")]
    monkeypatch.setattr(python_library.pkgutil, "iter_modules", lambda path: [])
    with pytest.raises(EnvironmentFault, match="no help topics"):
        list(documents(source("pydoc-topics")))


def test_text_tree(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "deep.md").write_text("deep")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "top.md").write_text("top")
    (tmp_path / "bytes.md").write_bytes(b"\xff\xff")
    everything = [d.origin for d in documents(source("text-tree", path=str(tmp_path)))]
    assert everything == ["a.txt", "b/deep.md", "bytes.md", "top.md"]
    for pattern in ("*.md", "**/*.md"):
        found = list(documents(source("text-tree", path=str(tmp_path), include=[pattern])))
        assert found == [Document("deep", "b/deep.md"), Document(None, "bytes.md", "undecodable"), Document("top", "top.md")]
    assert [d.text for d in documents(source("text-tree", path=str(tmp_path / "a.txt")))] == ["a"]


def test_jsonl_plain_and_compressed(tmp_path):
    lines = [json.dumps({"text": f"line {n}", "body": f"body {n}"}) for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(lines[0] + "\n")
    found = list(documents(source("jsonl", path=str(tmp_path))))
    assert [d.text for d in found] == ["line 0", "line 1", "line 2", "line 0"]
    assert found[2].origin == "a.jsonl:3"
    one = list(documents(source("jsonl", path=str(tmp_path / "b.jsonl.gz"), field="body")))
    assert one == [Document("body 0", "b.jsonl.gz:1")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{torn", "not JSON"),
        ('{"body": "x"}', "no text in field 'text'"),
        ('{"text": 3}', "no text in field"),
        ("[1]", "no text in field"),
        ("[" * 100_000, "nested too deep"),
        ('{"n": ' + "9" * 5_000 + "}", "not JSON"),
        ('{"\\ud800": 1}', r"the line holds: \\ud800"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        list(documents(source("jsonl", path=str(tmp_path))))
    assert caught.value.problems[0].where.endswith("a.jsonl:2")


def test_a_truncated_archive_is_named(tmp_path):
    whole = gzip.compress(b'{"text": "x"}\n' * 1_000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(EnvironmentFault, match=r"compressed file is damaged.*\n.*a\.jsonl\.gz"):
        list(documents(source("jsonl", path=str(tmp_path))))


def test_archives_with_changed_bytes_are_one_clear_error_wherever_they_changed(tmp_path):
    lines = "".join(json.dumps({"text": f"line {n * n}"}) + "\n" for n in range(200))
    whole = gzip.compress(lines.encode(), mtime=0)
    refused = 0
    for place in [*range(0, 60), *range(60, len(whole), 37), len(whole) - 5, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "a.jsonl.gz").write_bytes(damaged)
        try:
            list(documents(source("jsonl", path=str(tmp_path))))
        except (EnvironmentFault, ConfigError):  # the header's own name and time do not count
            refused += 1
    assert refused > 60


def test_only_regular_files_are_read_and_the_others_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path has at most 107 bytes
        try:
            listener.bind("socket.jsonl")
        finally:
            os.chdir(here)
        for kind in ("jsonl", "text-tree"):
            found = list(documents(source(kind, path=str(tmp_path))))
            left_out = [(d.origin, d.dropped) for d in found if d.text is None]
            assert left_out == [(f"{n}.jsonl", "not_a_regular_file") for n in ("pipe", "socket", "zero")]
            assert len(found) == 5


def test_python_source_with_an_encoding_that_is_none(tmp_path, monkeypatch):
    for name in ("idna", "undefined", "hex", "punycode"):
        (tmp_path / f"{name}.py").write_bytes(f"# coding: {name}\nx..y = '\u00e9'\n".encode())
    monkeypatch.setattr(python_library.sysconfig, "get_path", lambda name: str(tmp_path))
    assert {d.dropped for d in documents(source("python-stdlib")) if d.origin != "stdlib/punycode.py"} == {"undecodable"}


def test_the_home_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="home directory"):
        list(documents(source("text-tree", path="~no-such-user-here/x")))


def test_missing_empty_and_unreadable_sources_are_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(ConfigError) as caught:
            list(documents(source("text-tree", path=path)))
        (problem,) = caught.value.problems
        assert problem.seen == f"source s: its path does not exist: {tmp_path / 'nowhere'}"
        assert problem.rule == f"a relative path is relative to the working directory, here {tmp_path}"
    with pytest.raises(ConfigError, match=r"source s is empty: no file under .* matches \*\.rst"):
        list(documents(source("text-tree", path=str(tmp_path), include=["*.rst"])))
    with pytest.raises(ConfigError, match="needs a path"):
        list(documents(source("text-tree")))
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("a")

    def denied(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    scandir = places.os.scandir
    monkeypatch.setattr(places.os, "scandir", denied)
    with pytest.raises(EnvironmentFault, match=r"cannot read source directory: Permission denied\n.*closed"):
        list(documents(source("text-tree", path=str(tmp_path))))
