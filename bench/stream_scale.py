"""What the stream takes of a machine: memory over many batches, the walk over a whole run, a corpus of 1 T tokens. Prints JSON.

    python bench/stream_scale.py batches DIRECTORY [--count 100000]   resident memory while batches go by
    python bench/stream_scale.py walk [--tokens 1e12]                 every position of a run over 8 sources and three stages
    python bench/stream_scale.py corpus DIRECTORY [--tokens 1e12]     open, locate, first batch (made of sparse files, once)

Each is a process of its own, so that its memory is what it took. ``anonymous`` memory is what it holds itself; pages of mapped
shards are the page cache's, which takes them back when others need room.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import xxhash

from headway.data.block_digests import kept_apart
from headway.data.ends import ends_entry
from headway.data.manifest import BLOCK_BYTES, DataManifest, EndsEntry, ShardEntry, SourceEntry, TokenizerEntry
from headway.data.reader import TokenReader
from headway.data.shards import DIGESTS_FILE, ENDS_FILE, shard_bytes_for
from headway.data.stream import Stream
from headway.data.tables import TableWriter
from headway.recipe.spec import SourceSpec, Spec
from stream import synthetic_spec

DOCUMENT_TOKENS = 2_000  # of a document: 1 T tokens have 4 GB of ends


def memory_mb() -> dict[str, float]:
    """Of this process, in 10^6 bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"anonymous": "RssAnon", "mapped": "RssFile"}
    return {name: round(int(fields[field].split()[0]) * 1024 / 1e6, 1) for name, field in names.items()}


def batches(directory: Path, count: int, sequence_length: int = 512, batch: int = 4) -> dict:
    """``growth``: anonymous memory from the first hundredth to the end."""
    before = memory_mb()
    spec = synthetic_spec(DataManifest.load(directory), sequence_length)
    stream, reader = Stream(spec), TokenReader.open(directory, spec)
    began, early = time.perf_counter(), before
    for step in range(count):
        first = step * batch % (spec.stages[0].sequences - batch)
        reader.window_batch(stream.locate(0, stream.rank_sequences(0, first, batch, 0, 1)), sequence_length)
        if step == count // 100:
            early = memory_mb()
    late = memory_mb()
    return {
        "batches": count,
        "seconds": round(time.perf_counter() - began, 2),
        "imports_mb": before["anonymous"],
        "anonymous_mb": late["anonymous"],
        "mapped_mb": late["mapped"],
        "growth_mb": round(late["anonymous"] - early["anonymous"], 2),
    }


