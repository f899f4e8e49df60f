"""Runs, states and layouts for the tests of the checkpoint room."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from headway.checkpoint.tensors import bytes_view, dtype_name
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, write_segment
from headway.store.rectangle import Rectangle
from headway.store.save import ManifestFields, begin_save, commit, write_rank

torch.set_num_threads(1)


def make_run(root: Path, faults: list[dict] | None = None) -> RunDirectory:
    root.mkdir(parents=True)
    texts = ("name", "run_id", "data", "spec_digest", "recipe_digest", "recipe_path", "author")
    description = dict.fromkeys(texts, "") | {key: {} for key in ("created", "deployment", "digests", "versions")}
    description |= {"kind": "run", "schema_version": 1, "drill": faults is not None, "overrides": []}
    (root / "run.json").write_text(json.dumps(description))
    (root / "drill.json").write_text(json.dumps({"faults": faults})) if faults is not None else None
    run = RunDirectory.open(root)
    write_segment(run, Segment(1, None, 0, None, "test", "automatic", 1, {}))
    return run


def state(step: int) -> dict[str, torch.Tensor]:
    """Parameters and moments as a trainer has them: several dtypes, a scalar, an odd vocabulary."""
    generator = torch.Generator().manual_seed(step)
    values = {f"{part}/embedding": torch.randn(255, 16, generator=generator) for part in ("param", "m", "v")}
    values["param/norm"] = torch.randn(16, generator=generator, dtype=torch.bfloat16)
    values["count/updates"] = torch.tensor(step)
    values["router/bias"] = torch.zeros(0)
    return values


def blank(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same names and kinds, other values."""
    return {name: torch.full_like(tensor, 7) for name, tensor in values.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Equal bit by bit (NaN and -0.0 too)."""
    return set(one) == set(other) and all(
        one[n].dtype == other[n].dtype
        and one[n].shape == other[n].shape
        and np.array_equal(bytes_view(one[n]), bytes_view(other[n]))
        for n in one
    )


def cuts(size: int, parts: int) -> list[tuple[int, int]]:
    """(start, length) of the chunks that ``torch.chunk`` makes; the last ones may be missing."""
    length = -(-size // parts)
    return [(at, min(length, size - at)) for at in range(0, size, length)]


def piece(name: str, tensor: torch.Tensor, offset: tuple[int, ...], shape: tuple[int, ...]) -> Rectangle:
    part = tensor[tuple(slice(o, o + n) for o, n in zip(offset, shape))]
    return Rectangle(
        name=name,
        dtype=dtype_name(name, tensor.dtype),
        global_shape=tuple(tensor.shape),
        offset=offset,
        shape=shape,
        data=bytes_view(part),
    )


def write_ranks(root: Path, ranks: list[list[Rectangle]]) -> Path:
    """A committed checkpoint of step 1 written by ``len(ranks)`` ranks."""
    directory = begin_save(root, 1, 1)
    for rank, rectangles in enumerate(ranks):
        write_rank(directory, rectangles, 1, 1, rank, len(ranks))
    commit(directory, ManifestFields(segment=1, step=1, world=len(ranks), state={}))
    return directory
