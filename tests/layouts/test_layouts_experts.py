"""Experts under layouts."""
from __future__ import annotations

import pytest
from layout_cases import described, failures
from headway.train.prove.rank import Work

LAYOUTS = {
    "mesh of 1": {},
    "fsdp2": {"dp_shard": 2},
    "fsdp3": {"dp_shard": 3},
    "hsdp2x2": {"dp_replicate": 2, "dp_shard": 2},
    "tp2": {"tp": 2},
    "fsdp2 x tp2": {"dp_shard": 2, "tp": 2},
    "ep2": {"dp_shard": 2, "ep": 2},
    "ep4": {"dp_shard": 4, "ep": 4},
    "ep2 x fsdp2": {"dp_shard": 4, "ep": 2},
    "ep2 x hsdp2": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "ep2 x tp2": {"dp_shard": 2, "tp": 2, "ep": 2},
    "ep2 x fsdp2 x hsdp2": {"dp_replicate": 2, "dp_shard": 4, "ep": 2},
 "ep2 x fsdp2 x tp2": {"dp_shard": 4, "ep": 2, "tp": 2},
}

@pytest.mark.parametrize("preset", ["mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("axes", LAYOUTS.values(), ids=LAYOUTS)
def test_presets(prove, preset, axes):
    work = Work(described(preset), micro_sequences=3, steps=8)
    found = prove(work, **axes)
    print({k: (f.difference, f.where) for k, f in found.items()})
    assert failures(found) == []
