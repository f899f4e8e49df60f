"""One told run is enough for most tests; it is read, never changed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from synthetic_run import tell

from headway.report.facts import RunFacts, gather
from headway.report.material import Material
from headway.report.report import ReportPaths, write_report
from headway.rundir.layout import RunDirectory


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Durability is tested elsewhere; here it only costs time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def killed_run(no_fsync: None, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Killed after step 57, restored from 40, run to its end at 120."""
    return tell(tmp_path_factory.mktemp("runs") / "killed")


@pytest.fixture(scope="session")
def facts(killed_run: RunDirectory) -> RunFacts:
    return gather(killed_run)


@pytest.fixture(scope="session")
def material(facts: RunFacts) -> Material:
    return Material.of(facts)


@pytest.fixture(scope="session")
def written(killed_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    return write_report(killed_run, tmp_path_factory.mktemp("out"))
