"""Tokenisation of a build against tiktoken alone on the same texts, on one core and on all. Prints JSON.

    python bench/tokenise.py [--megabytes 64] [--vocabulary 16384]

The named limit is tiktoken's own batch, encode_ordinary_batch, with the same merges and pattern in the same process, alternating
with ours: texts in memory, ids as lists, nothing read, checked or written. Ours reads documents from the spool in shuffled order,
decodes them, looks for what only tokenizers may encode, and writes parts with digests and receipts, synced to the disk. Texts:
Python's standard library and the packages beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tiktoken
import tokenizers

from headway.base.clocks import SystemClock
from headway.base.files import make_directory
from headway.data.parts import PartTask, plan
from headway.data.pool import in_order, usable_cores
from headway.data.seen import Seen
from headway.data.sources import Document
from headway.data.spool import AsRead, SealedSpool, Shuffled, Spool, remove
from headway.data.tokenizer import TOKENIZER_FILE, Tokenizer, train_tokenizer
from headway.data.vocabulary.fast import FastEncoder, Proof
from headway.data.worker import Setup, Workshop

SAMPLE_BYTES = 16 * 2**20
PART_BYTES = 4 * 2**20
TOKEN = "<|document|>"


def documents(most: int) -> Iterator[Document]:
    size = 0
    for folder in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]):
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_text(errors="replace")
            size += len(text)
            if size > most:
                return
            yield Document(text, str(path))


def spool_of(directory: Path, most: int) -> SealedSpool:
    spool, seen = Spool(directory / "spool"), Seen(directory / "seen")
    read = AsRead(documents(most))
    spool.fill(read, 0, seen)
    seen.close()
    return spool.seal(key="bench", where="python", read=read, read_at="")


class Bench:
    """One corpus, one tokenizer, one proof."""

    def __init__(self, directory: Path, megabytes: float, vocabulary: int):
        self.spool = spool_of(directory, int(megabytes * 2**20))
        self.order = Shuffled(len(self.spool), 0, "bench")
        self.texts = list(self.spool.texts(self.order.block(0, len(self.spool))))
        self.tasks = list(plan(0, self.spool, self.order, PART_BYTES))
        self.root = directory / "parts"
        self.train_seconds, self.trained_bytes = self._train(directory, vocabulary)
        self.proof_seconds, self.proof = timed(Tokenizer.load(directory / TOKENIZER_FILE, TOKEN).prove)
        self.setup = Setup(
            spools=(str(self.spool.directory),),
            names=("bench",),
            arranged=(None,),
            seed=0,
            tokenizer=str(directory / TOKENIZER_FILE),
            document_token=TOKEN,
            root=str(self.root),
            dtype="uint16",
            proof=self.proof,
        )
        self.raw = _raw(json.loads((directory / TOKENIZER_FILE).read_bytes()), self.proof)

    def _train(self, directory: Path, vocabulary: int) -> tuple[float, int]:
        sample, size = [], 0
        for text in self.texts:
            size += len(text.encode())
            if sample and size > SAMPLE_BYTES:
                break
            sample.append(text)
        seconds, tokenizer = timed(lambda: train_tokenizer(sample, vocabulary=vocabulary, document_token=TOKEN))
        tokenizer.save(directory / TOKENIZER_FILE)
        return seconds, sum(len(text.encode()) for text in sample)

    def parts_here(self) -> None:
        """All parts on one core: threads are off."""
        self._clear()
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        workshop = Workshop(self.setup)
        for task in self.tasks:
            workshop.make(task, lambda *told: None)
        workshop.close()

    def parts_by(self, workers: int) -> None:
        """All parts by processes, their start included."""
        self._clear()
        made: list[PartTask] = list(in_order(self.tasks, self.setup, workers, lambda *told: None))
        assert made == self.tasks

    def _clear(self) -> None:
        remove(self.root)
        make_directory(self.root / "00", "directory for parts")


def _raw(plain: dict, proof: Proof) -> tiktoken.Encoding:
    """The encoding that ours uses, alone."""
    return FastEncoder(plain, proof).encoding


def timed(what: Callable) -> tuple[float, Any]:
    before = time.perf_counter()
    result = what()
    return time.perf_counter() - before, result


def cpu_seconds() -> float:
    """Of this process, its threads and its ended children."""
    return sum(os.times()[:4])


def measure(megabytes: float, vocabulary: int, repeats: int = 5) -> dict:
    cores = usable_cores()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), megabytes, vocabulary)
        rounds: dict[str, Callable] = {
            "tiktoken_1": lambda: bench.raw.encode_ordinary_batch(bench.texts, num_threads=1),
            "ours_1": bench.parts_here,
            "tiktoken_all": lambda: bench.raw.encode_ordinary_batch(bench.texts, num_threads=cores),
            "ours_all": lambda: bench.parts_by(cores),
        }
        seconds: dict[str, list[float]] = {name: [] for name in rounds}
        cpu: dict[str, list[float]] = {name: [] for name in rounds}
        for _ in range(repeats):
            for name, run in rounds.items():
                before = cpu_seconds()
                seconds[name].append(timed(run)[0])
                cpu[name].append(cpu_seconds() - before)
        slow = bench.texts[:: max(1, len(bench.texts) * 2**22 // bench.spool.total_bytes)]
        inner = tokenizers.Tokenizer.from_file(bench.setup.tokenizer)
        slow_seconds = timed(lambda: inner.encode_batch_fast(slow))[0]
        size = bench.spool.total_bytes / 1e6
        best = {name: min(values) for name, values in seconds.items()}
        return {
            "bench": "tokenise",
            "text_mb": round(size, 1),
            "documents": len(bench.spool),
            "vocabulary": vocabulary,
            "cores": cores,
            "mb_per_s": {name: round(size / value, 2) for name, value in best.items()},
            "mb_per_s_middle": {name: round(size / statistics.median(values), 2) for name, values in seconds.items()},
            "share_of_tiktoken_one_core": round(best["tiktoken_1"] / best["ours_1"], 3),
            "share_of_tiktoken_batch_all_cores": round(best["tiktoken_all"] / best["ours_all"], 3),
            "share_of_tiktoken_one_core_times_cores": round(best["tiktoken_1"] / cores / best["ours_all"], 3),
            "share_of_tiktoken_in_cpu_time": {
                "one_core": round(min(cpu["tiktoken_1"]) / min(cpu["ours_1"]), 3),
                "all_cores": round(min(cpu["tiktoken_1"]) / min(cpu["ours_all"]), 3),
            },
            "times_tokenizers_one_core": round(size / best["ours_1"] / (sum(map(len, slow)) / 1e6 / slow_seconds), 2),
            "train": {
                "text_mb": round(bench.trained_bytes / 1e6, 1),
                "seconds": round(bench.train_seconds, 2),
                "mb_per_s": round(bench.trained_bytes / 1e6 / bench.train_seconds, 2),
            },
            "proof_s": round(bench.proof_seconds, 2),
            "versions": {
                "python": platform.python_version(),
                "tiktoken": tiktoken.__version__,
                "tokenizers": tokenizers.__version__,
            },
            "stamp": SystemClock().stamp().to_json(),
        }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(arguments)
    print(json.dumps(measure(asked.megabytes, asked.vocabulary, asked.repeats), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
