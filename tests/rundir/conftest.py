"""A run directory per test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import tiny_run

from headway.rundir.layout import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return tiny_run(tmp_path / "run")
