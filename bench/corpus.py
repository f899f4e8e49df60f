"""The larger offline corpus: text of Debian packages, with its facts, and a recipe over it.

    python bench/corpus.py DIR [--only NAME ...]
    cd DIR && headway data build corpus.toml && headway run corpus.toml

    DIR/packages/            the packages as they were fetched (apt-get download) and unpacked (dpkg -x): never installed
        text/linux/          a tree of C          text/rust.jsonl.zst   a document a line: text and facts
        corpus.json          what was fetched, what came out of it, and what was not to be had
        corpus.toml          the recipe: as many sources as there are, three stages with a mixture of their own

DIR lies outside the repository. A package that cannot be fetched is named and left out. About 240 MB are fetched.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import zstandard

from corpus_text import fortunes_of, licence_of, pages_of_dictionary, text_of_html, text_of_manual

MANUALS = ("de", "fr", "es", "it", "pl", "pt-br", "ru", "nl", "ja")
Found = tuple[str, str, str]
"""path, text, language"""


@dataclass(frozen=True)
class Origin:
    """One source of the corpus. ``licence``: where debian/copyright does not say it for machines."""

    packages: tuple[str, ...]
    kind: str
    licence: str
    weights: tuple[float, float, float]  # in the mixtures of the three stages
    read: Callable[[str, Path], Iterator[Found]] | None = None  # None: a tree that is unpacked as it is
    parts: tuple[str, ...] = ()  # of the tree


# --- what is in the packages --------------------------------------------------------------------------------------------


def html_page(task: tuple[str, str, str]) -> Found:
    path, relative, language = task
    return relative, text_of_html(Path(path).read_text(encoding="utf-8", errors="replace")), language


def html_pages(tasks: list[tuple[str, str, str]]) -> Iterator[Found]:
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(html_page, tasks, chunksize=32)


def rust(package: str, root: Path) -> Iterator[Found]:
    """Books and the library's pages; not the sources, and not the pages per processor, which are tables."""
    html = root / "usr/share/doc/rust-doc/html"
    parts = (
        "book",
        "rust-by-example",
        "reference",
        "nomicon",
        "rustc",
        "embedded-book",
        "edition-guide",
        "rustdoc",
        "std",
        "alloc",
    )
    found = [p for part in parts for p in sorted((html / part).rglob("*.html")) if p.name not in ("print.html", "all.html")]
    yield from html_pages(
        [(str(p), str(p.relative_to(html)), "en") for p in found if "arch" not in p.relative_to(html).parts[:2]]
    )


def handbook(package: str, root: Path) -> Iterator[Found]:
    html = root / "usr/share/doc/debian-handbook/html"
    pages = sorted(html.glob("??-??/*.html"))
    yield from html_pages([(str(p), str(p.relative_to(html)), p.parent.name[:2]) for p in pages])


def python(package: str, root: Path) -> Iterator[Found]:
    sources = root / "usr/share/doc/python3.11/html/_sources"
    for path in sorted(sources.rglob("*.txt")):
        yield str(path.relative_to(sources)), path.read_text(encoding="utf-8", errors="replace"), "en"


def perl(package: str, root: Path) -> Iterator[Found]:
    for path in sorted((root / "usr/share/perl").rglob("*.pod")):
        yield path.name, path.read_text(encoding="utf-8", errors="replace"), "en"


def manual(package: str, root: Path) -> Iterator[Found]:
    language = package.removeprefix("manpages-")[:2]
    for path in sorted((root / "usr/share/man").rglob("*.gz")):
        text = text_of_manual(gzip.decompress(path.read_bytes()).decode("utf-8", "replace")) if path.is_file() else None
        if text:
            yield str(path.relative_to(root / "usr/share/man").with_suffix("")), text, language


def dictionary(package: str, root: Path) -> Iterator[Found]:
    index, text = root / "usr/share/dictd/gcide.index", gzip.decompress((root / "usr/share/dictd/gcide.dict.dz").read_bytes())
    for word, page in pages_of_dictionary(index.read_text(encoding="utf-8"), text):
        yield word, page, "en"


def fortunes(package: str, root: Path) -> Iterator[Found]:
    for path in sorted((root / "usr/share/games/fortunes").iterdir()):
        if path.is_file() and not path.suffix:
            for number, text in enumerate(fortunes_of(path.read_text(encoding="utf-8", errors="replace"))):
                yield f"{path.name}/{number}", text, "en"


