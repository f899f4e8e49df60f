"""Pipelines give the run of one process, in every order of micro-batches."""

from __future__ import annotations

import pytest
from layout_cases import described, failures

from headway.train.prove.rank import Work

PP2 = {"pp": 2}
LAYOUTS = {
    "gpipe": {"pp": 2, "pipeline": "gpipe"},
    "1f1b": {"pp": 2, "pipeline": "1f1b"},
    "interleaved": {"pp": 2, "pipeline": "interleaved", "virtual": 2},
    "zero-bubble": {"pp": 2, "pipeline": "zero-bubble"},
}


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_dense(prove, axes):
    work = Work(described("proxy"), micro_sequences=3, steps=3)
    assert failures(prove(work, **axes)) == []
