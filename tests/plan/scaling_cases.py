"""What tests of capacity, hyperparameters, context, forecast and ramp share: the worked plan, and facts on a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.formulas.quantity import Quantity
from headway.plan.facts import PlanFacts
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.resolve import DataFacts, SourceFacts, resolve
from headway.recipe.schedules import whole_batches
from headway.recipe.spec import RateSpec, Spec, StageSpec

RECIPE = """\
kind = "recipe"
name = "worked"
[tokenizer]
vocabulary = 128_256
[model]
layers = 126
width = 16_384
heads = 128
kv_heads = 8
ffn_width = 53_248
qk_norm = false
nominal_parameters = "400B"
[data]
[[data.sources]]
name = "web"
kind = "text-tree"
path = "web"
[[data.sources]]
name = "code"
kind = "text-tree"
path = "code"
[[stages]]
name = "main"
tokens = "15T"
sequence = 8000
ramp = [{ from = "0", batch = "4M" }, { from = "250B", batch = "8M" }, { from = "3T", batch = "16M" }]
rate = { warmup = "32B" }
mixture = { web = 3, code = 1 }
[optimizer]
peak_rate = 8e-5
[evaluation]
every = "32B"
tokens_per_source = "1M"
"""
"""Sequences of 8,000, so that the published batches are whole: with 8,192 a batch of 4e6 tokens is 488.28 sequences."""
CLUSTER = [
    "nodes=2048",
    "processes_per_node=8",
    "layouts.default={tp=8, pp=16, dp_shard=128}",
    "accelerator.peak_flops=989T",
    "accelerator.utilisation=0.4",
]


def worked_spec(folder: Path, *, recipe: str = RECIPE) -> Spec:
    (folder / "worked.toml").write_text(recipe)
    return resolve(load_recipe(folder / "worked.toml"), None)


def facts_of(spec: Spec, *, cluster: bool = True) -> PlanFacts:
    return PlanFacts(spec, load_deployment(None, CLUSTER if cluster else [], runnable=False), None)


def demo_facts(tokens: int = 3_000_000) -> PlanFacts:
    sources = tuple(SourceFacts(name, tokens, 4096, 1.0, f"sha256:{name}", "PSF-2.0") for name in ("code", "prose"))
    data = DataFacts("sha256:m", "sha256:t", 4096, "<|document|>", sources)
    return PlanFacts(resolve(load_recipe("demo"), data), load_deployment("demo"), None)


def with_inventory(spec: Spec, *tokens: int) -> Spec:
    """Sources with so many unique tokens each."""
    return replace(spec, sources=tuple(replace(s, tokens=t) for s, t in zip(spec.sources, tokens, strict=True)))


def with_model(spec: Spec, **changes) -> Spec:
    return replace(spec, model=replace(spec.model, **changes))


def stage_of(name: str, tokens: int, sequence: int, ramp: list[tuple[int, int]], rate: RateSpec) -> StageSpec:
    sequences, phases = whole_batches(tokens, sequence, ramp)
    return StageSpec(name, tokens, sequence, sequences, phases, rate, (49_152, 16_384), 1e4)


def named(quantities) -> dict[str, Quantity]:
    return {quantity.name: quantity for quantity in quantities}
