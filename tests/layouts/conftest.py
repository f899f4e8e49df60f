"""One pool of processes for all layouts of a test session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from layout_cases import reference

from headway.parallel.mesh import Axes
from headway.parallel.pool import Pool
from headway.train.prove.compare import Finding, compare
from headway.train.prove.rank import Work, measure_rank

POOL_RANKS = 8


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool(POOL_RANKS) as made:
        yield made


@pytest.fixture
def prove(pool):
    """``prove(work, **axes)`` -> what differs from one process, by kind."""

    def proven(work: Work, *, wider: float = 1.0, **axes: int | str) -> dict[str, Finding]:
        layout = Axes(**axes)
        measured = pool.run(measure_rank, layout.world, work, layout)[0]
        return {finding.what: finding for finding in compare(measured, reference(work), wider=wider)}

    return proven
