"""One other loader over the same tokens, in a process of its own: bench/stream.py starts it and asks for passes.

    python bench/stream_peers.py megatron|megatron-ends|mosaic|litdata REQUEST.json
    out  {"ready": version, "note": ...}, or {"absent": why};  in  one line per pass;  out  {"mtok_per_s": ...}

Each gives batches of B windows of T tokens and their targets as int64, one thread, no worker processes, shuffled.

    megatron        GPTDataset of megatron-core: document, sample and shuffle index, memory-mapped (its own C++ helpers)
    megatron-ends   the same with positions that restart at document ends, which is what ours gives
    mosaic          StreamingDataset of mosaicml-streaming over MDS shards of windows; it knows no document ends
    litdata         StreamingDataset with TokensLoader; it knows no document ends
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Batches = Callable[[], Iterator[Any]]


def tokens_of(request: dict) -> np.ndarray:
    return np.concatenate([np.fromfile(path, "<u2") for path in request["shards"]])


def megatron(request: dict, *, ends: bool = False) -> tuple[Batches, str]:
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, _IndexWriter
    from megatron.core.datasets.utils import Split

    T, B, prefix = request["sequence_length"], request["batch"], str(Path(request["scratch"]) / "megatron")
    if not os.path.exists(prefix + ".idx"):
        tokens_of(request).tofile(prefix + ".bin")
        lengths = np.diff(np.fromfile(request["ends"], "<u8").astype(np.int64), prepend=0)
        with _IndexWriter(prefix + ".idx", np.uint16) as writer:
            writer.write(lengths.tolist(), None, list(range(len(lengths) + 1)))
        assert DType.optimal_dtype(50_000) is np.uint16
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=T,
        blend=([prefix], None),
        split="1",
        path_to_cache=request["scratch"],
        tokenizer=types.SimpleNamespace(
            eod=request["document_token"], unique_identifiers={"of": "bench"}, pad=-1, vocab_size=50_000
        ),
        reset_position_ids=ends,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    indexed = IndexedDataset(prefix, mmap=True)
    samples = request["passes"] * request["steps"] * B
    dataset = GPTDataset(
        indexed, prefix, np.arange(len(indexed.document_indices) - 1, dtype=np.int32), samples, Split.train, config
    )
    at = [0]

    def batches() -> Iterator[Any]:
        for _ in range(request["steps"]):
            rows = [dataset[at[0] + row] for row in range(B)]
            at[0] += B
            yield [torch.stack([row[name] for row in rows]) for name in ("tokens", "labels", "position_ids")]

    return batches, "positions restart at document ends" if ends else "its default: no document ends"


def mosaic(request: dict) -> tuple[Batches, str]:
    vision = types.ModuleType("torchvision.datasets")
    vision.VisionDataset = object  # type: ignore[attr-defined]  # imported for datasets of images, used by none here
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = vision if name.endswith("datasets") else types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    from streaming import MDSWriter, StreamingDataset

    T, B, out = request["sequence_length"], request["batch"], str(Path(request["scratch"]) / "mds")
    if not os.path.exists(out):
        tokens = tokens_of(request)
        windows = (len(tokens) - 1) // T
        with MDSWriter(out=out, columns={"tokens": f"ndarray:uint16:{T + 1}"}, size_limit=64 * 2**20) as writer:
            for window in range(windows):
                writer.write({"tokens": tokens[window * T : window * T + T + 1]})
    dataset = StreamingDataset(local=out, shuffle=True, batch_size=B, num_canonical_nodes=1)
    stream = endless(dataset)

    def batches() -> Iterator[Any]:
        for _ in range(request["steps"]):
            whole = np.stack([next(stream)["tokens"] for _ in range(B)]).astype(np.int64)
            yield whole[:, :-1], whole[:, 1:]

    return batches, "windows of T + 1 tokens as samples; no document ends"


def endless(dataset: Any) -> Iterator[Any]:
    while True:
        yield from dataset


def litdata(request: dict) -> tuple[Batches, str]:
    from litdata import StreamingDataset, TokensLoader, optimize

    T, B, out = request["sequence_length"], request["batch"], str(Path(request["scratch"]) / "litdata")
    if not os.path.exists(out):
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(Path(request["scratch"]) / "litcache")
        pieces = list(enumerate(request["shards"]))
        optimize(fn=_tokens, inputs=pieces, output_dir=out, chunk_size=32 * 2**20, item_loader=TokensLoader(T + 1), num_workers=1)
    dataset = StreamingDataset(out, item_loader=TokensLoader(T + 1), shuffle=True)
    stream = endless(dataset)

    def batches() -> Iterator[Any]:
        for _ in range(request["steps"]):
            whole = np.stack([np.asarray(next(stream)) for _ in range(B)]).astype(np.int64)
            yield whole[:, :-1], whole[:, 1:]

    return batches, "windows of T + 1 tokens, one after the other; no document ends"


def _tokens(piece: tuple[int, str]) -> Iterator[Any]:
    import torch

    yield torch.from_numpy(np.fromfile(piece[1], "<u2").astype(np.int32))


PEERS = {
    "megatron": ("megatron-core", megatron),
    "megatron-ends": ("megatron-core", lambda request: megatron(request, ends=True)),
    "mosaic": ("mosaicml-streaming", mosaic),
    "litdata": ("litdata", litdata),
}


def main(name: str, file: str) -> None:
    request = json.loads(Path(file).read_text())
    package, prepare = PEERS[name]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what they print is not for the asker
    try:
        batches, note = prepare(request)
    except Exception as error:
        print(json.dumps({"absent": f"{type(error).__name__}: {error}".splitlines()[0][:200]}), file=answers)
        return
    print(json.dumps({"ready": f"{package} {version(package)}", "note": note}), file=answers)
    tokens = request["steps"] * request["batch"] * request["sequence_length"]
    for _ in sys.stdin:
        began = time.perf_counter()
        for _batch in batches():
            pass
        print(json.dumps({"mtok_per_s": tokens / 1e6 / (time.perf_counter() - began)}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
