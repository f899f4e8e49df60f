"""Stream figures: windows with document ends per second, beside other loaders; resume, start, memory. Prints JSON.

    python bench/stream.py [--tokens 100000000] [--sequence 1024] [--batch 64] [--data DIR] [--peers PYTHON]

One synthetic uint16 source, warm page cache, one core. The named limit is numpy's plain gather of the same windows in the
same process, alternating with ours: bytes as stored, without targets, documents, positions, order or verification.

The peers (bench/stream_peers.py) read the same tokens in processes of their own, one pass each in turn with ours. ``--peers``
is an interpreter that has them, for their packages ask for versions of others that ours does not: an environment in which

    pip install --no-deps megatron-core mosaicml-streaming litdata lightning-utilities Brotli zstd python-snappy cramjam boto3 ...

found torch and the rest. Those that are not there are left out, with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from headway.base.clocks import SystemClock
from headway.data.manifest import DataManifest, SourceEntry, TokenizerEntry
from headway.data.packing import packing_digest, write_packing
from headway.data.reader import TokenReader
from headway.data.shards import TokenSetWriter
from headway.data.stream import Stream
from headway.recipe.spec import (
    BatchPhase,
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PackedSpec,
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
    from headway.data.build import default_chunk  # not at the head: reading needs nothing of it, and its memory is measured
    from headway.data.tokenizer import TOKENIZER_FILE, train_tokenizer

    random = np.random.default_rng(0)
    tokenizer = train_tokenizer(["stream"], vocabulary=257, document_token="<|document|>")
    tokenizer.save(directory / TOKENIZER_FILE)
    writer = TokenSetWriter(directory, "00-synthetic", dtype="uint16")
    while writer.tokens < tokens:
        size = min(2 + int(random.exponential(MEAN_DOCUMENT_TOKENS)), max(2, tokens - writer.tokens))
        document = random.integers(0, 50_000, size, dtype=np.uint16)
        document[0] = tokenizer.document_token_id
        writer.add(document, size)
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
        block_digests=written.block_digests,
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


class Peer:
    """A loader of others in its own process; ``absent``: why there is none."""

    def __init__(self, name: str, python: str, request: Path):
        self.name, self.rates, self.per_core = name, [], []
        command = [python, str(Path(__file__).parent / "stream_peers.py"), name, str(request)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        answer = self._answer()
        self.absent, self.what = answer.get("absent", ""), answer.get("ready", "")

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"absent": "it ended without a word"}

    def turn(self, keep: bool) -> None:
        if self.absent:
            return
        print("go", file=self._process.stdin, flush=True)
        answer = self._answer()
        if keep and "mtok_per_s" in answer:
            self.rates.append(answer["mtok_per_s"])
            self.per_core.append(answer["per_core"])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


PEERS = {
    "megatron": "megatron_dataset",
    "megatron-ends": "megatron_dataset_with_ends",
    "mosaic": "mosaic_streaming",
    "litdata": "litdata",
}
PEER_STEPS = 20


def measure_rates(directory: Path, spec: Spec, batch: int, peers: list[Peer], repeats: int = 5, steps: int = 60) -> dict:
    """Mtok/s of ours (order, positions, windows), of the plain gather and of the peers, in turns over fresh batches."""
    length, stream, reader = spec.stages[0].sequence_length, Stream(spec), TokenReader.open(directory, spec)
    reader.verify_all()  # warms the page cache
    plain = np.concatenate([np.fromfile(directory / s.file, "<u2") for s in reader.manifest.sources[0].shards])
    window = np.arange(length + 1)
    rates: dict[str, list[float]] = {"ours": [], "ours_per_core": [], "gather": []}
    for repeat in range(repeats + 1):
        firsts = [(repeat * steps + step) * batch for step in range(steps)]
        tokens = [Stream(spec).locate(0, np.arange(first, first + batch)).token for first in firsts]
        before, cpu = time.perf_counter(), time.process_time()
        for first in firsts:
            reader.window_batch(stream.locate(0, stream.rank_sequences(0, first, batch, 0, 1)), length)
        between, cpu = time.perf_counter(), time.process_time() - cpu
        for token in tokens:
            plain[token[:, None] + window]
        after = time.perf_counter()
        for peer in peers:
            peer.turn(keep=repeat > 0)
        if repeat:  # the first pass verifies blocks and faults pages in
            rates["ours"].append(steps * batch * length / 1e6 / (between - before))
            rates["ours_per_core"].append(steps * batch * length / 1e6 / cpu)
            rates["gather"].append(steps * batch * length / 1e6 / (after - between))
    best = {name: max(values) for name, values in rates.items()}
    return {
        "window_batch_mtok_per_s": round(best["ours"], 1),
        "window_batch_mtok_per_s_median": round(statistics.median(rates["ours"]), 1),
        "numpy_plain_gather_mtok_per_s": round(best["gather"], 1),
        "share_of_gather": round(best["ours"] / best["gather"], 3),
        "window_batch_mtok_per_core_s": round(best["ours_per_core"], 1),
        **peer_figures(peers, best["ours_per_core"]),
    }


def peer_figures(peers: list[Peer], ours_per_core: float) -> dict:
    """Ratios of the best passes by CPU time: some of them use several threads, and others use the machine too. A peer that is not
    there has its reason in place of figures."""
    figures: dict = {"peers": {PEERS[peer.name]: peer.what or f"left out: {peer.absent}" for peer in peers}}
    for peer in peers:
        if peer.rates:
            figures[f"{PEERS[peer.name]}_mtok_per_s"] = round(max(peer.rates), 2)
            figures[f"{PEERS[peer.name]}_mtok_per_core_s"] = round(max(peer.per_core), 2)
            figures[f"ours_over_{PEERS[peer.name]}"] = round(ours_per_core / max(peer.per_core), 2)
    return figures


def start_peers(directory: Path, spec: Spec, batch: int, scratch: Path, python: str) -> list[Peer]:
    manifest = DataManifest.load(directory)
    request = {
        "shards": [str(directory / shard.file) for shard in manifest.sources[0].shards],
        "ends": str(directory / manifest.sources[0].ends.file),
        "document_token": manifest.tokenizer.document_token_id,
        "sequence_length": spec.stages[0].sequence_length,
        "batch": batch,
        "steps": PEER_STEPS,
        "passes": 8,
        "scratch": str(scratch),
    }
    file = scratch / "request.json"
    file.write_text(json.dumps(request))
    return [Peer(name, python, file) for name in PEERS]


def measure_packed(directory: Path, spec: Spec, batch: int, repeats: int = 3, steps: int = 60) -> dict:
    """The same source packed by best fit: how long its plan takes, what padding there is, and windows per second."""
    length, manifest = spec.stages[0].sequence_length, DataManifest.load(directory)
    source = manifest.sources[0]
    with tempfile.TemporaryDirectory() as temporary:
        before = time.process_time()
        ends = np.memmap(directory / source.ends.file, "<i8", "r")
        (Path(temporary) / source.ends.file).parent.mkdir(parents=True)
        plan = write_packing(Path(temporary), source, length, ends)
        planned = time.process_time() - before
        for file in (plan.rows.file, plan.pieces.file):
            shutil.copyfile(Path(temporary) / file, directory / file)
    manifest = dataclasses.replace(manifest, sources=(dataclasses.replace(source, packings=(plan,)),))
    packed = PackedSpec(plan.bins, plan.target_share, packing_digest(plan))
    stage = dataclasses.replace(spec.stages[0], packing="best-fit", packed=(packed,), sequences=4 * sum(plan.bins))
    stream, reader = Stream(dataclasses.replace(spec, stages=(stage,))), TokenReader(directory, manifest)
    reader.verify_all()
    rates = []
    for repeat in range(repeats + 1):
        before = time.process_time()
        for step in range(steps):
            u = stream.rank_sequences(0, (repeat * steps + step) * batch, batch, 0, 1)
            reader.stage_batch(stream.locate(0, u), stage)
        rates += [steps * batch * length / 1e6 / (time.process_time() - before)] if repeat else []
    return {
        "packed_mtok_per_core_s": round(max(rates), 1),
        "padding_share": round(1 - plan.target_share, 7),
        "plan_mtok_per_s": round(source.tokens / 1e6 / planned, 1),
    }


def measure_scale(directory: Path, batches: int) -> dict:
    """Memory, the whole walk and 1 T tokens, each in a process of its own."""
    script = str(Path(__file__).parent / "stream_scale.py")

    def told(*arguments: str) -> dict:
        return json.loads(subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True).stdout)

    with tempfile.TemporaryDirectory() as sparse:
        return {
            "memory": told("batches", str(directory), "--count", str(batches)),
            "walk": told("walk"),
            "corpus_1t": told("corpus", sparse) and told("corpus", sparse),  # the first makes it
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


def measure(asked: argparse.Namespace) -> dict:
    """All figures of the stream. Ours in one process, in turns with the peers."""
    with tempfile.TemporaryDirectory() as temporary:
        directory, scratch = asked.data or Path(temporary) / "data", Path(temporary) / "peers"
        scratch.mkdir()
        if not asked.data:
            directory.mkdir()
            synthetic_data(directory, asked.tokens)
        spec = synthetic_spec(DataManifest.load(directory), asked.sequence)
        peers = start_peers(directory, spec, asked.batch, scratch, asked.peers)
        try:
            figures = measure_rates(directory, spec, asked.batch, peers)
        finally:
            for peer in peers:
                peer.close()
        figures |= measure_packed(directory, spec, asked.batch)
        figures |= measure_start(directory, spec, asked.batch)
        figures |= measure_scale(directory, asked.batches)
    return {
        "bench": "stream",
        "tokens": spec.sources[0].tokens,
        "sequence_length": asked.sequence,
        "batch_sequences": asked.batch,
        **figures,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "stamp": SystemClock().stamp().to_json(),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--sequence", type=int, default=1_024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=100_000, help="over which memory must stay flat")
    parser.add_argument("--data", type=Path, default=None, help="built data, its first source; default: synthetic")
    parser.add_argument(
        "--peers", default=os.environ.get("HEADWAY_BENCH_PEERS", sys.executable), help="interpreter that has them"
    )
    print(json.dumps(measure(parser.parse_args(arguments)), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
