"""What a hyperparameter was tuned under, besides the width: everything in a Spec that trains and that a transfer does not set.

    Spec --conditions--> tree without what names a run, what a transfer sets, and what follows the width
    two trees --differences--> lines: "model.norm: rmsnorm in the sweep, layernorm in the target"

Sizes that follow the width stand as their ratio to it. What is left out is listed by name below: whatever a Spec gains later is a
condition until someone says otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from headway.recipe.spec import QUANTA, Spec

_NAMES = "name seed data_seed objective evaluation manifest_digest recipe_digest parent interventions kind schema_version"
_BUILT = "tokenizer.digest sources.digest sources.tokens sources.chunk_tokens sources.target_share sources.licence"
_DECLARED = "sources.cap_epochs stages.name stages.tokens stages.entry_gates stages.exit_gates"
_AGAIN = "model.vocabulary model.rope_base model.yarn model.nominal_parameters"
NO_CONDITION = frozenset(f"{_NAMES} {_BUILT} {_DECLARED} {_AGAIN}".split())
"""What a run is called, measured by and built from, what is only declared, and what says again what tokenizer and stages have. Of
the entries of a list alike."""
TRANSFERRED = frozenset(("optimizer.peak_rate", "optimizer.matrix_rate", "model.init_std", "model.mup"))
"""What a transfer sets, with the warm-up of the first stage."""
WITH_WIDTH = ("heads", "ffn_width", "latent.query_rank", "latent.kv_rank", "experts.width")
"""Of a model, by ``grid.width_changes``."""
KINDS_OF_MODEL = ("experts", "latent", "block", "norm", "ffn", "position", "init")
"""Of a model's keys, those that make it another kind: a rate tuned on one says nothing of the other."""
ROUNDED = 0.02
"""Ratios that differ by less are the same: sizes are whole multiples of something."""
_RATIO = " / "


def conditions(spec: Spec) -> dict[str, Any]:
    """As plain JSON."""
    kept: dict[str, Any] = {}
    for name, value in dataclasses.asdict(spec).items():
        plain = _plain(value, name)
        if name not in NO_CONDITION:
            kept[name] = plain
    _with_ratios(kept["model"], spec)
    for stage, made in zip(spec.stages, kept["stages"].values(), strict=True):
        _in_tokens(made, stage.sequence_length)
    del kept["stages"]["0"]["rate"]["warmup_tokens"]
    own = spec.optimizer.matrix_rate
    kept["optimizer"]["matrix_rate" + _RATIO + "peak_rate"] = None if own is None else own / spec.optimizer.peak_rate
    return kept


def _plain(value: Any, path: str) -> Any:
    """Lists of tables by their place, so that they are compared entry by entry."""
    if isinstance(value, dict):
        inside = {key: f"{path}.{key}" for key in value}
        return {key: _plain(value[key], at) for key, at in inside.items() if at not in NO_CONDITION | TRANSFERRED}
    if isinstance(value, list | tuple):
        items = [_plain(item, path) for item in value]
        return {str(place): item for place, item in enumerate(items)} if path in ("stages", "sources") else items
    return value


def _with_ratios(model: dict[str, Any], spec: Spec) -> None:
    width = model.pop("width")
    model["kv_heads" + _RATIO + "heads"] = model.pop("kv_heads") / model["heads"]
    for path in WITH_WIDTH:
        *sections, name = path.split(".")
        table = model
        for section in sections:
            table = table[section] or {}
        if (size := table.pop(name, None)) is not None:
            table[name + _RATIO + "width"] = size / width


def _in_tokens(stage: dict[str, Any], sequence: int) -> None:
    """Batches from which token on, shares of the sources, and how long the stage is: whatever the sequences."""
    stage["trained_tokens"] = stage.pop("sequences") * sequence
    stage["mixture"] = [part / QUANTA for part in stage.pop("quanta")]
    stage["batches"] = [[p["first_sequence"] * sequence, p["batch_sequences"] * sequence] for p in stage.pop("phases")]


def differences(proxy: Mapping[str, Any], target: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """A line for everything that ``target`` has otherwise."""
    for name in dict.fromkeys((*proxy, *target)):
        mine, theirs = proxy.get(name), target.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from differences(mine, theirs, f"{at}{name}.")
        elif not _same(name, mine, theirs):
            yield f"{at}{name}: {_shown(mine)} in the sweep, {_shown(theirs)} in the target"


def _same(name: str, mine: Any, theirs: Any) -> bool:
    if _RATIO in name and mine is not None and theirs is not None:
        return math.isclose(mine, theirs, rel_tol=ROUNDED)
    return bool(mine == theirs)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
