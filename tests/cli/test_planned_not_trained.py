"""Recipes that can be planned and not run: every verb that would train refuses them by name, the plan does not.

Which architectures are described makes no difference; products in float8 need torchao.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.base.errors import EXIT_FINDINGS, ConfigError, EnvironmentFault
from headway.cli.describe import describe, spec_of
from headway.cli.main import run_guarded
from headway.recipe import trainable
from headway.recipe.spec import PrecisionSpec

RECIPE = """\
kind = "recipe"
name = "planned"
[tokenizer]
vocabulary = 512
[model]
layers = 2
width = 64
heads = 4
window = 64
mtp_layers = 1
[data]
[[data.sources]]
name = "web"
kind = "undisclosed"
[[data.sources]]
name = "books"
kind = "undisclosed"
[[stages]]
name = "main"
tokens = "80k"
sequence = 128
batch = "1k"
mixture = { web = 3, books = 1 }
[optimizer]
peak_rate = 1e-3
[precision]
compute = "float8"
modules = { "layers.0" = "bfloat16", attention = "float8" }
[evaluation]
every = "20k"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "planned.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def without_torchao(monkeypatch):
    monkeypatch.setattr(trainable, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_torchao")
def test_a_verb_that_trains_names_each_key_and_its_line(recipe):
    with pytest.raises(EnvironmentFault) as caught:
        describe(recipe, None, None)
    absent = "= 'float8' needs torchao, which is not installed in this environment"
    assert [(p.where.rpartition(":")[2], p.seen) for p in caught.value.problems] == [
        ("27", f"precision.compute {absent}"),
        ("28", f"precision.modules.attention {absent}"),
    ]
    assert all("headway plan" in p.rule and "[float8]" in p.way_out for p in caught.value.problems)


@pytest.mark.usefixtures("without_torchao")
def test_the_command_line_refuses_it_before_anything_is_written(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_guarded(["run", recipe, "--set", 'precision.modules={"attention" = "bfloat16"}']) == 3
    assert "precision.compute = 'float8' needs torchao" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [Path(recipe)]


@pytest.mark.usefixtures("without_torchao")
def test_other_precisions_need_no_torchao():
    trainable.refuse_untrainable(PrecisionSpec("bfloat16", {"layers.0": "float32"}))


def test_with_torchao_it_is_admitted(recipe, monkeypatch):
    monkeypatch.setattr(trainable, "find_spec", lambda name: object())
    assert describe(recipe, None, None).recipe.precision.compute == "float8"


@pytest.mark.usefixtures("without_torchao")
def test_the_plan_admits_it(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec = spec_of(describe(recipe, None, None, runnable=False), None)
    assert (spec.model.mtp_layers, spec.precision.compute) == (1, "float8")
    assert run_guarded(["plan", recipe, "--json"]) == EXIT_FINDINGS  # of a run so short
    assert json.loads(capsys.readouterr().out)["name"] == "planned"


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        (PrecisionSpec("float8"), r"layers\.0\.ffn\.gate\.weight and .* more like it: .* cannot multiply in float8"),
        (PrecisionSpec("bfloat16", {"head": "float8"}), r"nothing in 'head' multiplies in float8"),
        (PrecisionSpec("bfloat16", {"nosuch": "float32"}), "names 'nosuch', and no parameter"),
    ],
)
def test_a_model_that_does_not_suit_is_refused_without_the_engine(recipe, precision, said):
    model = spec_of(describe(recipe, None, None, runnable=False), None).model
    with pytest.raises(ConfigError, match=said):
        trainable.refuse_untrainable(precision, model=replace(model, ffn_width=72))


def test_a_precision_that_nothing_here_has_is_refused():
    with pytest.raises(ConfigError, match="cannot be trained by this version") as caught:
        trainable.refuse_untrainable(PrecisionSpec("float16"))
    assert "headway plan" in caught.value.problems[0].way_out


def test_undisclosed_text_is_not_built(recipe, tmp_path):
    from headway.cli.data import build

    with pytest.raises(ConfigError, match="cannot be read: web, books") as caught:
        build(recipe, out=tmp_path / "data")
    assert "headway plan" in caught.value.problems[0].way_out
    assert not (tmp_path / "data").exists()


def test_the_engine_refuses_too(recipe, without_torchao):
    pytest.importorskip("torch")
    from headway.train.trainee import build_trainee

    with pytest.raises(EnvironmentFault, match=r"precision\.compute = 'float8' needs torchao"):
        build_trainee(spec_of(describe(recipe, None, None, runnable=False), None))


def test_every_architecture_is_built(recipe):
    """Windows and heads for further tokens once were planned only."""
    pytest.importorskip("torch")
    from headway.train.trainee import build_trainee

    spec = spec_of(describe(recipe, ['precision.compute="bfloat16"', "precision.modules={}"], None), None)
    assert len(build_trainee(spec).compute.decoder.mtp) == 1
