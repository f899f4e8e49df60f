"""Fixtures of the end-to-end tests: the data is built once, the undisturbed run is trained once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conftest_e2e import RECIPE, Bench, Trace, trace, write_sources

from headway.data.build import build_data
from headway.recipe.load import load_recipe


@pytest.fixture(scope="session")
def bench(tmp_path_factory) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    write_sources(root)
    text = RECIPE.format(numbers=root / "numbers", words=root / "words", main_tokens="8192")
    path = root / "small.toml"
    path.write_text(text)
    build_data(load_recipe(path, []).recipe, root / "data")
    return Bench(root, root / "data", text)


@pytest.fixture(scope="session")
def uninterrupted(bench, tmp_path_factory) -> Trace:
    """The run that nothing disturbed."""
    run = bench.run(tmp_path_factory.mktemp("reference") / "run")
    outcome = bench.go(run)
    assert outcome.state == "complete", outcome
    return trace(run)