KERNEL = (
    "arch/arm64",
    "arch/x86",
    "block",
    "crypto",
    "fs",
    "include",
    "init",
    "ipc",
    "kernel",
    "lib",
    "mm",
    "net",
    "security",
    "sound",
)

ORIGINS = {
    "linux": Origin(("linux-source-6.1",), "code-tree", "GPL-2", (0.45, 0.35, 0.2), parts=KERNEL),
    "linux-docs": Origin(("linux-source-6.1",), "text-tree", "GPL-2", (0.08, 0.1, 0.1), parts=("Documentation",)),
    "rust": Origin(("rust-doc",), "jsonl", "MIT or Apache-2.0", (0.15, 0.15, 0.15), rust),
    "python": Origin(("python3.11-doc",), "jsonl", "PSF-2.0", (0.05, 0.08, 0.1), python),
    "perl": Origin(("perl-doc",), "jsonl", "GPL-1+ or Artistic", (0.04, 0.05, 0.05), perl),
    "gcide": Origin(("dict-gcide",), "jsonl", "GPL-2+", (0.08, 0.07, 0.1), dictionary),
    "fortunes": Origin(("fortunes",), "jsonl", "BSD-3-clause", (0.01, 0.01, 0.02), fortunes),
    "handbook": Origin(("debian-handbook",), "jsonl", "GPL-2+ or CC-BY-SA-3.0", (0.08, 0.11, 0.16), handbook),
    "manuals": Origin(tuple(f"manpages-{tag}" for tag in MANUALS), "jsonl", "GPL-3+", (0.06, 0.08, 0.12), manual),
}


# --- fetching -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    url: str
    time: str  # of its last change, ISO 8601
    licence: str
    root: Path


