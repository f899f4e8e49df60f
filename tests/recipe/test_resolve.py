"""Recipe -> Spec: defaults, quanta, refusals; what is in the identity of a run and what is not."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError, RunError
from headway.recipe.digests import changed_sections, section_digests
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.resolve import DataFacts, SourceFacts, mixture_quanta, resolve
from headway.recipe.spec import QUANTA, BatchPhase, Spec

RECIPE = """\
kind = "recipe"
name = "tiny"
seed = 7
[tokenizer]
vocabulary = 512
[model]
layers = 2
width = 96
heads = 4
[data]
[[data.sources]]
name = "code"
kind = "python-stdlib"
[[data.sources]]
name = "prose"
kind = "pydoc-topics"
licence = "PSF-2.0"
cap_epochs = 2
[[stages]]
name = "main"
tokens = 10_000
sequence = 128
batch = 1_024
rate = { warmup = 2_048 }
mixture = { code = 3, prose = 1 }
[[stages]]
name = "long"
tokens = 4_096
sequence = 256
batch = 1_024
rope_base = 50_000
rate = { shape = "cosine" }
mixture = { prose = 1 }
[[stages]]
name = "end"
tokens = 1
sequence = 256
batch = 1_024
rate = { shape = "linear", start = 0.5 }
mixture = { prose = 1 }
[optimizer]
peak_rate = 0.001
clip_norm = 0
[evaluation]
every = "20k"
"""
FACTS = DataFacts(
    manifest_digest="sha256:m",
    tokenizer_digest="sha256:t",
    vocabulary=512,
    document_token="<|document|>",
    sources=(
        SourceFacts("prose", 50_000, 512, 0.5, "sha256:p", "PSF-2.0"),
        SourceFacts("code", 100_000, 1_024, 1.0, "sha256:c", "PSF-2.0"),
    ),
)


@pytest.fixture
def load(tmp_path: Path):
    def read(*overrides: str):
        (tmp_path / "r.toml").write_text(RECIPE)
        return load_recipe(tmp_path / "r.toml", overrides)

    return read


def test_every_default_is_filled(load):
    spec = resolve(load(), FACTS)
    assert (spec.model.kv_heads, spec.model.head_width, spec.model.ffn_width) == (4, 24, 256)
    assert spec.data_seed == 7
    assert spec.optimizer.clip_norm is None
    assert [stage.rope_base for stage in spec.stages] == [10_000.0, 50_000.0, 50_000.0]
    assert [(stage.rate.start, stage.rate.end) for stage in spec.stages] == [(1.0, 1.0), (1.0, 0.0), (0.5, 0.0)]
    assert [source.name for source in spec.sources] == ["code", "prose"]  # the recipe's order, not the manifest's
    assert not spec.is_draft


def test_whole_batches_reach_the_tokens(load):
    spec = resolve(load(), FACTS)
    main, long, end = spec.stages
    assert (main.sequences, main.phases) == (80, (BatchPhase(0, 8),))  # 10,000 tokens: ten batches of 8 x 128
    assert (long.sequences, end.sequences) == (16, 4)


def test_quanta_follow_weights_over_target_shares(load):
    """3 : 1 of target tokens, prose has half a target per token: 3 : 2 of sequences."""
    quanta = resolve(load(), FACTS).stages[0].quanta
    assert quanta == (39_322, 26_214)
    assert resolve(load(), None).stages[0].quanta == (49_152, 16_384)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), st.floats(0.01, 1)), min_size=1, max_size=40))
def test_quanta_sum_and_lose_nobody(pairs):
    weights, shares = [w for w, _ in pairs], [t for _, t in pairs]
    if not sum(weights):
        return
    quanta = mixture_quanta(weights, shares)
    assert sum(quanta) == QUANTA
    assert [q > 0 for q in quanta] == [w > 0 for w in weights]
    ideal = [Fraction(w) / Fraction(t) for w, t in pairs]
    lifted = sum(value * QUANTA < sum(ideal) for value in ideal if value)
    for q, value in zip(quanta, ideal):
        assert abs(q - value * QUANTA / sum(ideal)) <= 1 + lifted


def test_draft_has_no_data_and_says_so(load):
    spec = resolve(load(), None)
    assert spec.is_draft
    assert {source.tokens for source in spec.sources} == {0}
    assert spec.tokenizer.digest is None


def test_data_that_is_not_what_the_recipe_says(load):
    wrong = dataclasses.replace(FACTS, vocabulary=500, document_token="<s>", sources=FACTS.sources[:1])
    with pytest.raises(ConfigError) as error:
        resolve(load(), wrong)
    found = {p.where.rpartition(":")[2]: p.seen for p in error.value.problems}
    assert found == {
        "5": "the data was built with vocabulary 500, the recipe has 512",
        "4": "the data was built with document_token '<s>', the recipe has '<|document|>'",
        "12": "source 'code' is not in the built data",
    }


def test_empty_source_is_refused(load):
    empty = dataclasses.replace(FACTS, sources=(dataclasses.replace(FACTS.sources[0], tokens=0), FACTS.sources[1]))
    with pytest.raises(ConfigError, match="source 'prose' is empty"):
        resolve(load(), empty)


def test_contradictions_are_refused_without_a_file_too(load):
    recipe = load().recipe
    broken = recipe.model_copy(update={"model": recipe.model.model_copy(update={"kv_heads": 3})})
    with pytest.raises(ConfigError, match="cannot share 3"):
        resolve(broken, None)


# --- identity -----------------------------------------------------------------------------------------------------------


def test_spec_survives_json(load):
    for spec in (resolve(load(), FACTS), resolve(load(), None), resolve(load(), FACTS, parent={"run": "x"})):
        again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
        assert again == spec
        assert again.digest() == spec.digest()


@pytest.mark.parametrize(
    "damage",
    [
        lambda plain: plain.pop("model"),
        lambda plain: plain.update(extra=1),
        lambda plain: plain.update(kind="recipe"),
        lambda plain: plain.update(model=[]),
        lambda plain: plain.update(stages={}),
        lambda plain: plain["stages"][0].pop("quanta"),
    ],
)
def test_damaged_spec_is_refused(load, damage):
    plain = json.loads(json.dumps(resolve(load(), FACTS).to_json()))
    damage(plain)
    with pytest.raises(RunError):
        Spec.from_json(plain)


def test_digests_of_a_small_spec(load):
    """Change knowingly: another digest means that runs written before are other runs."""
    spec = resolve(load(), FACTS)
    assert spec.recipe_digest == "sha256:1f1e44a5df68b667e69610c2720411c9f927fc9ec813137a26079ad31d991bbf"
    assert spec.digest() == "sha256:9ac55d2d7116f9f73e088c94f771bf5dfa66bffcbbfb656f52f13e6bba93ddd2"


def test_law_1_deployment_is_not_in_the_identity(load):
    """The Spec is made without a deployment at all; its digest knows no cluster, layout, path or cadence."""
    first = load_deployment(None, ["checkpoints.every_steps=5", "threads=1", "data_directory=/a"])
    second = load_deployment(None, ["checkpoints.every_steps=500", "threads=2", "data_directory=/b"])
    assert first != second
    words = json.dumps(resolve(load("data.sources.0.path=/somewhere"), FACTS).to_json())
    for name in ("/somewhere", "threads", "every_steps", "processes", "layout"):
        assert name not in words
    assert resolve(load("data.sources.0.path=/somewhere"), FACTS).digest() == resolve(load(), FACTS).digest()


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("model.layers=3", ["model"]),
        ("stages.1.tokens=8_192", ["stages.long"]),
        ("stages.2.rate.start=0.4", ["stages.end"]),
        ("optimizer.peak_rate=0.002", ["optimizer"]),
        ("stability.z_loss=0", ["stability"]),
        ("data.seed=8", ["data"]),
        ("seed=8", ["data", "seed"]),
        ("precision.compute=float32", ["precision"]),
        ("evaluation.every=30k", ["evaluation"]),
        ("objective.why=because", ["objective"]),
        ("interventions.owner=me", ["interventions"]),
        ("data.sources.1.cap_epochs=3", ["data"]),
    ],
)
def test_each_change_is_in_its_own_section_digest(load, override, changed):
    before, after = resolve(load(), FACTS), resolve(load(override), FACTS)
    assert changed_sections(section_digests(before), section_digests(after)) == changed
    assert before.digest() != after.digest()
    assert before.recipe_digest != after.recipe_digest


def test_every_field_of_the_spec_is_in_some_section(load):
    spec = resolve(load(), FACTS)
    covered = {name.partition(".")[0] for name in section_digests(spec)}
    fields = {field.name for field in dataclasses.fields(Spec)}
    elsewhere = {"name", "data_seed", "sources", "manifest_digest", "recipe_digest", "parent", "kind", "schema_version"}
    assert fields - elsewhere == covered - {"data"}
    assert sum(name.startswith("stages.") for name in section_digests(spec)) == 3
