"""A run directory per test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rundir"))

from tiny_run import tiny_run

from headway.rundir.layout import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return tiny_run(tmp_path / "run")
