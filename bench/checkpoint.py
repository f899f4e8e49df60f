"""Checkpoint figures as ratios in one run, against what the machine can do and against torch's own ways to save.

    python bench/checkpoint.py [--gib 1] [--directory DIR]

    blocking over memcpy        training stands still for a save / one copy of the same state, memory warm on both sides
    flush over raw write        bandwidth from seal to commit, digests included / that of plain or direct write + fsync
    load over raw read          verified load from cold files / the fastest plain way to read them into memory of that size
    load over look              the same / the fastest way to read them into 4 MiB of memory, again and again
    lost seconds per gib        training seconds lost to a background flush, per GiB: matrix products beside it, interleaved
    dcp, torch.save             time until training goes on, and until the data are durable, beside ours in the same rounds

Prints one JSON object. Medians over rounds in which the competitors take turns, so that a noisy neighbour meets them all.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.base.files import write_json
from headway.checkpoint.load import load_checkpoint
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.rundir.layout import RunDirectory
from headway.store.manifest import BLOCK_BYTES
from headway.store.verify import drop_cached

GIB = 1 << 30
MANY_SAVES, MANY_RANKS = 200, 16384
State = dict[str, torch.Tensor]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def make_state(total_bytes: int) -> State:
    """Parameters and two moments, as a decoder has them: many matrices, and one large embedding."""
    unit = total_bytes // (3 * 4 * 1024 * 18)
    state = {}
    for part in ("param", "m", "v"):
        state[f"{part}/embedding"] = torch.randn(2 * unit, 1024)
        state |= {f"{part}/layer{i:02d}": torch.randn(unit, 1024) for i in range(16)}
    return state


def make_run(root: Path) -> RunDirectory:
    root.mkdir(parents=True)
    rest: dict[str, Any] = {"name": "bench", "drill": False, "data": "", "deployment": {}, "spec_digest": ""}
    write_json(root / "run.json", {"kind": "run", "schema_version": 1, "run_id": root.name, **rest})
    return RunDirectory.open(root)


class Ours:
    """Headway's saver on one rank."""

    def __init__(self, root: Path, state: State, policy: SavePolicy | None = None):
        self.run, self.state, self.step = make_run(root), state, 0
        self.saver = Saver(Place(run=self.run, segment=1), policy or SavePolicy(keep_last=1, when_busy="wait"))
        self.saver.attach(state)
        self.saver.prepare()

    def save(self) -> dict[str, float]:
        """Seconds that training stands still, and until the checkpoint is committed, at full speed."""
        self.step += 1
        began = time.perf_counter()
        snapshot = self.saver.save(self.step, self.state, {})
        blocking = time.perf_counter() - began
        assert snapshot is not None
        outcomes = [outcome for outcome in self.saver.settle() if outcome.kind != "pruned"]
        assert [outcome.kind for outcome in outcomes] == ["committed"], outcomes
        return {"blocking": blocking, "durable": time.perf_counter() - began}

    def image(self) -> memoryview:
        """Its memory: page-aligned, and as long as the data file."""
        assert self.saver._buffer is not None
        assert self.saver._buffer._memory is not None
        return self.saver._buffer._memory

    def newest(self) -> Path:
        return max(self.run.checkpoints.glob("g*"))

    def close(self) -> None:
        self.saver.close(stays=False)
        shutil.rmtree(self.run.root)


