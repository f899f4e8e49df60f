"""The short core of the layout table, for every run of the tests: one layout of each axis. The table stands beside it."""

from __future__ import annotations

import pytest
from layout_cases import described, failures

from headway.train.prove.rank import Work

DENSE = {
    "uneven replicas": {"dp_replicate": 5},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
    "cp2": {"cp": 2},
    "pp2, interleaved": {"pp": 2, "pipeline": "interleaved", "virtual": 2},
}


@pytest.mark.parametrize("axes", DENSE.values(), ids=DENSE)
def test_P2_a_layout_is_one_process(prove, axes):
    assert failures(prove(Work(described("proxy", ("model.kv_heads=4",)), 3, 3), **axes)) == []


def test_P5_experts_on_ranks_of_their_own(prove):
    assert failures(prove(Work(described("deepseek-v3"), 3, 3), dp_shard=2, ep=2)) == []
