"""Data sets of the hub: files at one commit, one clear error where it is out of reach, and nothing of them executed."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources import documents, huggingface, open_source
from headway.data.sources.huggingface import Snapshot
from headway.recipe.schema import Source

library = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def source(**fields) -> Source:
    return Source.model_validate({"name": "s", "kind": "huggingface", "path": "owner/name", **fields})


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


FILES = {
    "README.md": b"# a card",
    "name.py": b"raise SystemExit('a script of the repository was run')",
    "data/train-0.jsonl": lines("one", "two"),
    "data/train-1.jsonl": lines("three"),
    "data/test-0.jsonl": lines("four"),
}


class FakeHub:
    """A hub with one repository; what was opened is remembered."""

    opened: list[str]

    def __init__(self) -> None:
        type(self).opened = []

    def snapshot(self, repository, revision):
        assert (repository, revision) == ("owner/name", None)
        return Snapshot(COMMIT, {name: str(len(data)) for name, data in FILES.items()})

    def open(self, repository, commit, name):
        assert (repository, commit) == ("owner/name", COMMIT)
        self.opened.append(name)
        return io.BytesIO(FILES[name])


def test_the_files_of_one_commit_are_read_and_scripts_are_not(monkeypatch):
    monkeypatch.setattr(huggingface, "LibraryHub", FakeHub)
    opened = open_source(source())
    assert opened.where == f"hf://datasets/owner/name@{COMMIT}"
    assert [d.text for d in opened.documents()] == ["four", "one", "two", "three"]
    assert set(FakeHub.opened) == {name for name in FILES if name.endswith(".jsonl")}
    found = list(documents(source(include=["data/*"], exclude=["*test*"])))
    assert [(d.text, d.dropped) for d in found] == [(None, "excluded"), ("one", ""), ("two", ""), ("three", "")]


def test_parquet_of_a_data_set(monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    parquet.write_table(pyarrow.table({"content": ["a", "b"]}), written)
    monkeypatch.setitem(FILES, "c.parquet", written.getvalue())
    monkeypatch.setattr(huggingface, "LibraryHub", FakeHub)
    assert [d.text for d in documents(source(include=["*.parquet"], field="content"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("include", "message"),
    [(["*.py"], "name.py is neither JSONL nor Parquet"), (["none*"], "no file under owner/name matches none")],
)
def test_files_that_are_not_read_are_refused(monkeypatch, include, message):
    monkeypatch.setattr(huggingface, "LibraryHub", FakeHub)
    with pytest.raises(ConfigError, match=message):
        list(documents(source(include=include)))


def answering(monkeypatch, answer) -> None:
    """huggingface_hub's own client, answered from here."""

    class Api:
        dataset_info = staticmethod(answer)

    class Files:
        def open(self, path, mode):
            repository, _, name = path.removeprefix("datasets/").partition("@")
            commit, _, name = name.partition("/")
            assert (repository, commit, mode) == ("owner/name", COMMIT, "rb")
            return io.BytesIO(FILES[name])

    monkeypatch.setattr(library, "HfApi", Api)
    monkeypatch.setattr(library, "HfFileSystem", Files)


def test_the_library_is_asked_for_a_commit_and_its_files(monkeypatch):
    asked = []

    def answer(repository, **options):
        asked.append((repository, options["revision"], options["files_metadata"]))
        lfs = SimpleNamespace(sha256="of the large file")
        siblings = [SimpleNamespace(rfilename=n, blob_id=f"blob {n}", lfs=lfs if "train" in n else None) for n in FILES]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    answering(monkeypatch, answer)
    opened = open_source(source(revision="v1"))
    assert [d.text for d in opened.documents()] == ["four", "one", "two", "three"]
    assert [file.stamp[1] for file in opened.files()] == ["blob data/test-0.jsonl", *["of the large file"] * 2]
    assert asked == [("owner/name", "v1", True)]


def refusal(name: str) -> Exception:
    import httpx2

    request = httpx2.Request("GET", "https://hub")
    return getattr(library.errors, name)("nothing here", response=httpx2.Response(404, request=request))


def raising(error):
    def answer(*arguments, **options):
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [ConnectionError("no route to host\nmore"), TimeoutError("timed out"), ValueError("odd answer")]
)
def test_an_unreachable_hub_is_one_clear_error(monkeypatch, error):
    answering(monkeypatch, raising(error))
    with pytest.raises(
        EnvironmentFault, match=r"the Hugging Face hub cannot be reached: \w+: .*\n.*owner/name.*\n.*HF_ENDPOINT"
    ) as caught:
        list(documents(source()))
    assert "more" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("GatedRepoError", EnvironmentFault, "owner/name is gated.*\n.*\n.*hf auth login"),
        ("RevisionNotFoundError", ConfigError, "no revision 'v9'"),
        ("RepositoryNotFoundError", ConfigError, "the hub has no data set 'owner/name'"),
    ],
)
def test_what_the_hub_refuses_has_its_own_way_out(monkeypatch, name, kind, message):
    answering(monkeypatch, raising(refusal(name)))
    with pytest.raises(kind, match=message):
        list(documents(source(revision="v9")))


def test_a_name_that_is_none_is_refused_without_asking():
    with pytest.raises(ConfigError, match="the hub has no data set"):
        list(documents(source(path="not a name!")))
