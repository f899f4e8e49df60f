"""Weights as ``transformers`` loads them: safetensors shards under its names, an index, and ``config.json`` where it is known.

    model-00001-of-00002.safetensors ...   model.safetensors.index.json {"weight_map": {name: file}}   config.json

Only parameters have a place there: moments, counts and the position in the data are left out, and said to be. Names are mapped
by ``architectures``; no row is moved. On the way back names are mapped the other way; the state says that it is parameters only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.base.errors import Problem, RunError
from headway.base.files import read_json, write_json
from headway.checkpoint.convert.architectures import check_fits, configuration, our_name, refuse_foreign, their_name
from headway.checkpoint.convert.contents import About, Contents, Kind, LeftOut, Written, by_group, total_bytes
from headway.checkpoint.convert.options import Options
from headway.checkpoint.convert.reading import COPY, damaged
from headway.checkpoint.convert.safetensors_file import write_file
from headway.checkpoint.convert.shards import ShardContents, open_files, plan_shards, shard_name
from headway.checkpoint.tensors import DTYPES
from headway.store.manifest import DTYPE_BYTES

INDEX, SINGLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
CONVERTIBLE = ("BF16", "F16", "F32", "F64")
ROTARY = ".rotary_emb.inv_freq"
"""Tables of angles that old versions stored; they follow from the configuration."""


def recognise(path: Path) -> bool:
    return path.is_dir() and ((path / INDEX).is_file() or (path / SINGLE).is_file())


class Renamed:
    """Contents under other names, and perhaps with weights of another dtype; what has no name there is not part of it."""

    def __init__(self, inner: Contents, names: dict[str, str], about: About, dtype: str | None = None):
        self.inner, self.names, self.about = inner, names, about
        self.left_out = inner.left_out
        self.dtype = dtype
        self.tensors = {new: self._kind(inner.tensors[old]) for new, old in names.items()}

    def _kind(self, kind: Kind) -> Kind:
        return Kind(dtype=self.dtype or kind.dtype, shape=kind.shape)

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        old = self.names[name]
        values, saved = self.inner.rows(old, first, last), self.inner.tensors[old].dtype
        return values if self.dtype in (None, saved) else _cast(values, saved, self.dtype or saved)


def _cast(values: np.ndarray, saved: str, wanted: str) -> np.ndarray:
    """Rounded to nearest, ties to even, where it becomes narrower."""
    return torch.from_numpy(values).view(DTYPES[saved]).to(DTYPES[wanted]).view(torch.uint8).numpy()


# --- reading ------------------------------------------------------------------------------------------------------------


def open_contents(path: Path) -> Renamed:
    files = open_files(_files(path))
    shards = ShardContents(files, About())
    _check_index(path, shards.tensors)
    config = _config(path)
    tables = tuple(name for name in shards.tensors if name.endswith(ROTARY))
    names = _our_names(path, [name for name in shards.tensors if name not in tables])
    if tables:
        shards.left_out = (LeftOut(what=f"*{ROTARY}", why="tables that follow from the configuration", tensors=len(tables)),)
    holds = "parameters only: no moments, no counts, no position in the data"
    converted = {"from": "huggingface", "source": path.name, "holds": holds, "config": config}
    return Renamed(shards, names, About(state={"converted": converted}))


def _files(path: Path) -> Iterator[Path]:
    """Those that the index names, or the one file without an index."""
    if not (path / INDEX).is_file():
        yield path / SINGLE
        return
    for name in sorted(set(_weight_map(path).values())):
        if "/" in name or name in (".", "..") or "\0" in name:
            raise damaged(path / INDEX, "it names a file that is not beside it")
        yield path / name


def _weight_map(path: Path) -> dict[str, str]:
    index = read_json(path / INDEX, "index of the weights")
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise damaged(path / INDEX, "it has no weight_map of names and files")
    return weights


def _check_index(path: Path, tensors: dict[str, Kind]) -> None:
    if (path / INDEX).is_file() and set(_weight_map(path)) != set(tensors):
        differing = sorted(set(_weight_map(path)) ^ set(tensors))
        raise damaged(path / INDEX, f"index and files disagree on {len(differing)} tensors, such as {differing[0]}", COPY)


def _config(path: Path) -> Any:
    if not (path / CONFIG).is_file():
        return None
    config = read_json(path / CONFIG, "configuration")
    refuse_foreign(config, str(path / CONFIG))
    return config


def _our_names(path: Path, theirs: list[str]) -> dict[str, str]:
    """Ours -> theirs; RunError names every tensor that our decoder has not."""
    rule = "every tensor is one of our decoder: no biases, no experts, no adapters"
    found = {name: our_name(name) for name in theirs}
    if unknown := [name for name, ours in found.items() if ours is None]:
        raise RunError([Problem(f"{name} has no place in our decoder", rule, f"path: {path}") for name in unknown[:10]])
    return {ours: name for name, ours in found.items() if ours is not None}


# --- writing ------------------------------------------------------------------------------------------------------------


def write(contents: Contents, staging: Path, options: Options) -> Written:
    chosen = Renamed(contents, _their_names(contents), contents.about, options.dtype)
    _refuse_integers(contents, chosen)
    config, notes = _derive_config(contents, chosen, options)
    shards = plan_shards(chosen.tensors, options.shard_bytes)
    staging.mkdir()
    weights: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = shard_name("model", number, len(shards))
        write_file(chosen, names, staging / file, {})
        weights |= dict.fromkeys(names, file)
    write_json(staging / INDEX, {"metadata": {"total_size": total_bytes(chosen.tensors)}, "weight_map": weights})
    if config is not None:
        write_json(staging / CONFIG, config)
    return Written(
        left_out=_left_out(contents, chosen), notes=notes, details={"files": len(shards), "config": config is not None}
    )


def _their_names(contents: Contents) -> dict[str, str]:
    """Theirs -> ours, of all parameters."""
    ours = [name for name in contents.tensors if name.startswith("param/")]
    if not ours:
        raise RunError("the source holds no parameters", "they are tensors whose names begin with param/", "check the source")
    if unknown := [name for name in ours if their_name(name) is None]:
        rule = "the architectures that we know in transformers are those of dense decoders: Qwen3 and Llama"
        raise RunError([Problem(f"{name} has no place there", rule, "export it as safetensors") for name in unknown[:10]])
    return {str(their_name(name)): name for name in ours}


def _refuse_integers(contents: Contents, chosen: Renamed) -> None:
    wrong = [old for old in chosen.names.values() if chosen.dtype and contents.tensors[old].dtype not in CONVERTIBLE]
    if wrong:
        seen = f"{wrong[0]} is {contents.tensors[wrong[0]].dtype}"
        raise RunError(seen, f"--dtype converts between {', '.join(CONVERTIBLE)}", "leave --dtype out")


def _derive_config(contents: Contents, chosen: Renamed, options: Options) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if options.spec is None:
        why = "config.json is left out: the source belongs to no run whose spec could be read"
        return None, (f"{why}; name it as RUN:NAME to have it written",)
    check_fits(contents.tensors, options.spec.model)
    dtypes = {kind.dtype for kind in chosen.tensors.values()}
    dtype = str(DTYPES[dtypes.pop()]).removeprefix("torch.") if len(dtypes) == 1 else None
    return configuration(options.spec, contents.about.step or 0, dtype), ()


def _left_out(contents: Contents, chosen: Renamed) -> tuple[LeftOut, ...]:
    taken = set(chosen.names.values())
    groups = by_group(name for name in contents.tensors if name not in taken)
    tensors = [LeftOut(what=group, tensors=count, why="only weights have a place there") for group, count in groups.items()]
    state = [LeftOut(what="state", why="updates, cursor and record have no place there")] if contents.about.state else []
    tokenizer = LeftOut(what="tokenizer", why="it lies with the data of the run")
    rounded = [old for old in taken if chosen.dtype and DTYPE_BYTES[chosen.dtype] < DTYPE_BYTES[contents.tensors[old].dtype]]
    bits = [LeftOut(what="bits", tensors=len(rounded), why=f"rounded to {chosen.dtype}")] if rounded else []
    return (*tensors, *state, tokenizer, *bits)
