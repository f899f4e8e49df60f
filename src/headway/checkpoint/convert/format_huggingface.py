"""Weights as ``transformers`` loads them: safetensors shards under its names, an index, and ``config.json`` where it is known.

    model-00001-of-00002.safetensors ...   model.safetensors.index.json {"weight_map": {name: file}}   config.json

Only parameters have a place there: moments, counts and the position in the data are left out, and said to be. What becomes of
each is the business of ``architectures``; it happens as rows are read. The state that comes back says that it is parameters only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.errors import Problem, RunError
from headway.base.files import read_json, write_json
from headway.checkpoint.convert.architectures import (
    PARAM,
    Chosen,
    check_fits,
    choose,
    configuration,
    folded,
    model_at,
    our_name,
    read_configuration,
    stage_of,
    their_name,
)
from headway.checkpoint.convert.contents import About, Contents, Kind, LeftOut, Written, by_group, total_bytes
from headway.checkpoint.convert.options import Options
from headway.checkpoint.convert.reading import COPY, damaged
from headway.checkpoint.convert.safetensors_file import write_file
from headway.checkpoint.convert.served_tokenizer import token_ids, write_tokenizer
from headway.checkpoint.convert.shards import ShardContents, open_files, plan_shards, shard_name
from headway.checkpoint.convert.views import Cast, Stored, View
from headway.checkpoint.tensors import DTYPES
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import Spec
from headway.store.manifest import DTYPE_BYTES

INDEX, SINGLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
CONVERTIBLE = ("BF16", "F16", "F32", "F64")
ROTARY = ".rotary_emb.inv_freq"
"""Tables of angles that old versions stored; they follow from the configuration."""
DERIVED = "tables and copies that follow from the rest"


def recognise(path: Path) -> bool:
    return path.is_dir() and ((path / INDEX).is_file() or (path / SINGLE).is_file())


class Mapped:
    """Contents made of views. ``taken``: names of the source that they are made of."""

    def __init__(self, views: dict[str, View], source: Contents, about: About, taken: frozenset[str]):
        self.views, self.taken, self.about = views, taken, about
        self.left_out = source.left_out
        self.tensors = {name: view.kind for name, view in views.items()}

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        return self.views[name].rows(first, last)


# --- reading ------------------------------------------------------------------------------------------------------------


def open_contents(path: Path) -> Mapped:
    files = open_files(_files(path))
    shards = ShardContents(files, About())
    _check_index(path, shards.tensors)
    config = read_json(path / CONFIG, "configuration") if (path / CONFIG).is_file() else None
    chosen = None if config is None else read_configuration(config, str(path / CONFIG))
    spare = _spare(chosen, shards.tensors)
    if spare:
        shards.left_out = tuple(LeftOut(what=f"*{end}", why=DERIVED, tensors=count) for end, count in sorted(spare.items()))
    stored = {name: Stored(shards, name) for name in shards.tensors if _ending(chosen, name) is None}
    views = _by_names(path, stored) if chosen is None else bring_back(chosen, stored, path)
    holds = "parameters only: no moments, no counts, no position in the data"
    converted = {"from": "huggingface", "source": path.name, "holds": holds, "config": config}
    return Mapped(views, shards, About(state={"converted": converted}), frozenset(stored))


def bring_back(chosen: Chosen, stored: Mapping[str, View], path: Path) -> dict[str, View]:
    """Our parameters from all of theirs; RunError names what is missing, has no place or another shape."""
    named = {chosen.our_alias(name, stored): view for name, view in stored.items()}
    _check_theirs(chosen, {name: view.kind.shape for name, view in named.items()}, path)
    views: dict[str, View] = {}
    for link in chosen.links():
        views |= link.bring_back(tuple(named[theirs] for theirs in link.theirs))
    return {PARAM + p.name: views[p.name] for p in parameter_shapes(chosen.model)}


def _check_theirs(chosen: Chosen, found: dict[str, tuple[int, ...]], path: Path) -> None:
    wanted = chosen.shapes()
    rule = f"the tensors are those of {chosen.family.causal} as config.json describes it"
    wrong = [f"{name} has no place in our decoder" for name in sorted(found.keys() - wanted)]
    wrong += [f"{name} is missing" for name in sorted(wanted.keys() - found)]
    wrong += [f"{n} is {found[n]}, by config.json {wanted[n]}" for n in sorted(found.keys() & wanted) if found[n] != wanted[n]]
    if wrong:
        raise RunError([Problem(text, rule, f"path: {path}") for text in wrong[:10]])


def _spare(chosen: Chosen | None, tensors: Iterable[str]) -> dict[str, int]:
    """How many tensors follow from others, by the end of their names."""
    counts: dict[str, int] = {}
    for name in tensors:
        if (end := _ending(chosen, name)) is not None:
            counts[end] = counts.get(end, 0) + 1
    return counts


def _ending(chosen: Chosen | None, name: str) -> str | None:
    """What a tensor that is not needed ends with."""
    if name.endswith(ROTARY):
        return ROTARY
    return None if chosen is None else chosen.duplicate(name)


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


def _by_names(path: Path, stored: Mapping[str, View]) -> dict[str, View]:
    """Without a configuration names alone tell; RunError names every tensor that has none of ours."""
    rule = "without config.json, tensors have the names of Llama or Qwen3: no biases, no experts, no adapters"
    found = {name: our_name(name) for name in stored}
    if unknown := [name for name, ours in found.items() if ours is None]:
        raise RunError([Problem(f"{name} has no place in our decoder", rule, f"path: {path}") for name in unknown[:10]])
    return {ours: stored[name] for name, ours in found.items() if ours is not None}


# --- writing ------------------------------------------------------------------------------------------------------------


def write(contents: Contents, staging: Path, options: Options) -> Written:
    chosen, notes = _chosen(contents, options)
    exported = _exported(contents, chosen, options)
    shards = plan_shards(exported.tensors, options.shard_bytes)
    config = None if chosen is None or options.spec is None else _config(contents, chosen, exported, options.spec)
    staging.mkdir()
    weights: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = shard_name("model", number, len(shards))
        write_file(exported, names, staging / file, {})
        weights |= dict.fromkeys(names, file)
    write_json(staging / INDEX, {"metadata": {"total_size": total_bytes(exported.tensors)}, "weight_map": weights})
    if config is not None:
        write_json(staging / CONFIG, config | token_ids(options.tokenizer))
    if options.tokenizer is not None:
        write_tokenizer(options.tokenizer, staging)
    details = {"files": len(shards), "config": config is not None, "tokenizer": options.tokenizer is not None}
    return Written(left_out=_left_out(contents, exported, options), notes=notes, details=details)


def _chosen(contents: Contents, options: Options) -> tuple[Chosen | None, tuple[str, ...]]:
    """The architecture, where the spec of the run is known; and what there is to say about it."""
    if options.spec is None:
        why = "config.json is left out: the source belongs to no run whose spec could be read"
        return None, (f"{why}; name it as RUN:NAME to have it written",)
    model = model_at(options.spec, contents.about.step or 0)
    chosen = choose(model)
    check_fits(contents.tensors, model)
    return chosen, _notes(chosen)


def _notes(chosen: Chosen) -> tuple[str, ...]:
    """What the files do not say themselves."""
    notes = ["the multipliers of muP are folded into the weights"] if chosen.model.mup is not None else []
    if computed := [name for link in chosen.links() if not link.is_exact for name in link.theirs]:
        count = f"{len(computed)} tensors hold computed values, rounded once"
        notes.append(f"{count}: {chosen.family.causal} defines them otherwise")
    return tuple(notes)


def _exported(contents: Contents, chosen: Chosen | None, options: Options) -> Mapped:
    taken = frozenset(name for name in contents.tensors if name.startswith(PARAM))
    if not taken:
        raise RunError("the source holds no parameters", "they are tensors whose names begin with param/", "check the source")
    _refuse_integers(contents, taken, options.dtype)
    views = _names_alone(contents, taken) if chosen is None else export_views(chosen, contents)
    if options.dtype is not None:
        views = {name: Cast(view, options.dtype) for name, view in views.items()}
    return Mapped(views, contents, contents.about, taken)


def export_views(chosen: Chosen, contents: Contents) -> dict[str, View]:
    """Their tensors from ours, which are exactly those of the model. Multipliers of muP are folded in."""
    views: dict[str, View] = {}
    for link in folded(chosen.links(), chosen.model):
        views |= link.export(tuple(Stored(contents, PARAM + name) for name in link.ours))
    return views


def _names_alone(contents: Contents, taken: frozenset[str]) -> dict[str, View]:
    """Without a spec only tensors that Llama and Qwen3 have too can be named."""
    ours = [name for name in contents.tensors if name in taken]
    if unknown := [name for name in ours if their_name(name) is None]:
        rule = "without the spec of a run, tensors are those of a dense decoder such as Qwen3 and Llama"
        raise RunError([Problem(f"{name} has no place there", rule, "name the source as RUN:NAME") for name in unknown[:10]])
    return {str(their_name(name)): Stored(contents, name) for name in ours}


def _refuse_integers(contents: Contents, taken: frozenset[str], dtype: str | None) -> None:
    wrong = sorted(name for name in taken if dtype and contents.tensors[name].dtype not in CONVERTIBLE)
    if wrong:
        seen = f"{wrong[0]} is {contents.tensors[wrong[0]].dtype}"
        raise RunError(seen, f"--dtype converts between {', '.join(CONVERTIBLE)}", "leave --dtype out")


def _config(contents: Contents, chosen: Chosen, exported: Mapped, spec: Spec) -> dict[str, Any]:
    dtypes = {kind.dtype for kind in exported.tensors.values()}
    dtype = str(DTYPES[dtypes.pop()]).removeprefix("torch.") if len(dtypes) == 1 else None
    return configuration(chosen, stage_of(spec, contents.about.step or 0).sequence_length, dtype)


def _left_out(contents: Contents, exported: Mapped, options: Options) -> tuple[LeftOut, ...]:
    dtype = options.dtype
    groups = by_group(name for name in contents.tensors if name not in exported.taken)
    tensors = [LeftOut(what=group, tensors=count, why="only weights have a place there") for group, count in groups.items()]
    state = [LeftOut(what="state", why="updates, cursor and record have no place there")] if contents.about.state else []
    why = "it lies with the data of the run, tokenizer.json there, and those are not in their place"
    tokenizer = [] if options.tokenizer is not None else [LeftOut(what="tokenizer", why=why)]
    rounded = [old for old in exported.taken if dtype and DTYPE_BYTES[dtype] < DTYPE_BYTES[contents.tensors[old].dtype]]
    bits = [LeftOut(what="bits", tensors=len(rounded), why=f"rounded to {dtype}")] if rounded else []
    return (*tensors, *state, *tokenizer, *bits)
