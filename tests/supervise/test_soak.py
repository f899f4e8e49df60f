"""A short soak: faults of every kind against the real supervisor and its agents. The long one is ``bench/soak.py``."""

from __future__ import annotations

import pytest

from soak import soak

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_nothing_is_lost_under_fault_after_fault(tmp_path):
    found = soak(tmp_path / "soak", faults=12, scale=4000.0, seed=3)
    assert sum(found["faults"].values()) == 12
    assert found["segments"] > 6
    assert sum(found["share_of_time"].values()) == pytest.approx(1.0, abs=1e-3)
