"""What tests of layouts share."""

from __future__ import annotations

import pytest
from layout_cases import reference

from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.train.prove.compare import Finding, compare
from headway.train.prove.rank import Work, measure_rank


@pytest.fixture
def prove():
    """``prove(work, **axes)`` -> what differs from one process, by kind."""

    def proven(work: Work, *, wider: float = 1.0, **axes: int | str) -> dict[str, Finding]:
        layout = Axes(**axes)
        measured = on_ranks(measure_rank, layout.world, work, layout)[0]
        return {finding.what: finding for finding in compare(measured, reference(work), wider=wider)}

    return proven
