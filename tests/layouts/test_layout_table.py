"""The layout table: every layout gives the run of one process. Differences and tolerances: ``train/prove/compare.py``."""

from __future__ import annotations

import pytest
from layout_cases import described, failures

from headway.train.prove.rank import Work

LAYOUTS = {
    "mesh of 1": {},
    "fsdp2": {"dp_shard": 2},
    "fsdp3, which does not divide the batch of 8": {"dp_shard": 3},
    "fsdp4": {"dp_shard": 4},
    "hsdp2x2": {"dp_replicate": 2, "dp_shard": 2},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
}
HEADS = ("model.kv_heads=4",)


@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_dense(prove, axes):
    work = Work(described("proxy", HEADS), micro_sequences=3)
    assert failures(prove(work, **axes)) == []
