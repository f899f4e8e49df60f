"""Small runs and small states for the tests of the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.clocks import FakeClock
from headway.base.records import RecordWriter
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import encode_row
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.store.manifest import Manifest
from headway.store.save import ManifestFields, Rectangle, commit, saving, write_rank
from headway.store.verify import open_checkpoint, read_span

DTYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "BF16": np.uint16}

RUN_ID, SPEC_DIGEST = "00aa", "sha256:bb"
DESCRIPTION = {
    "kind": "run",
    "schema_version": 1,
    "name": "stored",
    "run_id": RUN_ID,
    "spec_digest": SPEC_DIGEST,
    "author": "test",
}
DESCRIPTION |= {"created": {}, "data": "", "deployment": {}, "digests": {}, "recipe_digest": "", "recipe_path": ""}
DESCRIPTION |= {"overrides": [], "versions": {}}
"""run.json, all but ``drill``."""


def make_run(root: Path, faults: list[dict] | None = None) -> RunDirectory:
    """A run directory with segment 1; a drill when ``faults`` are given."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "run.json").write_text(json.dumps(DESCRIPTION | {"drill": faults is not None}))
    if faults is not None:
        (root / "drill.json").write_text(json.dumps({"faults": faults}))
    run = RunDirectory.open(root)
    add_segment(run, 1)
    return run


def add_segment(
    run: RunDirectory, number: int, parent: int | None = None, restored: int = 0, checkpoint: str | None = None
) -> None:
    write_segment(
        run,
        Segment(number, parent, restored, checkpoint, "test", "automatic", epoch=number, layout={}),
    )


def chain_of(run: RunDirectory) -> list[Segment]:
    return current_chain(read_segments(run))


def rectangle(
    name: str, array: np.ndarray, dtype: str = "F32", offset: tuple[int, ...] = (), whole: tuple[int, ...] = ()
) -> Rectangle:
    data = np.ascontiguousarray(array, DTYPES[dtype])
    return Rectangle(
        name=name,
        dtype=dtype,
        global_shape=whole or array.shape,
        offset=offset or (0,) * array.ndim,
        shape=array.shape,
        data=data.reshape(-1).view(np.uint8),
    )


def values(step: int) -> dict[str, np.ndarray]:
    """A state that differs from step to step."""
    random = np.random.default_rng(step)
    return {f"{part}/w": random.standard_normal((5, 7)).astype(np.float32) for part in ("param", "m", "v")}


def save(
    run: RunDirectory, segment: int, step: int, state: dict[str, np.ndarray] | None = None, says: dict[str, Any] | None = None
) -> str:
    """Save by the store's own doors, one rank. ``says``: more of the small state, such as the run it belongs to."""
    rectangles = [rectangle(name, array) for name, array in (values(step) if state is None else state).items()]
    with saving(run.checkpoints, segment, step) as directory:
        write_rank(directory, rectangles, segment, step, 0, 1)
        commit(directory, ManifestFields(segment=segment, step=step, world=1, state={"u": step, **(says or {})}))
    return directory.name


def record_save(run: RunDirectory, segment: int, step: int, name: str, digest: str | None = None) -> None:
    """What the trainer appends after the commit."""
    writer = RecordWriter(run.steps_file(segment))
    stamp = FakeClock().stamp().to_json()
    writer.append(
        {"kind": "save", "stamp": stamp, "step": step, "checkpoint": name, "bytes": 1, "blocking_ns": 1, "digest": digest}
    )
    writer.close()


def record_evaluation(run: RunDirectory, segment: int, step: int, **losses: float) -> None:
    """What the trainer appends before the save of that step."""
    writer = RecordWriter(run.steps_file(segment))
    writer.append(encode_row({"kind": "evaluation", "stamp": FakeClock().stamp().to_json(), "step": step, "loss": losses}))
    writer.close()


def load(directory: Path) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Whole F32 tensors, read block by block with proof."""
    checkpoint = open_checkpoint(directory)
    arrays = {}
    for name, entry in checkpoint.tensors.items():
        (chunk,) = entry.chunks
        arrays[name] = read_span(directory, chunk, 0, chunk.nbytes).view(np.float32).reshape(entry.shape)
    return checkpoint.manifest, arrays


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def flip_bit(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
