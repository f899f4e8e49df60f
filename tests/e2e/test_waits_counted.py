"""Under every kind of layout the time that a rank waits for another is told apart from its work."""

from __future__ import annotations

from statistics import median

import pytest

from headway.rundir.heartbeats import BeatReader, beat_file

pytestmark = pytest.mark.e2e

LAYOUTS = [{"dp_shard": 2}, {"dp_replicate": 2}, {"tp": 2}, {"cp": 2}, {"pp": 2}]


@pytest.mark.parametrize("axes", LAYOUTS, ids=lambda axes: next(iter(axes)))
def test_the_fast_rank_waits_and_the_slow_one_works(bench, tmp_path, axes):
    """Rank 1 takes three times as long for its passes from step 4 on."""
    fault = {"point": "step.begin", "action": "slow", "step": 4, "rank": 1, "share": 2.0}
    run = bench.run(tmp_path / "run", faults=[fault], overrides=("precision.compute=float32",), layouts={"default": axes})
    assert bench.go(run).state == "complete"
    work, wait = {}, {}
    for rank in range(2):
        rows = [row for row in BeatReader(beat_file(run, 1, rank), rank).poll() if row["step"] > 5 and not row["first"]]
        assert len(rows) > 15, "each step is told"
        assert all(row["rss"] > 10**7 and row["peak"] >= row["rss"] // 2 for row in rows)
        work[rank], wait[rank] = (median(row[name] for row in rows) for name in ("work_ns", "wait_ns"))
    assert work[1] > 1.4 * work[0], (work, wait)
    assert wait[0] > wait[1], (work, wait)
