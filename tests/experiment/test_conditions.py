"""What a sweep speaks for: the width alone. Whatever else trains in a target as it did not in the proxy is listed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headway.experiment.conditions import NO_CONDITION, TRANSFERRED, WITH_WIDTH, conditions, differences
from headway.experiment.grid import Proxy, width_changes
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spec import Spec

EXPERTS = ("model.experts.experts=8", "model.experts.top_k=2", "model.experts.width=64")
LATENT = (
    "model.latent.kv_rank=16",
    "model.latent.query_rank=24",
    "model.latent.nope_width=16",
    "model.latent.rope_width=16",
    "model.latent.value_width=16",
)


def proxy(*sets: str) -> Proxy:
    loaded = load_recipe("demo", ())
    heads = [f"model.kv_heads={loaded.recipe.model.heads}"] if any("latent" in text for text in sets) else []
    return Proxy.of(load_recipe("demo", [f"model.mup.base_width={loaded.recipe.model.width}", *heads, *sets]))


def listed(sets: tuple[str, ...], more: tuple[str, ...]) -> list[str]:
    """Of a target that has ``more``, against a sweep of ``sets``; conditions as they were saved."""
    saved = json.loads(json.dumps(conditions(proxy(*sets).draft)))
    return list(differences(saved, conditions(proxy(*sets, *more).draft)))


@pytest.mark.parametrize("sets", [(), EXPERTS, LATENT], ids=["dense", "experts", "latent"])
def test_the_width_is_no_difference(sets):
    made = proxy(*sets)
    own = made.base.width
    for width in (2 * own, 4 * own):
        wide = resolve(made.recipe(dataclasses.replace(made.base, width=width, rate=1e-4, init_std=0.01, seed=9)), None)
        assert wide.model.width == width
        assert list(differences(conditions(made.draft), conditions(wide))) == []


def test_what_follows_the_width_is_what_the_grid_changes():
    for sets in ((), EXPERTS, LATENT):
        made = proxy(*sets)
        changed = {key.removeprefix("model.") for key in width_changes(made.loaded.recipe.model, made.draft, 2 * made.base.width)}
        assert changed - {"width", "head_width", "kv_heads"} <= set(WITH_WIDTH)
    assert {"heads", "ffn_width"} <= set(WITH_WIDTH)


CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "model.norm": ((), ("model.norm=layernorm",)),
    "model.dropout": ((), ("model.dropout=0.1",)),
    "model.experts": ((), EXPERTS),
    "model.experts.top_k": (EXPERTS, ("model.experts.top_k=4",)),
    "model.window": ((), ("model.window=32",)),
    "model.nope_every": ((), ("model.nope_every=2",)),
    "model.embedding_norm": ((), ("model.embedding_norm=true",)),
    "model.logit_softcap": ((), ("model.logit_softcap=30",)),
    "model.mtp_layers": ((), ("model.mtp_layers=1",)),
    "model.init": ((), ("model.init=fixed",)),
    "model.layers": ((), ("model.layers=3",)),
    "model.ffn_width / width": ((), ("model.ffn_width=64",)),
    "optimizer.kind": ((), ("optimizer.kind=muon",)),
    "optimizer.momentum": (("optimizer.kind=muon",), ("optimizer.momentum=0.9",)),
    "optimizer.muon_scale": (("optimizer.kind=muon",), ("optimizer.muon_scale=spectral",)),
    "optimizer.matrix_rate / peak_rate": (("optimizer.kind=muon",), ("optimizer.matrix_rate=0.02",)),
    "optimizer.beta2": ((), ("optimizer.beta2=0.99",)),
    "precision.compute": ((), ("precision.compute=float32",)),
    "precision.modules": ((), ("precision.modules={head='float32'}",)),
    "stability.skip_above": ((), ("stability.skip_above=10",)),
    "stages.0.rate.tail_tokens": ((), ("stages.0.rate.tail=1k",)),
    "stages.0.rate.batch_rule": ((), ("stages.0.rate.batch_rule=sqrt",)),
    "stages.0.mixture": ((), ("stages.0.mixture={code=3, prose=1}",)),
    "stages.0.rope_base": ((), ("stages.0.rope_base=50000",)),
    "stages.0.trained_tokens": ((), ("stages.0.tokens=2M",)),
    "tokenizer.vocabulary": ((), ("tokenizer.vocabulary=8192",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_other_difference_is_listed(name):
    lines = listed(*CHANGES[name])
    assert any(line.startswith(f"{name}: ") or line.startswith(f"{name}.") for line in lines), lines


def test_what_a_transfer_sets_is_no_difference():
    more = ("optimizer.peak_rate=1e-4", "model.init_std=0.01", "stages.0.rate.warmup=4k", "model.mup.attention_multiplier=2")
    assert listed((), more) == []
    muon = ("optimizer.kind=muon", "optimizer.peak_rate=1e-3", "optimizer.matrix_rate=0.02")
    assert listed(muon, ("optimizer.peak_rate=2e-3", "optimizer.matrix_rate=0.04")) == []


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}".strip("."))
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        yield from leaves(value[0], path)
    else:
        yield path


def test_a_field_of_the_spec_is_a_condition_unless_it_is_named():
    """Nothing is left out by not being thought of."""
    spec: Spec = proxy(*EXPERTS).draft
    kept = set(keys(conditions(spec)))
    by_another_name = {f"model.{path}" for path in WITH_WIDTH} | {"model.width", "model.kv_heads"}
    by_another_name |= {"stages.quanta", "stages.sequences", "stages.phases", "stages.rate.warmup_tokens"}
    for path in leaves(spec):
        at = {".".join(path.split(".")[: n + 1]) for n in range(path.count(".") + 1)}
        if path.startswith("stages.phases") or at & (NO_CONDITION | TRANSFERRED | by_another_name):
            continue
        assert path in kept, path


def keys(tree: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, value in tree.items():
        path = at if name.isdecimal() else f"{at}.{name}".strip(".")
        if isinstance(value, dict) and value:
            yield from keys(value, path)
        else:
            yield path
