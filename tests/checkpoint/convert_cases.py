"""Sources and shorthands for the tests of conversions."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import torch
from checkpoint_cases import blank, cuts, piece

from headway.checkpoint.convert.convert import Request, convert
from headway.checkpoint.load import load_checkpoint
from headway.checkpoint.rectangles import local_rectangles
from headway.checkpoint.tensors import DTYPES
from headway.recipe.spec import (
    BatchPhase,
    EvaluationSpec,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RateSpec,
    Spec,
    StabilitySpec,
    StageSpec,
    TokenizerSpec,
)
from headway.rundir.create import RunInfo, create_run
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, write_segment
from headway.store.save import ManifestFields, begin_save, commit, write_rank
from headway.store.verify import verify
from headway.train.trainee import build_trainee

STATE = {"run_id": "r", "updates": 12, "cursor": {"u": 3, "streams": ["a", "b"]}, "rate": 0.1, "alarm": None}
SEGMENT, STEP = 2, 12


def every_kind() -> dict[str, torch.Tensor]:
    """All dtypes with random bits (NaN and -0.0 among them), scalars, empty tensors, odd shapes."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(255, 7), (), (0,), (1,), (3, 5, 2), (3, 0, 4), (17,)]
    values = {}
    for (code, dtype), shape in itertools.product(DTYPES.items(), shapes):
        width = torch.empty((), dtype=dtype).element_size()
        high = 2 if dtype == torch.bool else 256
        bits = torch.randint(0, high, (*shape, width), dtype=torch.uint8, generator=generator)
        flat = bits.reshape(-1).view(dtype) if bits.numel() else torch.empty(0, dtype=dtype)
        values[f"param/{code}.{len(shape)}.{'x'.join(map(str, shape))}"] = flat.reshape(shape)
    values["m/negative_zero"] = torch.tensor([-0.0, float("nan"), float("inf")])
    return values


def large() -> dict[str, torch.Tensor]:
    """Over several blocks and pieces, which the rows do not divide."""
    generator = torch.Generator().manual_seed(6)
    return {"param/w": torch.randn(1_300_003, 5, generator=generator), "v/w": torch.randn(5, 7, generator=generator).bfloat16()}


def write_source(root: Path, values: dict[str, torch.Tensor], splits: tuple[int, int] = (1, 1)) -> Path:
    """A committed checkpoint; matrices are cut by ``splits``, each cell by its own rank."""
    world = splits[0] * splits[1]
    ranks: list[list] = [[] for _ in range(world)]
    for name, tensor in values.items():
        if tensor.ndim == 2 and tensor.numel():
            cells = itertools.product(*(cuts(size, parts) for size, parts in zip(tensor.shape, splits)))
            parts = [piece(name, tensor, tuple(o for o, _ in cell), tuple(n for _, n in cell)) for cell in cells]
        else:
            parts = local_rectangles({name: tensor})
        for rank, part in enumerate(parts):
            ranks[rank % world].append(part)
    directory = begin_save(root, SEGMENT, STEP)
    for rank, parts in enumerate(ranks):
        write_rank(directory, parts, SEGMENT, STEP, rank, world)
    commit(directory, ManifestFields(segment=SEGMENT, step=STEP, world=world, state=STATE))
    return directory


def to(source: Path | str, destination: Path, form: str, **options) -> dict:
    return convert(Request(source=str(source), destination=destination, to=form, **options))


def loaded(directory: Path, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a checkpoint holds, after it was verified whole."""
    assert verify(directory).reasons == ()
    into = blank(like)
    load_checkpoint(directory, into)
    return into


def nothing_left(folder: Path, *names: str) -> bool:
    """``folder`` holds these and no trace of anything else, hidden or not."""
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


def make_spec(**model) -> Spec:
    """A toy decoder: grouped queries, a width that is not heads x head width, two stages with rope bases of their own."""
    plain = ModelSpec(2, 24, 4, 2, 8, 40, 61, 10_000.0, 1e-5, True, False, 0.02)
    stages = tuple(
        StageSpec(name, 4096, 32, 128, (BatchPhase(0, 8),), RateSpec(0, "constant", 1.0, 1.0), (65_536,), base)
        for name, base in (("main", 10_000.0), ("long", 70_000.0))
    )
    return Spec(
        name="toy",
        seed=3,
        data_seed=3,
        objective={},
        tokenizer=TokenizerSpec("bpe", 61, "<|document|>", "t"),
        model=dataclasses.replace(plain, **model),
        sources=(),
        stages=stages,
        optimizer=OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
        stability=StabilitySpec(1e-4),
        precision=PrecisionSpec("float32"),
        evaluation=EvaluationSpec(10**9, 32, (), 0),
        manifest_digest="m",
        recipe_digest="r",
    )


def trained_state(spec: Spec) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A decoder whose every weight, gains included, is far from its initial value; and the state that a trainer would save."""
    trainee = build_trainee(spec)
    generator = torch.Generator().manual_seed(9)
    state = trainee.state()
    for tensor in state.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.3)
    return trainee.compute.decoder, state


def make_run(root: Path, spec: Spec, state: dict[str, torch.Tensor], steps: tuple[int, ...] = (12,)) -> RunDirectory:
    """A run of one segment with a checkpoint per step."""
    run = create_run(root, spec=spec, recipe_text="", info=RunInfo(data=str(root), deployment={}, author="a person"))
    write_segment(run, Segment(1, None, 0, None, "test", "automatic", 1, {}))
    beside = {"run_id": run.info()["run_id"], "spec_digest": spec.digest(), "updates": 12}
    for step in steps:
        directory = begin_save(run.checkpoints, 1, step)
        write_rank(directory, local_rectangles(state), 1, step, 0, 1)
        commit(directory, ManifestFields(segment=1, step=step, world=1, state=beside))
    return run


def flip(path: Path, at: int) -> None:
    """One bit of one byte; negative places count from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def read_index(directory: Path) -> dict:
    return json.loads((directory / "model.safetensors.index.json").read_text())
