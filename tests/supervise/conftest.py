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


@pytest.fixture
def file_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's checkpoints are one file each."""
    from bench import choose_file

    monkeypatch.setattr("headway.supervise.supervisor.choose", choose_file)
