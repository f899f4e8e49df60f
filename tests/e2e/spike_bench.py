"""Runs that meet poisoned batches: data as it was built, but for windows of random tokens where chosen steps read them."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import xxhash
from conftest_e2e import RECIPE, Bench

from headway.data.block_digests import digests_of
from headway.data.build import build_data
from headway.data.manifest import DTYPES, DataManifest
from headway.data.stream import Stream
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments

STEPS, SEQUENCE = 130, 64
ONE_STAGE = (
    RECIPE[: RECIPE.index("[[stages]]")]
    + (
        '[[stages]]\nname = "main"\ntokens = "{main_tokens}"\nsequence = 64\nbatch = "512"\n'
        'rate = {{ warmup = "1024", shape = "constant" }}\nmixture = {{ numbers = 0.7, words = 0.3 }}\n\n'
    )
    + RECIPE[RECIPE.index("[optimizer]") :].replace('every = "4096"', 'every = "32768"')
)
POLICY = ("interventions.spikes.rewind_steps=20", "interventions.spikes.skip_batches=6")
SKIPPED, BEFORE = 6, 2
"""Batches that it leaves out, and how many of them lie before that of the spike."""


def policy(name: str, *more: str) -> tuple[str, ...]:
    return (f"interventions.spikes.policy={name}", *POLICY, *more)


def write_much(root: Path) -> None:
    """As the sources of the small recipe, and enough of them that no window is read twice."""
    generator = random.Random(21)
    words = ["one", "two", "three", "red", "green", "blue", "sail", "wind", "water", "rope", "north", "south"]
    for source, documents in (("numbers", 500), ("words", 300)):
        (root / source).mkdir(parents=True)
        for number in range(documents):
            if source == "numbers":
                start, step = generator.randrange(100), generator.randrange(1, 9)
                text = " ".join(str(start + step * k) for k in range(120))
            else:
                text = " ".join(generator.choice(words) for _ in range(160)) + "."
            (root / source / f"{number:03d}.txt").write_text(text)


def built(root: Path) -> Bench:
    write_much(root)
    text = ONE_STAGE.format(numbers=root / "numbers", words=root / "words", main_tokens=str(STEPS * 512))
    path = root / "small.toml"
    path.write_text(text)
    build_data(load_recipe(path, []).recipe, root / "data")
    return Bench(root, root / "data", text)


def poisoned(clean: Bench, where: Path, steps: tuple[int, ...]) -> Bench:
    """``clean`` with random tokens in every window of the batches of ``steps`` (from 1); its manifest is right about them."""
    shutil.copytree(clean.root, where)
    bench = Bench(where, where / "data", clean.recipe_text)
    spec, manifest = bench.spec(), DataManifest.load(bench.data)
    schedule, stream = Schedule(spec), Stream(spec)
    places = [schedule.place(step - 1) for step in steps]
    u = np.concatenate([np.arange(p.first_sequence, p.end_sequence) for p in places])
    positions = stream.locate(0, u)
    assert not positions.epoch.any(), "no window may come twice"
    sources = []
    for k, source in enumerate(manifest.sources):
        windows = [int(token) for token in positions.token[positions.source == k]]
        sources.append(_overwritten(bench.data, manifest, source, windows))
    dataclasses.replace(manifest, sources=tuple(sources)).save(bench.data)
    return bench


def _overwritten(data: Path, manifest: DataManifest, source, windows: list[int]):
    (shard,) = source.shards
    path, kind = data / shard.file, np.dtype(DTYPES[manifest.dtype])
    tokens, generator = np.fromfile(path, kind), np.random.default_rng(5)
    for first in windows:
        part = tokens[first : first + SEQUENCE + 1]
        noise = generator.integers(manifest.tokenizer.document_token_id + 1, manifest.tokenizer.vocabulary, part.size)
        part[:] = np.where(part == manifest.tokenizer.document_token_id, part, noise)
    raw = tokens.tobytes()
    path.write_bytes(raw)
    shard = dataclasses.replace(shard, xxh3_128=xxhash.xxh3_128_hexdigest(raw), blocks=digests_of(raw))
    return dataclasses.replace(source, shards=(shard,)).sealed()


def kept_steps(run: RunDirectory) -> list[dict]:
    """The rows of the steps of the final history."""
    return [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == "step"]


def trained(run: RunDirectory) -> list[int]:
    """The stream indices of the only stage that the final history trained on, in order, as the segments' records say."""
    spec, segments = run.spec(), {segment.id: segment for segment in read_segments(run)}
    found: list[int] = []
    for row in kept_steps(run):
        u = np.arange(row["u"] - row["sequences"], row["u"])
        found += Stream.of_segment(spec, segments[row["segment"]]).stream_index(0, u).tolist()
    return found
