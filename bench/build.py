"""How the build grows: deduplication and the whole build at 1x, 4x and 16x of one sample of the larger corpus. Prints JSON.

    python bench/build.py [--corpus DIR] [--bytes 160000000]

DIR is where bench/corpus.py put the corpus (HEADWAY_CORPUS, or headway-corpus in the user's cache); it is fetched if it is not
there, and Python's standard library stands in where nothing can be fetched. Samples are nested: the documents of 4x hold those
of 1x, and none is there twice. Every measurement is a process of its own. Time is the processor's, of all processes, so that
others on the machine count less; linear is a time per byte that does not grow, and a marginal time per byte (from 4x to 16x over
that from 1x to 4x) near 1. Deduplication is measured step by step and as a whole, the whole build by what it was doing; of 10 MB
at 1x, so that every size is tokenised by the encoder that large builds use.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xxhash

import corpus
from headway.data.build import build_data
from headway.data.prepare.pipeline import Preparation
from headway.data.sources import documents
from headway.recipe.schema import Recipe

TIMES = (1, 4, 16)
REPEATS = {1: 3, 4: 1, 16: 1}
"""Measurements of each size; their median counts. What takes a second is noise where others use the machine."""
DEDUPLICATION = ("duplicates", "near_duplicates", "lines")
PHASES = {"documents": "documents", "tokenizer": "tokenizer", "written": "tokenising"}
"""What a build tells at the end of each -> what it was doing until then: reading and preparing, training, tokenising."""
VOCABULARY = 8_192


def recipe_over(sources: list[dict[str, Any]], prepare: dict[str, Any]) -> Recipe:
    names = [source["name"] for source in sources]
    stage = {"name": "main", "tokens": 8_192, "sequence": 64, "batch": 4_096, "mixture": dict.fromkeys(names, 1.0)}
    return Recipe.model_validate(
        {
            "kind": "recipe",
            "name": "build",
            "tokenizer": {"vocabulary": VOCABULARY},
            "model": {"layers": 1, "width": 64, "heads": 1},
            "data": {"held_out": 10_000, "sources": sources, "prepare": prepare},
            "stages": [stage],
            "optimizer": {"peak_rate": 1e-3},
            "evaluation": {"every": 8_192},
        }
    )


def steps() -> dict[str, Any]:
    """Those of the corpus's own recipe."""
    head = Path(__file__).with_name("corpus.head.toml").read_text(encoding="utf-8")
    return tomllib.loads(head)["data"]["prepare"]


# --- samples ------------------------------------------------------------------------------------------------------------


def default_corpus() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HEADWAY_CORPUS") or cache / "headway-corpus")


def sources_of(directory: Path) -> list[dict[str, Any]]:
    """Of the corpus; of the standard library where there is none."""
    known = directory / "corpus.json"
    found = json.loads(known.read_text()) if known.exists() else corpus.build(directory, list(corpus.ORIGINS))
    sources = [
        {"name": name, "kind": source["kind"], "path": str(directory / source["path"])}
        for name, source in found["sources"].items()
    ]
    if sources:
        return sources
    print("the corpus cannot be fetched: Python's standard library stands in", file=sys.stderr)
    return [{"name": "code", "kind": "python-stdlib"}, {"name": "prose", "kind": "pydoc-topics"}]


def write_samples(sources: list[dict[str, Any]], wanted: int, directory: Path) -> dict[int, Path]:
    """A JSONL file per size. A document's digest says from which size on it is in a sample."""
    read = list(recipe_over(sources, {}).data.sources)
    total = sum(len((document.text or "").encode("utf-8", "replace")) for source in read for document in documents(source))
    share = min(1.0, wanted / total)
    paths = {times: directory / f"{times}x.jsonl" for times in TIMES}
    files = {times: open(path, "w", encoding="utf-8") for times, path in paths.items()}  # noqa: SIM115
    for source in read:
        for document in documents(source):
            place = xxhash.xxh3_64_intdigest(f"{source.name}/{document.origin}".encode()) / 2**64 / share
            for times, file in files.items():
                if document.text and place * max(TIMES) < times:
                    file.write(json.dumps({"text": document.text}) + "\n")
    for file in files.values():
        file.close()
    return paths


# --- one measurement ----------------------------------------------------------------------------------------------------