class Room:
    """Touched memory of at most 1 GiB, filled from front to back and again: three times 8 GiB do not fit everywhere."""

    def __init__(self, total_bytes: int):
        self.memory = mmap.mmap(-1, -(-min(total_bytes + BLOCK_BYTES, GIB) // BLOCK_BYTES) * BLOCK_BYTES)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.touch()

    def touch(self) -> None:
        self.bytes.zero_()

    def take(self, state: State) -> None:
        """One copy of the state."""
        sources = [tensor.view(-1).view(torch.uint8) for tensor in state.values()]
        targets, at = [], 0
        for source in sources:
            at = at if at + source.numel() <= len(self.memory) else 0
            targets.append(self.bytes[at : at + source.numel()])
            at += source.numel()
        torch._foreach_copy_(targets, sources)


def raw_write(path: Path, image: memoryview, direct: bool) -> None:
    """Written and fsynced, by 4 MiB; direct: past the page cache."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0))
    for at in range(0, len(image), BLOCK_BYTES):
        os.write(descriptor, image[at : at + BLOCK_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path: Path, way: str, room: Room | None) -> None:
    """Every byte once: through pages of the cache that are given back at once, or past it.

    ``room``: where the bytes go; None: all into the same 4 MiB, as one who only looks.
    """
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    small, at = mmap.mmap(-1, BLOCK_BYTES), 0
    view = memoryview(small if room is None else room.memory)
    while count := os.preadv(descriptor, [view[at % len(view) :][:BLOCK_BYTES]], at):
        if way == "dropped":
            os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_DONTNEED)
        at += count
    os.close(descriptor)


def median(values: list[float]) -> float:
    return statistics.median(values)


def speeds(root: Path, total_bytes: int, rounds: int) -> dict[str, Any]:
    """Save and load against memcpy and the raw disk."""
    state, room = make_state(total_bytes), Room(total_bytes)
    copies = {name: torch.zeros_like(tensor) for name, tensor in state.items()} if total_bytes <= 2 * GIB else state
    ours, times = Ours(root / "ours", state), dict[str, list[float]]()
    image = ours.image()

    def warm_copies() -> None:
        for tensor in copies.values():
            tensor.mul_(1.0)

    def nothing() -> None:
        pass

    shuffled = random.Random(0)
    for number in range(rounds + 1):
        measured = {"memcpy": seconds(lambda: room.take(state))}
        measured |= {f"save_{name}": value for name, value in ours.save().items()}
        saved = ours.newest()
        file = saved / "rank00000.safetensors"
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "load": (warm_copies, lambda c=saved: load_checkpoint(c, copies)),
            "look_dropped": (nothing, lambda f=file: raw_read(f, "dropped", None)),
        }
        ways |= {f"read_{way}": (room.touch, lambda f=file, w=way: raw_read(f, w, room)) for way in ("dropped", "direct")}
        ways |= {
            f"write_{way}": (nothing, lambda w=way: raw_write(root / "raw", image, w == "direct")) for way in ("plain", "direct")
        }
        for name in shuffled.sample(sorted(ways), len(ways)):
            warm, work = ways[name]
            drop_cached(saved)
            warm()  # memory that lay idle is cold on virtual machines: each way finds its own just touched
            measured[name] = seconds(work)
        (root / "raw").unlink()
        if number:  # the first round touches pages and wakes the disk
            for name, value in measured.items():
                times.setdefault(name, []).append(value)
    ours.close()
    t = {name: median(values) for name, values in times.items()}
    nbytes = sum(tensor.nbytes for tensor in state.values())
    flush = t["save_durable"] - t["save_blocking"]  # from the seal to the commit
    return {
        "bytes": nbytes,
        "rounds": rounds,
        "seconds_of_each": {name: round(value, 4) for name, value in t.items()},
        "blocking_over_memcpy": t["save_blocking"] / t["memcpy"],
        "flush_over_raw_write": min(t["write_plain"], t["write_direct"]) / flush,
        "flush_over_plain_write": t["write_plain"] / flush,
        "load_over_raw_read": min(t["read_dropped"], t["read_direct"]) / t["load"],
        "load_over_look": t["look_dropped"] / t["load"],
    }


def peers(root: Path, total_bytes: int, rounds: int) -> dict[str, Any]:
    """Seconds until training goes on and until the data are durable: torch.save, DCP in three ways, and ours, in turns."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    state = make_state(total_bytes)
    dist.init_process_group("cpu:gloo", init_method=f"file://{root}/store", rank=0, world_size=1)
    path = root / "peer"

    def torch_save() -> dict[str, float]:
        began = time.perf_counter()
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        return {"blocking": took, "durable": took}

    def dcp_sync() -> dict[str, float]:
        took = seconds(lambda: dcp.save(state, checkpoint_id=path))
        return {"blocking": took, "durable": took}

    def dcp_async(kind: AsyncCheckpointerType) -> dict[str, float]:
        began = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=path, async_checkpointer_type=kind)
        blocking = time.perf_counter() - began
        future.result()  # type: ignore[union-attr]
        return {"blocking": blocking, "durable": time.perf_counter() - began}

    ours = Ours(root / "ours", state)
    ways: dict[str, Callable[[], dict[str, float]]] = {"ours": ours.save, "torch_save": torch_save, "dcp_sync": dcp_sync}
    for kind in AsyncCheckpointerType:
        if total_bytes <= 2 * GIB or kind is AsyncCheckpointerType.THREAD:  # a process takes another copy of the state
            ways[f"dcp_{kind.value}"] = lambda k=kind: dcp_async(k)
    times: dict[str, dict[str, list[float]]] = {name: {"blocking": [], "durable": []} for name in ways}
    turns = [[name] for name in ways] if total_bytes > 2 * GIB else [list(ways)]  # one after the other where memory is short
    for turn in turns:
        for number in range(rounds + 1):
            for name in turn:
                for what, value in ways[name]().items():
                    if number:
                        times[name][what].append(value)
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                gc.collect()
        if turn == ["ours"]:
            ours.close()
    if len(turns) == 1:
        ours.close()
    dist.destroy_process_group()
    middle = {name: {what: median(values) for what, values in of.items()} for name, of in times.items()}
    result: dict[str, Any] = {"seconds_of_each": middle}
    for name in ways:
        if name != "ours":
            result[f"{name}_blocking_over_ours"] = middle[name]["blocking"] / middle["ours"]["blocking"]
            result[f"{name}_durable_over_ours"] = middle[name]["durable"] / middle["ours"]["durable"]
    return result


def lost_to_a_flush(root: Path, total_bytes: int, pairs: int) -> dict[str, Any]:
    """Training seconds lost to a background flush: steps of matrix products on all cores, with a flush under way and without."""
    state = make_state(total_bytes)
    ours = Ours(root / "ours", state, SavePolicy(keep_last=99, when_busy="wait"))  # reading back would fall into the rounds after
    a = torch.randn(1024, 1024)

    def step() -> None:
        for _ in range(20):
            torch.mm(a, a)

    def training(work_seconds: float) -> float:
        """Steps per second over about so long."""
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < work_seconds:
            step()
            count += 1
        return count / (time.perf_counter() - began)

    lost, lasted = [], []
    training(1.0)
    for number in range(pairs):
        before = training(1.5)
        ours.step += 1
        assert ours.saver.save(ours.step, state, {}) is not None
        began, count = time.perf_counter(), 0
        while ours.saver.under_way:
            step()
            count += 1
            ours.saver.poll()
        with_flush = time.perf_counter() - began
        after = training(1.5)
        shutil.rmtree(ours.newest())
        if number:
            lost.append((with_flush - count / ((before + after) / 2)) / (total_bytes / GIB))
            lasted.append(with_flush)
    ours.close()
    return {"lost_seconds_per_gib_median": median(lost), "flush_seconds": median(lasted), "lost_seconds_of_each": lost}


def many_saves(root: Path) -> dict[str, Any]:
    """Memory of trainer and writer, and open files, over many saves of 8 MiB."""
    state = make_state(8 << 20)
    ours = Ours(root / "ours", state)
    assert ours.saver._writer is not None
    writer = ours.saver._writer.pid

    def resident(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def look() -> dict[str, int]:
        return {
            "trainer_bytes": resident(os.getpid()),
            "writer_bytes": resident(writer),
            "trainer_files": len(os.listdir("/proc/self/fd")),
            "writer_files": len(os.listdir(f"/proc/{writer}/fd")),
        }

    for _ in range(20):
        ours.save()
    first = look()
    for _ in range(MANY_SAVES):
        ours.save()
    last = look()
    ours.close()
    return {"saves": MANY_SAVES, "first": first, "last": last} | {f"{k}_grown_over_first": last[k] / first[k] for k in first}


RANK = """
import sys, time, torch
from pathlib import Path
from headway.checkpoint.saver import Place, SavePolicy, Saver
from headway.rundir.layout import RunDirectory
run, rank, world, nbytes = RunDirectory.open(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
from headway.checkpoint.rectangles import LocalPart
from headway.store.rectangle import Part
rows = nbytes // 4096
local = torch.randn(rows, 1024)
part = Part(name="param/x", dtype="F32", global_shape=(rows * world, 1024), offset=(rows * rank, 0), shape=(rows, 1024))
class Mine(Place):
    def parts(self, tensors): return [LocalPart(part, local)]
saver = Saver(Mine(run=run, segment=1, rank=rank, world=world), SavePolicy(keep_last=1, when_busy="wait"))
saver.attach({}); saver.prepare(); print("ready", flush=True)
for step, line in enumerate(sys.stdin, start=1):
    snapshot = saver.save(step, {}, {}); told = saver.settle()
    assert not [o for o in told if o.kind == "failed"], told
    print(snapshot.blocking_ns, flush=True)
saver.close(stays=False)
"""


def ranks_at_once(root: Path, total_bytes: int, world: int, rounds: int) -> float:
    """Seconds from the first snapshot to the commit, when ``world`` processes save a state of the same total size."""
    run = make_run(root / f"world{world}")
    command = [sys.executable, "-c", RANK, str(run.root)]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(r), str(world), str(total_bytes // world)], **pipe) for r in range(world)]  # type: ignore[call-overload]
    for rank in ranks:
        assert rank.stdout.readline() == "ready\n"
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        for rank in ranks[1:] + ranks[:1]:  # rank 0 ends with the commit
            assert rank.stdout.readline().strip().isdigit()
        times.append(time.perf_counter() - began)
    for rank in ranks:
        rank.stdin.close()
        assert rank.wait(60) == 0
    shutil.rmtree(run.root)
    return median(times[1:])


def many_ranks(root: Path, world: int, tensors: int) -> dict[str, float]:
    """The coordinator's part alone: receipts of so many ranks are there, each with a shard of so many tensors."""
    from headway.store.manifest import Chunk, Receipt, TensorEntry, receipt_bytes
    from headway.store.names import data_file, receipt_file
    from headway.store.save import ManifestFields, begin_save, commit

    directory = begin_save(root / "checkpoints", 1, 1)
    digest = ("0123456789abcdef" * 2,)
    for rank in range(world):
        at, entries = 64, {}
        for number in range(tensors):
            chunk = Chunk(offset=(rank, 0), shape=(1, 2), file=data_file(rank), at=at, nbytes=8, blocks=digest)
            entries[f"param/layers.{number:04d}.weight"] = TensorEntry(dtype="F32", shape=(world, 2), chunks=(chunk,))
            at += 8
        place: dict[str, Any] = {"segment": 1, "step": 1, "rank": rank, "world": world, "header_digest": digest[0]}
        receipt = Receipt(**place, file=data_file(rank), file_bytes=at, header_bytes=64, tensors=entries)
        (directory / receipt_file(rank)).write_bytes(receipt_bytes(receipt))
        with open(directory / data_file(rank), "wb") as file:
            file.truncate(at)
    took = seconds(lambda: commit(directory, ManifestFields(segment=1, step=1, world=world, state={})))
    shutil.rmtree(root / "checkpoints")
    return {"ranks": world, "tensors": tensors, "chunks": world * tensors, "commit_seconds": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0], help="sizes of the state; 8 takes some 20 GiB of memory")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: the temporary directory)")
    parser.add_argument("--only", nargs="+", default=None, help="names of parts to measure (default: all)")
    asked = parser.parse_args()
    figures: dict[str, Any] = {"bench": "checkpoint"}

    def part(name: str, measure: Callable[[Path], Any]) -> None:
        if asked.only is None or any(name.startswith(word) for word in asked.only):
            with tempfile.TemporaryDirectory(dir=asked.directory, prefix="headway-bench-") as directory:
                print(f"  {name} ...", file=sys.stderr, flush=True)
                figures[name] = measure(Path(directory))

    for size in asked.gib:
        total = round(size * GIB)
        rounds = asked.rounds if size <= 2 else max(2, asked.rounds // 2)
        part(f"speeds_{size:g}_gib", lambda d, t=total, r=rounds: speeds(d, t, r))
        part(f"peers_{size:g}_gib", lambda d, t=total, r=rounds: peers(d, t, r if t <= 2 * GIB else 1))
        part(f"training_{size:g}_gib", lambda d, t=total, s=size: lost_to_a_flush(d, t, 8 if s <= 2 else 3))
    part("many_saves", many_saves)
    part(
        "ranks",
        lambda d: (lambda t: {"seconds_of_each": t, "eight_over_one": t[8] / t[1]})(
            {w: ranks_at_once(d, GIB, w, 3) for w in (1, 2, 4, 8)}
        ),
    )
    part("many_ranks", lambda d: many_ranks(d, MANY_RANKS, 8))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