def fetched(name: str, directory: Path) -> Package | None:
    """The package, unpacked; None, and a line that says so, where it cannot be had."""
    root = directory / name
    debs = sorted(directory.glob(f"{name}_*.deb"))
    if not debs:
        print(f"fetching {name} ...", file=sys.stderr, flush=True)
        done = subprocess.run(["apt-get", "download", "-q", name], cwd=directory, capture_output=True, text=True, check=False)
        debs = sorted(directory.glob(f"{name}_*.deb"))
        if not debs:
            print(f"{name} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
    if not root.exists():
        subprocess.run(["dpkg", "-x", str(debs[-1]), str(root)], check=True)
    fields = subprocess.run(["dpkg-deb", "-f", str(debs[-1]), "Version", "Homepage"], capture_output=True, text=True, check=True)
    known = dict(line.split(": ", 1) for line in fields.stdout.splitlines() if ": " in line)
    documents = root / "usr/share/doc" / name
    licence = documents / "copyright"
    return Package(
        name,
        known["Version"],
        known.get("Homepage", ""),
        changed_at(documents),
        licence_of(licence.read_text(encoding="utf-8", errors="replace")) if licence.is_file() else "",
        root,
    )


def changed_at(documents: Path) -> str:
    for name in ("changelog.Debian.gz", "changelog.gz"):
        if (documents / name).is_file():
            for line in gzip.decompress((documents / name).read_bytes()).decode("utf-8", "replace").splitlines():
                if line.startswith(" -- "):
                    return parsedate_to_datetime(line.rpartition(">")[2].strip()).date().isoformat()
    return ""


# --- writing ------------------------------------------------------------------------------------------------------------


def write_documents(origin: Origin, packages: list[Package], file: Path) -> dict[str, int]:
    count = size = 0
    partial = file.with_suffix(".partial")
    with open(partial, "wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as packed:
        lines = io.TextIOWrapper(packed, encoding="utf-8", write_through=True)
        for package in packages:
            facts = {"licence": package.licence or origin.licence, "url": package.url, "time": package.time}
            assert origin.read is not None
            for path, text, language in origin.read(package.name, package.root):
                document = {"text": text, "path": f"{package.name}/{path}", "language": language} | facts
                lines.write(json.dumps(document, ensure_ascii=False) + "\n")
                count, size = count + 1, size + len(text.encode())
        lines.flush()
    partial.rename(file)
    return {"documents": count, "bytes": size}


def unpack_tree(origin: Origin, package: Package, root: Path) -> dict[str, int]:
    """The regular files of some directories of the package's tar file: C and its headers, or what is written about it."""
    count = size = 0
    wanted = (".rst",) if origin.kind == "text-tree" else (".c", ".h")
    (archive,) = (package.root / "usr/src").glob("*.tar.xz")
    with tarfile.open(archive) as tar:
        for member in tar:
            relative = member.name.partition("/")[2]
            if member.isfile() and relative.endswith(wanted) and relative.startswith(tuple(f"{part}/" for part in origin.parts)):
                path = root / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                data = tar.extractfile(member)
                assert data is not None
                assert ".." not in Path(relative).parts
                path.write_bytes(data.read())
                count, size = count + 1, size + member.size
    return {"documents": count, "bytes": size}


def build(directory: Path, names: list[str]) -> dict[str, Any]:
    """Everything that can be had, in ``directory``. What is there is kept."""
    (directory / "packages").mkdir(parents=True, exist_ok=True)
    (directory / "text").mkdir(exist_ok=True)
    sources: dict[str, Any] = {}
    absent: list[str] = []
    before = json.loads((directory / "corpus.json").read_text())["sources"] if (directory / "corpus.json").exists() else {}
    for name in names:
        origin = ORIGINS[name]
        found = {package: fetched(package, directory / "packages") for package in origin.packages}
        absent += [package for package, known in found.items() if known is None]
        packages = [known for known in found.values() if known]
        if not packages:
            continue
        path = f"text/{name}" if origin.read is None else f"text/{name}.jsonl.zst"
        counts = before.get(name, {}).get("read")
        if counts is None or not (directory / path).exists():
            print(f"reading {name} ...", file=sys.stderr, flush=True)
            if origin.read is None:
                counts = unpack_tree(origin, packages[0], directory / path)
            else:
                counts = write_documents(origin, packages, directory / path)
        sources[name] = {
            "path": path,
            "kind": origin.kind,
            "licence": packages[0].licence or origin.licence,
            "packages": {package.name: package.version for package in packages},
            "time": max(package.time for package in packages),
            "read": counts,
        }
    corpus = {
        "kind": "corpus",
        "sources": sources,
        "absent": sorted(set(absent)),
        "bytes": sum(s["read"]["bytes"] for s in sources.values()),
    }
    (directory / "corpus.json").write_text(json.dumps(corpus, indent=1) + "\n")
    (directory / "corpus.toml").write_text(recipe(corpus))
    return corpus


# --- the recipe ---------------------------------------------------------------------------------------------------------


def recipe(corpus: dict[str, Any], tokens: tuple[int, int, int] = (524_288, 262_144, 131_072)) -> str:
    """Sources that are there, and three stages: broad, more documentation, and a short last one on what reads best."""
    head = Path(__file__).with_name("corpus.head.toml").read_text(encoding="utf-8")
    lines = [head]
    for name, source in corpus["sources"].items():
        packages = ", ".join(f"{package} {version}" for package, version in source["packages"].items())
        lines += [
            "[[data.sources]]",
            f'name = "{name}"',
            f'kind = "{source["kind"]}"',
            f'path = "{source["path"]}"',
            f'licence = "{source["licence"]}"',
            f'provenance = "Debian packages {packages}, of {source["time"]}"',
            "cap_epochs = 4.0",
            "",
        ]
    rates = ('{ warmup = "65536", shape = "constant" }', '{ shape = "constant" }', '{ shape = "linear", end = 0.1 }')
    for at, (stage, length) in enumerate((("broad", 256), ("documents", 512), ("anneal", 512))):
        weights = ", ".join(f"{name} = {ORIGINS[name].weights[at]}" for name in corpus["sources"])
        lines += [
            "[[stages]]",
            f'name = "{stage}"',
            f"tokens = {tokens[at]}",
            f"sequence = {length}",
            "batch = 8192",
            f"rate = {rates[at]}",
            f"mixture = {{ {weights} }}",
            "",
        ]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="outside the repository")
    parser.add_argument("--only", nargs="+", choices=list(ORIGINS), help="these sources; default: all")
    asked = parser.parse_args(arguments)
    directory = asked.directory.absolute()
    if Path(__file__).resolve().parents[1] in (directory, *directory.parents):
        raise SystemExit(f"{directory} lies in the repository: the corpus does not belong there")
    corpus = build(directory, asked.only or list(ORIGINS))
    print(json.dumps(corpus, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