class Peak:
    """Most memory of this process that belongs to no file, in bytes, looked at ten times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)
            time.sleep(0.1)


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def deduplicate(path: Path, work: Path, names: Sequence[str] = DEDUPLICATION) -> None:
    every = steps()
    recipe = recipe_over([{"name": "sample", "kind": "jsonl", "path": str(path)}], {name: every[name] for name in names})
    preparation = Preparation(recipe.data, work, documents, lambda what, facts: None, workers=1)
    for _ in preparation.documents(recipe.data.sources[0]):
        pass
    preparation.close()


def build(path: Path, work: Path) -> dict[str, float]:
    """Bytes that were kept, and seconds of the build's own process and those that have ended, by what it was doing."""
    seconds, last = dict.fromkeys(PHASES.values(), 0.0), processor_seconds()

    def tell(what: str, facts: dict[str, Any]) -> None:
        nonlocal last
        if what in PHASES:
            now = processor_seconds()
            seconds[PHASES[what]], last = round(now - last, 2), now

    manifest = build_data(recipe_over([{"name": "sample", "kind": "jsonl", "path": str(path)}], steps()), work / "data", tell)
    kept = sum(source.bytes + (source.held_out.bytes if source.held_out else 0) for source in manifest.sources)
    return {"kept_bytes": kept} | {f"{doing}_processor_s": spent for doing, spent in seconds.items()}


WHAT: dict[str, Callable[[Path, Path], dict[str, float] | None]] = {
    "deduplication": deduplicate,
    **{name: functools.partial(deduplicate, names=(name,)) for name in DEDUPLICATION},
    "whole_build": build,
}


def one(what: str, path: Path) -> dict[str, Any]:
    """In this process."""
    peak = Peak()
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        before, started = processor_seconds(), time.perf_counter()
        phases = WHAT[what](path, Path(directory)) or {}
        wall = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "processor_s": round(processor_seconds() - before, 2),
        "wall_s": round(wall, 2),
        "peak_anonymous_mb": round(peak.bytes / 1e6, 1),
        "peak_resident_mb": round(used.ru_maxrss / 1e3, 1),
        **phases,
    }


def measured(what: str, paths: dict[int, Path]) -> dict[str, Any]:
    rows = []
    for times, path in paths.items():
        command = [sys.executable, __file__, "--one", what, str(path)]
        runs = [
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            for _ in range(REPEATS[times])
        ]
        found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        size = sum(len(json.loads(line)["text"].encode("utf-8", "replace")) for line in path.open(encoding="utf-8"))
        rows.append(
            {"name": f"{times}x", "bytes": size, **found, "mb_per_processor_s": round(size / 1e6 / found["processor_s"], 3)}
        )
    small, middle, large = rows
    doing = {
        name: over(per_byte(large, name), per_byte(small, name)) for name in PHASES.values() if f"{name}_processor_s" in small
    }
    return {
        "sizes": rows,
        "time_per_byte_16x_over_1x": over(per_byte(large), per_byte(small)),
        "marginal_time_per_byte_16x_over_4x": over(marginal(middle, large), marginal(small, middle)),
        **{f"{name}_time_per_byte_16x_over_1x": ratio for name, ratio in doing.items()},
        "peak_anonymous_memory_16x_over_1x": over(large["peak_anonymous_mb"], small["peak_anonymous_mb"]),
    }


def over(large: float, small: float) -> float:
    return round(large / small, 3)


def per_byte(row: dict[str, float], doing: str = "") -> float:
    """Of what was read. ``doing``: of that alone; what comes after the preparation, by the bytes that it kept."""
    if not doing:
        return row["processor_s"] / row["bytes"]
    return row[f"{doing}_processor_s"] / row["bytes" if doing == "documents" else "kept_bytes"]


def marginal(small: dict[str, float], large: dict[str, float]) -> float:
    return max(1e-9, large["processor_s"] - small["processor_s"]) / (large["bytes"] - small["bytes"])


def figures(directory: Path, wanted: int) -> dict[str, Any]:
    sources = sources_of(directory)
    with tempfile.TemporaryDirectory() as work:
        paths = write_samples(sources, wanted, Path(work))
        return {"bench": "build", "sources": [source["name"] for source in sources]} | {
            what: measured(what, paths) for what in WHAT
        }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=None, help="where bench/corpus.py put it")
    parser.add_argument("--bytes", type=int, default=160_000_000, help="of the largest sample")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "JSONL"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(one(asked.one[0], Path(asked.one[1]))))
    else:
        print(json.dumps(figures(asked.corpus or default_corpus(), asked.bytes), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
