"""Checkpoint figures as ratios in one run: blocking save over one memcpy of the same state, verify over a plain read.

    python bench/checkpoint.py [--megabytes 200] [--repeats 5] [--directory DIR]

Prints one JSON object. ``save_over_memcpy`` is what a synchronous save costs today; the writer process is to bring it
near 1. ``write_over_memcpy`` is the same bytes written and fsynced plainly: what the storage itself asks for.
``verify_over_read`` is 1 when proving every block costs nothing beside reading it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from headway.checkpoint.digest import state_digest
from headway.checkpoint.load import load_checkpoint
from headway.checkpoint.save import save_checkpoint
from headway.rundir.layout import RunDirectory
from headway.store.manifest import BLOCK_BYTES
from headway.store.verify import drop_cached, verify


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def state(total_bytes: int) -> dict[str, torch.Tensor]:
    """Parameters and two moments, as many equal layers as fill ``total_bytes``; one large embedding."""
    rows = max(1, total_bytes // (3 * 4 * 4 * 1024))
    tensors = {}
    for part in ("param", "m", "v"):
        tensors[f"{part}/embedding"] = torch.randn(2 * rows, 1024)
        tensors |= {f"{part}/layer{i:02d}": torch.randn(rows // 8, 1024) for i in range(16)}
    return tensors


def plain_write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with open(path, "wb", buffering=0) as file:
        for tensor in tensors.values():
            file.write(tensor.numpy().data)
        os.fsync(file.fileno())


def plain_read(path: Path) -> None:
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def one_round(
    run: RunDirectory, step: int, tensors: dict[str, torch.Tensor], copies: dict[str, torch.Tensor]
) -> dict[str, float]:
    """Seconds of each kind of work, side by side, so that a noisy neighbour meets them all."""
    plain = run.root / f"plain{step}"  # a fresh file, as a save's are
    times = {
        "memcpy": seconds(lambda: [copies[name].copy_(tensor) for name, tensor in tensors.items()]),
        "digest": seconds(lambda: state_digest(tensors)),
        "write": seconds(lambda: plain_write(plain, tensors)),
    }
    result = save_checkpoint(run, 1, step, tensors, {})
    saved = run.checkpoints / result.name
    times["save"] = result.blocking_ns / 1e9
    for name, work in (("read", lambda: plain_read(saved / "rank00000.safetensors")), ("verify", lambda: verify(saved))):
        times[f"{name}_warm"] = seconds(work)
        drop_cached(saved)
        times[f"{name}_cold"] = seconds(work)
    times["load"] = seconds(lambda: load_checkpoint(saved, copies))
    plain.unlink()
    shutil.rmtree(saved)
    return times


def measure(directory: Path, total_bytes: int, repeats: int) -> dict:
    (directory / "run.json").write_text('{"kind": "run", "drill": false}')
    run, tensors = RunDirectory.open(directory), state(total_bytes)
    copies = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}  # touched: no page faults in the copy
    times: dict[str, list[float]] = {}
    for step in range(repeats + 1):
        for name, value in one_round(run, step, tensors, copies).items():
            times.setdefault(name, []).append(value)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    nbytes = sum(t.numel() * t.element_size() for t in tensors.values())
    return {"bytes": nbytes, "repeats": repeats, "seconds_median": median} | ratios(median)


def ratios(median: dict[str, float]) -> dict[str, float]:
    return {
        "save_over_memcpy": median["save"] / median["memcpy"],
        "write_over_memcpy": median["write"] / median["memcpy"],
        "save_over_write": median["save"] / median["write"],
        "digest_over_memcpy": median["digest"] / median["memcpy"],
        "load_over_memcpy": median["load"] / median["memcpy"],
        "verify_over_read_warm": median["verify_warm"] / median["read_warm"],
        "verify_over_read_cold": median["verify_cold"] / median["read_cold"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: the temporary directory)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="headway-bench-") as directory:
        figures = measure(Path(directory), arguments.megabytes * 10**6, arguments.repeats)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    print(json.dumps({"bench": "checkpoint", **figures, "versions": versions}, indent=1))


if __name__ == "__main__":
    main()
