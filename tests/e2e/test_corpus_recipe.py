"""The larger corpus in miniature: packages as Debian has them, to text, built, trained in three stages and asked about."""

from __future__ import annotations

import gzip
import html
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from test_command_line import headway

from headway.data.manifest import DataManifest
from headway.data.sources import documents
from headway.recipe.load import load_recipe

BENCH = Path(__file__).resolve().parents[2] / "bench"
SMALL = ("tokenizer.vocabulary=512", "data.held_out=600", "data.chunk=512")


@pytest.fixture(scope="module")
def corpus():
    sys.path.append(str(BENCH))
    try:
        import corpus

        yield corpus
    finally:
        sys.path.remove(str(BENCH))


def prose() -> list[str]:
    import pydoc_data.topics

    return [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 500]


def code() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parents[1].glob("[a-d]*.py"))]


def dictd_number(value: int) -> str:
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return (dictd_number(value // 64) if value >= 64 else "") + digits[value % 64]


def write_packages(root: Path) -> None:
    """What dpkg -x makes of some packages, with this Python's own texts in them."""

    def write(relative: str, data: bytes) -> None:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(data)

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        names = [("Documentation", "rst", prose()[:20]), ("kernel", "c", code()), ("drivers", "c", code()[:2])]
        for directory, extension, texts in names:
            for number, text in enumerate(texts):
                member = tarfile.TarInfo(f"linux-source-6.1/{directory}/{number}.{extension}")
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
    write("linux-source-6.1/usr/src/linux-source-6.1.tar.xz", archive.getvalue())
    for language, texts in (("de-DE", prose()[20:40]), ("fr-FR", prose()[40:60])):
        for number, text in enumerate(texts):
            head = "<html><head><title>no</title></head><body><ul class='docnav'>Home</ul>"
            page = f"{head}<pre>{html.escape(text)}</pre></body></html>"
            write(f"debian-handbook/usr/share/doc/debian-handbook/html/{language}/{number}.html", page.encode())
    for number, text in enumerate(prose()[:25]):
        lines = "\n".join(line for line in text.upper().split("\n") if not line.startswith((".", "'")))
        page = f'.\\" a comment\n.TH PAGE{number} 7\n.SH N\n\\fBbold\\fP \\- x\n.so_\n{lines.replace(chr(92), "")}'
        write(f"manpages-de/usr/share/man/de/man7/p{number}.7.gz", gzip.compress(page.encode()))
    write("manpages-de/usr/share/man/de/man7/alias.7.gz", gzip.compress(b".so man7/p0.7\n"))
    entries = [text[:700].encode() for text in prose()]
    starts = [sum(map(len, entries[:number])) for number in range(len(entries))]
    index = "".join(f"w{n}\t{dictd_number(start)}\t{dictd_number(len(e))}\n" for n, (start, e) in enumerate(zip(starts, entries)))
    write("dict-gcide/usr/share/dictd/gcide.index", index.encode())
    write("dict-gcide/usr/share/dictd/gcide.dict.dz", gzip.compress(b"".join(entries)))
    fortunes = "\n%\n".join(line for text in code() for line in text.split("\n\n") if 80 < len(line) < 600)
    write("fortunes/usr/share/games/fortunes/cookie", fortunes.encode())


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    write_packages(root / "packages")

    def unpacked(name: str, directory: Path):
        found = directory / name
        return corpus.Package(name, "1.0", "https://example.org", "2026-01-02", "", found) if found.exists() else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "fetched", unpacked)
        told = corpus.build(root, list(corpus.ORIGINS))
    assert "rust-doc" in told["absent"]
    assert set(told["sources"]) == {"linux", "linux-docs", "gcide", "fortunes", "handbook", "manuals"}
    small = corpus.recipe(told, (12_288, 8_192, 8_192)).replace("batch = 8192", "batch = 2048").replace('"65536"', '"2048"')
    (root / "corpus.toml").write_text(small)
    return root


def test_text_comes_out_of_packages_with_its_facts(made, monkeypatch):
    monkeypatch.chdir(made)
    sources = {source.name: list(documents(source)) for source in load_recipe("corpus.toml", []).recipe.data.sources}
    assert next(document.text for document in sources["linux-docs"]) in prose()
    assert not any("drivers" in document.origin for document in sources["linux"])
    handbook = sources["handbook"]
    assert {document.facts["language"] for document in handbook} == {"de", "fr"}
    assert {document.facts["licence"] for document in handbook} == {"GPL-2+ or CC-BY-SA-3.0"}
    assert handbook[0].facts["time"] == "2026-01-02"
    assert "Home" not in handbook[0].text.split("\n")[0]
    assert {"".join(document.text.split()) for document in handbook} == {"".join(text.split()) for text in prose()[20:60]}
    assert handbook[0].text.count("\n   ") == prose()[20].count("\n   ")  # what is indented stays so
    assert len(sources["manuals"]) == 25  # the alias is none
    assert sources["manuals"][0].text.startswith("PAGE0(7)\n\nN\n\nbold - x\n")
    assert "".join(document.text for document in sources["gcide"]) == "".join(text[:700] for text in prose())


@pytest.mark.e2e
def test_the_recipe_is_built_by_one_command_trained_in_three_stages_and_answers(made):
    overrides = [part for override in SMALL for part in ("--set", override)]
    headway("data", "build", "corpus.toml", "--out", "data", *overrides, cwd=made)
    manifest = DataManifest.load(made / "data")
    assert {source.licence for source in manifest.sources} == {
        "GPL-2",
        "GPL-2+",
        "GPL-3+",
        "BSD-3-clause",
        "GPL-2+ or CC-BY-SA-3.0",
    }
    headway("run", "corpus.toml", "--data", "data", "--run", "run", *overrides, "--set", "deployment.threads=1", cwd=made)
    status = json.loads(headway("status", "run", "--json", cwd=made).stdout)
    assert status["state"] == "complete"
    shown = json.loads(headway("data", "show", "run", "9", "--json", cwd=made).stdout)
    assert shown["kind"] == "data_sequences"
    headway("data", "verify", "data", cwd=made)
    headway("data", "audit", "data", cwd=made)
    headway("data", "diff", "data", "data", cwd=made)
    found = json.loads(headway("data", "inventory", "data", "corpus.toml", *overrides, "--json", cwd=made).stdout)
    assert all(source["passes"]["epochs"] <= 4 for source in found["sources"])
    assert all(source["without_reason"] == 0 for source in found["sources"])
    assert sum(source["passes"]["target_tokens"] for source in found["sources"]) == 12_288 + 8_192 + 8_192