def walk(tokens: int, sequence_length: int = 4_096, batch: int = 1_024) -> dict:
    """A run over 1 T tokens of 8 sources, in three stages of changing length and mixture: all positions, batch by batch."""
    sources = [(f"source{k}", tokens * (k + 1) // 36) for k in range(8)]
    quanta = ((8_192,) * 8, (16_384, 8_192, 8_192, 8_192, 8_192, 8_192, 4_096, 4_096), (4_096,) * 4 + (12_288,) * 4)
    stages = [(30_000_000_000, sequence_length), (8_000_000_000, sequence_length), (2_000_000_000, 4 * sequence_length)]
    spec = walked_spec(sources, [(n // T // batch * batch, T, q) for (n, T), q in zip(stages, quanta, strict=True)])
    before, began, digest, rates, done = memory_mb(), time.perf_counter(), xxhash.xxh3_64(), [], 0
    stream = Stream(spec)
    for stage, described in enumerate(spec.stages):
        part = time.perf_counter()
        for first in range(0, described.sequences, batch):
            digest.update(stream.locate(stage, np.arange(first, first + batch)).token)
        done += described.sequences
        rates.append(described.sequences / (time.perf_counter() - part))
    late = time.perf_counter()
    fresh = Stream(spec)
    fresh.locate(2, np.arange(spec.stages[2].sequences - batch, spec.stages[2].sequences))
    return {
        "corpus_tokens": tokens,
        "run_tokens": sum(s.tokens for s in spec.stages),
        "positions": done,
        "million_positions_per_s": [round(rate / 1e6, 2) for rate in rates],
        "seconds": round(late - began, 2),
        "last_batch_of_a_fresh_stream_ms": round((time.perf_counter() - late) * 1e3, 2),
        "growth_mb": round(memory_mb()["anonymous"] - before["anonymous"], 2),
        "digest": digest.hexdigest(),
    }


def walked_spec(sources: list[tuple[str, int]], stages: list[tuple[int, int, tuple[int, ...]]]) -> Spec:
    import dataclasses

    from headway.data.build import default_chunk

    base = synthetic_spec_of_tokens(sources[0][1], stages[0][1])
    described = tuple(
        dataclasses.replace(base.stages[0], name=f"stage{i}", tokens=m * T, sequence_length=T, sequences=m, quanta=tuple(quanta))
        for i, (m, T, quanta) in enumerate(stages)
    )
    entries = tuple(SourceSpec(name, n, default_chunk(n), 1.0, f"sha256:{name}", None, "") for name, n in sources)
    return dataclasses.replace(base, sources=entries, stages=described)


def synthetic_spec_of_tokens(tokens: int, sequence_length: int) -> Spec:
    from headway.data.build import default_chunk
    from headway.data.tokenizer import TOKENIZER_FILE

    ends, chunk = EndsEntry("", ""), default_chunk(tokens)
    entry = SourceEntry("synthetic", "synthetic", "none", "", tokens, 1, 1, 1.0, chunk, (), ends, None, {}, "")
    tokenizer = TokenizerEntry(TOKENIZER_FILE, "sha256:none", 257, "<|document|>", 256)
    return synthetic_spec(DataManifest("walk", tokenizer, "uint16", (entry,), "", "", {}), sequence_length)


def corpus(directory: Path, tokens: int, sequence_length: int = 4_096, batch: int = 64) -> dict:
    """Everything a run does until its first batch at a late position. Sparse shards: all tokens are 0; digests are right, and
    document ends are whole."""
    if not (directory / "manifest.json").is_file():
        sparse_corpus(directory, tokens)
    manifest = DataManifest.load(directory)
    spec = synthetic_spec(manifest, sequence_length)
    np.unique([1])  # numpy imports some of itself when it is first asked
    before, began = memory_mb(), time.perf_counter()
    reader = TokenReader.open(directory, spec)
    opened = time.perf_counter()
    stream = Stream(spec)
    positions = stream.locate(0, np.arange(spec.stages[0].sequences - batch, spec.stages[0].sequences))
    located = time.perf_counter()
    reader.window_batch(positions, sequence_length)
    read = time.perf_counter()
    return {
        "corpus_tokens": manifest.sources[0].tokens,
        "shards": len(manifest.sources[0].shards),
        "documents": manifest.sources[0].documents,
        "manifest_mb": round((directory / "manifest.json").stat().st_size / 1e6, 2),
        "open_ms": round((opened - began) * 1e3, 2),
        "locate_ms": round((located - opened) * 1e3, 2),
        "first_batch_ms": round((read - located) * 1e3, 2),
        "start_ms": round((read - began) * 1e3, 2),
        "growth_mb": round(memory_mb()["anonymous"] - before["anonymous"], 1),
    }


def sparse_corpus(directory: Path, tokens: int) -> None:
    from headway.data.build import default_chunk
    from headway.data.tokenizer import TOKENIZER_FILE, train_tokenizer

    shard_folder = directory / "00-synthetic"
    shard_folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(["stream"], vocabulary=257, document_token="<|document|>")
    tokenizer.save(directory / TOKENIZER_FILE)
    size = shard_bytes_for(tokens * 4)
    block, whole = bytes(BLOCK_BYTES), xxhash.xxh3_128()
    blocks, each = size // BLOCK_BYTES, size // 2
    for _ in range(blocks):
        whole.update(block)
    shards = []
    for number in range(tokens // each):
        file = f"00-synthetic/shard-{number:05d}.bin"
        with (directory / file).open("wb") as shard:
            shard.truncate(size)
        shards.append(ShardEntry(file, number * each, each, whole.hexdigest(), (), number * blocks))
    count = len(shards) * each
    digests = kept_apart(directory, f"00-synthetic/{DIGESTS_FILE}", [xxhash.xxh3_64_hexdigest(block)] * (blocks * len(shards)))
    ends, documents = TableWriter(directory, f"00-synthetic/{ENDS_FILE}"), count // DOCUMENT_TOKENS
    for first in range(0, documents, 2**20):
        some = (np.arange(first, min(first + 2**20, documents)) + 1) * DOCUMENT_TOKENS
        some[-1] = count if first + some.size == documents else some[-1]
        ends.append(some.astype("<u8").tobytes())
    entry = SourceEntry(
        name="synthetic",
        kind="synthetic",
        licence="none",
        provenance="",
        tokens=count,
        documents=documents,
        bytes=count,
        target_share=1.0,
        chunk_tokens=default_chunk(count),
        shards=tuple(shards),
        ends=ends_entry(ends.finish()),
        block_digests=digests,
        held_out=None,
        dropped={},
        digest="",
    )
    described = TokenizerEntry(
        TOKENIZER_FILE, tokenizer.digest, tokenizer.vocabulary, "<|document|>", tokenizer.document_token_id
    )
    DataManifest("synthetic", described, "uint16", (entry.sealed(),), "", "", {}).save(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("batches", "walk", "corpus"))
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--tokens", type=float, default=1e12)
    asked = parser.parse_args()
    run = {
        "batches": lambda: batches(asked.directory, asked.count),
        "walk": lambda: walk(int(asked.tokens)),
        "corpus": lambda: corpus(asked.directory, int(asked.tokens)),
    }
    print(json.dumps(run[asked.what]()))


if __name__ == "__main__":
    main()
