"""Every architecture as a recipe: read, resolved, refused where it contradicts itself; digests of earlier recipes stay."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest

from headway.base.errors import ConfigError
from headway.formulas.parameters import count_parameters
from headway.recipe.idle_keys import TABLE
from headway.recipe.interventions_section import SpikePolicy
from headway.recipe.load import load_recipe
from headway.recipe.model_checks import passed_parameters
from headway.recipe.mup import init_std
from headway.recipe.resolve import default_ffn_width, resolve
from headway.recipe.roles import (
    NORMS,
    ParameterShape,
    Role,
    block_shapes,
    count_norms,
    decays,
    norms_of_block,
    parameter_shapes,
)
from headway.recipe.schema import Experts, Model, Optimizer, Tokenizer
from headway.recipe.spec import ADDED, ExpertsSpec, LatentSpec, ModelSpec, MupSpec, PrecisionSpec, RopeSpec, Spec, YarnSpec
from headway.recipe.trainable import refuse_untrainable

PLAIN = """\
kind = "recipe"
name = "tiny"
[tokenizer]
vocabulary = 512
[model]
layers = 4
width = 64
heads = 4
{model}
[data]
[[data.sources]]
name = "a"
kind = "undisclosed"
{source}
[[data.sources]]
name = "b"
kind = "undisclosed"
[[stages]]
name = "main"
tokens = "80k"
sequence = 128
batch = "1k"
mixture = {{ a = 3, b = 1 }}
[[stages]]
name = "long"
tokens = "20k"
sequence = 256
batch = "1k"
mixture = {{ a = 1 }}
[optimizer]
peak_rate = 1e-3
[evaluation]
every = "20k"
"""
LATENT = "[model.latent]\nquery_rank = 24\nkv_rank = 16\nnope_width = 8\nrope_width = 4\nvalue_width = 6"
EXPERTS = "[model.experts]\nexperts = 8\ntop_k = 2\nwidth = 32"
EVERYTHING = (
    'ffn = "gelu"\nnorm = "layernorm"\nblock = "sandwich"\nbias = "norm"\nembedding_norm = true\nwindow = 64\n'
    'full_attention_every = 2\nmtp_layers = 1\nnominal_parameters = "200k"\n'
    f"{LATENT}\n{EXPERTS}\nshared = 1\ndense_layers = 1\nevery = 3\nrouter_bias = true"
)


@pytest.fixture
def load(tmp_path: Path):
    def read(model: str = "", *, source: str = ""):
        (tmp_path / "r.toml").write_text(PLAIN.format(model=model, source=source))
        return load_recipe(tmp_path / "r.toml")

    return read


@pytest.fixture
def refused(load):
    """What a check says of a recipe: (line of the file, all of the message)."""

    def find(model: str = "", *, source: str = "") -> list[str]:
        with pytest.raises(ConfigError) as error:
            load(model, source=source)
        for problem in error.value.problems:
            assert problem.seen, problem
            assert problem.rule, problem
            assert problem.way_out, problem
            assert problem.where.rpartition(":")[2].isdecimal(), problem
        return [f"{p.seen} | {p.rule} | {p.way_out}" for p in error.value.problems]

    return find


def model_of(loaded) -> ModelSpec:
    return resolve(loaded, None).model


# --- read and resolved


def test_everything_that_can_be_described(load):
    model = model_of(load(EVERYTHING))
    assert (model.ffn, model.norm, model.block, model.bias) == ("gelu", "layernorm", "sandwich", "norm")
    assert model.latent == LatentSpec(query_rank=24, kv_rank=16, nope_width=8, rope_width=4, value_width=6)
    assert model.experts == ExpertsSpec(8, 2, 32, shared=1, dense_layers=1, every=3, router_bias=True)
    assert (model.window, model.full_attention_every, model.mtp_layers) == (64, 2, 1)
    assert model.nominal_parameters == 200_000
    assert model.embedding_norm
    assert model.ffn_width == 4 * 64  # no gate


def test_latent_attention_decides_the_widths_of_heads(load):
    model = model_of(load(LATENT))
    assert (model.head_width, model.value_width, model.kv_heads) == (12, 6, 4)
    assert not model.qk_norm  # its ranks have norms
    assert model_of(load("")).value_width == 16


def test_which_layers_have_experts_and_windows(load):
    model = model_of(load(f"{EXPERTS}\ndense_layers = 1\nevery = 2".replace("[model.exp", "window = 64\n[model.exp")))
    assert [model.has_experts(layer) for layer in range(4)] == [False, False, True, False]
    assert all(model.is_windowed(layer) for layer in range(4))  # a window and nothing else: every layer
    every_second = dataclasses.replace(model, full_attention_every=2)
    assert [every_second.is_windowed(layer) for layer in range(4)] == [True, False, True, False]


YARN = "[model.yarn]\nfactor = 4\noriginal = 128"


def test_positions_by_layer_and_by_share_of_a_head(load):
    model = model_of(load("nope_every = 4\nrotary_share = 0.25"))
    assert [model.has_positions(layer) for layer in range(4)] == [True, True, True, False]
    assert (model.head_width, model.turned_width) == (16, 4)
    assert model_of(load("")).turned_width == 16
    assert model_of(load(LATENT)).turned_width == 4
    assert model_of(load('position = "none"')).turned_width == 0
    assert not any(model_of(load('position = "none"')).has_positions(layer) for layer in range(4))


def test_yarn_holds_until_a_stage_has_another(load, tmp_path):
    assert model_of(load(YARN)).rope == RopeSpec(10_000.0, YarnSpec(4.0, 128))
    load(YARN)
    for changed, wanted in (
        ("", [4, 4]),
        ("[stages.yarn]\nfactor = 8\noriginal = 128\n", [4, 8]),
        ("[stages.yarn]\nfactor = 1\noriginal = 128\n", [4, None]),  # no YaRN any more
    ):
        text = PLAIN.format(model=YARN, source="").replace("[optimizer]", f"{changed}[optimizer]")
        (tmp_path / "r.toml").write_text(text)
        stages = resolve(load_recipe(tmp_path / "r.toml"), None).stages
        assert [stage.yarn and stage.yarn.factor for stage in stages] == wanted
        assert all(stage.rope.base == 10_000.0 for stage in stages)


def test_mup_counts_from_the_own_depth_unless_told(load):
    assert model_of(load("[model.mup]\nbase_width = 16")).mup == MupSpec(16, 4, 1.0, 1.0)
    text = "[model.mup]\nbase_width = 16\nbase_layers = 2\ndepth_alpha = 0.5\nattention_multiplier = 4"
    assert model_of(load(text)).mup == MupSpec(16, 2, 0.5, 4.0)


def test_a_gate_makes_the_default_feed_forward_narrower():
    assert (default_ffn_width(4096), default_ffn_width(4096, gated=False)) == (10944, 16384)


@pytest.mark.parametrize(
    "text",
    [
        "",
        EVERYTHING,
        f"{YARN}\n[model.mup]\nbase_width = 16",
        f'position = "learned"\npositions = 256\nbias = "all"\nnorm = "layernorm"\n{EXPERTS}',
    ],
)
def test_a_spec_of_any_architecture_survives_json(load, text):
    spec = resolve(load(text), None)
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.digest() == spec.digest()


def test_a_spec_saved_before_these_fields_reads_as_it_was(load):
    """What is at its default is not saved: an older file has the same keys, and the same digest."""
    spec = resolve(load(""), None)
    plain = json.loads(json.dumps(spec.to_json()))
    assert not set(plain["model"]) & ADDED[ModelSpec]
    assert len(plain["model"]) == 12
    assert Spec.from_json(plain).digest() == spec.digest()
    for name, value in (("window", 64), ("mtp_layers", 1), ("nope_every", 4), ("dropout", 0.1), ("init", "fixed")):
        changed = dataclasses.replace(spec, model=dataclasses.replace(spec.model, **{name: value}))
        assert changed.digest() != spec.digest()
        assert changed.to_json()["model"].keys() == {*plain["model"], name}


def test_a_default_spelt_out_is_the_same_recipe(load):
    plain = load("").digest
    spelt = 'ffn = "swiglu"\nblock = "pre"\nbias = "none"\nposition = "rope"\nfull_attention_every = 0\nmtp_layers = 0\n'
    spelt += 'rotary_share = 1\nmtp_weight = 0.3\nnope_every = 0\ndropout = 0\ninit = "depth-scaled"'
    assert load(spelt).digest == plain
    for other in ('ffn = "gelu"', "window = 64", LATENT, 'nominal_parameters = "280k"', "nope_every = 2", "rotary_share = 0.5"):
        assert load(other).digest != plain
    assert load(source='inventory = "1M"').digest != plain


# --- refused


@pytest.mark.parametrize("model", ["", EXPERTS, LATENT, EVERYTHING.replace('nominal_parameters = "200k"\n', "")])
def test_a_name_stays_within_a_tenth_of_what_a_token_passes(load, refused, model):
    """A number left behind by a change of shape stood for N in 6 N D, and the plan showed more than the peak."""
    exact = count_parameters(model_of(load(model))).active
    assert passed_parameters(model_of(load(model))) == exact
    for factor in (0.93, 1.07):
        assert model_of(load(f"nominal_parameters = {round(exact * factor)}\n{model}")).nominal_parameters
    for factor in (0.85, 1.15):
        (problem,) = refused(f"nominal_parameters = {round(exact * factor)}\n{model}")
        assert f"a token passes {exact:,} parameters" in problem


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (EXPERTS.replace("top_k = 2", "top_k = 9"), "experts fewer than top-k: 8 experts, 9 chosen"),
        (f"{EXPERTS}\ndense_layers = 4", "no layer has experts: the first would be layer 5 of 4"),
        (f"{EXPERTS}\ndense_layers = 2\nevery = 3", "no layer has experts: the first would be layer 5 of 4"),
        (f"{EXPERTS}\ngroups = 3", "8 experts do not divide into 3 groups"),
        (f"{EXPERTS}\ngroups = 2\ngroups_per_token = 3", "in at most 3 groups, and there are 2"),
        (f"{EXPERTS}\ngroups = 8\ngroups_per_token = 1", "1 groups hold 1 experts, a token passes 2"),
        ("window = 129", "the window of 129 tokens is longer than a sequence of stage 'main', 128"),
        ("window = 64\nfull_attention_every = 1", "every layer sees all before a token, and none has the window"),
        ("full_attention_every = 2", "full_attention_every = 2 without window"),
        ('position = "learned"\npositions = 255', "sequences of 256 in stage 'long', and 255 learned positions"),
        ('position = "learned"', "positions is not given"),
        ("positions = 512", "position is 'rope', positions = 512"),
        ('bias = "norm"', "only a layernorm has a bias"),
        (f"kv_heads = 2\n{LATENT}", "kv_heads = 2 beside latent attention of 4 heads"),
        (f"head_width = 16\n{LATENT}", "whose queries are 12 wide"),
        (f'bias = "qkv"\n{LATENT}', "the projections of latent attention have no biases"),
        (LATENT.replace("rope_width = 4", "rope_width = 3"), "rope_width is 3"),
        (LATENT.replace("rope_width = 4", "rope_width = 0"), "rope_width is even and not 0"),
        (f'position = "none"\n{LATENT}', "rope_width is 4, position is 'none'"),
        ("head_width = 15", "RoPE turns pairs of values: heads have an even width"),
        ("kv_heads = 3", "4 query heads cannot share 3"),
        ('nominal_parameters = "400B tokens"', "'400B tokens' is not a number of parameters"),
        ('nominal_parameters = "-7B"', "'-7B' is not a number of parameters"),
        ("window = -1", "at least 1"),
        ("nope_every = 1", "nope_every = 1: no layer has positions"),
        ('position = "none"\nnope_every = 2', "nope_every = 2 beside position = 'none'"),
        ('position = "none"\nrotary_share = 0.5', "rotary_share = 0.5 beside position = 'none'"),
        (f'position = "none"\n{YARN}', "yarn beside position = 'none'"),
        ("rotary_share = 0.2", "rotary_share = 0.2 of a head of 16 turns 3.2 values"),
        ("rotary_share = 0.01", "choose 0.125"),
        ("rotary_share = 0", "more than 0"),
        (f"rotary_share = 0.5\n{LATENT}", "rotary_share = 0.5 beside latent"),
        (f"{YARN}\nslow = 32", "slow = 32 and fast = 32"),
        ('position = "none"\nrope_base = 500_000', "rope_base = 500000 beside position = 'none'"),
        ("mtp_weight = 0.1", "mtp_weight = 0.1 beside mtp_layers = 0"),
        ('qk_norm = false\nqk_norm_over = "all"', "qk_norm_over = 'all' beside qk_norm = false"),
        (f'qk_norm_over = "all"\n{LATENT}', "qk_norm_over = 'all' beside latent"),
        (f"{EXPERTS}\nbias_rate = 0.01", "bias_rate = 0.01 beside router_bias = false"),
        (EXPERTS.replace("top_k = 2", "top_k = 1"), "top_k = 1 with normalise = true"),
        ("dropout = 1", "less than 1"),
        ("[model.mup]\nbase_width = 16\ndepth_alpha = 0.4", "at least 0.5"),
        ('block = "post-add"\n[model.mup]\nbase_width = 16\nbase_layers = 2', "base_layers beside block = 'post-add'"),
        ('ffn = "swigluu"', "did you mean swiglu?"),
    ],
)
def test_architectures_that_contradict_themselves(load, model, said):
    with pytest.raises(ConfigError) as error:
        load(model)
    assert said in str(error.value)
    assert len(error.value.problems) == 1


def test_each_refusal_says_what_was_seen_the_rule_and_the_way_out(refused):
    found = refused('window = 300\nposition = "learned"\npositions = 100\n' + EXPERTS.replace("experts = 8", "experts = 1"))
    assert len(found) == 5  # top-k, two stages and the window, two stages and the positions
    assert any("top_k is at most 1" in text for text in found)
    assert any("model.positions is at least 256" in text for text in found)


@pytest.mark.parametrize(
    ("overrides", "said", "way_out"),
    [
        (["optimizer.momentum=0.9"], "momentum = 0.9 beside kind = 'adamw'", 'remove momentum, or choose kind = "muon"'),
        (["optimizer.muon_scale=spectral"], "muon_scale = 'spectral' beside kind = 'adamw'", "remove muon_scale"),
        (["optimizer.matrix_rate=0.01"], "matrix_rate = 0.01 beside kind = 'adamw'", "remove matrix_rate"),
        (["stages.1.yarn={factor=2, original=64, fast=1, slow=32}"], "slow = 32 and fast = 1", "lower slow"),
        (["model.position=none", "stages.1.yarn={factor=2, original=64}"], "yarn beside position = 'none'", "remove yarn"),
        (["model.position=none", "stages.1.rope_base=50000"], "rope_base = 50000 beside", "remove rope_base"),
        (
            ["model.position=learned", "model.positions=256", "evaluation.prompts=['a']", "evaluation.sample_tokens=256"],
            "256 tokens are decoded behind every prompt, and there are 256 positions",
            "sample_tokens is at most 255",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_other_sections_and_stages_leave_without_a_meaning(load, tmp_path, overrides, said, way_out):
    load("")
    with pytest.raises(ConfigError) as error:
        load_recipe(tmp_path / "r.toml", overrides)
    (problem,) = error.value.problems
    assert said in problem.seen
    assert way_out in problem.way_out
    assert problem.where == f"--set {overrides[-1]}"


def test_keys_that_are_read_may_stand(load, tmp_path):
    """Each with what it needs; and at its default beside anything."""
    load(f"mtp_layers = 1\nmtp_weight = 0.1\n{EXPERTS}\nrouter_bias = true\nbias_rate = 0.01")
    load(EXPERTS.replace("top_k = 2", "top_k = 1") + "\nnormalise = false")
    load(EXPERTS.replace("top_k = 2", "top_k = 1").replace("experts = 8", "experts = 1"))
    load('position = "none"\nrope_base = 10_000\nqk_norm = false\nqk_norm_over = "head"\nmtp_weight = 0.3')
    load_recipe(tmp_path / "r.toml", ["optimizer.momentum=0.95", "optimizer.muon_scale=rms"])
    muon = ["optimizer.kind=muon", "optimizer.momentum=0.9", "optimizer.muon_scale=spectral", "optimizer.matrix_rate=0.01"]
    load_recipe(tmp_path / "r.toml", muon)
    learned = ["model.position=learned", "model.positions=256"]
    for more in (["evaluation.prompts=['a']", "evaluation.sample_tokens=255"], ["evaluation.sample_tokens=300"]):
        load("")
        load_recipe(tmp_path / "r.toml", [*learned, *more])


def test_a_row_of_the_table_names_keys_that_there_are():
    sections = {("tokenizer",): Tokenizer, ("optimizer",): Optimizer, ("model",): Model, ("model", "experts"): Experts}
    sections[("interventions", "spikes")] = SpikePolicy
    for row in TABLE:
        assert {row.key, row.other} <= set(sections[row.section].model_fields), row


def test_parameters_are_counted_only_where_a_number_is_claimed(load, monkeypatch):
    monkeypatch.setattr("headway.recipe.model_checks.passed_parameters", lambda model: 1 / 0)
    load("")
    with pytest.raises(ZeroDivisionError):
        load('nominal_parameters = "280k"')


@pytest.mark.parametrize("position", ["learned", "none"])
def test_only_rope_needs_even_heads(load, position):
    table = "\npositions = 256" if position == "learned" else ""
    assert model_of(load(f'head_width = 15\nposition = "{position}"{table}')).head_width == 15


# --- data that is only declared


def test_an_inventory_is_the_size_of_a_source_in_a_draft(load):
    spec = resolve(load(source='inventory = "2M"'), None)
    assert [source.tokens for source in spec.sources] == [2_000_000, 0]


def test_tokens_above_data_times_caps(refused):
    """Stage main takes 60,000 of its 80,000 tokens from a, stage long all of its 20,000."""
    (found,) = refused(source='inventory = "25k"\ncap_epochs = 2')
    assert "tokens above data x caps: the stages take 80k of source 'a', which has 25k: 3.2 passes" in found
    assert "cap_epochs allows 2 passes, 50k tokens" in found
    assert "0.625 of its weight would fit" in found
    assert "raise cap_epochs to 3.2" in found


@pytest.mark.parametrize("source", ['inventory = "20k"\ncap_epochs = 4', 'inventory = "25k"', "cap_epochs = 1"])
def test_data_that_suffices_or_is_not_known_to_fall_short(load, source):
    """80,000 tokens are exactly four passes over 20,000."""
    load(source=source)


# --- parameters by role


def test_new_parameters_have_names_and_roles(load):
    shapes = {shape.name: shape for shape in parameter_shapes(model_of(load(EVERYTHING)))}
    assert shapes["layers.3.experts.down.weight"].shape == (8, 64, 32)
    assert shapes["layers.3.router.weight"].shape == (8, 64)
    assert shapes["layers.3.router.weight"].role is Role.ROUTER
    assert shapes["layers.3.router.bias"].role is Role.BALANCE
    assert shapes["layers.3.shared.up.weight"].shape == (32, 64)
    assert "layers.3.experts.gate.weight" not in shapes  # gelu
    assert "layers.0.experts.up.weight" not in shapes
    assert "layers.0.ffn.up.weight" in shapes
    assert shapes["layers.0.attention.kv.weight"].shape == (4 * (8 + 6), 16)
    assert shapes["mtp.0.project.weight"].shape == (64, 128)
    assert shapes["embed_norm.bias"].role is Role.BIAS
    assert "layers.0.attention.q.bias" not in shapes


def test_a_router_has_one_bias_at_most(load):
    """With ``bias = "all"`` a trained one, unless it is the balancing one."""
    every = 'bias = "all"\n' + EXPERTS
    for text, role in ((every, Role.BIAS), (f"{every}\nrouter_bias = true", Role.BALANCE), (EXPERTS, None)):
        found = [shape.role for shape in parameter_shapes(model_of(load(text))) if shape.name == "layers.0.router.bias"]
        assert found == ([role] if role else [])


def test_biases_begin_at_zero_and_do_not_decay(load):
    model = model_of(load(""))
    for role, std in ((Role.BIAS, 0.0), (Role.BALANCE, 0.0), (Role.GAIN, None)):
        assert init_std(ParameterShape("layers.0.x", (64,), role), model) == std
        assert not decays(role)


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_the_engine_builds_what_a_recipe_can_describe(compute):
    refuse_untrainable(PrecisionSpec(compute, {"router": "float32", "head": compute}))


def test_every_block_has_its_norms():
    assert set(NORMS) == set(get_args(Model.model_fields["block"].annotation))


@pytest.mark.parametrize("block", NORMS)
def test_the_table_of_norms_is_what_blocks_are_built_of(load, block: str):
    spec = dataclasses.replace(model_of(load("")), block=block)
    gains = [shape for shape in block_shapes(spec, "", False) if shape.role is Role.GAIN and shape.shape == (spec.width,)]
    read, products = norms_of_block(spec)
    assert len(gains) == count_norms(spec)
    assert products == (1 if block == "parallel" else 2), "attention and feed-forward, from one norm or each from its own"
    assert read == count_norms(spec) - (block == "parallel-two-norms"), "two norms read one value"
