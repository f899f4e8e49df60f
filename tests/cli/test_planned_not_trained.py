"""Recipes that can be planned and not run: every verb that would train refuses them by name, the plan does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.base.errors import ConfigError
from headway.cli.describe import describe

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
[evaluation]
every = "20k"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "planned.toml"
    path.write_text(RECIPE)
    return str(path)


def test_a_verb_that_trains_names_each_option_and_its_line(recipe):
    with pytest.raises(ConfigError) as caught:
        describe(recipe, None, None)
    assert [(p.where.rpartition(":")[2], p.seen) for p in caught.value.problems] == [
        ("9", "model.window = 64 cannot be trained by this version"),
        ("10", "model.mtp_layers = 1 cannot be trained by this version"),
    ]
    assert all("headway plan" in problem.way_out for problem in caught.value.problems)


def test_the_plan_admits_it(recipe):
    from headway.cli.describe import spec_of

    assert spec_of(describe(recipe, None, None, runnable=False), None).model.mtp_layers == 1


def test_undisclosed_text_is_not_built(recipe, tmp_path):
    from headway.cli.data import build

    with pytest.raises(ConfigError, match="cannot be read: web, books") as caught:
        build(recipe, out=tmp_path / "data")
    assert "headway plan" in caught.value.problems[0].way_out
    assert not (tmp_path / "data").exists()


def test_the_engine_refuses_too(recipe):
    pytest.importorskip("torch")
    from headway.cli.describe import spec_of
    from headway.train.setup import build_trainee

    with pytest.raises(ConfigError, match=r"model\.window = 64 cannot be trained"):
        build_trainee(spec_of(describe(recipe, None, None, runnable=False), None))
