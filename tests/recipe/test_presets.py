"""The shipped recipes of published runs: exact counts, tokens and layouts; every file says where its values come from."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest

from headway.formulas.parameters import count_parameters
from headway.recipe.load import load_deployment, load_recipe, preset_directory, preset_names
from headway.recipe.placement import check_stages
from headway.recipe.resolve import resolve
from headway.recipe.roles import parameter_shapes
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

DEMOS = {"demo", "small", "proxy"}
PUBLISHED = sorted(set(preset_names()) - DEMOS)

GOLDEN_NAMES = {
    "llama3-8b": "Llama-3-8B",
    "llama3-70b": "Llama-3-70B",
    "llama3-405b": "Llama-3.1-405B",
    "olmo2-7b": "OLMo-2-7B",
    "olmo2-13b": "OLMo-2-13B",
    "olmo2-32b": "OLMo-2-32B",
    "smollm3-3b": "SmolLM3-3B",
    "gpt2-124m": "GPT-2-124M(nanoGPT)",
    "palm-540b": "PaLM-540B(parallel,MQA,no bias)",
}

TOKENS = {
    "beacon": 15e12,
    "llama3-8b": 15e12,
    "llama3-70b": 15e12,
    "llama3-405b": 15.6e12,
    "deepseek-v3": 14.8e12,
    "olmo2-7b": 3.946e12,
    "olmo2-13b": 5.3e12,
    "olmo2-32b": 6.356e12,
    "smollm3-3b": 11.2e12,
    "palm-540b": 775.946e9,
    "gpt2-124m": 294.912e9,
    "qwen3-8b": 36e12,
    "qwen3-0.6b": 36e12,
    "mixtral-8x7b": 2e12,  # not published: what the recipe chose
}

COUNTS = {
    "qwen3-8b": (8_190_735_360, 8_190_735_360),
    "qwen3-0.6b": (596_049_920, 596_049_920),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "deepseek-v3": (671_026_419_200, 37_552_297_472),
}
"""All parameters, and those that a token passes, as the published weights have them."""


def spec_of(name: str) -> Spec:
    return resolve(load_recipe(name), None)


def stored(spec: Spec) -> int:
    """Without heads for further tokens, as published counts are."""
    return sum(shape.count for shape in parameter_shapes(spec.model) if not shape.name.startswith("mtp."))


def test_every_published_run_that_was_promised_is_there():
    assert set(PUBLISHED) == set(TOKENS)


@pytest.mark.parametrize("name", sorted(GOLDEN_NAMES))
def test_parameter_counts_are_the_published_ones(name: str, reference: Path):
    with open(reference / "plan" / "golden_params_flops.csv") as file:
        row = next(row for row in csv.DictReader(file) if row["model"] == GOLDEN_NAMES[name])
    count = stored(spec_of(name))
    assert count == int(row["params_formula"])
    assert count == pytest.approx(float(row["params_published"]), rel=2e-5 if name == "palm-540b" else 0)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_published_weights(name: str):
    count = count_parameters(spec_of(name).model)
    assert (count.total, count.active) == COUNTS[name]
    assert stored(spec_of(name)) == count.total


def test_architectures_as_published():
    """What changes no count."""
    qwen, smollm, deepseek, mixtral = (spec_of(n) for n in ("qwen3-8b", "smollm3-3b", "deepseek-v3", "mixtral-8x7b"))
    assert [stage.rope_base for stage in qwen.stages] == [1e4, 1e4, 1e6]
    assert (qwen.model.norm_epsilon, qwen.model.qk_norm, qwen.model.qk_norm_over) == (1e-6, True, "head")
    positions = [smollm.model.has_positions(layer) for layer in range(36)]
    assert positions == [True, True, True, False] * 9
    experts = deepseek.model.experts
    assert experts is not None
    assert (experts.score, experts.normalise, experts.scale) == ("sigmoid", True, 2.5)
    assert (experts.bias_rate, experts.balance_loss, deepseek.model.mtp_weight) == (0.001, 1e-4, 0.3)
    assert mixtral.model.experts is not None
    assert (mixtral.model.experts.score, mixtral.model.rope_base, mixtral.model.norm_epsilon) == ("softmax", 1e6, 1e-5)
    for name in ("olmo2-7b", "olmo2-13b", "olmo2-32b", "deepseek-v3"):
        assert spec_of(name).model.init == "fixed", name


def test_deepseek_v3_counts(reference: Path):
    golden = json.loads((reference / "plan" / "golden_exact.json").read_text())
    row = next(row for row in golden if row.get("name") == "DeepSeek-V3")
    assert stored(spec_of("deepseek-v3")) == row["total"]


def test_beacon_has_the_shape_of_llama_3_405b_and_norms_on_queries_and_keys():
    beacon, llama = spec_of("beacon").model, spec_of("llama3-405b").model
    assert stored(spec_of("beacon")) - stored(spec_of("llama3-405b")) == 126 * 2 * 128
    assert (beacon.layers, beacon.width, beacon.heads, beacon.kv_heads) == (
        llama.layers,
        llama.width,
        llama.heads,
        llama.kv_heads,
    )
    assert beacon.nominal_parameters == 400_000_000_000


@pytest.mark.parametrize("name", PUBLISHED)
def test_tokens_are_the_published_ones(name: str):
    schedule = Schedule(spec_of(name))
    assert schedule.total_tokens == pytest.approx(TOKENS[name], rel=2e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipe_and_deployment_fit_each_other(name: str):
    recipe, deployment = load_recipe(name).recipe, load_deployment(name, runnable=False)
    check_stages(deployment, [stage.name for stage in recipe.stages])
    for stage in recipe.stages:
        layout = deployment.layout(stage.name)
        assert layout.world == deployment.world
        assert recipe.model.heads % layout.tp == 0
        assert stage.sequence % layout.cp == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_rates_of_neighbouring_stages_meet(name: str):
    """A stage begins where the one before it ended, except where the published schedule starts afresh."""
    fresh = {("smollm3-3b", "context-32k"), ("smollm3-3b", "context-64k"), ("deepseek-v3", "end"), ("llama3-405b", "middle")}
    stages = spec_of(name).stages
    for before, after in itertools.pairwise(stages):
        if (name, after.name) not in fresh:
            assert after.rate.start == pytest.approx(before.rate.end, abs=1e-9), after.name


def test_the_warmups_are_whole_numbers_of_steps():
    steps = {"beacon": 8000, "llama3-8b": 8000, "llama3-70b": 8000, "deepseek-v3": 2000, "olmo2-7b": 2000, "smollm3-3b": 2000}
    steps |= {"qwen3-8b": 2000, "qwen3-0.6b": 2000, "mixtral-8x7b": 2000}
    for name, wanted in steps.items():
        stage = spec_of(name).stages[0]
        batch = stage.phases[0].batch_sequences * stage.sequence_length
        assert stage.rate.warmup_tokens / batch == pytest.approx(wanted, rel=1e-3), name


FILES = [path for name in PUBLISHED for path in sorted(preset_directory().glob(f"{name}.*toml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_says_where_it_is_from(path: Path):
    text = path.read_text("utf-8")
    assert text.startswith("#")
    assert any(word in text for word in ("arXiv", "docs/sources.md", "model card", "README")), "no source"


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_not_published_is_marked(name: str):
    """Beyond the layout and the shape every recipe had to choose something: it says so."""
    text = (preset_directory() / f"{name}.toml").read_text("utf-8") + (preset_directory() / f"{name}.deployment.toml").read_text(
        "utf-8"
    )
    assert any(words in text for words in ("not published", "Not published", "not stated", "not certain"))


def test_published_sequences_of_steps():
    """Counts that stand in the reports themselves."""
    assert Schedule(spec_of("palm-540b")).total_steps == 255_000
    assert Schedule(spec_of("gpt2-124m")).total_steps == 600_000
    assert Schedule(spec_of("olmo2-32b")).stage_steps(0) == pytest.approx(721_901, rel=1e-4)
    assert [phase.batch_sequences for phase in spec_of("deepseek-v3").stages[0].phases] == [3072, 6144, 9216, 12288, 15360]
    assert [phase.batch_sequences for phase in spec_of("beacon").stages[0].phases] == [488, 977, 1953]
