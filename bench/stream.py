"""Stream figures: windows with document ends per second, resume, start. Prints JSON.

    python bench/stream.py [--tokens 100000000] [--sequence 1024] [--batch 64]

One synthetic uint16 source, warm page cache, one core. The named limit is numpy's plain gather of the same windows in the
same process, alternating with ours: bytes as stored, without targets, documents, positions, order or verification.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from headway.base.clocks import SystemClock
from headway.data.build import default_chunk
from headway.data.manifest import DataManifest, SourceEntry, TokenizerEntry
from headway.data.reader import TokenReader
from headway.data.shards import TokenSetWriter
from headway.data.stream import Stream
from headway.data.tokenizer import TOKENIZER_FILE, train_tokenizer
from headway.recipe.spec import (
    BatchPhase,
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RateSpec,
    SourceSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)

MEAN_DOCUMENT_TOKENS = 600


def synthetic_data(directory: Path, tokens: int) -> DataManifest:
    """A data directory of random tokens and exponential document lengths."""
    random = np.random.default_rng(0)
    tokenizer = train_tokenizer(["stream"], vocabulary=257, document_token="<|document|>")
    tokenizer.save(directory / TOKENIZER_FILE)
    writer = TokenSetWriter(directory, "00-synthetic", dtype="uint16")
    while writer.tokens < tokens:
        size = min(2 + int(random.exponential(MEAN_DOCUMENT_TOKENS)), max(2, tokens - writer.tokens))
        writer.add(random.integers(0, 50_000, size, dtype=np.uint16), size)
    written = writer.finish()
    source = SourceEntry(
        name="synthetic",
        kind="synthetic",
        licence="none",
        provenance="",
        tokens=written.tokens,
        documents=written.documents,
        bytes=written.bytes,
        target_share=1.0,
        chunk_tokens=default_chunk(written.tokens),
        shards=written.shards,
        ends=written.ends,
        held_out=None,
        dropped={},
        digest="",
    ).sealed()
    entry = TokenizerEntry(TOKENIZER_FILE, tokenizer.digest, tokenizer.vocabulary, "<|document|>", tokenizer.document_token_id)
    manifest = DataManifest("synthetic", entry, "uint16", (source,), "", "", {})
    manifest.save(directory)
    return manifest


def synthetic_spec(manifest: DataManifest, sequence_length: int) -> Spec:
    """A one-stage Spec over the synthetic source; only its stream matters."""
    source = manifest.sources[0]
    sequences = 4 * source.tokens // sequence_length
    stage = StageSpec(
        name="main",
        tokens=sequences * sequence_length,
        sequence_length=sequence_length,
        sequences=sequences,
        phases=(BatchPhase(0, 1),),
        rate=RateSpec(0, "constant", 1.0, 1.0),
        quanta=(65_536,),
        rope_base=1e4,
    )
    return Spec(
        name="bench",
        seed=0,
        data_seed=0,
        objective={},
        tokenizer=TokenizerSpec("bpe", 50_000, "<|document|>", manifest.tokenizer.digest),
        model=ModelSpec(1, 1, 1, 1, 1, 1, 50_000, 1e4, 1e-5, False, False, 0.02),
        sources=(SourceSpec(source.name, source.tokens, source.chunk_tokens, 1.0, source.digest, None, ""),),
        stages=(stage,),
        optimizer=OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(0.0),
        precision=PrecisionSpec("float32"),
        evaluation=EvaluationSpec(1, 1, (), 0),
        manifest_digest=manifest.digest(),
        recipe_digest="",
    )


def measure_rates(directory: Path, spec: Spec, batch: int, repeats: int = 5, steps: int = 60) -> dict:
    """Mtok/s of ours (order, positions, windows) and of the plain gather, over alternating passes of fresh batches."""
    length, stream, reader = spec.stages[0].sequence_length, Stream(spec), TokenReader.open(directory, spec)
    reader.verify_all()  # warms the page cache
    plain = np.concatenate([np.fromfile(directory / s.file, "<u2") for s in reader.manifest.sources[0].shards])
    window = np.arange(length + 1)
    rates: dict[str, list[float]] = {"ours": [], "gather": []}
    for repeat in range(repeats + 1):
        firsts = [(repeat * steps + step) * batch for step in range(steps)]
        tokens = [Stream(spec).locate(0, np.arange(first, first + batch)).token for first in firsts]
        before = time.perf_counter()
        for first in firsts:
            reader.window_batch(stream.locate(0, stream.rank_sequences(0, first, batch, 0, 1)), length)
        between = time.perf_counter()
        for token in tokens:
            plain[token[:, None] + window]
        after = time.perf_counter()
        if repeat:  # the first pass verifies blocks and faults pages in
            rates["ours"].append(steps * batch * length / 1e6 / (between - before))
            rates["gather"].append(steps * batch * length / 1e6 / (after - between))
    best = {name: max(values) for name, values in rates.items()}
    return {
        "window_batch_mtok_per_s": round(best["ours"], 1),
        "window_batch_mtok_per_s_median": round(statistics.median(rates["ours"]), 1),
        "numpy_plain_gather_mtok_per_s": round(best["gather"], 1),
        "share_of_gather": round(best["ours"] / best["gather"], 3),
    }


def measure_start(directory: Path, spec: Spec, batch: int) -> dict:
    """Start: open the data and build the stream. Resume: a fresh stream and the first batch at a late position."""
    start, resume = [], []
    for repeat in range(5):
        before = time.perf_counter()
        reader = TokenReader.open(directory, spec)
        Stream(spec)
        start.append(time.perf_counter() - before)
        late = spec.stages[0].sequences - (repeat + 2) * 5_000
        before = time.perf_counter()
        fresh = Stream(spec)
        positions = fresh.locate(0, fresh.rank_sequences(0, late, batch, 0, 1))
        resume.append(time.perf_counter() - before)
        reader.window_batch(positions, spec.stages[0].sequence_length)
    return {"start_s": round(min(start), 4), "resume_ms": round(1e3 * min(resume), 2)}


def measure(tokens: int = 100_000_000, sequence_length: int = 1_024, batch: int = 64) -> dict:
    """All figures of the stream, in one process."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        spec = synthetic_spec(synthetic_data(directory, tokens), sequence_length)
        figures = measure_rates(directory, spec, batch) | measure_start(directory, spec, batch)
    return {
        "bench": "stream",
        "tokens": tokens,
        "sequence_length": sequence_length,
        "batch_sequences": batch,
        **figures,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "stamp": SystemClock().stamp().to_json(),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--sequence", type=int, default=1_024)
    parser.add_argument("--batch", type=int, default=64)
    asked = parser.parse_args(arguments)
    print(json.dumps(measure(asked.tokens, asked.sequence, asked.batch), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
